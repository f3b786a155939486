"""Warns if another Dag uses the pipeline's name.

Two Dags may set the same ``pipeline=``, or have the same default name: task ``eu.copy`` of Dag
``sales``, task ``copy`` of Dag ``sales.eu``. ``status``, the ledger and the page list both under one name.
The run key of a cursor contains the Dag run's id; that of an interval does not: the second Dag finds
the record of the first, and does nothing.
"""

from __future__ import annotations

import logging

from airflow_eos.broker.ledger_log.topic import KafkaLedger
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import answer_of
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.spec import RunSpec
from airflow_eos.model.versioned import readable

log = logging.getLogger(__name__)

RECENT_OFFSETS = 10_000
"""Offsets at the end of the ledger partition in which to look for a pipeline's newest record."""


def warn_of_another_dag(ledger: KafkaLedger, spec: RunSpec) -> None:
    """Log a warning if the newest record of the spec's pipeline belongs to another Dag.

    Sends no request if the run is outside Airflow, or if the name is the default and has one dot: then it is
    not another Dag's default, and a Dag that sets it on purpose is warned itself.
    """
    dag_id, task_id = (str(spec.task.get(part, "")) for part in ("dag_id", "task_id"))
    if not dag_id or (spec.pipeline == f"{dag_id}.{task_id}" and spec.pipeline.count(".") == 1):
        return
    prefixes = [keys.run_record_key(prefix) for prefix in keys.run_key_prefixes(spec.pipeline)]
    view = ledger.latest(ledger.partition_for(spec.pipeline), prefixes, 1, within=RECENT_OFFSETS)
    # The page and `airflow eos verify` report what cannot be read.
    records = (record for _, record in readable(RunRecord, answer_of(view).committed.items(), []))
    record = max(records, key=lambda record: record.staged_at, default=None)
    if record is not None and record.dag_id not in ("", dag_id):
        log.warning(
            "pipeline %r is also the name of runs of Dag %r (the newest: %s, %s): its page and `airflow eos "
            "status` list both, and of an interval that both read, one reads nothing. Set pipeline= to "
            "another name, unless this Dag takes its place",
            spec.pipeline,
            record.dag_id,
            record.run_key,
            record.staged_at,
        )
