"""Classifies failures by Spark's own fields: Java classes, error conditions, SQLSTATEs, gRPC codes.

The text of an exception quotes records and the author's exceptions, so it decides nothing. A classic session
has the exceptions of the JVM themselves; a Spark Connect client has the condition of the outermost one, and
its message. Only the beginning of a message is read, which Spark composes.
Conditions: https://spark.apache.org/docs/latest/sql-error-conditions.html
"""

from __future__ import annotations

import errno
import functools
import gettext
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

PYTHON_EXCEPTION = "org.apache.spark.api.python.PythonException"
SPARK_EXCEPTION = "org.apache.spark.SparkException"
_MOST_CAUSES = 20

_CLIENTS = ("pyspark.", "py4j.")
_CAPTURED = "pyspark.errors.exceptions.captured"
_CONNECT = ("pyspark.errors.exceptions.connect", "pyspark.errors.exceptions.base", "pyspark.sql.connect.")

_LOST_CLASSES = frozenset(
    {
        "java.lang.OutOfMemoryError",
        "org.apache.spark.memory.SparkOutOfMemoryError",
        "org.apache.spark.shuffle.FetchFailedException",
        "org.apache.spark.shuffle.MetadataFetchFailedException",
        "org.apache.spark.TaskKilledException",
        # Since 4.1 a worker that sent nothing for idleTimeoutSeconds may be killed.
        "org.apache.spark.api.python.PythonWorkerException",
        # The JVM lacks a class or a library, or has another version of it, whatever the record.
        "java.lang.AbstractMethodError",
        "java.lang.ExceptionInInitializerError",
        "java.lang.IllegalAccessError",
        "java.lang.IncompatibleClassChangeError",
        "java.lang.LinkageError",
        "java.lang.NoClassDefFoundError",
        "java.lang.NoSuchFieldError",
        "java.lang.NoSuchMethodError",
        "java.lang.UnsatisfiedLinkError",
        "java.lang.UnsupportedClassVersionError",
        "java.lang.VerifyError",
    }
)
# Since 4.1 Spark reads from a Python worker through a channel, which the end of another task may close.
_CHANNELS = "java.nio.channels."
_LOST_CONDITIONS = frozenset(
    {
        "INTERNAL_ERROR_BROADCAST",
        "INTERNAL_ERROR_EXECUTOR",
        "INTERNAL_ERROR_MEMORY",
        "INTERNAL_ERROR_NETWORK",
        "INTERNAL_ERROR_SHUFFLE",
        "INTERNAL_ERROR_STORAGE",
        "OPERATION_ABANDONED",
        "OPERATION_CANCELED",
        "SPARK_JOB_CANCELLED",
        # SQLSTATEs 53200 and 82001 to 82003
        "AGGREGATE_OUT_OF_MEMORY",
        "POINTER_ARRAY_OUT_OF_MEMORY",
        "SPILL_OUT_OF_MEMORY",
        "UNABLE_TO_ACQUIRE_MEMORY",
    }
)
_LOST_WORKER = ("Python worker exited unexpectedly", "Python worker failed to connect back")
_SHUT_DOWN = re.compile(r"Job \d+ cancelled because SparkContext was shut down")
_RAN_OUT = (
    "No space left on device",
    "Disk quota exceeded",
    "Too many open files",
    "Too many open files in system",
)
_IS_RAN_OUT = r"java\.io\.IOException: {}"
# Where Java's file classes put the operating system's text
_MACHINE_RAN_OUT = {
    # A program that could not start, in the words of Java 17 and of Java 25
    # Also what Spark wraps when an executor cannot fetch a broadcast variable
    "java.io.IOException": r'(?:Cannot run program ".*error(?:=\d+, |: \d+ \())?{}(?:\) ?)?'
    r"|org\.apache\.spark\.SparkException: \[INTERNAL_ERROR_BROADCAST\] .*",
    "java.io.FileNotFoundException": r"/.* \({}\)",
    "java.nio.file.FileSystemException": r"/.*: {}",
    "com.esotericsoftware.kryo.KryoException": _IS_RAN_OUT,
    "org.apache.hadoop.fs.FSError": _IS_RAN_OUT,
}
_CATALOGS = "/usr/share/locale"
_DRIVER_RAN_OUT = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})
_BLOCK_CONDITIONS = frozenset(
    {"CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND", "CONNECT_INVALID_PLAN.DATAFRAME_NOT_FOUND", "DATAFRAME_NOT_FOUND"}
)
_GONE_CONDITIONS = frozenset(
    {"NO_ACTIVE_SESSION", "RESPONSE_ALREADY_RECEIVED", "RETRIES_EXCEEDED", "SESSION_NOT_SAME"}
)
_GONE_SESSION = "INVALID_HANDLE.SESSION_"

