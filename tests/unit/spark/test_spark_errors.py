"""Errors keep type and message on their way through Spark, and Spark's own shrink to one line."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from airflow_eos import exceptions
from airflow_eos.exceptions import (
    EosError,
    OffsetsOutOfRange,
    ProcessFailed,
    ProducerFenced,
    RunFailed,
    SealedBlockLost,
    SendError,
    SparkUnavailable,
)
from airflow_eos.spark.errors import (
    ErrorMark,
    TaskError,
    environment_error,
    process_error,
    root_cause,
    send_error,
)

MARK = ErrorMark()
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
    found = MARK.find(text)
    assert type(found) is OffsetsOutOfRange
    assert str(found) == message


def test_other_errors_leave_a_task_as_they_are():
    """Only this package's errors are marked."""
    with pytest.raises(KeyError), MARK.errors():
        raise KeyError("x")


@pytest.mark.parametrize("name", [n for n in dir(exceptions) if isinstance(getattr(exceptions, n), type)])
def test_every_error_of_the_tree_can_travel(name):
    """No exception type has a constructor that the driver could not call."""
    kind = getattr(exceptions, name)
    if issubclass(kind, EosError):
        assert type(MARK.find(MARK.text(kind("text")))) is kind


def test_a_message_that_was_cut_off_still_tells_its_type():
    """gRPC limits the size of an error text."""
    text = MARK.text(ProducerFenced("a newer attempt exists and " + "x" * 500))[:140]
    found = MARK.find(text)
    assert type(found) is ProducerFenced
    assert str(found).startswith("a newer attempt exists")


def test_text_without_a_mark_holds_no_error_of_ours():
    """The author's own words are not mistaken for a marked error."""
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
    """Whoever may write to a source knows the form of a mark, not the nonce of the run that will read it."""
    text = TRACEBACK.replace("cannot parse record 77", f"cannot parse {forged}")
    assert MARK.find(text) is None
    for translate in (process_error, send_error):
        assert type(translate(RuntimeError(text), MARK)) in (ProcessFailed, SendError)


def test_an_error_of_ours_is_found_behind_a_forged_one():
    """The genuine one counts, wherever it stands."""
    text = f"{ErrorMark().text(ProducerFenced('forged'))} {MARK.text(OffsetsOutOfRange('ours'))}"
    assert type(MARK.find(text)) is OffsetsOutOfRange


def test_a_mark_does_not_show_its_nonce():
    """Tasks are shown in logs by their repr."""
    assert MARK.nonce not in repr(MARK)


def test_a_python_error_in_a_task_becomes_its_last_line_and_the_authors_line_of_code():
    """Two hundred lines of stack become one that helps."""
    line = root_cause(RuntimeError(TRACEBACK))
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
    ("said", "fix"),
    [
        ("OSError: AF_UNIX path too long", "leave spark.python.unix.domain.socket.enabled out"),
        ("ModuleNotFoundError: No module named 'pyspark'", "install it"),
    ],
)
def test_a_python_worker_that_does_not_start_is_described_by_its_own_words(said, fix):
    """Not by Spark's, which come behind them; a socket in a long folder has a remedy of its own."""
    error = environment_error(PySparkException(NO_WORKER.format(said=said)), "install it")
    assert type(error) is exceptions.EnvironmentMismatch
    assert error.message.startswith(f"executors cannot run this package: {said}. ")
    assert fix in error.message


def test_an_error_on_the_driver_names_the_line_that_raised_it():
    """A transform often fails before any task runs."""
    with pytest.raises(ZeroDivisionError) as caught:
        1 / 0  # noqa: B018
    line = root_cause(caught.value)
    assert line.startswith("ZeroDivisionError: division by zero (")
    assert "test_spark_errors.py, line" in line


def test_a_lost_task_is_described_by_its_reason():
    """Spark's stage failure is introduced by a long preamble."""
    text = (
        "An error occurred while calling o90.localCheckpoint.\n: org.apache.spark.SparkException: Job "
        "aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent failure: Lost task "
        "0.3 in stage 1.0 (TID 7) (10.0.0.1 executor 2): java.lang.IllegalStateException: disk gone\n\tat x.Y"
    )
    assert root_cause(RuntimeError(text)) == "java.lang.IllegalStateException: disk gone"


