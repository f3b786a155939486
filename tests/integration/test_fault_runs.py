"""Runs in separate driver processes: held at each point, frozen, killed."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from airflow_eos.exceptions import ConfigurationError, ProcessFailed
from airflow_eos.model.spec import LedgerSettings
from airflow_eos.run.states import State
from airflow_eos_testing import count_records
from airflow_eos_testing.exceptions import DriverDied, EmbeddedDriverError
from airflow_eos_testing.faults import COMMITTING, HALF_WRITTEN, TABLE_STATES, DriverProcess, RunProcess
from tests.support.local_runs import Pipeline

COUNT = 40
VALUES = sorted(f"v{n}" for n in range(COUNT))


@pytest.fixture(scope="module")
def driver():
    """One warm driver; the last test kills it."""
    with DriverProcess() as running:
        yield running


@pytest.fixture
def pipeline(embedded_kafka):
    filled = Pipeline(embedded_kafka)
    # One ledger for all: creating one takes seconds.
    filled.spec = replace(filled.spec, ledger=LedgerSettings("ledger-of-fault-runs", partitions=2))
    filled.publish([f"v{n}" for n in range(COUNT)])
    return filled


def copy(df):
    return df.select("key", "value")


def uncommitted(pipeline):
    return count_records(pipeline.kafka.client_config(), pipeline.sink, "read_uncommitted")


@pytest.mark.chaos
def test_a_run_is_held_at_every_point(pipeline, driver):
    """In the order of the protocol; nothing is visible before the commit, everything at once after it."""
    points = [*TABLE_STATES[:-1], COMMITTING, State.COMMITTED]
    with RunProcess(pipeline.spec, copy, stop_at=points, driver=driver) as run:
        for point in points:
            run.wait_for(point)
            behind = point in (COMMITTING, State.COMMITTED)
            # A commit is decided before its markers are written.
            if point is not COMMITTING:
                assert pipeline.output() == (VALUES if behind else [])
            run.release()
        record = run.result()
    assert record.records_written == COUNT
    assert [point for point, _ in run.trace] == [
        *(step for step, _ in record.trace[:-1]),
        COMMITTING,
        "COMMITTED",
    ]
    assert pipeline.output() == VALUES


def test_a_run_is_held_half_written(pipeline, driver):
    """Some records are on the brokers, some are not; after the release the result is exact."""
    with RunProcess(pipeline.spec, copy, stop_at=HALF_WRITTEN, driver=driver) as run:
        run.wait_for(HALF_WRITTEN)
        assert 0 < uncommitted(pipeline) < COUNT
        assert pipeline.output() == []
        run.release()
        assert run.result().records_written == COUNT
    assert pipeline.output() == VALUES


def test_a_run_that_fails_raises_its_own_error(pipeline, driver):
    """The exception type crosses the process, and waiting for a point never reached raises the reason."""

    def fails(_df):
        raise ValueError("no such column")

    with RunProcess(pipeline.spec, fails, stop_at=State.SEALED, driver=driver) as run:
        with pytest.raises(EmbeddedDriverError, match=r"not held at SEALED.*no such column"):
            run.wait_for(State.SEALED)
        with pytest.raises(ProcessFailed, match="no such column"):
            run.result()
        with pytest.raises(ConfigurationError, match="'SENT' is not a point"):
            driver.run(pipeline.spec, copy, stop_at="SENT")


def test_a_frozen_run_is_a_zombie_until_it_is_let_go(pipeline, driver):
    """SIGSTOP of all its processes: another attempt commits meanwhile; the zombie finds the commit."""
    with RunProcess(pipeline.spec, copy, stop_at=State.WRITTEN, driver=driver) as run:
        run.wait_for(State.WRITTEN)
        run.pause()
        run.release()
        assert not pipeline.run(try_number=2).found
        with pytest.raises(EmbeddedDriverError, match="has not ended"):
            run.result(timeout=0.5)
        run.resume()
        assert run.result().found
    assert pipeline.output() == VALUES


def test_a_killed_run_leaves_a_half_written_transaction_and_no_process(pipeline, driver):
    """SIGKILL of all its processes during the send; the next attempt completes the work."""
    with RunProcess(pipeline.spec, copy, stop_at=HALF_WRITTEN, driver=driver) as run:
        run.wait_for(HALF_WRITTEN)
        processes = driver.processes()
        assert len(processes) > 2
        run.kill()
        with pytest.raises(DriverDied, match="OPEN"):
            run.result()
    assert not any(os.path.exists(f"/proc/{pid}/exe") for pid in processes)  # noqa: PTH110
    assert "state OPEN" in driver.log
    assert 0 < uncommitted(pipeline) < COUNT
    assert pipeline.run(try_number=2).records_written == COUNT
    assert pipeline.output() == VALUES
    with pytest.raises(DriverDied):
        driver.run(pipeline.spec, copy)
