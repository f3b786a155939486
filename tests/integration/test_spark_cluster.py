"""Separate executors: lost ones, retried and speculated tasks, and code that is shipped to them.

A standalone master and two workers on loopback; executors import a wrong, older copy of this package unless
the right one is shipped to them.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from collections import Counter

import pytest

from airflow_eos.engine import Run
from airflow_eos.exceptions import ProcessFailed, SealedBlockLost, SecondAttempt
from airflow_eos.model.spec import LedgerSettings
from airflow_eos.operators.submitted_files import SubmittedFiles
from airflow_eos.run.states import State
from airflow_eos.spark import SparkDataPlane, failure_search
from airflow_eos.spark import send_task as send_module
from airflow_eos.spark.preflight import check_environment
from airflow_eos_testing import count_records, read_topic
from airflow_eos_testing.faults import SparkCluster
from airflow_eos_testing.faults.half_send import half_sending, is_half_written, let_go
from tests.support.patience import wait_until
from tests.support.spark_sessions import attempt, new_session
from tests.support.submitting import submit

pytestmark = pytest.mark.chaos

SECRET = "TOPSECRET"

# Speculation is on, but no task is copied within a minute. A copy that is killed while it stores a block
# removes the replica on its executor: the other attempt's was not stored there, as it "already exists".
WITHOUT_EARLY_COPIES = pytest.mark.parametrize(
    "spark", [{"spark.speculation.minTaskRuntime": "60s"}], ids=["without early copies"], indirect=True
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A master with two workers of one core each: its URL, and the folder of all their logs."""
    with SparkCluster(home=tmp_path_factory.mktemp("spark")) as standalone:
        yield standalone.master, standalone.home


@pytest.fixture
def spark(cluster, tmp_path, request):
    """A new application: each test may kill its executors, and set its own configuration."""
    old = tmp_path / "old" / "airflow_eos"
    old.mkdir(parents=True)
    (old / "__init__.py").write_text('__version__ = "0.0.1"\n')
    (tmp_path / "events").mkdir()
    session = new_session(
        "classic",
        cluster[0],
        **{
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.driver.host": "127.0.0.1",
            "spark.executorEnv.PYTHONPATH": str(old.parent),
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": str(tmp_path / "events"),
            "spark.eventLog.compress": "false",
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.minTaskRuntime": "100ms",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
            "spark.cores.max": "2",
            **getattr(request, "param", {}),
        },
    )
    yield session
    session.stop()


class Stage:
    """A source, a sink, and a data plane with sealed data."""

    def __init__(self, spark, broker):
        self.source, self.sink = broker.numbered("src", 4, 2000), broker.topic("out", 4)
        # PLAINTEXT never sends it; the tests search for it.
        config = {**broker.config, "sasl.username": "me", "sasl.password": SECRET}
        self.plane = SparkDataPlane(
            spark, broker.spec(self.source, self.sink, kafka=config), lambda df: df.select("key", "value")
        )
        self.pids = executors(spark)
        self.sealed = self.plane.seal(broker.plan(self.source))
        self._broker = broker

    def values(self):
        return Counter(r.value for r in read_topic(self._broker.bootstrap, self.sink))


EXPECTED = Counter(b"%d:%d" % (p, i) for p in range(4) for i in range(2000))


def executors(spark):
    """Return the process ids of both executors' JVMs, once both have started, as their workers see them."""

    def parents(batches):
        import time as clock
        from os import getppid

        import pyarrow as pa

        for _ in batches:
            pass
        clock.sleep(0.3)  # so that both executors get tasks
        with open(f"/proc/{getppid()}/stat") as file:  # noqa: PTH123 - runs on executors
            jvm = int(file.read().rpartition(")")[2].split()[1])
        yield pa.RecordBatch.from_pydict({"pid": [jvm]})

    pids = set()
    wait_until(
        lambda: (
            pids.update(
                r.pid for r in spark.range(100).repartition(4).mapInArrow(parents, "pid bigint").collect()
            )
            or len(pids) == 2
        )
    )
    return sorted(pids)


def kill(spark, *pids):
    """Kill executors and wait until the driver knows of each; others may have replaced them."""
    tracker = spark.sparkContext._jsc.sc().statusTracker()

    def executor_addresses():
        return {(executor.host(), executor.port()) for executor in tracker.getExecutorInfos()}

    before = executor_addresses()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(before - executor_addresses()) == len(pids))