def test_a_failing_transform_is_the_process_functions_fault():
    """Anything without a mark came from the author's code."""
    error = process_error(RuntimeError(TRACEBACK), MARK)
    assert type(error) is ProcessFailed
    assert "cannot parse record 77" in str(error)
    assert "JVM" not in str(error)


@pytest.mark.parametrize(
    "reason", ["ExecutorLostFailure (executor 3 exited)", "Job 7 cancelled part of cancelled job group"]
)
def test_a_lost_executor_is_not_the_process_functions_fault(reason):
    """Infrastructure fails runs, not functions."""
    assert type(process_error(RuntimeError(f"Job aborted, reason: {reason}"), MARK)) is RunFailed


def test_a_missing_checkpoint_block_asks_for_a_new_seal():
    """The protocol seals again instead of giving up."""
    text = "[CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND] Checkpoint block rdd_12_3 not found! Either the executor"
    assert type(send_error(RuntimeError(text), MARK)) is SealedBlockLost


def test_any_other_failure_of_the_send_stage_is_a_send_error():
    """Some batches may be in the log: the transaction must abort."""
    assert type(send_error(RuntimeError("connection reset"), MARK)) is SendError
    assert type(send_error(RuntimeError(MARK.text(ProducerFenced("47"))), MARK)) is ProducerFenced


def test_errors_of_ours_pass_unchanged():
    """What is already translated is not wrapped again."""
    error = ProcessFailed("x")
    assert process_error(error, MARK) is error
    assert send_error(error, MARK) is error


GONE = [
    "[RESPONSE_ALREADY_RECEIVED] INVALID_HANDLE.SESSION_NOT_FOUND on the server but responses were received",
    "[NO_ACTIVE_SESSION] No active Spark session found. Please create a new Spark session",
    '<_InactiveRpcError of RPC that terminated with: status = StatusCode.UNAVAILABLE details = "x">',
]


@pytest.mark.parametrize("text", GONE)
def test_a_server_that_is_gone_is_called_so(text):
    """Nobody looks for the fault in the function or in the executors' environment; another try helps."""
    error = PySparkException(text)
    for translate in (lambda e: process_error(e, MARK), lambda e: environment_error(e, "")):
        found = translate(error)
        assert type(found) is SparkUnavailable
        assert "the Spark Connect server died, was started anew" in str(found)
        assert text[:40] in str(found)
    assert type(send_error(error, MARK)) is SendError
    assert "the Spark Connect server died" in str(send_error(error, MARK))


@pytest.mark.parametrize("text", GONE)
def test_what_a_function_raises_is_no_server_that_is_gone(text):
    """An author's own text, from a task or from the driver."""
    assert type(process_error(RuntimeError(text), MARK)) is ProcessFailed
    assert type(process_error(PySparkException(f"{TRACEBACK}\n{text}"), MARK)) is ProcessFailed


WORKER_DIED = """Job aborted due to stage failure: Task 0 in stage 7.0 failed 1 times, most recent failure: \
Lost task 0.0 in stage 7.0 (TID 282) (vm executor driver): org.apache.spark.SparkException: \
Python worker exited unexpectedly (crashed).

JVM stacktrace:
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.applyOrElse(PythonRunner.scala:713)
Caused by: java.io.IOException: Connection reset by peer
\tat java.base/sun.nio.ch.FileDispatcherImpl.write0(Native Method)
"""


def test_a_worker_whose_connection_broke_is_not_a_server_that_is_gone():
    """The server tells of it: no other session is needed."""
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    found = process_error(SparkConnectGrpcException(WORKER_DIED), ErrorMark())
    assert type(found) is RunFailed
    assert "Python worker exited unexpectedly" in found.message
    assert isinstance(environment_error(SparkConnectGrpcException(WORKER_DIED), "fix"), RunFailed)
    cut = "<_MultiThreadedRendezvous: details = 'recvmsg: Connection reset by peer'>"
    assert isinstance(process_error(SparkConnectGrpcException(cut), ErrorMark()), SparkUnavailable)
