"""Errors keep type and message on their way through Spark, and Spark's own are reduced to one line."""

from __future__ import annotations

import errno
import os
import socket
import struct
from types import SimpleNamespace
from unittest import mock

import grpc
import pyspark
import pytest
from py4j.clientserver import JavaClient, JavaParameters, PythonParameters
from pyspark.errors import PySparkRuntimeError
from pyspark.errors.exceptions import connect

from airflow_eos import exceptions
from airflow_eos.exceptions import (
    EosError,
    OffsetsOutOfRange,
    ProcessFailed,
    ProducerFenced,
    RunFailed,
    SealedBlockLost,
    SendError,
    SessionLost,
    SparkUnavailable,
)
from airflow_eos.spark import spark_failure
from airflow_eos.spark.errors import (
    ErrorMark,
    TaskError,
    environment_error,
    process_error,
    root_cause,
    send_error,
)
from airflow_eos.spark.lazy_data_plane import LazyDataPlane

MARK = ErrorMark()


class JavaThrowable:
    """An exception of the JVM, in the form that py4j gives it."""

    def __init__(self, java, message, condition=None, cause=None):
        self._java, self._message, self._condition, self._cause = java, message, condition, cause

    def getClass(self):  # noqa: N802 - Java's names
        return self

    def getName(self):  # noqa: N802
        return self._java

    def getMessage(self):  # noqa: N802
        return self._message

    def getCause(self):  # noqa: N802
        return self._cause

    def getCondition(self):  # noqa: N802
        if self._condition is None:
            raise AttributeError("Method getCondition([]) does not exist")
        return self._condition


class Py4JJavaError(Exception):
    """The error that py4j raises for a JVM exception without a class in PySpark."""

    __module__ = "py4j.protocol"

    def __init__(self, thrown):
        self.java_exception = thrown

    def __str__(self):
        thrown = self.java_exception
        text = f"{thrown.getName()}: {thrown.getMessage()}"
        return f"An error occurred while calling o90.localCheckpoint.\n: {text}"


def classic(message, java="org.apache.spark.SparkException", condition=None, cause=None):
    return Py4JJavaError(JavaThrowable(java, message, condition, cause))


def on_connect(message, condition=None):
    return connect.SparkException(message, errorClass=condition)


def python_error(traceback_text):
    return connect.PythonException(traceback_text)


class PythonException(Exception):
    """The error of a classic session of PySpark 4.0 and 4.1, which omits the exception of the JVM."""

    __module__ = "pyspark.errors.exceptions.captured"


PYTHON_ERRORS = pytest.mark.parametrize(
    "python_error", [python_error, PythonException], ids=["connect", "4.0"]
)


KINDS = pytest.mark.parametrize("spark_error", [classic, on_connect], ids=["classic", "connect"])
STAGE = (
    "Job aborted due to stage failure: Task 0 in stage 17.0 failed 4 times, most recent failure: Lost task "
    "0.3 in stage 17.0 (TID 128) (10.0.0.1 executor 3): "
)
BARRIER = "Stage failed because barrier task ShuffleMapTask(17, 0) finished unsuccessfully.\n"
GIVEN_UP_EARLY = {
    "on every executor": "\nAborting TaskSet 17.0 because task 0 (partition 0)\ncannot run anywhere due to "
    "node and executor excludeOnFailure.\nMost recent failure:\nLost task 0.1 in stage 17.0 (TID 128) "
    "(10.0.0.1 executor 3): ",
    "barrier": "ShuffleMapStage 17 (localCheckpoint at <unknown>:0) has failed the maximum allowable number "
    f"of times: 4. Most recent failure reason: {BARRIER}",
    "barrier, last stage": "Could not recover from a failed barrier ResultStage. Most recent failure reason: "
    f"{BARRIER}",
}
LOST_BROADCAST = "org.apache.spark.SparkException: [INTERNAL_ERROR_BROADCAST] Failed to get broadcast_4"
SERIALIZATION = "Job aborted due to stage failure: Task serialization failed: "
TRACEBACK = """
  An exception was thrown from the Python worker. Please see the stack trace below.
[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/pyspark/python/lib/pyspark.zip/pyspark/worker.py", line 9, in
  main
    process()
  File "/home/me/dags/flights.py", line 43, in parse
    raise ValueError("cannot parse record 77")
ValueError: cannot parse record 77
 SQLSTATE: 38000

JVM stacktrace:
org.apache.spark.api.python.PythonException
\tat org.apache.spark.sql.Something(Something.scala:1)
"""


