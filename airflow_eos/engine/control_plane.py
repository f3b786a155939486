"""The control plane of one run: everything but Spark, opened and closed together."""

from __future__ import annotations

import datetime as dt
import logging
from typing import TYPE_CHECKING

from airflow_eos.broker import KafkaCluster, KafkaLedger, KafkaTransactions, Link
from airflow_eos.closeable import Closeable
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import Authority
from airflow_eos.ledger.pins import Pins
from airflow_eos.ledger.topic_check import verify
from airflow_eos.ledger.witnesses import Testimony, Witnesses
from airflow_eos.model.ledger import LedgerId
from airflow_eos.model.spec import MayCreate
from airflow_eos.run.boundaries import Boundaries
from airflow_eos.run.collaborators import Collaborators
from airflow_eos.run.planner import Planner
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.producer_ids import touch_transactional_id

if TYPE_CHECKING:
    from airflow_eos.model.spec import RunSpec
    from airflow_eos.ports import SealAndSend


log = logging.getLogger(__name__)

TOUCH_TIMEOUT = 5.0
"""Seconds for the coordinator to take note of a ledger in use: the next run tells it again."""


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

    def verify_ledger(self, *, may_create: MayCreate = MayCreate.NEVER) -> LedgerId:
        """Return the ledger, once it is known to be the one used before."""
        known = self._known_ledger(self._witnesses(None), may_create)
        if may_create is not MayCreate.NEVER:
            self.remember_ledger()
        return known

    def verify_ledger_of_run(self, *, may_create: MayCreate) -> LedgerId:
        """As :meth:`verify_ledger`, and the one beside which the run's group committed its offsets."""
        witnesses = self._witnesses(self._spec)
        known = self._known_ledger(witnesses, may_create)
        witnesses.agree(known.topic_id)
        return known

    def testimony(self) -> Testimony:
        """Return what is remembered of a ledger that is not there, or has no identity."""
        return self._witnesses(None).testify()

    def _witnesses(self, spec: RunSpec | None) -> Witnesses:
        return Witnesses(self.cluster, self._spec.prefix, self._spec.ledger.topic, spec)

    def _known_ledger(self, witnesses: Witnesses, may_create: MayCreate) -> LedgerId:
        return verify(
            self.ledger,
            self.authority,
            self.pins,
            self._spec.ledger,
            self._spec.prefix,
            witnesses=witnesses,
            may_create=may_create,
        )

    def remember_ledger(self) -> None:
        """Let the coordinator know that this ledger is in use: where it is lost, that is what tells.

        For the end of a run, whose success no longer depends on anything: never raises.
        """
        name = keys.ledger_witness_id(self._spec.prefix, self._spec.ledger.topic)
        try:
            with self._link.connections() as connections:
                touch_transactional_id(connections, name, timeout=TOUCH_TIMEOUT)
        except Exception as error:  # noqa: BLE001 - whatever it is: the run is committed
            log.info("The coordinator will not remember the ledger in use: %s", error)

    def collaborators(self, data: SealAndSend) -> Collaborators:
        """Return the ports of the run protocol.

        :raises LedgerMissing: when there is no ledger and this try may not create one.
        """
        spec = self._spec
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
        )
