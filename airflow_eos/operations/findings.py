"""Results of comparing a run's output with its receipts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from airflow_eos.model.versioned import JsonForm

Outcome = Literal["ok", "mismatch", "unavailable", "compacted", "expired", "table"]
NOT_MATCHING: tuple[Outcome, ...] = ("mismatch", "unavailable")
"""Outcomes with which the output of a run does not count as matching its receipts."""


@dataclass(frozen=True, slots=True)
class Finding(JsonForm):
    """The result for one target partition, or table, of one run.

    :param topic: or the table; its partition is 0.
    :param outcome: ``expired``: retention has deleted some of the output, or the table's snapshot was
        expired, so it cannot be verified; ``compacted``: the topic is compacted, and later records of their
        keys may have replaced missing ones; ``table``: the table could not be read, or is not read here;
        ``unavailable``: the partition has no leader, so nobody can read it.
    :param recorded: number of records written, according to the ledger.
    :param found: number of the run's records that a ``read_committed`` consumer gets, or of rows in the data
        files of the run's snapshot.
    :param detail: what is wrong; empty if nothing is.
    """

    run_key: str
    topic: str
    partition: int
    outcome: Outcome
    recorded: int
    found: int
    detail: str = ""