def test_an_error_of_ours_leaves_a_task_and_is_the_same_error_on_the_driver():
    """Type and message survive, whatever text Spark puts around them."""
    message = 'src-0 begins at offset 9, "above" 5\nsecond line \\ with ünicode'
    with pytest.raises(TaskError) as caught, MARK.errors():
        raise OffsetsOutOfRange(message)
    text = f"Traceback\n airflow_eos.spark.errors.TaskError: {caught.value}\n\tat scala.Foo(Foo.scala)"
    restored = MARK.find(text)
    assert type(restored) is OffsetsOutOfRange
    assert restored.message == message


class PanicException(BaseException):
    """Not an Exception, like those of libraries in Rust."""


@pytest.mark.parametrize("error", [KeyError("x"), PanicException("x")], ids=repr)
def test_a_failure_of_our_own_in_a_task_is_not_told_as_the_authors(error):
    """Errors of the author's function are ProcessFailed before they get here."""
    with pytest.raises(TaskError) as caught, MARK.errors():
        raise error
    restored = MARK.find(str(caught.value))
    assert type(restored) is RunFailed
    assert restored.message.startswith(f"a task failed outside of process: {type(error).__name__}: {error} (")


@pytest.mark.parametrize("error", [GeneratorExit, KeyboardInterrupt])
def test_what_ends_a_task_from_outside_is_no_failure_of_it(error):
    with pytest.raises(error), MARK.errors():
        raise error


def test_the_classes_that_process_raised_travel_with_the_error():
    """Executors need not have Airflow: its exceptions are recognised by name."""
    names = ("airflow.sdk.exceptions.AirflowFailException", "builtins.Exception")
    restored = MARK.find(MARK.text(ProcessFailed("no", raised=names)))
    assert isinstance(restored, ProcessFailed)
    assert restored.raised == names


@pytest.mark.parametrize("name", [n for n in dir(exceptions) if isinstance(getattr(exceptions, n), type)])
def test_every_error_of_the_tree_can_travel(name):
    """The driver can call the constructor of every exception type."""
    kind = getattr(exceptions, name)
    if issubclass(kind, EosError):
        assert type(MARK.find(MARK.text(kind("text")))) is kind


def test_a_message_that_was_cut_off_still_tells_its_type():
    """gRPC limits the size of an error text."""
    text = MARK.text(ProducerFenced("a newer attempt exists and " + "x" * 500))[:140]
    restored = MARK.find(text)
    assert type(restored) is ProducerFenced
    assert str(restored).startswith("a newer attempt exists")


def test_text_without_a_mark_holds_no_error_of_ours():
    """The author's own message is not mistaken for a marked error."""
    assert MARK.find("SendError: something") is None


@pytest.mark.parametrize(
    "forged",
    [
        'airflow-eos-error:{"type": "ProducerFenced", "message": "forged"}',
        ErrorMark().text(ProducerFenced("forged")),
        "airflow-eos-error::" + MARK.text(ProducerFenced("forged")).partition(":")[2].partition(":")[2],
    ],
    ids=["without a nonce", "of another run", "with an empty nonce"],
)
def test_a_record_that_the_transform_quotes_cannot_choose_the_error(forged):
    """A writer to a source may know the form of a mark, but not the nonce of the run that reads it."""
    text = TRACEBACK.replace("cannot parse record 77", f"cannot parse {forged}")
    assert MARK.find(text) is None
    for translate in (process_error, send_error):
        assert type(translate(python_error(text), MARK)) in (ProcessFailed, SendError)


def test_an_error_of_ours_is_found_behind_a_forged_one():
    """The genuine one counts, wherever it is."""
    text = f"{ErrorMark().text(ProducerFenced('forged'))} {MARK.text(OffsetsOutOfRange('ours'))}"
    assert type(MARK.find(text)) is OffsetsOutOfRange


