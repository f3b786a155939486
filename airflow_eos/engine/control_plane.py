"""The control plane of a run or a query: everything except Spark, opened and closed together."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from airflow_eos.broker.cluster import KafkaCluster
from airflow_eos.broker.ledger_log.topic import KafkaLedger
from airflow_eos.broker.shared_connections import Link
from airflow_eos.broker.transactions import KafkaTransactions
from airflow_eos.closeable import Closeable
from airflow_eos.engine.index_keeper import IndexKeeper
from airflow_eos.engine.pipeline_name import warn_of_another_dag
from airflow_eos.exceptions import AuthorizationFailed, LedgerMissing
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import Authority
from airflow_eos.ledger.pins import Pins
from airflow_eos.ledger.topic_check import LedgerCheck, lost_ledger, refuse_unsigned
from airflow_eos.ledger.witnesses import Witnesses
from airflow_eos.ledger.writer import LedgerWriter
from airflow_eos.model.ledger import LedgerId
from airflow_eos.model.ranges import utc_now
from airflow_eos.model.spec import DELIVERY_TIMEOUT, TRANSACTION_TIMEOUT, Deployment, MayCreate, RunSpec
from airflow_eos.ports import SealAndSend
from airflow_eos.run.boundaries import Boundaries
from airflow_eos.run.collaborators import Collaborators
from airflow_eos.run.planner import Planner
from airflow_eos.run.visibility import Visibility
from airflow_eos.table_ports import TableSink
from airflow_eos.wire.txn_requests import touch_transactional_id

log = logging.getLogger(__name__)

INDEX_TRANSACTION_TIMEOUT = dt.timedelta(seconds=60)
INDEX_DELIVERY_TIMEOUT = dt.timedelta(seconds=20)
TOUCH_TIMEOUT = 5.0
"""Seconds to initialise the id that witnesses a ledger in use; the next run does it again."""


class ControlPlane(Closeable):
    """Cluster, transactions and ledger of a run, or of a query without a run; a context manager.

    :param of: a run, or the deployment of the query.
    :ivar deployment: of the run or the query.
    """

    def __init__(self, of: RunSpec | Deployment) -> None:
        self._spec = None if isinstance(of, Deployment) else of
        self.deployment = of if isinstance(of, Deployment) else of.deployment
        self.link = Link(self.deployment.kafka)
        self.cluster = KafkaCluster(self.link)
        self.ledger = KafkaLedger(self.link, self.deployment.ledger, keys.OWN_KEYS)
        self.transactions = KafkaTransactions(
            self.link,
            ledger=self.ledger,
            transaction_timeout=self._spec.transaction_timeout if self._spec else TRANSACTION_TIMEOUT,
            delivery_timeout=self._spec.delivery_timeout if self._spec else DELIVERY_TIMEOUT,
            may_be_shorter=self._spec is None,
        )
        self.authority = Authority(self.ledger)
        self.writer = LedgerWriter(self.cluster, self.transactions)
        self.pins = Pins(self.writer, self.authority)
        self.visibility = Visibility(self.cluster, self.transactions)
        self._table: TableSink | None = None

    def close(self) -> None:
        """Close all connections."""
        if self._table is not None:
            self._table.close()
        self.link.close()

    def verify_ledger(self, *, may_create: MayCreate = MayCreate.NEVER, to_write: bool = False) -> LedgerId:
        """Return the ledger, after checking that it is the one used before.

        :param to_write: the caller will write to it.
        :raises ConfigurationError: with ``to_write``, the ledger is signed and there is no key to sign with.
        :raises LedgerMissing: there is none, and no witness that may be asked knows of one.
        :raises LedgerReplaced: it is another one than before, or was lost.
        """
        refusing = self.refusing_lost_ledger() if may_create is MayCreate.NEVER else nullcontext()
        with refusing:
            ledger_id = self.known_ledger(None, may_create)
        if to_write:
            refuse_unsigned(ledger_id.is_signed, self.deployment.ledger)
        if may_create is not MayCreate.NEVER:
            self.remember_ledger()
        return ledger_id

    def known_ledger(self, spec: RunSpec | None, may_create: MayCreate) -> LedgerId:
        """Return the ledger, after checking that it is the one used before.

        With ``MayCreate.NEVER`` no witness is asked whether a missing one was lost.

        :param spec: a run, whose group must have committed its offsets with this ledger.
        """
        deployment = self.deployment
        witnesses = Witnesses(self.cluster, deployment.prefix, deployment.ledger.topic, spec)
        ledger_id = LedgerCheck(
            self.ledger,
            self.authority,
            self.pins,
            deployment.ledger,
            deployment.prefix,
            witnesses,
            may_create,
        ).verified()
        witnesses.agree(ledger_id.topic_id)
        return ledger_id

    @contextmanager
    def refusing_lost_ledger(self) -> Iterator[None]:
        """Distinguish a lost ledger from one that never existed, for callers that only read.

        :raises LedgerMissing: no witness that may be asked knows of one.
        :raises LedgerReplaced: it was lost.
        """
        try:
            yield
        except LedgerMissing as missing:
            prefix, topic = self.deployment.prefix, self.deployment.ledger.topic
            try:
                testimony = Witnesses(self.cluster, prefix, topic).testify()
            except AuthorizationFailed as refused:
                log.info("Cannot check whether the missing ledger was lost: %s", refused)
                raise missing from None
            if lost := lost_ledger(testimony, topic):
                raise lost from missing
            raise

    def remember_ledger(self) -> None:
        """Leave evidence with the coordinator that this ledger is in use, in case the ledger is lost.

        For the end of a run, which is already committed: never raises.
        """
        name = keys.ledger_witness_id(self.deployment.prefix, self.deployment.ledger.topic)
        try:
            self.link.ask(touch_transactional_id, name, timeout=TOUCH_TIMEOUT)
        except Exception as error:  # noqa: BLE001 - the run is committed and must not fail
            log.info("Cannot leave evidence of the ledger with the coordinator: %s", error)

    def keep_index(self, prefix: str) -> None:
        """Index the ledger partitions in which a look-up of this run had to read many bytes.

        For the end of a run, like :meth:`remember_ledger`: never raises.

        :param prefix: the ledger's prefix, see :class:`~airflow_eos.model.ledger.LedgerId`.
        """
        try:
            keeper = self.index_keeper(prefix)
            for partition, size in self.ledger.tails().items():
                if keeper.is_due(partition, size) and (indexed := keeper.extend(partition)) is not None:
                    log.info("Indexed ledger partition %d up to offset %d", partition, indexed.through)
        except Exception as error:  # noqa: BLE001 - the run is committed and must not fail
            log.warning("The ledger was not indexed; look-ups read more of it: %s", error)

    def index_keeper(self, prefix: str) -> IndexKeeper:
        """Return the writer of the ledger's index."""
        transactions = KafkaTransactions(
            self.link,
            ledger=self.ledger,
            transaction_timeout=INDEX_TRANSACTION_TIMEOUT,
            delivery_timeout=INDEX_DELIVERY_TIMEOUT,
            may_be_shorter=True,
        )
        return IndexKeeper(self.ledger, LedgerWriter(self.cluster, transactions), prefix)

    def collaborators(self, data: SealAndSend) -> Collaborators:
        """Return the ports of the run protocol; raises LedgerMissing if this run may not create one."""
        spec = self._spec
        assert spec is not None, "this control plane was opened without a run"
        ledger_id = self.known_ledger(spec, spec.may_create_ledger)
        warn_of_another_dag(self.ledger, spec)
        boundaries = Boundaries(self.cluster, self.pins, ledger_id.prefix, utc_now)
        if spec.sink is not None:
            from airflow_eos.sinks.opening import open_table

            name = keys.table_property(ledger_id.topic_id, spec.group_id, spec.sink.branch_name)
            self._table = open_table(spec.sink, name)
        return Collaborators(
            cluster=self.cluster,
            transactions=self.transactions,
            ledger=self.ledger,
            authority=self.authority,
            planner=Planner(spec, self.cluster, self.authority, boundaries, ledger_id, utc_now),
            data=data,
            ledger_id=ledger_id,
            now=utc_now,
            table=self._table,
        )
