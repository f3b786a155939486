"""The control plane of a run or a question: everything but Spark, opened and closed together."""

from __future__ import annotations

import datetime as dt
import logging
from typing import TYPE_CHECKING

from airflow_eos.broker import KafkaCluster, KafkaLedger, KafkaTransactions, Link
from airflow_eos.closeable import Closeable
from airflow_eos.engine.index_keeper import IndexKeeper
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import Authority
from airflow_eos.ledger.pins import Pins
from airflow_eos.ledger.topic_check import refuse_unsigned, verify
from airflow_eos.ledger.witnesses import Testimony, Witnesses
from airflow_eos.ledger.writer import LedgerWriter
from airflow_eos.model.ledger import LedgerId
from airflow_eos.model.spec import DELIVERY_TIMEOUT, TRANSACTION_TIMEOUT, Deployment, MayCreate
from airflow_eos.run.boundaries import Boundaries
from airflow_eos.run.collaborators import Collaborators
from airflow_eos.run.planner import Planner
from airflow_eos.run.visibility import Visibility
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.producer_ids import touch_transactional_id

if TYPE_CHECKING:
    from airflow_eos.model.spec import RunSpec
    from airflow_eos.ports import SealAndSend, TableSink


log = logging.getLogger(__name__)

INDEX_TRANSACTION_TIMEOUT = dt.timedelta(seconds=60)
INDEX_DELIVERY_TIMEOUT = dt.timedelta(seconds=20)
TOUCH_TIMEOUT = 5.0
"""Seconds for the coordinator to take note of a ledger in use: the next run tells it again."""


def utc_now() -> dt.datetime:
    """Return the current time, aware."""
    return dt.datetime.now(dt.timezone.utc)