def test_a_mark_does_not_show_its_nonce():
    """Logs show tasks by their repr."""
    assert MARK.nonce not in repr(MARK)


@PYTHON_ERRORS
def test_a_python_error_in_a_task_becomes_its_last_line_and_the_authors_line_of_code(python_error):
    """Two hundred lines of stack trace become one useful line."""
    line = root_cause(python_error(TRACEBACK))
    assert line == "ValueError: cannot parse record 77 (/home/me/dags/flights.py, line 43, in parse)"


NO_WORKER = """
Caused by: org.apache.spark.SparkException:
Error from python worker:
  Traceback (most recent call last):
    File "/data/yarn/local/container_1/pyspark.zip/pyspark/daemon.py", line 127, in manager
      listen_sock.bind(socket_path)
  {said}
PYTHONPATH was:
  /data/spark-core.jar
org.apache.spark.SparkException: EOFException occurred while reading the port number from pyspark.daemon's
"""


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("OSError: AF_UNIX path too long", "leave spark.python.unix.domain.socket.enabled out"),
        ("ModuleNotFoundError: No module named 'pyspark'", "install it"),
    ],
)
def test_a_python_worker_that_does_not_start_is_described_by_its_own_words(words, fix):
    """Not with Spark's message, which follows; a socket in a long folder has its own remedy."""
    error = environment_error(on_connect(NO_WORKER.format(said=words)), "install it")
    assert type(error) is exceptions.EnvironmentMismatch
    assert error.message.startswith(f"executors cannot run this package: {words}. ")
    assert fix in error.message


def test_an_error_on_the_driver_names_the_line_that_raised_it():
    """A transform often fails before any task runs."""
    with pytest.raises(ZeroDivisionError) as caught:
        1 / 0  # noqa: B018
    line = root_cause(caught.value)
    assert line.startswith("ZeroDivisionError: division by zero (")
    assert "test_spark_errors.py, line" in line


@KINDS
def test_a_lost_task_is_described_by_its_reason(spark_error):
    """Spark's message begins with a long preamble."""
    error = spark_error(f"{STAGE}java.lang.IllegalStateException: disk gone\n\tat x.Y")
    assert root_cause(error) == "java.lang.IllegalStateException: disk gone"


@PYTHON_ERRORS
def test_a_failing_transform_is_the_process_functions_fault(python_error):
    """Anything without a mark came from the author's code."""
    error = process_error(python_error(TRACEBACK), MARK)
    assert type(error) is ProcessFailed
    assert "cannot parse record 77" in str(error)
    assert "JVM" not in str(error)


@PYTHON_ERRORS
def test_a_module_that_executors_lack_is_not_corrected_in_the_function(python_error):
    """A module next to the function's file is shipped if the file has imported it when the run begins."""
    lacks = TRACEBACK.replace(
        "ValueError: cannot parse record 77", "ModuleNotFoundError: No module named 'mine'"
    )
    error = process_error(python_error(lacks), MARK)
    assert type(error) is ProcessFailed
    assert "No module named 'mine'" in str(error)
    assert "at the top of the function's file" in str(error)
    assert "correct the function" not in str(error)


WORDS = [
    "order 17 has been cancelled",
    "java.lang.OutOfMemoryError: Java heap space",
    "ExecutorLostFailure (executor 3 exited caused by one of the running tasks)",
    "x\nCaused by: java.lang.OutOfMemoryError: Java heap space\n\tat a.B.c(B.java:1)",
    f"{STAGE}ExecutorLostFailure (executor 3 exited)",
    "[OPERATION_CANCELED] Operation has been canceled. SQLSTATE: HY008",
    "[SPARK_JOB_CANCELLED] Job 15 cancelled part of cancelled job tags t1 SQLSTATE: XXKDA",
    "Python worker exited unexpectedly (crashed)",
    "No space left on device",
    "INVALID_HANDLE.SESSION_NOT_FOUND StatusCode.UNAVAILABLE Connection reset by peer",
    "[CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND] Checkpoint block rdd_12_3 not found!",
]


