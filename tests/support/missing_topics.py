"""Missing topics: a client retries for some seconds, as brokers learn of new topics with a delay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from airflow_eos.broker.ledger_log.topic import KafkaLedger

_GRACE = "airflow_eos.wire.connection.UNKNOWN_TOPIC_GRACE"


@contextmanager
def missing_at_once() -> Iterator[None]:
    """Shorten the client's wait for missing topics, but not for a ledger that is being created."""
    create = KafkaLedger.create

    def create_patiently(ledger: KafkaLedger) -> None:
        # A broker learns of the new topic from the controller.
        with pytest.MonkeyPatch.context() as usual:
            usual.setattr(_GRACE, 30.0)
            create(ledger)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_GRACE, 0.2)
        patch.setattr(KafkaLedger, "create", create_patiently)
        yield
