"""Carries errors out of Spark tasks and turns Spark's own into one line.

A task's exception reaches the driver as text inside Spark's exception, classic and Connect alike. So an error
of this package travels as a marked JSON object in that text, and is the same exception again on the driver;
anything else came from the author's transform, or from Spark. The mark holds a nonce: what the transform
raises may quote records, and whoever writes those must not choose how a run ends.
"""

from __future__ import annotations

import inspect
import json
import re
import secrets
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_eos import exceptions
from airflow_eos.exceptions import (
    EnvironmentMismatch,
    EosError,
    ProcessFailed,
    RunFailed,
    SealedBlockLost,
    SendError,
    SparkUnavailable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MARK = "airflow-eos-error:"
_TYPES: dict[str, type[EosError]] = {
    name: found
    for name, found in inspect.getmembers(exceptions, inspect.isclass)
    if issubclass(found, EosError)
}
# A text may have been cut off behind the type, so the closing parts are optional.
_CUT = re.compile(r'\{"type": "(\w+)", "message": "((?:[^"\\]|\\.)*)')
_LOST_TASK = re.compile(r"(?:most recent failure|reason): (?:Lost task [^:]*: )?(.*)")
_NOISE = ("An exception was thrown from the Python worker", "[PYTHON_EXCEPTION]", "SQLSTATE")
_NO_WORKER, _PATH_WAS = "Error from python worker:\n", "\nPYTHONPATH was:"
_LONG_SOCKET = "AF_UNIX path too long"
_SHORTER_SOCKET = (
    "Python workers listen in the folder of a container, whose path is too long for a Unix socket: leave "
    "spark.python.unix.domain.socket.enabled out, or set spark.python.unix.domain.socket.dir to a short one "
    "that only the executors' user can write"
)
_INFRASTRUCTURE = (
    "ExecutorLostFailure",
    "SparkOutOfMemoryError",
    "OutOfMemoryError",
    "No space left on device",
    "Python worker exited unexpectedly",
    "Python worker failed to connect back",
    "has been cancelled",
    "cancelled part of cancelled job",
    "OPERATION_CANCELED",
    "OPERATION_ABANDONED",
    "FetchFailed",
    "spark.driver.maxResultSize",
)
# What Spark's client itself says, not what it hands on, when the server is away, or is another one by now.
_GONE = (
    "INVALID_HANDLE.SESSION_",
    "NO_ACTIVE_SESSION",
    "SESSION_NOT_SAME",
    "RETRIES_EXCEEDED",
    "StatusCode.UNAVAILABLE",
)
_CUT_OFF = (
    "failed to connect to all addresses",
    "Connection refused",
    "Connection reset by peer",
    "Socket closed",
)
_JAVA_FRAME = re.compile(r"^\s+at \S+\(", re.MULTILINE)
_GONE_TEXT = "the Spark Connect server died, was started anew or has closed this session"
_CLIENTS = (
    "pyspark.errors.exceptions.connect",
    "pyspark.errors.exceptions.base",
    "pyspark.sql.connect",
    "grpc",
)
_SQLSTATE = re.compile(r" *SQLSTATE: \w{5}\b")
_NO_BLOCK = ("CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND", "Checkpoint block ", "DATAFRAME_NOT_FOUND")
_NOT_AUTHORS = ("/pyspark/", "pyspark.zip", "/airflow_eos/", "airflow_eos-", "/py4j/", "<frozen ")
_LINE_LIMIT = 600


class TaskError(Exception):
    """An error of this package on its way out of a task; its text is read by :meth:`ErrorMark.find`."""


def error_to_dict(error: EosError) -> dict[str, str]:
    """Return the JSON form of an error."""
    return {"type": type(error).__name__, "message": error.message}


def error_from_dict(data: Mapping[str, Any]) -> EosError:
    """Read the JSON form."""
    return _TYPES.get(str(data["type"]), EosError)(str(data["message"]))


@dataclass(frozen=True, slots=True)
class ErrorMark:
    """Marks errors of this package in texts that others write too; its tasks carry it, pickled.

    :param nonce: what a record cannot hold: it is chosen when the ranges are read.
    """

    nonce: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)

    def text(self, error: EosError) -> str:
        """Return the text that carries an error through Spark."""
        return f"{_MARK}{self.nonce}:{json.dumps(error_to_dict(error))}"

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Mark errors of this package that leave the block; for code that runs in tasks."""
        try:
            yield
        except EosError as error:
            # Without the cause: the driver wants one line, and the executor's log has the rest.
            raise TaskError(self.text(error)) from None

    def find(self, text: str) -> EosError | None:
        """Return the first error that was marked so in a text, None when there is none."""
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
    """Return one line that says what went wrong: the Python exception of the task, or Spark's own message."""
    text = str(error)
    if "Traceback (most recent call last):" in text:
        found = _daemon_cause(text) or _python_cause(text)
        if found:
            return _shortened(found)
    lost = _LOST_TASK.search(text)
    if lost:
        return _shortened(lost.group(1))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = next((line for line in lines if not line.startswith("An error occurred while calling")), "")
    line = line.removeprefix(": ")
    if type(error).__module__.startswith(("pyspark", "py4j")) and line:
        return _shortened(line)
    name = type(error).__name__
    where = _driver_line(error)
    return _shortened((f"{name}: {line}" if line else name) + (f" ({where})" if where else ""))