@pytest.mark.parametrize("words", WORDS)
def test_words_that_a_record_or_an_author_wrote_do_not_choose_the_class(words):
    """In a UDF's exception, a failed cast, raise_error, a stage's task, and an exception on the driver."""
    cast = f'[CAST_INVALID_INPUT] The value \'{words}\' of the type "STRING" cannot be cast to "INT"'
    raised = f"[USER_RAISED_EXCEPTION] {words} SQLSTATE: P0001"
    worker = f"[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (x):\n{words}"
    python, number = (
        "org.apache.spark.api.python.PythonException",
        "org.apache.spark.SparkNumberFormatException",
    )
    for error in (
        ValueError(words),
        python_error(TRACEBACK.replace("cannot parse record 77", words)),
        connect.NumberFormatException(cast, errorClass="CAST_INVALID_INPUT"),
        connect.SparkRuntimeException(raised, errorClass="USER_RAISED_EXCEPTION"),
        classic(worker, python, "PYTHON_EXCEPTION"),
        classic(f"{STAGE}{python}: {worker}", cause=JavaThrowable(python, worker, "PYTHON_EXCEPTION")),
        classic(cast, number, "CAST_INVALID_INPUT"),
        classic(f"{STAGE}{number}: {cast}", cause=JavaThrowable(number, cast, "CAST_INVALID_INPUT")),
        on_connect(f"{STAGE}{python}: {worker}"),
        on_connect(f"{STAGE}{number}: {cast}"),
        on_connect(f"{STAGE}java.lang.IllegalStateException: {words}"),
        on_connect(f"{STAGE}java.io.IOException: order 17: {words}"),
        on_connect(f"{STAGE}java.io.FileNotFoundException: File /d/{words} does not exist"),
        classic(words, "java.lang.IllegalStateException"),
    ):
        assert type(process_error(error, MARK)) is ProcessFailed, error


@KINDS
@pytest.mark.parametrize(
    "message",
    [
        f"{STAGE}ExecutorLostFailure (executor 3 exited caused by one of the running tasks) Reason: x",
        f"{STAGE}TaskKilled (another attempt succeeded)",
        f"{STAGE}org.apache.spark.api.python.PythonWorkerException: Python worker process terminated due to",
        f"{STAGE}FetchFailed(null, shuffleId=0, mapIndex=-1, mapId=-1, reduceId=0, message=x)",
        f"{STAGE}org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider",
        f"{STAGE}java.lang.OutOfMemoryError: Java heap space\n\tat x.Y",
        f"{STAGE}java.io.IOException: No space left on device\n\tat x.Y",
        f"{STAGE}java.io.IOException: {LOST_BROADCAST}\n\tat x.Y",
        f"{STAGE}java.io.FileNotFoundException: /d/0c/shuffle_1.data (No space left on device)",
        f"{STAGE}java.io.FileNotFoundException: /d/0c/temp_shuffle_1 (Too many open files)\n\tat x.Y",
        f"{STAGE}java.nio.file.FileSystemException: /d/blockmgr-1/26: Disk quota exceeded",
        f'{STAGE}java.io.IOException: Cannot run program "python3": error=24, Too many open files',
        f'{STAGE}java.io.IOException: Cannot run program "p": Exec failed, error: 24 (Too many open files) ',
        f"{STAGE}com.esotericsoftware.kryo.KryoException: java.io.IOException: No space left on device\nx",
        f"{STAGE}org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device",
        f"{SERIALIZATION}java.nio.file.FileSystemException: /d/26: No space left on device\njava.nio.x",
        f"{STAGE}java.nio.channels.CancelledKeyException\n\tat x.Y",
        "Job aborted due to stage failure: Total size of serialized results of 1 tasks (12.3 MiB) is bigger",
        "Python worker failed to connect back.",
        "Job 15 cancelled because SparkContext was shut down",
    ],
)
def test_what_spark_itself_tells_of_its_tasks_is_not_the_process_functions_fault(spark_error, message):
    """Infrastructure fails runs, not functions: these are messages of Spark 4.2."""
    assert type(process_error(spark_error(message), MARK)) is RunFailed
    assert type(environment_error(spark_error(message), "fix")) is RunFailed


