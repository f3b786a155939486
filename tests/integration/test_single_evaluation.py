"""One evaluation below the seal: an executor dies, and Spark recomputes what it held.

The pinned Spark compares checksums of map outputs by itself; switched off, as here, it does what older lines
do. ``make test`` runs one case, ``make chaos`` all of them. To run them on another Spark line, copy
``.venv``, uninstall ``pyspark`` and ``pyspark-client`` there (both own the folder ``pyspark``), install both
in one version, and call its Python::

    PYSPARK_PYTHON=.../bin/python .../bin/python -m pytest tests/integration/test_single_evaluation.py -m ""
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_eos.engine import Run
from airflow_eos.exceptions import ConfigurationError, RunFailed
from airflow_eos.model.spec import LedgerSettings
from airflow_eos.run.states import State
from airflow_eos.spark import single_evaluation
from airflow_eos.spark.session import is_connect, spark_version
from airflow_eos_testing import read_topic
from airflow_eos_testing.faults import SparkCluster
from airflow_eos_testing.faults.half_send import half_sending, is_half_written, let_go
from airflow_eos_testing.spark_connect import SparkConnectServer
from tests.support.patience import wait_until
from tests.support.spark_sessions import BOOTSTRAP, KIND, new_session
from tests.support.unrepeatable import (
    ALL_RECORDS,
    ONE_PER_KEY,
    Gate,
    cached_beyond_memory,
    cached_halves,
    half_of_a_filled_cache_in_one_task,
    lazily_checkpointed_halves,
    random_keys,
    random_keys_below_two_shuffles,
    random_values_without_a_shuffle,
)

RECORDS = Counter(b"%d:%d" % (p, i) for p in range(4) for i in range(1000))
KEYS = Counter(b"k%d" % i for i in range(97))
SHAPES = (*ALL_RECORDS, *ONE_PER_KEY)
CONNECT = os.environ.get(KIND) == "connect"
CLASSIC_ONLY = pytest.mark.skipif(CONNECT, reason="a classic session")
CHECKSUMS = "spark.sql.shuffle.orderIndependentChecksum"
SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
    "spark.excludeOnFailure.enabled": "false",
    "spark.shuffle.io.retryWait": "1s",
    "spark.sql.shuffle.partitions": "3",
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
    # As Spark before 4.2; a run over Spark Connect switches them on for its own seal.
    f"{CHECKSUMS}.enabled": "false",
    f"{CHECKSUMS}.enableFullRetryOnMismatch": "false",
}
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.sql.adaptive.enabled": "false",
}


@pytest.fixture(scope="module")
def cluster():
    """A master with two workers of one core each."""
    with SparkCluster() as started:
        yield started


@pytest.fixture(scope="module", params=[{}], ids=["adaptive"])
def spark(request, cluster):
    """A session on the cluster: classic, or of a Spark Connect server of its own."""
    settings = {**SETTINGS, **request.param}
    if CONNECT:
        with SparkConnectServer(cluster.master, settings=settings) as server:
            session = new_session("connect", server.url)
            yield session
            session.stop()
        return
    session = new_session("classic", cluster.master, **settings)
    yield session
    session.stop()


class Experiment:
    """A run whose function is one of the shapes, and the records of its sink."""

    def __init__(self, spark, broker, cluster, folder, shape):
        cluster.wait_for_executors(2)
        self.seals = 0
        self.gate = Gate(str(folder))
        self._shape = shape
        self._broker = broker
        self._spark = spark
        source, self._sink = broker.numbered("src", 4, 1000), broker.topic("out", 4)
        ledger = LedgerSettings("ledger-of-evaluations", partitions=2)
        self.spec = broker.spec(source, self._sink, pipeline=self._sink, group_id=self._sink, ledger=ledger)

    def process(self, df):
        self.seals += 1
        return self._shape(df, self.gate)

    def run(self, on_state=None):
        """Use a local function: Spark pickles it, without this object."""

        def process(df):
            return self.process(df)

        return Run(self._spark, self.spec, process, on_state=on_state).execute()

    def run_and_kill(self):
        """Run, and kill an executor after two of the six tasks of a stage have ended."""
        killer = threading.Thread(target=self.gate.kill_one_and_open, daemon=True)
        killer.start()
        try:
            return self.run()
        finally:
            killer.join(120)
            assert not killer.is_alive()

    def surplus(self):
        """What readers of the sink miss and what they see again: nothing, if it is exact."""
        rows = read_topic(self._broker.bootstrap, self._sink)
        if self._shape not in ONE_PER_KEY:
            return _differs(Counter(row.value for row in rows), RECORDS)
        return _differs(Counter(row.key for row in rows), KEYS)


def _differs(seen, expected):
    return {"lost": len(expected - seen), "twice": len(seen - expected)}


EXACT = {"lost": 0, "twice": 0}


@pytest.fixture
def experiment(spark, broker, cluster, tmp_path):
    return lambda shape: Experiment(spark, broker, cluster, tmp_path, shape)


@contextmanager
def without_the_check(monkeypatch):
    """Accept the seal whatever was computed twice."""
    with monkeypatch.context() as patch:
        patch.setattr(single_evaluation.StatusStoreEvidence, "check", lambda _evidence: None)
        yield


@CLASSIC_ONLY
def test_two_evaluations_in_the_middle_of_a_transform_are_sealed_again(experiment):
    """All seal tasks run in one attempt, but on data of two evaluations: detected, all is sealed again."""
    run = experiment(random_keys_below_two_shuffles)
    run.run_and_kill()
    assert run.surplus() == EXACT
    assert run.seals == 2


def _is_admitted(spark, shape):
    """Return whether a session can prove that the shape was evaluated once."""
    if shape is cached_halves:
        return False
    if not is_connect(spark) or shape is random_values_without_a_shuffle:
        return True
    return spark_version(spark) >= (4, 2)


def _is_refused(run):
    """Check that it is refused before anything is computed or written."""
    with pytest.raises(ConfigurationError, match=single_evaluation.REPEATABLE):
        run.run()
    assert run.surplus()["twice"] == 0


@pytest.mark.chaos
@pytest.mark.parametrize(
    "spark", [{}, SPECULATION], ids=["adaptive", "speculation, not adaptive"], indirect=True
)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_an_executor_lost_while_it_is_sealed_leaves_one_evaluation(experiment, spark, shape):
    """Whatever depends on order, time or chance: exact, or refused before anything is computed."""
    run = experiment(shape)
    if not _is_admitted(spark, shape):
        _is_refused(run)
        return
    run.run_and_kill()
    assert run.surplus() == EXACT
    assert run.seals == (1 if is_connect(spark) else 2)


@pytest.mark.chaos
@CLASSIC_ONLY
@pytest.mark.parametrize(
    "shape", [random_keys, random_keys_below_two_shuffles], ids=lambda shape: shape.__name__
)
def test_without_the_check_records_are_lost_and_come_twice(experiment, monkeypatch, shape):
    """Counter-test: the run succeeds."""
    run = experiment(shape)
    with without_the_check(monkeypatch):
        run.run_and_kill()
    assert run.seals == 1
    assert all(run.surplus().values())


@pytest.mark.chaos
@CLASSIC_ONLY
def test_a_filled_cache_that_loses_an_executor_leaves_one_evaluation(experiment):
    """What one task read of the lost blocks is mixed with what others recompute."""
    run = experiment(half_of_a_filled_cache_in_one_task)
    run.run_and_kill()
    assert run.surplus() == EXACT
    assert run.seals == 2


@pytest.mark.chaos
@CLASSIC_ONLY
@pytest.mark.parametrize(
    ("owner", "check", "nothing"),
    [
        # A cluster manager may take seconds to report a lost executor.
        (single_evaluation.StatusStoreEvidence, "_lost_executors", set()),
        (single_evaluation.CachedBlocks, "computed_twice", None),
    ],
)
def test_each_of_both_checks_of_a_cache_tells_of_the_loss(experiment, monkeypatch, owner, check, nothing):
    """Moved blocks, or a lost executor that held some: each check alone is enough."""
    monkeypatch.setattr(owner, check, lambda *_: nothing)
    run = experiment(half_of_a_filled_cache_in_one_task)
    run.run_and_kill()
    assert run.surplus() == EXACT
    assert run.seals == 2


@pytest.mark.chaos
@CLASSIC_ONLY
def test_without_both_checks_of_a_cache_records_are_lost_and_come_twice(experiment, monkeypatch):
    """Counter-test: the run succeeds."""
    run = experiment(half_of_a_filled_cache_in_one_task)
    with monkeypatch.context() as patch:
        patch.setattr(single_evaluation.StatusStoreEvidence, "_lost_executors", lambda _evidence: set())
        patch.setattr(single_evaluation.CachedBlocks, "computed_twice", lambda *_: None)
        run.run_and_kill()
    assert run.seals == 1
    assert all(run.surplus().values())


@pytest.mark.chaos
@CLASSIC_ONLY
@pytest.mark.parametrize("spark", [{"spark.memory.fraction": "0.05"}], ids=["10 MB"], indirect=True)
@pytest.mark.parametrize("checked", [True, False])
def test_a_cache_without_a_disk_is_no_single_evaluation(experiment, monkeypatch, checked):
    """Without the check the run succeeds: Spark draws the dropped values again."""
    run = experiment(cached_beyond_memory)
    if checked:
        _is_refused(run)
        return
    for refusal in ("refuse_caches_in_memory_only", "refuse_caches_filled_by_several"):
        monkeypatch.setattr(single_evaluation, refusal, lambda *_: None)
    run.run()
    assert run.seals == 1
    assert all(run.surplus().values())


@pytest.mark.chaos
@CLASSIC_ONLY
def test_a_transform_that_is_computed_twice_each_time_fails_with_the_reason(experiment, monkeypatch):
    """Bounded: three seals, no output, and the error says what Spark did."""
    monkeypatch.setattr(single_evaluation, "computed_twice", lambda runs: f"ran {len(runs)} stages again")
    run = experiment(random_keys)
    Path(run.gate.folder, "open").touch()
    with pytest.raises(RunFailed, match=r"sealed 3 times and never consistently: ran [3-9] stages again"):
        run.run()
    assert run.seals == 3
    assert run.surplus()["twice"] == 0


@pytest.mark.chaos
def test_a_lazy_checkpoint_leaves_one_evaluation(experiment, spark):
    """A run over Spark Connect makes it eager; a classic session detects what both tasks have computed."""
    run = experiment(lazily_checkpointed_halves)
    if is_connect(spark) and spark_version(spark) < (4, 2):
        _is_refused(run)
        return
    if is_connect(spark):
        run.run()
        assert run.surplus() == EXACT
        return
    with pytest.raises(RunFailed, match=r"lazy checkpoint is on executor .* eager=True"):
        run.run()
    assert run.surplus()["twice"] == 0


@pytest.mark.chaos
@pytest.mark.parametrize("lost", [1, 2], ids=["one executor", "both executors"])
@pytest.mark.parametrize(
    "shape", [random_keys, random_values_without_a_shuffle], ids=lambda shape: shape.__name__
)
def test_executors_lost_behind_the_seal_leave_one_evaluation(experiment, spark, cluster, shape, lost):
    """A replica is sent as it is; without one, everything is sealed again for the next epoch."""
    run = experiment(shape)
    if not _is_admitted(spark, shape):
        _is_refused(run)
        return
    Path(run.gate.folder, "open").touch()
    pids = cluster.wait_for_executors(2)[:lost]

    def lose(state):
        if state is State.SEALED:
            while pids:
                cluster.kill_executor(pids.pop())

    run.run(on_state=lose)
    assert run.surplus() == EXACT
    # An executor that replaces a dead one may start too late to hold replicas: then one loss is enough.
    assert run.seals == 2 or lost == 1


@pytest.mark.chaos
@CLASSIC_ONLY
def test_an_executor_lost_while_it_sends_leaves_one_evaluation(experiment, cluster, tmp_path):
    """The surviving replicas are sent in the next epoch."""
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    run = experiment(random_keys)
    Path(run.gate.folder, "open").touch()
    thread = threading.Thread(target=run.run)
    with half_sending(meeting):
        thread.start()
        wait_until(lambda: is_half_written(meeting), 120)
        cluster.kill_executor(cluster.executors()[0])
        let_go(meeting)
        thread.join(180)
    assert not thread.is_alive()
    assert run.surplus() == EXACT


@pytest.mark.chaos
@CLASSIC_ONLY
@pytest.mark.timeout(1500)
def test_spark_connect_leaves_one_evaluation(broker):
    """The same experiments against a Spark Connect server, in a separate process."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "chaos", __file__],
        env={**os.environ, KIND: "connect", BOOTSTRAP: broker.bootstrap},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) == 2 * len(SHAPES) + 5
