"""Topics that are not there: a client asks for some seconds, as brokers learn of a new one with a delay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from airflow_eos.broker.ledger_log.topic import KafkaLedger

_GRACE = "airflow_eos.wire.connection.UNKNOWN_TOPIC_GRACE"


@contextmanager
def missing_at_once() -> Iterator[None]:
    """Believe soon that a topic is missing; only where it is. A ledger made meanwhile is waited for."""
    create = KafkaLedger.create

    def create_patiently(ledger: KafkaLedger) -> None:
        # A broker hears of the new topic from its controller.
        with pytest.MonkeyPatch.context() as usual:
            usual.setattr(_GRACE, 30.0)
            create(ledger)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_GRACE, 0.2)
        patch.setattr(KafkaLedger, "create", create_patiently)
        yield