@KINDS
@pytest.mark.parametrize("reason", GIVEN_UP_EARLY.values(), ids=GIVEN_UP_EARLY)
def test_a_task_that_spark_gives_up_early_fails_for_its_own_error(spark_error, reason):
    """These exceptions of the JVM have no cause."""
    words = f"Job aborted due to stage failure: {reason}"
    failure = process_error(spark_error(f"{words}{spark_failure.PYTHON_EXCEPTION}: {TRACEBACK}"), MARK)
    assert type(failure) is ProcessFailed
    assert "ValueError: cannot parse record 77" in failure.message
    assert failure.raised == ("ValueError",)
    assert type(process_error(spark_error(f"{words}ExecutorLostFailure (executor 3)"), MARK)) is RunFailed


def test_a_machine_that_runs_out_says_so_in_its_own_language(monkeypatch, tmp_path):
    """A JVM has the operating system's texts in the language of its environment."""
    english, korean = b"No space left on device", "장치에 남은 공간이 없음"
    folder = tmp_path / "ko" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    (folder / "libc.mo").write_bytes(
        a_catalog({b"": b"Content-Type: x; charset=utf-8", english: korean.encode()})
    )
    monkeypatch.setattr(spark_failure, "_CATALOGS", str(tmp_path))
    monkeypatch.setattr(spark_failure, "_ran_out", spark_failure._ran_out.__wrapped__)
    monkeypatch.setenv("LANGUAGE", "ko_KR.UTF-8")
    for text in (korean, english.decode()):
        for message in (f"java.io.IOException: {text}", f"java.nio.file.FileSystemException: /d/26: {text}"):
            assert type(process_error(on_connect(f"{STAGE}{message}\n\tat x.Y"), MARK)) is RunFailed
    monkeypatch.setenv("LANGUAGE", "C")
    assert type(process_error(on_connect(f"{STAGE}java.io.IOException: {korean}"), MARK)) is ProcessFailed


def a_catalog(messages):
    """Return a catalog of translations in the format of GNU gettext."""
    texts = [*sorted(messages), *(messages[text] for text in sorted(messages))]
    place = 28 + 8 * len(texts)
    table, data = b"", b""
    for text in texts:
        table += struct.pack("<II", len(text), place + len(data))
        data += text + b"\0"
    head = struct.pack("<7I", 0x950412DE, 0, len(messages), 28, 28 + 4 * len(texts), 0, 0)
    return head + table + data


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE])
def test_a_driver_that_runs_out_is_not_the_process_functions_fault(code):
    """PySpark writes data for the JVM into files in spark.local.dir."""
    error = OSError(code, os.strerror(code), "/d/spark-1/pyspark-2/tmp3")
    assert type(process_error(error, MARK)) is RunFailed
    assert type(process_error(OSError(os.strerror(code)), MARK)) is ProcessFailed


@pytest.mark.parametrize(
    "error",
    [
        classic("[SPARK_JOB_CANCELLED] Job 15 cancelled", condition="SPARK_JOB_CANCELLED"),
        on_connect("[OPERATION_CANCELED] Operation has been canceled.", "OPERATION_CANCELED"),
        classic("Java heap space", "java.lang.OutOfMemoryError"),
        classic("", "java.nio.channels.ClosedChannelException"),
        classic(f"{STAGE}java.lang.NoSuchMethodError: 'void a.B.c()'\n\tat x.Y"),
        classic(
            f"{STAGE}org.apache.spark.SparkException: x",
            cause=JavaThrowable("org.apache.spark.SparkException", "Python worker exited unexpectedly"),
        ),
        connect.UnknownException("Java heap space", reason="java.lang.OutOfMemoryError"),
        connect.UnknownException(LOST_BROADCAST, reason="java.io.IOException"),
    ],
)
def test_conditions_and_classes_of_spark_decide(error):
    """Cancelled jobs, memory or a class that is missing, a worker that died or whose channel was closed."""
    assert type(process_error(error, MARK)) is RunFailed


