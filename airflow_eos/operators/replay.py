"""Writes given offset ranges again, deliberately and on record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.spec import RunSpec
from airflow_eos.operators.parameter_table import confirmed, replayed_ranges
from airflow_eos.operators.read_process_write import ReadProcessWriteOperator
from airflow_eos.operators.rendered import GivenRanges, parse_ranges

if TYPE_CHECKING:
    from airflow.sdk import Context


class ReplayOffsetRangesOperator(ReadProcessWriteOperator):
    """Read exactly the given offset ranges and write their output once more, in one transaction.

    **What it is for:** a transform was wrong, or a sink topic was lost. Consumers see the output of these
    ranges *again*: that is the purpose, and why ``confirm`` is asked for.

    **What it guarantees:** one Dag run replays once, whatever happens to the task; the group's offsets
    and the cursor stay where they are; the ledger keeps who asked, why, and which ranges.

    Example, triggered by hand with a configuration::

        ReplayOffsetRangesOperator(
            task_id="replay", process="../spark_apps/flights.py:process", topics=["flights"],
            sink_topic="flights-classified", group_id="flights-classifier",
            offset_ranges="{{ params.offset_ranges }}", reason="{{ params.reason }}",
            confirm="{{ params.confirm }}",
        )

    :param offset_ranges: ``OffsetRange``, ``[topic, partition, start, end]``, or a JSON list of such lists:
        the form ``ranges`` has in XCom and in the ledger. (templated)
    :param reason: kept in the run record; must not be empty. (templated)
    :param confirm: must be true (or the text ``true`` or ``yes``) when the task runs. (templated)
    """

    template_fields: Sequence[str] = (
        "offset_ranges",
        "reason",
        "confirm",
        *ReadProcessWriteOperator.template_fields,
    )

    def __init__(
        self,
        *,
        offset_ranges: GivenRanges,
        reason: str,
        confirm: bool | str = False,
        **kwargs: Any,
    ) -> None:
        if "ranges" in kwargs:
            raise ConfigurationError("give offset_ranges, not ranges: a replay reads explicit ranges only")
        # Replays do not use the cursor, so several may run at once.
        kwargs.setdefault("max_active_tis_per_dag", None)
        self.offset_ranges = offset_ranges
        self.reason = reason
        self.confirm = confirm
        super().__init__(**kwargs)

    def build_spec(self, context: Context) -> RunSpec:
        """Return the specification of the replay.

        :raises ConfigurationError: it is not confirmed, has no reason, or the ranges cannot be read.
        """
        if not confirmed("confirm", self.confirm):
            raise ConfigurationError(
                "a replay writes output again that consumers may have seen: set confirm=True, "
                f"got {self.confirm!r}"
            )
        self.ranges = replayed_ranges("offset_ranges", self.offset_ranges)
        spec = super().build_spec(context)
        # A replay has its own key, so its run is never a reprocessing, but all its records are repeated.
        return replace(spec, mark_output="always") if spec.mark_output == "reprocessed" else spec

    def audit(self, context: Context) -> dict[str, Any]:
        """Return the replayed ranges, the user and the reason."""
        dag_run = context["dag_run"]
        return {
            "replay": [offsets.to_list() for offsets in parse_ranges("offset_ranges", self.offset_ranges)],
            "reason": self.reason,
            "dag_id": self.dag_id,
            "task_id": self.task_id,
            "run_type": str(getattr(dag_run, "run_type", "") or ""),
            "triggered_by": str(getattr(dag_run, "triggering_user_name", "") or ""),
        }
