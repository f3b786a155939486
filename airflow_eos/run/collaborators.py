"""The ports of a run."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from dataclasses import dataclass

from airflow_eos.ledger.authority import Authority
from airflow_eos.model.ledger import LedgerId
from airflow_eos.ports import Cluster, Ledger, SealAndSend, Transactions
from airflow_eos.run.planner import Planner
from airflow_eos.table_ports import TableSink


@dataclass(frozen=True, slots=True)
class Collaborators:
    """The ports of a run.

    :param ledger_id: the verified ledger.
    :param table: the sink, if it is a table.
    :param now: returns the current time, aware.
    :param clock: returns monotonic seconds.
    """

    cluster: Cluster
    transactions: Transactions
    ledger: Ledger
    authority: Authority
    planner: Planner
    data: SealAndSend
    ledger_id: LedgerId
    now: Callable[[], dt.datetime]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    table: TableSink | None = None