class OfDeadJvm:
    """An exception of a JVM that has ended: every call goes to a port on which nothing listens."""

    def __getattr__(self, name):
        def refused():
            raise ConnectionRefusedError(111, "Connection refused")

        return refused


def test_an_error_of_a_jvm_that_is_gone_is_not_the_authors():
    """The JVM ran out of memory after it raised the exception."""
    error = process_error(Py4JJavaError(OfDeadJvm()), MARK)
    assert type(error) is RunFailed
    assert "ConnectionRefusedError" in error.message


@pytest.mark.parametrize(("ended", "kind"), [(True, RunFailed), (False, ProcessFailed)])
def test_no_error_of_an_application_that_was_ended_is_the_authors(monkeypatch, ended, kind):
    """Spark raises various errors between two jobs; an earlier error of the function stays its own."""
    context = mock.Mock()
    context._jsc.sc().isStopped.return_value = ended
    monkeypatch.setattr(pyspark.SparkContext, "_active_spark_context", context)
    between = classic('"SparkContext.dagScheduler()" is null', "java.lang.NullPointerException")
    assert type(process_error(between, MARK)) is kind
    assert type(process_error(ValueError("x"), MARK)) is ProcessFailed
    assert type(process_error(python_error(TRACEBACK), MARK)) is ProcessFailed


def test_a_call_of_a_jvm_that_was_gone_before_is_not_the_authors():
    """The author's function may have its own connections."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        jvm = JavaClient(JavaParameters(port=port), PythonParameters(), SimpleNamespace(pool=None))
        with pytest.raises(ConnectionRefusedError) as of_spark:
            jvm.send_command("c\n")
        with pytest.raises(ConnectionRefusedError) as of_author:
            socket.create_connection(("127.0.0.1", port))
    assert type(process_error(of_spark.value, MARK)) is RunFailed
    assert type(process_error(of_author.value, MARK)) is ProcessFailed


@KINDS
def test_what_cannot_be_sent_to_a_task_is_the_authors(spark_error):
    """Spark fails the stage before it starts a task."""
    message = f"{SERIALIZATION}java.io.NotSerializableException"
    assert type(process_error(spark_error(message), MARK)) is ProcessFailed


@pytest.mark.parametrize(
    "words",
    [
        "Traceback (most recent call last):\n  File x\nForged: error",
        "Job aborted due to stage failure: x, most recent failure: Forged: error",
        "reason: Forged: error",
        "\nError from python worker:\n  Forged: error\nPYTHONPATH was:",
    ],
)
def test_what_a_record_says_does_not_hide_what_spark_says(words):
    """The line shows Spark's condition, whatever the value contains."""
    message = f'[CAST_INVALID_INPUT] The value \'{words}\' of the type "STRING" cannot be cast to "INT"'
    number = "org.apache.spark.SparkNumberFormatException"
    for error in (
        connect.NumberFormatException(message, errorClass="CAST_INVALID_INPUT"),
        classic(message, number, "CAST_INVALID_INPUT"),
        classic(f"{STAGE}{number}: {message}", cause=JavaThrowable(number, message, "CAST_INVALID_INPUT")),
        on_connect(f"{STAGE}{number}: {message}"),
    ):
        assert "[CAST_INVALID_INPUT] The value '" in root_cause(error)


FAILS = "airflow.sdk.exceptions.AirflowFailException"


@pytest.mark.parametrize(
    ("line", "raised"),
    [
        (f"{FAILS}: poisoned", FAILS),
        (FAILS, FAILS),
        (f"ValueError: x\n{FAILS}: forged", "ValueError"),
        (f"ValueError: Traceback (most recent call last):\n  File x\n{FAILS}: forged", None),
        (f"  + {FAILS}: forged\nValueError: x", "ValueError"),
        (f"KeyError: 1\n\nDuring ...\n\nTraceback (most recent call last):\n  File\n{FAILS}: x", None),
    ],
)
def test_the_class_that_a_worker_raised_is_told_only_where_nobody_can_forge_it(line, raised):
    """The class may fail the task for good."""
    error = process_error(python_error(TRACEBACK.replace("ValueError: cannot parse record 77", line)), MARK)
    assert isinstance(error, ProcessFailed)
    assert error.raised == ((raised,) if raised else error.raised)
    assert FAILS not in error.raised or raised == FAILS