_CLASS = re.compile(r"[A-Za-z_$][\w$]*(?:\.[A-Za-z_$][\w$]*)+")
# (class) in front of the message of an exception that Spark Connect's client has no class for
_UNKNOWN = re.compile(rf"\((?P<java>{_CLASS.pattern})\) ")
_STAGE = "Job aborted due to stage failure: "
# A task that failed too often, on every executor (spark.excludeOnFailure), or in a barrier stage
_TASK = re.compile(
    r"\s*(?:Task \d+ in stage [\d.]+ failed \d+ times?, most recent failure: "
    r"|Aborting TaskSet [\d.]+ because task \d+ \(partition \d+\)\s+cannot run anywhere due to node and "
    r"executor excludeOnFailure\.\s+Most recent failure:\s+"
    r"|(?:Could not recover from a failed barrier ResultStage|\w+ \d+ \(.*\) has \w+ the maximum "
    r"allowable [a-z ]+: \d+)\. Most recent failure reason:\s+Stage failed because barrier task "
    r"\w+\(\d+, \d+\) finished unsuccessfully\.\s+)"
    r"(?:Lost task [\d.]+ in stage [\d.]+ \(TID \d+\) \([^()\s]+ executor [^()\s]+\): )?"
)
_THROWN = re.compile(rf"(?P<java>{_CLASS.pattern})(?:: |\n|$)")
TRACEBACK = "Traceback (most recent call last):\n"
# Spark's words before the text that a Python worker sent
_OF_WORKER = re.compile(
    r"\s*(?:\[PYTHON_EXCEPTION\]\s*"
    r"|An exception was thrown from the Python worker(?::|\. Please see the stack trace below\.)\s*)+"
)
_RAISED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*(?=:|$)")
_CONDITION = re.compile(r"\[(?P<name>[A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\]")
# Values that an author's function uses cannot be sent to tasks, or its results cannot be sent back.
_SERIALIZATION = "Task serialization failed: "
_NOT_SERIALIZABLE = re.compile(
    rf"{_SERIALIZATION}|Task not serializable"
    r"|Task [\d.]+ in stage [\d.]+ \(TID \d+\) had a not serializable result"
)


@dataclass(frozen=True, slots=True)
class JavaError:
    """An exception of the JVM.

    :param java: its class; empty if unknown.
    :param condition: Spark's error condition, if the exception has one.
    :param message: begins with Spark's own words; the rest may quote anybody.
    """

    java: str
    condition: str | None
    message: str

    @property
    def is_infrastructure(self) -> bool:
        """Whether executors, workers, memory, disks, open files or jars failed, or the job was cancelled."""
        if self.condition is not None:
            return self.condition in _LOST_CONDITIONS
        if self.java in _LOST_CLASSES or self.java.startswith(_CHANNELS):
            return True
        ran_out = _MACHINE_RAN_OUT.get(self.java)
        if ran_out is not None:
            return re.fullmatch(ran_out.format(_ran_out()), self.message.partition("\n")[0]) is not None
        if self.java != SPARK_EXCEPTION:
            return False
        if self.message.startswith(_LOST_WORKER):
            return True
        reason = self.why_given_up
        return reason is not None and _THROWN.match(reason) is None and not _NOT_SERIALIZABLE.match(reason)

    @property
    def why_given_up(self) -> str | None:
        """The reason of a stage failure, after Spark's words about the task; None for other exceptions."""
        if self.java != SPARK_EXCEPTION or not self.message.startswith(_STAGE):
            return None
        reason = self.message.removeprefix(_STAGE)
        task = _TASK.match(reason)
        return reason if task is None else reason[task.end() :]

    def thrown_in_task(self) -> JavaError | None:
        """Return the exception of the task, or of its serialization, in a stage failure; None without one."""
        reason = (self.why_given_up or "").removeprefix(_SERIALIZATION)
        thrown = _THROWN.match(reason)
        if thrown is None:
            return None
        message = reason[thrown.end() :]
        condition = _CONDITION.match(message) if thrown["java"].startswith("org.apache.spark.") else None
        return JavaError(thrown["java"], condition and condition["name"], message)


@functools.cache
def _ran_out() -> str:
    """Return a pattern of the operating system's texts, in English and in the language of this host."""
    translated = gettext.translation("libc", _CATALOGS, fallback=True).gettext
    texts = {text for english in _RAN_OUT for text in (english, translated(english))}
    return f"(?:{'|'.join(map(re.escape, sorted(texts)))})"


def module_of(error: BaseException) -> str:
    """Return the module of an exception's class."""
    return str(type(error).__module__)


def java_errors(error: BaseException) -> Sequence[JavaError]:
    """Return the JVM's exceptions that a Python exception represents, the outermost first."""
    if not module_of(error).startswith(_CLIENTS):
        return ()
    origin = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    chain = list(_of_jvm(origin)) if origin is not None else _of_client(error)
    if chain and (thrown := chain[-1].thrown_in_task()) is not None:
        chain.append(thrown)
    return chain


