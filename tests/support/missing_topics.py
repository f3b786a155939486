"""Missing topics: a client retries for some seconds, as brokers learn of a new topic with a delay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from airflow_eos.broker.ledger_log.topic import KafkaLedger

_GRACE = "airflow_eos.wire.connection.UNKNOWN_TOPIC_GRACE"


@contextmanager
def missing_at_once() -> Iterator[None]:
    """Give up on a topic that is missing at once; a ledger that is created meanwhile is waited for."""
    create = KafkaLedger.create

    def create_patiently(ledger: KafkaLedger) -> None:
        # A broker learns of the new topic from its controller.
        with pytest.MonkeyPatch.context() as usual:
            usual.setattr(_GRACE, 30.0)
            create(ledger)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_GRACE, 0.2)
        patch.setattr(KafkaLedger, "create", create_patiently)
        yield