def test_code_reaches_executors_and_credentials_are_in_no_log(spark, broker, tmp_path, cluster):
    """The shipped package wins over an older one; neither logs nor the UI's events have a secret."""
    stage = Stage(spark, broker)
    assert stage.sealed.manifest.versions["shipped"] is True
    with broker.transaction(stage.sealed.manifest.partitions) as identity:
        stage.plane.send(stage.sealed, identity, 60)
    assert stage.values() == EXPECTED
    spark.stop()
    events = [p for p in (tmp_path / "events").rglob("*") if p.is_file()]
    logs = [p for p in cluster[1].rglob("*") if p.suffix == ".log" or p.name == "stderr"]
    text = "".join(p.read_text(errors="replace") for p in (*events, *logs))
    assert "MapInArrow" in text, "the events hold what the UI shows of the plan"
    assert any(p.name == "stderr" for p in logs)
    assert SECRET not in text


@pytest.mark.parametrize("carried", ["by its path", "in the application"])
def test_a_submitted_run_leaves_no_credential_on_the_cluster(broker, tmp_path, cluster, carried):
    """In no file of master, workers, executors and events, during the run or after it.

    A driver in client mode reads the specification where it is; one on the cluster finds it in its own file,
    which Spark copies to no executor.
    """
    source, sink = broker.numbered("src", 2, 500), broker.topic("out", 2)
    config = {**broker.config, "sasl.username": "me", "sasl.password": SECRET}
    ledger = LedgerSettings(f"ledger-{uuid.uuid4().hex[:8]}", partitions=1, key=f"{SECRET}-of-the-ledger")
    spec = broker.spec(source, sink, kafka=config, group_id=f"group-{sink}", ledger=ledger)
    (tmp_path / "copy_app.py").write_text("def process(df):\n    return df.select('key', 'value')\n")
    (tmp_path / "events").mkdir()
    seen = set()
    log = tmp_path / "driver.log"
    with SubmittedFiles(spec, tmp_path / "copy_app.py") as files, log.open("wb") as file:
        driver = submit(
            files,
            "copy_app:process",
            cluster[0],
            file,
            carried=carried == "in the application",
            spark__eventLog__enabled="true",
            spark__eventLog__dir=str(tmp_path / "events"),
            spark__eventLog__compress="false",
        )
        try:
            while driver.poll() is None:
                seen |= set(holding(SECRET, cluster[1], tmp_path / "events"))
                time.sleep(0.2)
        finally:
            driver.kill()
            driver.wait(30)
    output = log.read_text(errors="replace")
    assert driver.returncode == 0, output[-3000:]
    assert count_records(broker.config, sink) == 1000
    assert all(record.headers for record in read_topic(broker.config, ledger.topic)), "they are signed"
    assert not seen
    assert not list(holding(SECRET, cluster[1], tmp_path / "events"))
    assert SECRET not in output
    assert [path for path in cluster[1].rglob("*") if path.name == "stderr"], "the search looked at something"


def holding(text, *folders):
    """Yield the files that hold it."""
    for folder in folders:
        for path in folder.rglob("*"):
            try:
                if path.is_file() and text.encode() in path.read_bytes():
                    yield path
            except FileNotFoundError:
                continue