def is_infrastructure(error: BaseException) -> bool:
    """Return whether Spark failed, independent of the function that it ran."""
    if type(error).__name__ == "Py4JNetworkError" and module_of(error).startswith("py4j."):
        return True  # the JVM is gone
    if isinstance(error, OSError) and error.errno in _DRIVER_RAN_OUT:
        return True  # of this process: what a task raises has another class
    if isinstance(error, ConnectionError) and _is_raised_by(error, "py4j."):
        return True  # the JVM was gone before this call
    chain = java_errors(error)
    if not chain and type(error).__name__ == "Py4JJavaError" and module_of(error).startswith("py4j."):
        return True  # the JVM has ended since it threw this
    if chain and _SHUT_DOWN.match(chain[0].message):
        return True
    for thrown in chain:
        if thrown.java == PYTHON_EXCEPTION:
            return False
        if thrown.is_infrastructure:
            return True
    return bool(chain) and not module_of(error).startswith(_CONNECT) and _is_application_ended()


def _is_application_ended() -> bool:
    """Return whether the cluster or an administrator ended the classic session of this process."""
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context  # noqa: SLF001
    try:
        return context is not None and bool(context._jsc.sc().isStopped())  # noqa: SLF001
    except Exception:  # noqa: BLE001 - the JVM is gone
        return True


def _is_raised_by(error: BaseException, package: str) -> bool:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith(package)


def is_block_lost(error: BaseException) -> bool:
    """Return whether materialised blocks are lost."""
    # Spark 4.0 and 4.1 have no condition for a DataFrame that the server has forgotten.
    refused_plan = module_of(error).startswith(_CONNECT) and type(error).__name__ == "InvalidPlanInput"
    if refused_plan and str(error).startswith("No DataFrame with id "):
        return True
    return any(thrown.condition in _BLOCK_CONDITIONS for thrown in java_errors(error))


def is_server_gone(error: BaseException) -> bool:
    """Return whether Spark Connect's client has lost its server or its session."""
    if not module_of(error).startswith(_CONNECT):
        return module_of(error).startswith("grpc.") and _grpc_code(error) == "UNAVAILABLE"
    condition = _answer_of(error, "getCondition")
    if condition is not None:
        return condition in _GONE_CONDITIONS or condition.startswith(_GONE_SESSION)
    return _grpc_code(error) == "UNAVAILABLE"


def is_of_jvm(error: BaseException) -> bool:
    """Return whether the JVM has thrown an exception that no Python worker has sent."""
    chain = java_errors(error)
    return bool(chain) and all(thrown.java != PYTHON_EXCEPTION for thrown in chain)


def python_class(error: BaseException) -> str | None:
    """Return the class name of the exception that a Python worker raised; None if unknown.

    A traceback is text. Its lines are indented up to the first exception's, whose class is the first word of
    that line; the rest may be the author's. A traceback that may contain several exceptions proves nothing.
    Without one (``spark.sql.execution.pyspark.udf.hideTraceback.enabled``) there is one exception only.
    """
    for thrown in java_errors(error):
        if thrown.java == PYTHON_EXCEPTION:
            text = sent_by_worker(thrown.message)
            rest = text.removeprefix(TRACEBACK)
            line = next((line for line in rest.split("\n") if not line.startswith(" ")), "")
            name = _RAISED.match(line)
            return None if name is None or (rest != text and TRACEBACK in rest) else name[0]
    return None


def sent_by_worker(message: str) -> str:
    """Return the part of a message that a Python worker sent: a traceback, or only its last lines."""
    words = _OF_WORKER.match(message)
    if words is None:  # of another version
        return "".join(message.partition(TRACEBACK)[1:])
    return message[words.end() :]


def _of_jvm(origin: Any) -> Iterator[JavaError]:
    try:
        for _ in range(_MOST_CAUSES):
            if origin is None:
                return
            yield JavaError(
                str(origin.getClass().getName()),
                _answer_of(origin, "getCondition"),
                str(origin.getMessage() or ""),
            )
            origin = origin.getCause()
    except Exception:  # noqa: BLE001 - the JVM is gone
        return


def _of_client(error: BaseException) -> list[JavaError]:
    text = str(error)
    # PySpark 4.0 and 4.1 raise it without the exception of the JVM in a classic session, too.
    if type(error).__name__ == "PythonException" and module_of(error).startswith((_CAPTURED, *_CONNECT)):
        return [JavaError(PYTHON_EXCEPTION, None, text)]
    if not module_of(error).startswith(_CONNECT):
        return []
    condition = _answer_of(error, "getCondition")
    unknown = _UNKNOWN.match(text)
    if unknown is not None:
        return [JavaError(unknown["java"], condition, text[unknown.end() :])]
    plain = type(error).__name__ in ("SparkException", "SparkConnectGrpcException")
    return [JavaError(SPARK_EXCEPTION if plain else "", condition, text)]


def _answer_of(thing: Any, name: str) -> str | None:
    try:
        answer = getattr(thing, name)()
    except Exception:  # noqa: BLE001 - py4j raises for a missing method, too
        return None
    return None if answer is None else str(answer)


def _grpc_code(error: BaseException) -> str | None:
    """Return the name of the gRPC code; before Spark 4.1 only the error of gRPC has it."""
    for holder, name in ((error, "getGrpcStatusCode"), (error, "code"), (error.__context__, "code")):
        code = _answer_of(holder, name)
        if code is not None:
            return code.rpartition(".")[2]  # of StatusCode.UNAVAILABLE
    return None
