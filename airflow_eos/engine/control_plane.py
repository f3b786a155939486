"""The control plane of one run: everything but Spark, opened and closed together."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from airflow_eos.broker import KafkaCluster, KafkaLedger, KafkaTransactions, Link
from airflow_eos.closeable import Closeable
from airflow_eos.run.authority import Authority
from airflow_eos.run.boundaries import Boundaries
from airflow_eos.run.ledger_identity import KnownLedger, verify
from airflow_eos.run.pins import Pins
from airflow_eos.run.ranges import Planner
from airflow_eos.run.world import World
from airflow_eos.wire.client_config import ClientConfig

if TYPE_CHECKING:
    from airflow_eos.model.spec import RunSpec
    from airflow_eos.run.ports import SealAndSend


def utc_now() -> dt.datetime:
    """Return the current time, aware."""
    return dt.datetime.now(dt.timezone.utc)


class ControlPlane(Closeable):
    """Cluster, transactions and ledger of one spec; a context manager."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        config = ClientConfig.of(spec.kafka)
        self._link = Link(config)
        self.cluster = KafkaCluster(config, link=self._link)
        self.ledger = KafkaLedger(config, spec.ledger, link=self._link)
        self.transactions = KafkaTransactions(
            config,
            ledger=self.ledger,
            transaction_timeout=spec.transaction_timeout,
            delivery_timeout=spec.delivery_timeout,
            link=self._link,
        )
        self.authority = Authority(self.ledger)
        self.pins = Pins(self.transactions, self.authority)

    def close(self) -> None:
        """Close all connections."""
        self.transactions.close()
        self.cluster.close()
        self.ledger.close()
        self._link.close()

    def verify_ledger(self, *, may_create: bool) -> tuple[str, int]:
        """Return the ledger's topic id and partition count, once it is known to be the one used before."""
        known = self._known_ledger(may_create=may_create)
        return known.topic_id, known.partitions

    def _known_ledger(self, *, may_create: bool) -> KnownLedger:
        return verify(
            self.ledger,
            self.authority,
            self.pins,
            self._spec.ledger,
            self._spec.prefix,
            may_create=may_create,
        )

    def world(self, data: SealAndSend) -> World:
        """Return the ports of the run protocol.

        :raises LedgerMissing: when there is no ledger and this try may not create one.
        """
        spec = self._spec
        known = self._known_ledger(may_create=spec.may_create_ledger)
        ledger_identity = (known.topic_id, known.partitions)
        boundaries = Boundaries(self.cluster, self.pins, known.prefix, utc_now)
        return World(
            cluster=self.cluster,
            transactions=self.transactions,
            ledger=self.ledger,
            authority=self.authority,
            planner=Planner(spec, self.cluster, self.authority, boundaries, ledger_identity, utc_now),
            data=data,
            ledger_identity=ledger_identity,
            now=utc_now,
        )