@pytest.mark.parametrize("step", ["in the transform", "in the shuffle"])
def test_an_executor_lost_in_the_middle_of_sealing_costs_only_time(spark, broker, tmp_path, step):
    """Spark runs its tasks again; a shuffle that lost files is sealed again. Attempts are never mixed."""
    source, sink = broker.numbered("src", 4, 2000), broker.topic("out", 4)
    begun, go = tmp_path / "begun", tmp_path / "go"
    begun.mkdir()
    folder, sign = str(begun), str(go)

    def slow(batches):
        import pathlib
        import time as clock
        from os import getppid

        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        attempt = f"{context.partitionId()}-{context.taskAttemptId()}"
        jvm = pathlib.Path(f"/proc/{getppid()}/stat").read_text().rpartition(")")[2].split()[1]
        (pathlib.Path(folder) / f"{jvm}-{attempt}").touch()
        while not pathlib.Path(sign).exists():
            clock.sleep(0.05)
        for batch in batches:
            clock.sleep(3)
            keys = pa.array([attempt.encode()] * len(batch), pa.binary())
            yield pa.RecordBatch.from_arrays([keys, batch.column("value")], names=["key", "value"])

    def process(df):
        rows = df.select("key", "value")
        # What is slow then reads the shuffle files of the executor that dies.
        rows = rows.repartition(4) if step == "in the shuffle" else rows
        return rows.mapInArrow(slow, "key binary, value binary")

    plane = SparkDataPlane(spark, broker.spec(source, sink), process)
    executors(spark)
    check_environment(spark)
    plan = broker.plan(source)
    sealed = []
    thread = threading.Thread(target=lambda: sealed.append(plane.seal(plan)))
    thread.start()
    wait_until(lambda: list(begun.iterdir()))
    os.kill(int(next(begun.iterdir()).name.split("-")[0]), signal.SIGKILL)
    go.touch()
    thread.join(120)
    assert not thread.is_alive()
    assert sealed[0].manifest.records == 8000
    with broker.transaction(sealed[0].manifest.partitions) as identity:
        plane.send(sealed[0], identity, 120)
    records = read_topic(broker.bootstrap, sink)
    assert Counter(r.value for r in records) == EXPECTED
    tried, sent = {}, {}
    for _, task, number in (path.name.split("-") for path in begun.iterdir()):
        tried.setdefault(task, set()).add(int(number))
    for task, number in (record.key.decode().split("-") for record in records):
        sent.setdefault(task, set()).add(int(number))
    assert sorted(sent) == ["0", "1", "2", "3"]
    assert all(len(numbers) == 1 for numbers in sent.values())
    # Spark numbers attempts by their start: a later attempt did the work of the dead executor.
    assert any(min(numbers) > min(tried[task]) for task, numbers in sent.items())


# With speculation the second attempt may get a copy, a third attempt, which ends first.
@pytest.mark.parametrize("spark", [{"spark.speculation": "false"}], ids=["no speculation"], indirect=True)
def test_a_seal_task_that_fails_once_is_run_again(spark, broker):
    """The first attempt of a task fails: its second attempt seals, and the output is of one evaluation."""
    source, sink = broker.numbered("src", 4, 2000), broker.topic("out", 4)

    def fails_once(batches):
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        for batch in batches:
            attempts = pa.array([str(context.attemptNumber()).encode()] * len(batch), pa.binary())
            yield pa.RecordBatch.from_arrays([attempts, batch.column("value")], names=["key", "value"])
        if context.partitionId() == 1 and context.attemptNumber() == 0:
            raise OSError("a disk, once")

    def process(df):
        return df.select("key", "value").mapInArrow(fails_once, "key binary, value binary")

    plane = SparkDataPlane(spark, broker.spec(source, sink), process)
    check_environment(spark)
    sealed = plane.seal(broker.plan(source))
    with broker.transaction(sealed.manifest.partitions) as identity:
        plane.send(sealed, identity, 120)
    records = read_topic(broker.bootstrap, sink)
    assert Counter(r.value for r in records) == EXPECTED
    attempts = attempts_by_source_partition(records)
    assert all(len(numbers) == 1 for numbers in attempts.values())
    assert {b"1"} in attempts.values()


# With two executors a task fails on both before it has failed four times.
@pytest.mark.parametrize(
    "spark",
    [
        {
            "spark.speculation": "false",
            "spark.excludeOnFailure.enabled": "true",
            "spark.scheduler.excludeOnFailure.unschedulableTaskSetTimeout": "0s",
        }
    ],
    ids=["exclude on failure"],
    indirect=True,
)
@pytest.mark.parametrize("barrier", [False, True], ids=["on each executor", "in a barrier stage"])
def test_a_function_that_fails_everywhere_is_told_from_a_lost_executor(spark, broker, barrier, monkeypatch):
    """Spark gives the task up early, and its exception has no cause."""
    monkeypatch.setattr(failure_search, "SEARCH_SECONDS", 1)
    source, sink = broker.numbered("src", 2, 10), broker.topic("out", 1)

    def fails(batches):
        for batch in batches:
            if b"1:7" in batch.column("value").to_pylist():
                raise ValueError("bad")
            yield batch

    def process(df):
        return df.select("key", "value").mapInArrow(fails, "key binary, value binary", barrier)

    executors(spark)
    error = attempt(SparkDataPlane(spark, broker.spec(source, sink), process).seal, broker.plan(source))
    assert isinstance(error, ProcessFailed)
    assert error.raised == ("ValueError",)


