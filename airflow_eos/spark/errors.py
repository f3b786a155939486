"""Carries errors out of Spark tasks, and turns Spark's errors into one line.

A task's exception reaches the driver as text inside Spark's exception, classic and Connect alike. An error of
this package therefore travels as a marked JSON object in that text, and is the same exception again on the
driver. Any other error comes from the author's transform or from Spark, whose own fields distinguish these
two (:mod:`airflow_eos.spark.spark_failure`). The mark contains a nonce, because the transform's exceptions
may quote records, whose writers must not decide how a run ends.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
import secrets
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from airflow_eos import exceptions
from airflow_eos.exceptions import (
    EnvironmentMismatch,
    EosError,
    ProcessFailed,
    RunFailed,
    SealedBlockLost,
    SendError,
    SessionLost,
    SparkUnavailable,
)
from airflow_eos.printable import printable
from airflow_eos.spark.spark_failure import (
    PYTHON_EXCEPTION,
    SPARK_EXCEPTION,
    TRACEBACK,
    is_block_lost,
    is_infrastructure,
    is_server_gone,
    java_errors,
    module_of,
    python_class,
    sent_by_worker,
)
from airflow_eos.task_signals import class_names

log = logging.getLogger(__name__)

_MARK = "airflow-eos-error:"
# A text may have been cut off after the type, so the closing parts are optional.
_CUT = re.compile(r'\{"type": "(\w+)", "message": "((?:[^"\\]|\\.)*)')
_NOISE = ("An exception was thrown from the Python worker", "[PYTHON_EXCEPTION]", "SQLSTATE")
_NO_WORKER, _PATH_WAS = "Error from python worker:\n", "\nPYTHONPATH was:"
_LONG_SOCKET = "AF_UNIX path too long"
_SHORTER_SOCKET = (
    "Python workers listen in the folder of a container, whose path is too long for a Unix socket: leave "
    "spark.python.unix.domain.socket.enabled out, or set spark.python.unix.domain.socket.dir to a short one "
    "that only the executors' user can write"
)
_GONE_TEXT = "the Spark Connect server died, was restarted or has closed this session"
# Lines that py4j and gRPC put before the actual message
_WRAPPING = re.compile(
    r"An error occurred while calling|<_\w+ of RPC that terminated with:$|status = StatusCode\.\w+$"
)
_RESULT_LOST = "TaskResultLost"
_SQLSTATE = re.compile(r" *SQLSTATE: \w{5}\b")
_NOT_AUTHORS = ("/pyspark/", "pyspark.zip", "/airflow_eos/", "airflow_eos-", "/py4j/", "<frozen ")
_LINE_LIMIT = 600


# What an author's ``__str__`` may raise; not the exceptions that end a task from outside.
_AUTHORS = (Exception, SystemExit, GeneratorExit)


class TaskError(Exception):
    """An error of this package that leaves a task; :meth:`ErrorMark.find` reads its text."""


class RecordsAreLarge(EosError):
    """Read tasks met records that are too large for batches of many rows: the ranges are sealed again."""


_TYPES: dict[str, type[EosError]] = {
    name: kind for name, kind in inspect.getmembers(exceptions, inspect.isclass) if issubclass(kind, EosError)
} | {RecordsAreLarge.__name__: RecordsAreLarge}


def error_to_dict(error: EosError) -> dict[str, Any]:
    """Return the JSON form of an error."""
    data: dict[str, Any] = {"type": type(error).__name__, "message": error.message}
    if isinstance(error, ProcessFailed) and error.raised:
        data["raised"] = list(error.raised)
    return data


def error_from_dict(data: Mapping[str, Any]) -> EosError:
    """Read the JSON form."""
    kind, message = _TYPES.get(str(data["type"]), EosError), str(data["message"])
    return kind(message, raised=data.get("raised", ())) if issubclass(kind, ProcessFailed) else kind(message)


@dataclass(frozen=True, slots=True)
class ErrorMark:
    """Marks errors of this package in texts from several authors; pickled with the tasks.

    :param nonce: chosen when the ranges are read, so that no record can contain it.
    """

    nonce: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)

    def text(self, error: EosError) -> str:
        """Return the text that carries an error through Spark."""
        return f"{_MARK}{self.nonce}:{json.dumps(error_to_dict(error))}"

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Mark errors that leave the block; for code of this package that runs in tasks.

        The block must already have turned errors of the author's function into ``ProcessFailed``: others are
        failures of this package or its environment.
        """
        try:
            yield
        except EosError as error:
            # Without the cause: the driver wants one line, and the executor's log has the rest.
            raise TaskError(self.text(error)) from None
        except (GeneratorExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # a panic of a library in Rust is not an Exception
            log.exception("a task of this package failed")
            failure = RunFailed(f"a task failed outside of process: {root_cause(error)}")
            raise TaskError(self.text(failure)) from None

    def error_in(self, error: BaseException) -> EosError | None:
        """Return the error of this package in Spark's exception; None if there is none."""
        try:
            return self.find(str(error))
        except _AUTHORS:  # an author's exception whose text cannot be read
            return None

    def find(self, text: str) -> EosError | None:
        """Return the first marked error in a text; None if there is none."""
        _, mark, rest = text.partition(f"{_MARK}{self.nonce}:")
        if not mark:
            return None
        try:
            data, _ = json.JSONDecoder().raw_decode(rest)
            return error_from_dict(data)
        except (ValueError, KeyError, TypeError):
            cut = _CUT.match(rest)
            if cut is None:
                return EosError(f"a Spark task failed, and its message was cut off: {rest[:200]}")
            return error_from_dict({"type": cut.group(1), "message": cut.group(2)})


def root_cause(error: BaseException) -> str:
    """Return the cause in one line: the Python exception of the task, or Spark's own message.

    Works for every exception, whatever its class, text and arguments; the result can always be encoded.
    """
    try:
        line = _described(error)
    except _AUTHORS as second:
        why = " (the JVM has ended, often for lack of memory)" if module_of(error).startswith("py4j.") else ""
        line = f"{type(error).__name__}, whose text cannot be read: it raises {type(second).__name__}{why}"
    return _shortened(str.encode(line, "utf-8", "backslashreplace").decode())


def whole_text(error: BaseException) -> str:
    """Return the text of an exception for a log; it may quote records: control characters are escaped."""
    try:
        return printable(str(error), keep="\n\t")
    except _AUTHORS:
        return root_cause(error)


def _described(error: BaseException) -> str:
    given_up = None
    for thrown in java_errors(error):
        cause = None
        if thrown.why_given_up is not None:
            given_up = thrown.why_given_up.strip().partition("\n")[0]
        elif thrown.java == PYTHON_EXCEPTION:
            cause = _python_cause(thrown.message)
        elif thrown.java == SPARK_EXCEPTION and thrown.condition is None:
            cause = _daemon_cause(thrown.message)
        if cause is not None:
            return cause
    if given_up is not None:
        larger = ", or larger than spark.driver.maxResultSize" if given_up.startswith(_RESULT_LOST) else ""
        return given_up + larger
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = next((line for line in lines if not _WRAPPING.match(line)), "")
    line = line.removeprefix(": ")
    if module_of(error).startswith(("pyspark", "py4j")) and line:
        return line
    name = type(error).__name__
    line_of_driver = _driver_line(error)
    if len(line) > _LINE_LIMIT:
        line = line[:_LINE_LIMIT] + "..."
    return (f"{name}: {line}" if line else name) + (f" ({line_of_driver})" if line_of_driver else "")


def process_error(error: BaseException, mark: ErrorMark) -> EosError:
    """Translate an error of the author's function, or of the stage that runs it."""
    if isinstance(error, EosError):
        return error
    own_error = mark.error_in(error)
    if own_error is not None:
        return own_error
    if is_server_gone(error):
        return SparkUnavailable(
            f"{_GONE_TEXT} while it sealed the output: {root_cause(error)}; nothing was written, another try "
            "takes a new session"
        )
    if is_infrastructure(error):
        return RunFailed(
            f"Spark could not finish the seal stage: {root_cause(error)}; see the executors' logs"
        )
    return process_failed(error)


def process_failed(error: BaseException, place: str = "", way: str = "") -> ProcessFailed:
    """Return the error of the author's function.

    :param place: `` at ...``, if known.
    :param way: how to continue without correcting the function.
    """
    sent = python_class(error)
    raised = class_names(error) if sent is None else (sent,)
    fix = "correct the function"
    if any(name.endswith("ModuleNotFoundError") for name in raised):
        fix = (
            "import a module of your own at the top of the function's file, which sends it to the executors, "
            "and install others there"
        )
    return ProcessFailed(
        f"process failed{place}, nothing was written: {root_cause(error)}; {fix}, then run the task "
        f"again{way}",
        raised=raised,
    )


def send_error(error: BaseException, mark: ErrorMark) -> EosError:
    """Translate an error of the send stage."""
    if isinstance(error, EosError):
        return error
    if is_block_lost(error):
        return SealedBlockLost(
            "sealed batches are gone with their executor, the ranges must be sealed again: "
            f"{root_cause(error)}"
        )
    own_error = mark.error_in(error)
    if own_error is not None:
        return own_error
    if is_server_gone(error):
        return SessionLost(
            f"{_GONE_TEXT} in the send stage: {root_cause(error)}; its transaction must be aborted"
        )
    return SendError(f"the send stage failed: {root_cause(error)}; its transaction must be aborted")


def environment_error(error: BaseException, fix: str) -> EosError:
    """Translate an error of the preflight job.

    :param fix: advice if executors cannot run this package.
    """
    if isinstance(error, EosError):
        return error
    if is_server_gone(error):
        return SparkUnavailable(
            f"{_GONE_TEXT} before anything was read: {root_cause(error)}; another try takes a new session"
        )
    if is_infrastructure(error):
        return RunFailed(
            f"Spark could not ask the executors for their versions: {root_cause(error)}; another try may "
            "find others, see the executors' logs"
        )
    cause = root_cause(error)
    if _LONG_SOCKET in cause:
        fix = _SHORTER_SOCKET
    return EnvironmentMismatch(f"executors cannot run this package: {cause}. {fix}")


def _daemon_cause(text: str) -> str | None:
    """Return why no Python worker has started: the indented end of its output."""
    quoted = text.rpartition(_NO_WORKER)[2].partition(_PATH_WAS)[0] if _NO_WORKER in text else ""
    lines = [line.strip() for line in quoted.splitlines() if line.strip()]
    return lines[-1] if lines else None


def _python_cause(text: str) -> str | None:
    """Return the exception line of the last traceback, with the author's line of code."""
    trace = sent_by_worker(text)
    if trace.startswith((TRACEBACK, f"+ Exception Group {TRACEBACK}")):
        trace = trace.rpartition(TRACEBACK)[2]
    place = ""
    for line in trace.splitlines():
        if line.startswith("  File "):
            if _is_authors(line):
                place = line.strip().removeprefix("File ").replace('"', "")
        elif line and not line.startswith(" ") and not line.startswith("^"):
            if any(line.startswith(noise) for noise in _NOISE):
                continue
            return f"{line} ({place})" if place else line
    return None


def _driver_line(error: BaseException) -> str:
    line = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if _is_authors(frame.filename):
            line = f"{frame.filename}, line {frame.lineno}, in {frame.name}"
    return line


def _is_authors(path: str) -> bool:
    return not any(part in path for part in _NOT_AUTHORS)


def _shortened(line: str) -> str:
    line = _SQLSTATE.sub("", line).rstrip("; ")
    return line if len(line) <= _LINE_LIMIT else line[:_LINE_LIMIT] + "..."