def is_server_gone(error: BaseException) -> bool:
    """Whether Spark Connect's client has lost its server or its session; nothing of what a task raised."""
    text = str(error)
    if not type(error).__module__.startswith(_CLIENTS) or "Traceback (most recent call last):" in text:
        return False
    if any(reason in text for reason in _GONE):
        return True
    # A server that tells of it in Java is there: somebody else was cut off, a Python worker for instance.
    return any(reason in text for reason in _CUT_OFF) and not _JAVA_FRAME.search(text)


def process_error(error: BaseException, mark: ErrorMark) -> EosError:
    """Translate what a call of the author's function, or the stage that runs it, has raised."""
    if isinstance(error, EosError):
        return error
    text = str(error)
    ours = mark.find(text)
    if ours is not None:
        return ours
    if is_server_gone(error):
        return SparkUnavailable(
            f"{_GONE_TEXT} while it sealed the output: {root_cause(error)}; nothing was written, another try "
            "takes a new session"
        )
    if any(reason in text for reason in _INFRASTRUCTURE):
        return RunFailed(
            f"Spark could not finish the seal stage: {root_cause(error)}; see the executors' logs"
        )
    return process_failed(error)


def process_failed(error: BaseException, where: str = "", way: str = "") -> ProcessFailed:
    """Return the error of the author's function.

    :param where: `` at ...``, where that is known.
    :param way: how to go on without correcting the function.
    """
    return ProcessFailed(
        f"process failed{where}, nothing was written: {root_cause(error)}; correct the function, then run "
        f"the task again{way}"
    )


def send_error(error: BaseException, mark: ErrorMark) -> EosError:
    """Translate what the send stage has raised."""
    if isinstance(error, EosError):
        return error
    text = str(error)
    if any(reason in text for reason in _NO_BLOCK):
        return SealedBlockLost(
            "sealed batches are gone with their executor, the ranges must be sealed again: "
            f"{root_cause(error)}"
        )
    ours = mark.find(text)
    if ours is not None:
        return ours
    if is_server_gone(error):
        return SendError(
            f"{_GONE_TEXT} in the send stage: {root_cause(error)}; its transaction must be aborted"
        )
    return SendError(f"the send stage failed: {root_cause(error)}; its transaction must be aborted")


def environment_error(error: BaseException, fix: str) -> EosError:
    """Translate what the preflight job has raised.

    :param fix: what to do where executors cannot run this package.
    """
    if isinstance(error, EosError):
        return error
    if is_server_gone(error):
        return SparkUnavailable(
            f"{_GONE_TEXT} before anything was read: {root_cause(error)}; another try takes a new session"
        )
    if any(reason in str(error) for reason in _INFRASTRUCTURE):
        return RunFailed(
            f"Spark could not ask the executors for their versions: {root_cause(error)}; another try may "
            "find others, see the executors' logs"
        )
    cause = root_cause(error)
    if _LONG_SOCKET in cause:
        fix = _SHORTER_SOCKET
    return EnvironmentMismatch(f"executors cannot run this package: {cause}. {fix}")


def _daemon_cause(text: str) -> str | None:
    """Return why no Python worker has started: the end of what Spark quotes, indented, of its output."""
    quoted = text.rpartition(_NO_WORKER)[2].partition(_PATH_WAS)[0] if _NO_WORKER in text else ""
    lines = [line.strip() for line in quoted.splitlines() if line.strip()]
    return lines[-1] if lines else None


def _python_cause(text: str) -> str | None:
    """Return the exception line of the last traceback, with the author's line of code."""
    trace = text[text.rfind("Traceback (most recent call last):") :].splitlines()[1:]
    where = ""
    for line in trace:
        if line.startswith("  File "):
            if _is_authors(line):
                where = line.strip().removeprefix("File ").replace('"', "")
        elif line and not line.startswith(" ") and not line.startswith("^"):
            if any(line.startswith(noise) for noise in _NOISE):
                continue
            return f"{line} ({where})" if where else line
    return None


def _driver_line(error: BaseException) -> str:
    """Return the author's line of code an exception of the driver comes from, empty when there is none."""
    found = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if _is_authors(frame.filename):
            found = f"{frame.filename}, line {frame.lineno}, in {frame.name}"
    return found


def _is_authors(path: str) -> bool:
    return not any(part in path for part in _NOT_AUTHORS)


def _shortened(line: str) -> str:
    line = _SQLSTATE.sub("", line).rstrip("; ")
    return line if len(line) <= _LINE_LIMIT else line[:_LINE_LIMIT] + "..."