@WITHOUT_EARLY_COPIES
def test_sealed_batches_survive_a_lost_executor(spark, broker):
    """There are two replicas: nothing is read or computed again."""
    stage = Stage(spark, broker)
    kill(spark, stage.pids[0])
    with broker.transaction(stage.sealed.manifest.partitions) as identity:
        stage.plane.send(stage.sealed, identity, 120)
    assert stage.values() == EXPECTED


def test_lost_blocks_ask_for_a_new_seal(spark, broker):
    """Both replicas are lost; the same ranges can be sealed again in the same session.

    One after the other would not do: Spark replicates again by itself.
    """
    stage = Stage(spark, broker)
    kill(spark, *stage.pids)
    with broker.transaction(stage.sealed.manifest.partitions, commit=False) as identity:
        caught = attempt(stage.plane.send, stage.sealed, identity, 120)
    assert type(caught) is SealedBlockLost
    sealed = stage.plane.seal(broker.plan(stage.source))
    with broker.transaction(sealed.manifest.partitions) as identity:
        stage.plane.send(sealed, identity, 120)
    assert stage.values() == EXPECTED


def run_spec(broker, source, sink):
    """A run with its own cursor."""
    ledger = LedgerSettings("ledger-of-clusters", partitions=2)
    return broker.spec(source, sink, pipeline=sink, group_id=sink, ledger=ledger)


def copy(df):
    return df.select("key", "value")


def test_a_run_that_lost_its_sealed_batches_seals_again(spark, broker):
    """Both executors die at SEALED: the epoch is given up, the same ranges are sealed again, exactly once."""
    source, sink = broker.numbered("src", 4, 2000), broker.topic("out", 4)
    pids = executors(spark)

    def lose(state):
        if state is State.SEALED and pids:
            kill(spark, *pids)
            pids.clear()

    record = Run(spark, run_spec(broker, source, sink), copy, on_state=lose).execute()
    states = [state for state, _ in record.trace]
    assert [states.count(state) for state in ("FENCED", "SEALED", "ABORTED", "COMMITTED")] == [2, 2, 1, 1]
    assert record.records_written == 8000
    assert Counter(r.value for r in read_topic(broker.bootstrap, sink)) == EXPECTED


@WITHOUT_EARLY_COPIES
def test_a_run_whose_send_lost_an_executor_sends_again_in_a_new_epoch(spark, broker, tmp_path):
    """Killed halfway: the epoch is given up, and the next one sends the surviving replicas, exactly once."""
    source, sink = broker.numbered("src", 4, 2000), broker.topic("out", 4)
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    pids = executors(spark)
    records = []
    run = Run(spark, run_spec(broker, source, sink), copy)
    thread = threading.Thread(target=lambda: records.append(run.execute()))
    with half_sending(meeting):
        thread.start()
        wait_until(lambda: is_half_written(meeting), 120)
        kill(spark, pids[0])
        let_go(meeting)
        thread.join(180)
    assert not thread.is_alive()
    states = [state for state, _ in records[0].trace]
    assert [states.count(state) for state in ("FENCED", "SEALED", "ABORTED", "COMMITTED")] == [2, 1, 1, 1]
    assert Counter(r.value for r in read_topic(broker.bootstrap, sink)) == EXPECTED
    # What the first epoch wrote is in the log, too, aborted.
    assert count_records(broker.bootstrap, sink, "read_uncommitted") > 8000


def slow_send(folder, seconds, *, only_task=None):
    """A send task that records its executor, and waits before it writes."""

    class SlowSend(send_module.SendTask):
        def send(self, batches):
            import pathlib
            import time as clock
            from os import getppid

            from pyspark import TaskContext

            number = TaskContext.get().partitionId()
            if only_task in (None, number):
                jvm = pathlib.Path(f"/proc/{getppid()}/stat").read_text().rpartition(")")[2].split()[1]
                (pathlib.Path(folder) / f"{jvm}-{number}").touch()
                clock.sleep(seconds)
            return send_module.SendTask.send(self, batches)

    return SlowSend


