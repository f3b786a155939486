"""The control plane: what the driver asks of a Kafka cluster, and the transactions it runs there.

::

    with Link(config) as link:
        ledger = KafkaLedger(config, LedgerSettings(), link=link)
        cluster = KafkaCluster(config, link=link)
        transactions = KafkaTransactions(
            config, ledger=ledger, transaction_timeout=..., delivery_timeout=..., link=link
        )
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_eos.broker.cluster import KafkaCluster
    from airflow_eos.broker.ledger import KafkaLedger
    from airflow_eos.broker.link import Link
    from airflow_eos.broker.transactions import KafkaTransactions

__all__ = ["KafkaCluster", "KafkaLedger", "KafkaTransactions", "Link"]

_HOMES = {
    "KafkaCluster": "cluster",
    "KafkaLedger": "ledger",
    "KafkaTransactions": "transactions",
    "Link": "link",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: confluent-kafka is needed on the driver only."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