class ControlPlane(Closeable):
    """Cluster, transactions and ledger of one run, or of a question that belongs to none; a context manager.

    :param of: a run, or where its question is asked.
    """

    def __init__(self, of: RunSpec | Deployment) -> None:
        self._spec = None if isinstance(of, Deployment) else of
        self._deployment = of if isinstance(of, Deployment) else of.deployment
        config = ClientConfig.of(self._deployment.kafka)
        self._link = Link(config)
        self.cluster = KafkaCluster(config, link=self._link)
        self.ledger = KafkaLedger(
            config,
            self._deployment.ledger,
            signed_key=keys.SIGNED_KEY,
            index_keys=keys.INDEX,
            link=self._link,
        )
        self.transactions = KafkaTransactions(
            config,
            ledger=self.ledger,
            key=self.ledger.key,
            transaction_timeout=self._spec.transaction_timeout if self._spec else TRANSACTION_TIMEOUT,
            delivery_timeout=self._spec.delivery_timeout if self._spec else DELIVERY_TIMEOUT,
            link=self._link,
        )
        self.authority = Authority(self.ledger)
        self.writer = LedgerWriter(self.cluster, self.transactions)
        self.pins = Pins(self.writer, self.authority)
        self.visibility = Visibility(self.cluster, self.transactions)

    def close(self) -> None:
        """Close all connections."""
        self.transactions.close()
        self.cluster.close()
        self.ledger.close()
        self._link.close()

    def verify_ledger(self, *, may_create: MayCreate = MayCreate.NEVER, to_write: bool = False) -> LedgerId:
        """Return the ledger, once it is known to be the one used before.

        :param to_write: the caller will write to it.
        :raises ConfigurationError: it is signed, there is no key to sign with, and ``to_write``.
        """
        known = self._known_ledger(self._witnesses(None), may_create)
        if to_write:
            refuse_unsigned(known.is_signed, self._deployment.ledger)
        if may_create is not MayCreate.NEVER:
            self.remember_ledger()
        return known

    def verify_ledger_of_run(self, *, may_create: MayCreate) -> LedgerId:
        """As :meth:`verify_ledger`, and the one beside which the run's group committed its offsets."""
        witnesses = self._witnesses(self._run())
        known = self._known_ledger(witnesses, may_create)
        witnesses.agree(known.topic_id)
        return known

    def testimony(self) -> Testimony:
        """Return what is remembered of a ledger that is not there, or has no identity."""
        return self._witnesses(None).testify()

    def lost_ledger(self) -> str:
        """Say that a ledger that is not there was lost, and who remembers it; empty: nobody does."""
        remembered = self.testimony().of_a_ledger
        return f"it is lost: {remembered}" if remembered else ""

    def _witnesses(self, spec: RunSpec | None) -> Witnesses:
        return Witnesses(self.cluster, self._deployment.prefix, self._deployment.ledger.topic, spec)

    def _known_ledger(self, witnesses: Witnesses, may_create: MayCreate) -> LedgerId:
        return verify(
            self.ledger,
            self.authority,
            self.pins,
            self._deployment.ledger,
            self._deployment.prefix,
            witnesses=witnesses,
            may_create=may_create,
        )

    def _run(self) -> RunSpec:
        assert self._spec is not None, "a question that belongs to no run has none"
        return self._spec

    def remember_ledger(self) -> None:
        """Let the coordinator know that this ledger is in use: the evidence, should the ledger be lost.

        For the end of a run, whose success no longer depends on anything: never raises.
        """
        name = keys.ledger_witness_id(self._deployment.prefix, self._deployment.ledger.topic)
        try:
            with self._link.connections() as connections:
                touch_transactional_id(connections, name, timeout=TOUCH_TIMEOUT)
        except Exception as error:  # noqa: BLE001 - whatever it is: the run is committed
            log.info("The coordinator will not remember the ledger in use: %s", error)

    def keep_index(self, prefix: str) -> None:
        """Index the ledger's partitions where a look-up of this run had to read much.

        For the end of a run, as :meth:`remember_ledger`: never raises.

        :param prefix: the ledger's, see :class:`~airflow_eos.model.ledger.LedgerId`.
        """
        try:
            keeper = self.index_keeper(prefix)
            for partition, size in self.ledger.tails().items():
                if keeper.is_due(partition, size) and (done := keeper.extend(partition)) is not None:
                    log.info("Indexed ledger partition %d up to offset %d", partition, done.through)
        except Exception as error:  # noqa: BLE001 - whatever it is: the run is committed
            log.warning("The ledger was not indexed; look-ups read more of it: %s", error)

    def index_keeper(self, prefix: str) -> IndexKeeper:
        """Return what writes the ledger's index.

        :param prefix: the ledger's.
        """
        transactions = KafkaTransactions(
            self._link.config,
            ledger=self.ledger,
            key=self.ledger.key,
            transaction_timeout=INDEX_TRANSACTION_TIMEOUT,
            delivery_timeout=INDEX_DELIVERY_TIMEOUT,
            link=self._link,
        )
        return IndexKeeper(self.ledger, LedgerWriter(self.cluster, transactions), prefix)

    def collaborators(self, data: SealAndSend) -> Collaborators:
        """Return the ports of the run protocol.

        :raises LedgerMissing: when there is no ledger and this try may not create one.
        """
        spec = self._run()
        known = self.verify_ledger_of_run(may_create=spec.may_create_ledger)
        boundaries = Boundaries(self.cluster, self.pins, known.prefix, utc_now)
        return Collaborators(
            cluster=self.cluster,
            transactions=self.transactions,
            ledger=self.ledger,
            authority=self.authority,
            planner=Planner(spec, self.cluster, self.authority, boundaries, known, utc_now),
            data=data,
            ledger_id=known,
            now=utc_now,
            table=self._table(spec, known),
        )

    @staticmethod
    def _table(spec: RunSpec, known: LedgerId) -> TableSink | None:
        if spec.sink is None:
            return None
        from airflow_eos.sinks.iceberg import IcebergSink

        return IcebergSink(spec.sink, keys.table_property(known.topic_id, spec.group_id))