@PYTHON_ERRORS
@pytest.mark.parametrize("raised", ["MemoryError", "airflow.sdk.exceptions.AirflowSkipException"])
def test_without_a_traceback_the_first_word_is_the_class(python_error, raised):
    """For sessions with ``hideTraceback``: neither a quoted record nor the advice to skip one decides."""
    text = f"{raised}: row {TRACEBACK}"
    words = "[PYTHON_EXCEPTION] An exception was thrown from the Python worker: "
    error = process_error(python_error(f"\n  {TRACEBACK.splitlines()[1].strip()}\n{words}{text}"), MARK)
    assert error.raised == (raised,)
    assert f"nothing was written: {raised}: row" in error.message


class Unreadable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Leaves(Exception):
    def __str__(self):
        raise SystemExit(3)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("half an emoji: \ud83d"),
        Unreadable(),
        Leaves(),
        SystemExit("bye"),
        type("Odd", (Exception,), {"__module__": 7})("x"),
        type("Half", (Exception,), {"__module__": "half\ud83d"})("x"),
        ValueError("x" * 10_000_000),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        StopIteration(object()),
        RecursionError("maximum recursion depth exceeded"),
        ValueError("Traceback (most recent call last):\nforged"),
    ],
    ids=lambda error: ascii(type(error).__name__),
)
def test_any_exception_can_be_described_in_a_short_line_that_can_be_encoded(error):
    """Whatever the author put into it."""
    line = root_cause(error)
    assert 0 < len(line.encode()) < 5000
    assert ascii(type(error).__name__).strip("'")[:4] in ascii(line)
    assert type(process_error(error, MARK)) is ProcessFailed


@KINDS
def test_a_missing_checkpoint_block_asks_for_a_new_seal(spark_error):
    """The protocol seals again instead of giving up."""
    message = "[CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND] Checkpoint block rdd_12_3 not found! Either the executor"
    condition = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
    assert type(send_error(spark_error(message, condition=condition), MARK)) is SealedBlockLost
    in_task = spark_error(f"{STAGE}org.apache.spark.SparkException: {message}")
    assert type(send_error(in_task, MARK)) is SealedBlockLost


def test_a_checkpoint_that_a_server_forgot_asks_for_a_new_seal():
    """A condition below that of plans: the server knows the session, but not the DataFrame."""
    condition = "CONNECT_INVALID_PLAN.DATAFRAME_NOT_FOUND"
    message = f"[{condition}] The Spark Connect plan is invalid. No DataFrame with id 7 is found"
    assert type(send_error(on_connect(message, condition), MARK)) is SealedBlockLost
    of_4_0 = connect.InvalidPlanInput("No DataFrame with id 43a8c49b is found in the session bf83ae27")
    assert type(send_error(of_4_0, MARK)) is SealedBlockLost


def test_any_other_failure_of_the_send_stage_is_a_send_error():
    """Some batches may be in the log: the transaction must abort."""
    assert type(send_error(RuntimeError("connection reset"), MARK)) is SendError
    assert type(send_error(RuntimeError(MARK.text(ProducerFenced("47"))), MARK)) is ProducerFenced


def test_errors_of_ours_pass_unchanged():
    """An error that is already translated is not wrapped again."""
    error = ProcessFailed("x")
    assert process_error(error, MARK) is error
    assert send_error(error, MARK) is error


class CallEnded(grpc.RpcError):
    """The error of gRPC during which PySpark raises its own."""

    def __init__(self, code):
        self._code = code

    def code(self):
        return self._code


def with_code(kind, message, code, **more):
    """Return an error as PySpark raises it; that of 4.0 has no code, only the error of gRPC before it."""
    if pyspark.__version__.startswith("4.0."):
        error = kind(message, **more)
        error.__context__ = CallEnded(code)
        return error
    return kind(message, grpc_status_code=code, **more)