@WITHOUT_EARLY_COPIES
def test_a_send_task_that_lost_its_executor_is_never_run_again(spark, broker, tmp_path, monkeypatch):
    """Law 1: the second attempt writes nothing, and the run gets an error."""
    stage = Stage(spark, broker)
    begun = tmp_path / "begun"
    begun.mkdir()
    monkeypatch.setattr(send_module, "SendTask", slow_send(str(begun), 600, only_task=0))
    caught = []

    def body():
        with broker.transaction(stage.sealed.manifest.partitions, commit=False) as identity:
            caught.append(attempt(stage.plane.send, stage.sealed, identity, 120))

    thread = threading.Thread(target=body)
    thread.start()
    wait_until(lambda: list(begun.iterdir()))
    os.kill(int(next(begun.iterdir()).name.split("-")[0]), signal.SIGKILL)
    thread.join(120)
    assert not thread.is_alive()
    assert [type(error) for error in caught] == [SecondAttempt]
    assert count_records(broker.bootstrap, stage.sink) == 0
    # The other tasks wrote their parts; the log has nothing of the lost one.
    assert 0 < count_records(broker.bootstrap, stage.sink, "read_uncommitted") < 8000


# maxFailures 1 stands for four more hosts, each with a copy of the task: a single failure ends the job.
@pytest.mark.parametrize("spark", [{"spark.task.maxFailures": "1"}], ids=["one failure"], indirect=True)
def test_speculation_does_not_write_twice(spark, broker, tmp_path, monkeypatch):
    """A speculative copy waits until it is killed, and never fails: the first attempt's output counts."""
    stage = Stage(spark, broker)
    begun = tmp_path / "begun"
    begun.mkdir()
    monkeypatch.setattr(send_module, "SendTask", slow_send(str(begun), 6, only_task=0))
    with broker.transaction(stage.sealed.manifest.partitions) as identity:
        stage.plane.send(stage.sealed, identity, 120)
    assert stage.values() == EXPECTED
    spark.stop()
    text = "".join(p.read_text() for p in (tmp_path / "events").rglob("*") if p.is_file())
    assert '"Speculative":true' in text
    assert len(list(begun.iterdir())) == 1


def attempts_by_source_partition(records):
    """Return the attempts that sealed the records of each source partition; each record's key names one."""
    attempts = {}
    for record in records:
        attempts.setdefault(record.value.split(b":")[0], set()).add(record.key)
    return attempts


def meeting(folder):
    """Return a function with which an attempt of the first task waits for a second one, to run beside it."""

    def meet():
        import pathlib
        import time as clock

        from pyspark import TaskContext

        context, here = TaskContext.get(), pathlib.Path(folder)
        if context.partitionId() == 0:
            (here / str(context.attemptNumber())).touch()
            end = clock.monotonic() + 60
            while len(list(here.iterdir())) < 2 and clock.monotonic() < end:
                clock.sleep(0.02)

    return meet


def meeting_send(meet):
    """A send task that writes once a copy of it is running."""

    class MeetingSend(send_module.SendTask):
        def __call__(self, batches):
            meet()
            return send_module.SendTask.__call__(self, batches)

    return MeetingSend


def test_a_run_whose_tasks_have_copies_side_by_side_is_exact(spark, broker, tmp_path, monkeypatch):
    """Two attempts seal the rows of a task, each its own; two hold the blocks of an owner: one counts."""
    source, sink = broker.numbered("src", 4, 2000), broker.topic("out", 4)
    seals, sends = tmp_path / "seals", tmp_path / "sends"
    seals.mkdir()
    sends.mkdir()
    meet = meeting(str(seals))

    def unrepeatable(batches):
        import uuid as unique

        import pyarrow as pa

        meet()
        attempt = unique.uuid4().bytes
        for batch in batches:
            keys = pa.array([attempt] * len(batch), pa.binary())
            yield pa.RecordBatch.from_arrays([keys, batch.column("value")], names=["key", "value"])

    def process(df):
        return df.select("key", "value").mapInArrow(unrepeatable, "key binary, value binary")

    executors(spark)
    monkeypatch.setattr(send_module, "SendTask", meeting_send(meeting(str(sends))))
    record = Run(spark, run_spec(broker, source, sink), process).execute()
    assert [len(list(attempts.iterdir())) for attempts in (seals, sends)] == [2, 2]
    states = [state for state, _ in record.trace]
    assert [states.count(state) for state in ("FENCED", "ABORTED", "COMMITTED")] == [1, 0, 1]
    records = read_topic(broker.bootstrap, sink)
    assert Counter(r.value for r in records) == EXPECTED
    assert all(len(keys) == 1 for keys in attempts_by_source_partition(records).values())
    assert count_records(broker.bootstrap, sink, "read_uncommitted") == 8000
