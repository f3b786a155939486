"""No check of the doctor waits for longer than others, and an error of one stops none of them."""

from __future__ import annotations

import datetime as dt
import inspect
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from airflow_eos.model.spec import Deployment
from airflow_eos.operations import checks, doctor, health, retention_report, table_checks
from airflow_eos.operations.checks import CHECK_PATIENCE


@dataclass
class Transactions:
    """Notes for how long a coordinator is asked."""

    transaction_timeout: dt.timedelta = dt.timedelta(minutes=5)
    delivery_timeout: dt.timedelta = dt.timedelta(minutes=2)
    fence_timeout: dt.timedelta = dt.timedelta(minutes=1)
    timeouts: list[float] = field(default_factory=list)

    def fence(self, *_: Any, **__: Any) -> Any:
        self.timeouts.append(self.fence_timeout.total_seconds())
        return SimpleNamespace(close=lambda: None, transaction_timeout=self.transaction_timeout)

    def abort(self, _identity: Any, *, timeout: float = 60.0) -> None:
        self.timeouts.append(timeout)


def test_a_coordinator_is_asked_no_longer_than_other_brokers() -> None:
    """An unavailable one used to cost a minute for each of the two ids."""
    control: Any = SimpleNamespace(transactions=Transactions())
    options = doctor.DoctorOptions(Deployment({"bootstrap.servers": "nowhere:1"}), group="g")
    (check,) = doctor._transactional_id(control, options)
    assert check.status == "ok"
    assert control.transactions.timeouts == [CHECK_PATIENCE, CHECK_PATIENCE]


def test_no_check_asks_before_it_is_guarded() -> None:
    """If a function fails when it is called, not when its checks are iterated, the doctor would end."""
    looks = [
        function
        for module in (checks, doctor, health, retention_report, table_checks)
        for _, function in inspect.getmembers(module, inspect.isfunction)
        if function.__annotations__.get("return") == "Iterator[Check]"
    ]
    assert checks.durability in looks
    assert [look.__qualname__ for look in looks if not inspect.isgeneratorfunction(look)] == []