def cut_off(message, code):
    return with_code(connect.SparkConnectGrpcException, message, code)


def response_already_received():
    """Return the error as PySpark raises it; 4.0 does not name what the server has lost."""
    named = not pyspark.__version__.startswith("4.0.")
    return PySparkRuntimeError(
        errorClass="RESPONSE_ALREADY_RECEIVED",
        messageParameters={"error_type": "INVALID_HANDLE.SESSION_NOT_FOUND"} if named else {},
    )


GONE = [
    response_already_received(),
    connect.SparkConnectException(errorClass="NO_ACTIVE_SESSION", messageParameters={}),
    connect.UnknownException("Session not found", errorClass="INVALID_HANDLE.SESSION_NOT_FOUND"),
    cut_off('<_InactiveRpcError of RPC that terminated with: details = "x">', grpc.StatusCode.UNAVAILABLE),
    cut_off("<_MultiThreadedRendezvous: details = 'Connection reset by peer'>", grpc.StatusCode.UNAVAILABLE),
]


@pytest.mark.parametrize("error", GONE, ids=lambda error: str(error)[:40])
def test_a_server_that_is_gone_is_called_so(error):
    """The message blames neither the function nor the executors' environment; a retry helps."""
    for translate in (lambda e: process_error(e, MARK), lambda e: environment_error(e, "")):
        translated = translate(error)
        assert type(translated) is SparkUnavailable
        assert "the Spark Connect server died, was restarted" in str(translated)
        assert str(error)[:40] in str(translated)
    assert type(send_error(error, MARK)) is SessionLost
    assert "the Spark Connect server died" in str(send_error(error, MARK))


@pytest.mark.parametrize("error", GONE, ids=lambda error: str(error)[:40])
def test_a_server_that_is_gone_between_two_jobs_is_called_so(error):
    """For example when it is asked for its version, or for a setting."""
    plane = LazyDataPlane(mock.Mock(spec=(), side_effect=error), None, None, lambda: None)
    with pytest.raises(SparkUnavailable, match="the Spark Connect server died, was restarted"):
        plane.seal(None)


def test_a_call_that_grpc_gave_up_is_described_by_its_details():
    """They follow two lines that are the same in each error."""
    wrapping = "<_InactiveRpcError of RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE"
    text = f'{wrapping}\n\tdetails = "x"\n>'
    assert root_cause(cut_off(text, grpc.StatusCode.UNAVAILABLE)) == 'details = "x"'


@KINDS
def test_a_result_that_is_lost_may_have_been_too_large(spark_error):
    """Spark silently drops a result above its limit."""
    error = process_error(spark_error(f"{STAGE}TaskResultLost (result lost from block manager)\nx"), MARK)
    assert type(error) is RunFailed
    assert "(result lost from block manager), or larger than spark.driver.maxResultSize; see" in error.message


@pytest.mark.parametrize("text", [str(error) for error in GONE])
def test_what_a_function_raises_is_no_server_that_is_gone(text):
    """An author's own text, from a task or from the driver."""
    assert type(process_error(RuntimeError(text), MARK)) is ProcessFailed
    assert type(process_error(python_error(f"{TRACEBACK}\n{text}"), MARK)) is ProcessFailed
    refused = with_code(
        connect.NumberFormatException, text, grpc.StatusCode.INTERNAL, errorClass="CAST_INVALID_INPUT"
    )
    assert type(process_error(refused, MARK)) is ProcessFailed


WORKER_DIED = f"""{STAGE}org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).

JVM stacktrace:
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.applyOrElse(PythonRunner.scala:713)
Caused by: java.io.IOException: Connection reset by peer
\tat java.base/sun.nio.ch.FileDispatcherImpl.write0(Native Method)
"""


def test_a_worker_whose_connection_broke_is_not_a_server_that_is_gone():
    """The server itself reports it: no other session is needed."""
    translated = process_error(on_connect(WORKER_DIED), ErrorMark())
    assert type(translated) is RunFailed
    assert "Python worker exited unexpectedly" in translated.message
    assert isinstance(environment_error(on_connect(WORKER_DIED), "fix"), RunFailed)
