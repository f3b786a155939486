"""One instance of confluent-kafka's transactional producer, polled by its own thread."""

from __future__ import annotations

import functools
import json
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, Producer

from airflow_eos.broker.librdkafka import (
    GRACE,
    QuietLog,
    Refusals,
    attempt,
    base_settings,
    bounded,
    checked,
    explained,
)
from airflow_eos.exceptions import BrokersUnavailable, ConfigurationError, DeliveryTimedOut
from airflow_eos.model.kafka import ProducerIdentity
from airflow_eos.model.signature import HEADER
from airflow_eos.wire.backoff import SILENT_SECONDS, Backoff, NotYet
from airflow_eos.wire.client_config import ClientConfig, read_int
from airflow_eos.wire.node_connections import ANSWER_TIMEOUT

T = TypeVar("T")
Record = tuple[int, str, str | None]
"""Partition, key and value."""
_NO_OFFSET = -1001
Sign = Callable[[int, str, "str | None"], "bytes | None"]

_MESSAGE_MAX_BYTES = 1_000_000_000  # librdkafka's maximum: the topic decides
_STATISTICS_MS = 10  # they identify a new instance after half of it, and take 0.7 % of a core
_POLL_SECONDS = 0.05
_INIT_SLICE_SECONDS = 2.0
_ANSWER_MS = int(ANSWER_TIMEOUT * 1000)

_PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})  # noqa: SLF001


def _unsigned(_partition: int, _key: str, _value: str | None) -> None:
    return None


@dataclass(eq=False)
class _Events:
    """State that the callbacks set; a separate object, so that the last reference frees the instance."""

    identified: threading.Event = field(default_factory=threading.Event)
    producer_id: int = -1
    producer_epoch: int = -1
    changed: threading.Condition = field(default_factory=threading.Condition)
    fatal: KafkaError | None = None

    def statistics(self, document: str) -> None:
        """Read producer id and epoch from the first statistics with both; an instance never changes them."""
        if self.identified.is_set():
            return
        # Parse this part only: librdkafka does not escape the client.id, which precedes it.
        _, _, rest = document.rpartition('"eos":')
        eos: dict[str, Any] = json.JSONDecoder().raw_decode(rest.lstrip())[0]
        if eos.get("idemp_state") == "Assigned" and eos.get("producer_id", -1) >= 0:
            self.producer_id, self.producer_epoch = int(eos["producer_id"]), int(eos["producer_epoch"])
            self.identified.set()

    def delivery(
        self, reports: dict[int, KafkaError | int], place: int, error: KafkaError | None, message: Any
    ) -> None:
        """Handle a delivery report: keep the record's offset or error."""
        offset = message.offset()
        with self.changed:
            reports[place] = error or (_NO_OFFSET if offset is None else offset)
            self.changed.notify_all()

    def failed(self, error: KafkaError) -> None:
        """Keep the first fatal error, after which the instance is unusable."""
        with self.changed:
            self.fatal = self.fatal or error
            self.changed.notify_all()


