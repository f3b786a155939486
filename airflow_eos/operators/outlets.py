"""The description of a run in the events of outlet assets."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset
from airflow.sdk.definitions.asset import AssetRef

from airflow_eos.ledger.records.run_record import TABLE

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_eos.ledger.records.run_record import RunRecord

log = logging.getLogger(__name__)

_KAFKA = "kafka://"


def describe_outlets(context: Context, record: RunRecord) -> None:
    """Add the run to ``extra`` of the event of every outlet asset, or asset reference, of the task.

    An alias names no asset before the task adds an event to it, and is left out.

    The event of ``kafka://host:port/topic`` counts only that topic. Events of other assets count all records
    written and the rows of a table, with its name and the run's snapshot. All values come from the ledger's
    record, so they are the same when a run is found again.
    """
    for outlet in context["task"].outlets:
        if isinstance(outlet, Asset | AssetRef):
            event = _event_of(context, outlet)
            if event is not None:
                event.extra["airflow_eos"] = _describe(event.key.uri, record)


def _event_of(context: Context, outlet: Asset | AssetRef) -> Any:
    """Return the event; None if Airflow cannot say now which asset is meant: the run is committed."""
    try:
        return context["outlet_events"][outlet]
    except Exception as error:  # noqa: BLE001 - of Airflow's API server
        log.warning("The event of %s does not describe the run: %s", outlet, error)
        return None


def _describe(uri: str, record: RunRecord) -> dict[str, Any]:
    described = {
        "run_key": record.run_key,
        "pipeline": record.pipeline,
        "records_read": record.records_read,
        "records_written": record.records_written,
        "written": record.written,
        "ranges": [offsets.to_list() for offsets in record.ranges],
    }
    if uri.startswith(_KAFKA):
        topic = uri[len(_KAFKA) :].partition("/")[2]
        receipts = [receipt for receipt in record.receipts if receipt.topic == topic]
        described["records_written"] = sum(receipt.records for receipt in receipts)
        described["written"] = {f"{r.topic}-{r.partition}": r.records for r in receipts}
    elif TABLE in record.details:
        described["table"] = record.details[TABLE]
    return described
