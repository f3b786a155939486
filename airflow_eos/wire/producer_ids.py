"""InitProducerId without a producer, to keep a transactional id from expiring."""

from __future__ import annotations

from kafka.protocol.producer import InitProducerIdRequest

from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.coordinators import Coordinator
from airflow_eos.wire.error_codes import COORDINATOR
from airflow_eos.wire.txn_requests import CONTROL_TIMEOUT

_NO_PRODUCER = -1
_CONCURRENT_TRANSACTIONS = 51
_MAX_VERSION = 4
_TRANSACTION_TIMEOUT_MS = 1000  # no transaction begins under it, but brokers refuse values below 1


def touch_transactional_id(
    connections: BrokerConnections, transactional_id: str, *, timeout: float = CONTROL_TIMEOUT
) -> None:
    """Initialise an id that no producer uses, which restarts ``transactional.id.expiration.ms``.

    :raises AuthorizationFailed: Write on the transactional id is missing.
    :raises BrokersUnavailable: after ``timeout`` seconds, with the last answer.
    """
    subject = f"InitProducerId of {transactional_id!r}"
    coordinator = Coordinator(connections, "transaction", transactional_id)

    async def attempt(node: int) -> None:
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS,
            producer_id=_NO_PRODUCER,
            producer_epoch=_NO_PRODUCER,
            max_version=_MAX_VERSION,
        )
        answer = await connections.send(request, node)
        if answer.error_code not in (0, _CONCURRENT_TRANSACTIONS):  # another process is initialising it
            coordinator.refuse(COORDINATOR, answer.error_code, subject)

    coordinator.ask(attempt, subject, timeout)
