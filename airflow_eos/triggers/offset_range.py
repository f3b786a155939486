"""Fires an event for an asset each time a batch of records has arrived in its topics."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from typing_extensions import Self

from airflow_eos.compat import also, asset_state_store, to_thread
from airflow_eos.exceptions import ConfigurationError, EosError
from airflow_eos.operators.literals import CheckedParameters, check_literals
from airflow_eos.triggers.batch_memory import BatchMemory
from airflow_eos.triggers.condition import SerializedTrigger

if TYPE_CHECKING:
    from airflow_eos.engine.lag import Unread

log = logging.getLogger(__name__)

_STATE_PREFIX = "airflow_eos.offset_range."
_MAX_STATE_KEY = 512
"""Maximum length of a key in Airflow's database: PostgreSQL and MySQL refuse longer ones."""


@contextlib.contextmanager
def _as_type_error() -> Iterator[None]:
    """Turn a ConfigurationError into a TypeError, too: on other errors the whole triggerer would end.

    The triggerer creates triggers from parameters that another version of this package may have stored.
    """
    try:
        yield
    except ConfigurationError as error:
        raise also(error, TypeError) from error.__cause__


@dataclass(kw_only=True, eq=False, repr=False)
class OffsetRangeTrigger(CheckedParameters, SerializedTrigger, BaseEventTrigger):
    """Announce batches of records; consume nothing, commit nothing.

    **Guarantee:** every record up to the last stable offset lies in the range of one event, and events follow
    one another without gap or overlap. The event is a wake-up: what is read, and that it is written once, is
    the business of the run it starts, whose cursor is the group's committed offsets.

    **How it works:** a batch begins at the group's position or the end of the last event, whichever is later,
    and ends at the last stable offset, or after ``max_records``. The last batch is kept in the asset's state.
    A triggerer that restarts while a part of the last batch is unread announces it once more, with the same
    payload, since the event may have died with the old triggerer: equal ``batch`` means equal records. Of
    several events that Airflow had not stored yet, only the last one is repeated.
    A recreated topic is announced from its beginning; its batches may equal those of the old one.

    **With** ``start="latest"`` a group without a position begins where the log ends when its first run
    starts; that run reads nothing. So the first poll announces such partitions at once, with empty ranges, so
    that a run fixes the position; until then the log's end at the first poll counts as the position.

    **Payload:** ``{"batch": <digest of the ranges>, "group_id": ..., "records": <offsets in the ranges>,
    "ranges": [[topic, partition, start, end], ...]}``

    Example::

        Asset("flights", uri="kafka://broker:9092/flights", watchers=[
            AssetWatcher("arrived", trigger=OffsetRangeTrigger(topics=["flights"], group_id="arrived")),
        ])

    :param topics: topics to watch.
    :param group_id: consumer group of the pipeline that reads them.
    :param min_records: offsets that make a batch.
    :param max_delay: seconds after which a batch need not be full; None: it must be.
    :param max_records: upper bound of a batch; None: all there is.
    :param start: where a partition without a position begins, as in ``Cursor(start=...)``.
    :param ledger_topic: ledger that knows the group's cursor if its offsets have expired; default ``[eos]
        ledger_topic``.
    :param kafka_config_id: connection of type ``kafka``.
    :param poll_interval: seconds between two polls.
    :raises ConfigurationError: a value is wrong; Airflow shows it as an import error of the Dag.
    """

    topics: Sequence[str]
    group_id: str
    min_records: int = 1
    max_delay: float | None = None
    max_records: int | None = None
    start: Literal["earliest", "latest"] = "earliest"
    ledger_topic: str | None = None
    kafka_config_id: str = "kafka_default"
    poll_interval: float = 30.0

    def __new__(cls, *arguments: Any, **given: Any) -> Self:
        """Refuse a misspelt parameter."""
        with _as_type_error():
            return super().__new__(cls, *arguments, **given)

    def __post_init__(self) -> None:
        with _as_type_error():
            check_literals(type(self), vars(self))
        self.topics = list(self.topics)
        super().__post_init__()

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Announce batch after batch; retry forever after any error."""
        memory = await self._restore()
        restored = memory.batch is not None
        waiting_since: float | None = None
        while True:
            try:
                group_unread = await to_thread(f"kafka {self.kafka_config_id}", self._look)
            except Exception as error:
                # Do not end: Airflow would restart the watcher at once, each time.
                trace = not isinstance(error, EosError)
                name, pause = type(error).__name__, self.poll_interval
                log.warning("Asking again in %.0f s: %s: %s", pause, name, error, exc_info=trace)
                await asyncio.sleep(self.poll_interval)
                continue
            unplaced = group_unread.without_position if self.start == "latest" else frozenset()
            memory.look(group_unread.topic_ids)
            pending = memory.pending(group_unread.ranges, unplaced)
            if restored and memory.batch is not None and memory.is_unread(group_unread.ranges, unplaced):
                yield TriggerEvent(memory.batch)
            restored = False
            waiting = sum(offsets.span for offsets in pending)
            if not waiting:
                waiting_since = None
            elif waiting_since is None:
                waiting_since = time.monotonic()
            first_seen = unplaced - memory.announced.keys()
            if first_seen or (waiting and (waiting >= self.min_records or self._is_due(waiting_since))):
                batch = memory.announce(self.group_id, pending, self.max_records, first_seen)
                waiting_since = None
                yield TriggerEvent(batch)
                # After the event: if the triggerer dies in between, the batch is repeated, never lost.
                await self._store(memory)
                continue
            await asyncio.sleep(self.poll_interval)

    def _look(self) -> Unread:
        from airflow_eos import settings
        from airflow_eos.engine.lag import unread
        from airflow_eos.hooks.kafka_eos import KafkaEosHook

        kafka: Mapping[str, Any] = KafkaEosHook(self.kafka_config_id).get_config()
        ledger = settings.ledger_to_ask(self.ledger_topic or settings.default_ledger_topic())
        return unread(kafka, self.group_id, self.topics, start=self.start, ledger=ledger)

    def _is_due(self, since: float | None) -> bool:
        return since is not None and self.max_delay is not None and time.monotonic() - since >= self.max_delay

    @property
    def _state_key(self) -> str:
        name = f"{self.group_id}.{'+'.join(sorted(self.topics))}"
        if len(_STATE_PREFIX) + len(name) > _MAX_STATE_KEY:
            name = hashlib.sha256(name.encode()).hexdigest()
        return f"{_STATE_PREFIX}{name}"

    async def _restore(self) -> BatchMemory:
        store = asset_state_store(self)
        if store is None:
            return BatchMemory()
        try:
            return BatchMemory.from_state(await store.aget(self._state_key))
        except Exception as error:  # noqa: BLE001 - only a cache: without it the group's offsets decide
            log.warning("The last batch is not known (%s); starting from the group's offsets", error)
            return BatchMemory()

    async def _store(self, memory: BatchMemory) -> None:
        store = asset_state_store(self)
        if store is None:
            return
        try:
            await store.aset(self._state_key, memory.to_state())
        except Exception as error:  # noqa: BLE001 - only a cache, see above
            log.warning("The last batch could not be stored (%s); a new triggerer may repeat it", error)
