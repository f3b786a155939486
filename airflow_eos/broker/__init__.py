"""The control plane: the driver's requests to a Kafka cluster, and its transactions.

::

    with Link(config) as link:
        ledger = KafkaLedger(link, LedgerSettings())
        cluster = KafkaCluster(link)
        transactions = KafkaTransactions(link, ledger=ledger, transaction_timeout=..., delivery_timeout=...)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from airflow_eos.broker.cluster import KafkaCluster
    from airflow_eos.broker.ledger_log.topic import KafkaLedger
    from airflow_eos.broker.shared_connections import Link
    from airflow_eos.broker.transactions import KafkaTransactions

__all__ = ["KafkaCluster", "KafkaLedger", "KafkaTransactions", "Link"]

# confluent-kafka is needed on the driver only.
__getattr__ = lazy_exports(
    __name__,
    {
        ".cluster": ("KafkaCluster",),
        ".ledger_log.topic": ("KafkaLedger",),
        ".transactions": ("KafkaTransactions",),
        ".shared_connections": ("Link",),
    },
)