class TransactionalProducer:
    """A producer for one transaction that knows its producer id and epoch.

    librdkafka's API does not expose them, but its statistics do (``eos`` in its STATISTICS.md). A thread
    polls the instance all the time: otherwise statistics and log lines would pile up while Spark sends, and
    OAuth tokens would expire. Polling ends with :meth:`close`, or when the last :meth:`commit` returns.

    :param transaction_timeout: seconds after which the coordinator aborts.
    :param delivery_timeout: seconds until a message must be delivered.
    """

    def __init__(
        self,
        config: ClientConfig,
        transactional_id: str,
        *,
        transaction_timeout: float,
        delivery_timeout: float,
    ) -> None:
        self.transactional_id = transactional_id
        self._events = _Events()
        self._refusals = Refusals()
        transaction_ms = int(transaction_timeout * 1000)
        settings = {
            **base_settings(config),
            "transactional.id": transactional_id,
            "transaction.timeout.ms": transaction_ms,
            "delivery.timeout.ms": int(delivery_timeout * 1000),
            "acks": "all",
            # Look-ups in the ledger search the log for the bytes of a key.
            "compression.type": "none",
            "linger.ms": 0,
            "message.max.bytes": _MESSAGE_MAX_BYTES,
            # Brokers would create a ledger that deletes its records.
            "allow.auto.create.topics": False,
            "statistics.interval.ms": _STATISTICS_MS,
            "stats_cb": self._events.statistics,
            "error_cb": self._refusals.take,
        }
        own = _ANSWER_MS  # librdkafka would wait 60 s for a frozen coordinator
        if "socket.timeout.ms" in settings:
            own = read_int("socket.timeout.ms", settings["socket.timeout.ms"])
        settings["socket.timeout.ms"] = min(own, transaction_ms)  # librdkafka refuses a longer one
        self._producer: Producer | None = checked(
            f"producer of {transactional_id!r}", functools.partial(Producer, settings, logger=QuietLog())
        )
        self._stop = threading.Event()
        self._commits: list[threading.Event] = []
        self._thread = threading.Thread(
            target=_serve,
            args=(self._producer, self._events, self._stop, self._commits),
            name=f"poll {transactional_id}",
            daemon=True,
        )
        self._thread.start()
        weakref.finalize(self, self._stop.set)

    @property
    def instance(self) -> Producer:
        """The confluent-kafka producer."""
        assert self._producer is not None, f"the producer of {self.transactional_id!r} is closed"
        return self._producer

    def initialise(self, timeout: float, *, topic: str, cluster_id: str | None = None) -> ProducerIdentity:
        """Fence older instances, end their transaction, and return this instance's producer id and epoch.

        :param timeout: seconds; retriable errors are retried until then.
        :param topic: a topic whose metadata is requested first, to open a connection: without one, librdkafka
            waits half a second before InitProducerId.
        :param cluster_id: id of the cluster that the brokers must belong to, if known.
        :raises AuthorizationFailed: Write on the transactional id is missing.
        :raises ConfigurationError: the brokers refuse the credentials, or are of another cluster.
        :raises TimeoutsInconsistent: the brokers do not allow the transaction timeout.
        :raises BrokersUnavailable: no success within ``timeout`` seconds.
        """
        doing = f"InitProducerId of transactional id {self.transactional_id!r}"
        backoff = Backoff(timeout)
        # Twice, because librdkafka may close the first connection, that of a bootstrap server, after the
        # answer.
        for _ in range(2):
            wait = min(_INIT_SLICE_SECONDS, timeout)
            metadata, error = attempt(functools.partial(self.instance.list_topics, topic, timeout=wait))
            if error is None:
                self._refusals.last = None  # a broker has accepted this client
            other = metadata and metadata.cluster_id
            if None not in (cluster_id, other) and cluster_id != other:
                raise ConfigurationError(
                    f"{doing}: 'bootstrap.servers' names brokers of two clusters, {cluster_id} and {other}: "
                    "name those of one"
                )
        answer: KafkaError | None = None
        while True:
            # In slices, because librdkafka would retry refused credentials until the timeout.
            wait = min(_INIT_SLICE_SECONDS, max(backoff.left, 0.1))
            _, error = attempt(functools.partial(self.instance.init_transactions, wait))
            if error is None:
                break
            error = self._refusals.last or error
            if self._refusals.last or error.fatal() or not error.retriable():
                raise explained(error, doing)
            # A last slice may be too short for an answer.
            answer = (answer or error) if error.code() == KafkaError._TIMED_OUT else error  # noqa: SLF001
            if backoff.expired:
                raise explained(answer, f"{doing} within {timeout:.0f} s")
            backoff.tell(doing, NotYet(answer.name()))
        if not self._events.identified.wait(max(backoff.left, 5.0)):
            if self._events.fatal is not None:
                raise explained(self._events.fatal, doing)
            raise BrokersUnavailable(f"{doing}: librdkafka's statistics show no producer id; try again")
        return ProducerIdentity(self.transactional_id, self._events.producer_id, self._events.producer_epoch)

    def publish(
        self, topic: str, records: Sequence[Record], timeout: float, sign: Sign = _unsigned
    ) -> Sequence[int]:
        """Send records and wait until brokers have acknowledged all of them.

        It waits for the delivery reports of the polling thread instead of calling ``flush``, which raises
        ``SystemError`` if a fatal error and a delivery report coincide (measured with confluent-kafka 2.16).

        :param timeout: seconds.
        :param sign: returns the signature of a record, or None.
        :returns: the records' offsets; negative if the broker had the record already and does not say where.
        :raises ProducerFenced: the producer id and epoch are no longer valid.
        :raises RecordTooLarge: names the key.
        :raises DeliveryTimedOut: a record was not acknowledged in time.
        """
        events = self._events
        reports: dict[int, KafkaError | int] = {}
        for place, (partition, key, value) in enumerate(records):
            signature = sign(partition, key, value)
            checked(
                f"record {key!r} to {topic}-{partition}",
                functools.partial(
                    self.instance.produce,
                    topic,
                    key=key.encode(),
                    value=None if value is None else value.encode(),
                    partition=partition,
                    headers=None if signature is None else [(HEADER, signature)],
                    on_delivery=functools.partial(events.delivery, reports, place),
                ),
            )
        backoff = Backoff(timeout)

        def is_over() -> bool:
            return bool(events.fatal or _error_of(reports)) or len(reports) == len(records)

        with events.changed:
            while not (
                events.changed.wait_for(is_over, min(SILENT_SECONDS, backoff.left)) or backoff.expired
            ):
                backoff.tell(
                    f"records to {topic}", NotYet("coordinator, leader or a replica in sync does not answer")
                )
            error = events.fatal or _error_of(reports)
            acknowledged = dict(reports)
        if error is not None:
            error = self._reason_of_purge(error) if error.code() in _PURGED else error
            refused = [records[place] for place, report in acknowledged.items() if report is error]
            doing = f"records to {topic}"
            if refused:
                partition, key, _ = refused[0]
                doing = f"record {key!r} to {topic}-{partition}"
            raise explained(error, doing) from KafkaException(error)
        if len(acknowledged) != len(records):
            raise DeliveryTimedOut(
                f"records to {topic}: {len(records) - len(acknowledged)} of {len(records)} were not "
                f"acknowledged within {timeout:.0f} s; look at the transaction's coordinator, and at the "
                "topic's leaders and in-sync replicas"
            )
        offsets = (acknowledged[place] for place in range(len(records)))
        return [offset for offset in offsets if isinstance(offset, int)]

    def _reason_of_purge(self, purged: KafkaError) -> KafkaError:
        """Return why librdkafka failed the transaction; begin_transaction reports it without sending."""
        _, reason = attempt(self.instance.begin_transaction)
        return reason or purged

    def commit(self, doing: str, timeout: float, *, grace: float = GRACE) -> None:
        """Commit the transaction within ``timeout``, see :func:`airflow_eos.broker.librdkafka.bounded`.

        An abandoned commit keeps the instance alive, and the instance is polled until the call returns.
        """
        # An exception's traceback keeps this function and its closure alive, even after its frames are
        # cleared.
        handed_over, returned = [self.instance], threading.Event()

        def call(seconds: float) -> None:
            try:
                handed_over.pop().commit_transaction(seconds)
            finally:
                returned.set()

        self._commits.append(returned)
        bounded(doing, call, timeout, grace=grace)
        self._stop.set()  # now, so that close() need not wait for the polling thread

    def close(self) -> None:
        """Drop the instance; sends nothing more, not even an abort."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        producer.purge(in_queue=True, in_flight=False, blocking=False)
        self._stop.set()
        if all(returned.is_set() for returned in self._commits):
            self._thread.join()


def _error_of(reports: Mapping[int, KafkaError | int]) -> KafkaError | None:
    return next((report for report in reports.values() if isinstance(report, KafkaError)), None)


def _serve(
    producer: Producer, events: _Events, stop: threading.Event, commits: Sequence[threading.Event]
) -> None:
    while not (stop.is_set() and all(returned.is_set() for returned in commits)):
        try:
            _, error = attempt(lambda: producer.poll(_POLL_SECONDS))
        except Exception as raised:  # noqa: BLE001 - of a callback
            error = KafkaError(KafkaError._FATAL, f"a callback raised {raised!r}")  # noqa: SLF001
        if error is not None:
            events.failed(error)
