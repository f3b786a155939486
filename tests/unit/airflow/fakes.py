"""An engine that does nothing, and a task's context, both as the operator sees them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.definitions.xcom_arg import PlainXComArg

from airflow_eos.ledger.keys import cursor_run_key
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.kafka import ProducerIdentity
from airflow_eos.model.output import PartitionReceipt
from airflow_eos.model.ranges import OffsetRange
from airflow_eos.model.spec import RunSpec
from tests.support.run_records import run_record

START = dt.datetime(2026, 11, 20, tzinfo=dt.timezone.utc)
DAY = dt.timedelta(days=1)


def a_record(**changes: Any) -> RunRecord:
    """A committed run that read 10 records of ``src`` and wrote 7 to ``out`` and 3 to ``dead``."""
    fields: dict[str, Any] = {
        "run_key": cursor_run_key("pipelines.copy", "scheduled__2026-11-20"),
        "pipeline": "pipelines.copy",
        "run_id": "scheduled__2026-11-20",
        "ranges": (OffsetRange("src", 0, 5, 15),),
        "records_read_by_partition": {"src-0": 10},
        "receipts": (
            PartitionReceipt("out", 0, 100, 106, 7, 700, 1, 6),
            PartitionReceipt("dead", 0, 0, 2, 3, 300, 1, 2),
        ),
        "producer": ProducerIdentity("airflow-eos.g", 4000, 3),
        "started_at": "2026-11-20T00:00:00Z",
        "staged_at": "2026-11-20T00:00:09Z",
    }
    return run_record(**{**fields, **changes})


class FakeRun:
    """Records how it was made and killed; returns ``outcome``, or raises it.

    Later look-ups in the ledger get the entries of ``ledger`` one after the other; the last one stays.
    """

    outcome: ClassVar[RunRecord | BaseException]
    ledger: ClassVar[list[RunRecord | BaseException | None]]
    asks_for_spark: ClassVar[bool]

    def __init__(
        self,
        spark: Callable[[], Any],
        spec: RunSpec,
        process: Callable[..., Any],
        *,
        on_state: Callable[[Any], None] | None = None,
    ) -> None:
        self.on_state = on_state
        self.spark, self.spec, self.process = spark, spec, process
        self.session: Any = None
        self.kills = 0

    def execute(self) -> RunRecord:
        if self.asks_for_spark:
            self.session = self.spark(SimpleNamespace(offsets=1000))
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome

    def kill(self) -> None:
        self.kills += 1


class FakeSession:
    """A Spark session that counts how often it is stopped."""

    settings: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        self.stops = 0
        self.sparkContext = SimpleNamespace()
        self.conf = SimpleNamespace(get=self.settings.get)
        self.client = SimpleNamespace(set_retry_policies=list)

    def stop(self) -> None:
        self.stops += 1


def make_context(task: Any, **dag_run: Any) -> Any:
    """Return the parts of a task's context that the operator reads, with Airflow's names."""
    from airflow.sdk.execution_time.context import OutletEventAccessors

    fields: dict[str, Any] = {
        "run_id": "scheduled__2026-11-20",
        "clear_number": 0,
        "partition_key": None,
        "partition_date": None,
        "data_interval_start": START,
        "data_interval_end": START + DAY,
        "try_number": 1,
        "max_tries": task.retries,
        "map_index": -1,
        **dag_run,
    }
    ti = SimpleNamespace(**{name: fields.pop(name) for name in ("try_number", "max_tries", "map_index")})
    ti.run_id = fields["run_id"]
    return {
        "dag": task.dag,
        "task": task,
        "ti": ti,
        "run_id": fields["run_id"],
        "dag_run": SimpleNamespace(**fields),
        "outlet_events": OutletEventAccessors(),
    }


def upstream(result: Any) -> Any:
    """Return the result of another task of the Dag, in the form that a task gets."""

    class Result(PlainXComArg):
        def resolve(self, _context: Any) -> Any:
            return result

    return Result(BaseOperator(task_id="upstream"))
