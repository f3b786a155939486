"""The broker's own view of transactions (KIP-664), and a quota that slows a client down (KIP-546)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Transaction:
    """A transaction as its coordinator describes it."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"transaction {self.transactional_id}: {self.state}, producer {self.producer_id} "
            f"epoch {self.producer_epoch}"
        )


class BrokerView:
    """Queries the broker with an admin client of its own; close it at the end."""

    def __init__(self, bootstrap_servers: str) -> None:
        from kafka.admin import KafkaAdminClient

        logging.getLogger("kafka").setLevel(logging.CRITICAL)
        self._admin: Any = KafkaAdminClient(bootstrap_servers=bootstrap_servers)

    def close(self) -> None:
        """Close the client."""
        self._admin.close()

    def transaction(self, transactional_id: str) -> Transaction | None:
        """Return the transaction, or None while the coordinator does not know the id or loads its log."""
        from kafka.errors import CoordinatorLoadInProgressError, CoordinatorNotAvailableError

        try:
            listed = self._admin.list_transactions().values()
        except (CoordinatorLoadInProgressError, CoordinatorNotAvailableError):
            return None
        listed_ids = {listing.transactional_id for broker in listed for listing in broker}
        if transactional_id not in listed_ids:
            return None
        described = self._admin.describe_transactions([transactional_id])[transactional_id]
        return Transaction(
            transactional_id,
            str(getattr(described.state, "value", described.state)),
            described.producer_id,
            described.producer_epoch,
            tuple(sorted(f"{part.topic}-{part.partition}" for part in described.topic_partitions)),
        )

    def slow_down(self, client_id: str, bytes_per_second: float) -> None:
        """Make the broker throttle a client id's produce requests.

        It answers the first requests and then stops reading from connections that sent too much.
        """
        self._set_quota(client_id, bytes_per_second)

    def let_go(self, client_id: str) -> None:
        """Remove the quota."""
        self._set_quota(client_id, None)

    def _set_quota(self, client_id: str, bytes_per_second: float | None) -> None:
        from kafka.protocol.admin.client_quotas import AlterClientQuotasRequest as Request

        request: Any = Request
        entry = request.EntryData
        entity = entry.EntityData(entity_type="client-id", entity_name=client_id)
        operation = entry.OpData(
            key="producer_byte_rate", value=bytes_per_second or 0.0, remove=bytes_per_second is None
        )
        message = request(entries=[entry(entity=[entity], ops=[operation])], validate_only=False)
        manager = self._admin._manager  # noqa: SLF001 - the client has no call for quotas
        for answer in manager.run(manager.send, message).entries:
            if answer.error_code:
                raise RuntimeError(f"the broker refused the quota: {answer.error_message}")
