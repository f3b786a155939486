"""Batches of an asset watcher: no gap, no overlap, the same payload after a restart."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from airflow.executors.workloads import RunTrigger
from airflow.jobs.triggerer_job_runner import TriggerRunner
from airflow.models.trigger import Trigger
from airflow.sdk import Asset

from airflow_eos.engine.lag import Unread
from airflow_eos.exceptions import ConfigurationError, UnknownTopic
from airflow_eos.model.ranges import OffsetRange, TopicPartition
from airflow_eos.model.spec import LedgerSettings
from airflow_eos.triggers.batch_memory import BatchMemory
from airflow_eos.triggers.offset_range import OffsetRangeTrigger

PATIENCE = 60
"""Seconds until a test fails that waits for an event."""


class Topic:
    """Two partitions with log ends and perhaps a group's positions; replaces the engine's answer."""

    def __init__(self) -> None:
        self.ends: list[int] = [0, 0]
        self.positions: list[int | None] = [0, 0]
        self.topic_id = "id"
        self.failures: list[Exception] = []
        self.looks = 0
        self.ledgers: list[Any] = []

    def unread(self, *_: Any, start: str, ledger: Any) -> Unread:
        self.looks += 1
        self.ledgers.append(ledger)
        if self.failures:
            raise self.failures.pop(0)
        return replace(look("src", self.positions, self.ends, start), topic_ids={"src": self.topic_id})


def look(topic: str, positions: list[int | None], ends: list[int], start: str) -> Unread:
    """Return what the engine would find, by its rules."""
    begins = [
        position if position is not None else 0 if start == "earliest" else end
        for position, end in zip(positions, ends, strict=True)
    ]
    ranges = zip(begins, ends, strict=True)
    return Unread(
        tuple(OffsetRange(topic, n, *span) for n, span in enumerate(ranges)),
        {topic: "id"},
        frozenset(TopicPartition(topic, n) for n, position in enumerate(positions) if position is None),
    )


class State:
    """The asset's state store, like Airflow's."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    async def aget(self, key: str, default: Any = None) -> Any:
        return self.kept.get(key, default)

    async def aset(self, key: str, value: Any) -> None:
        self.kept[key] = value


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    fake = Topic()
    monkeypatch.setattr("airflow_eos.engine.lag.unread", fake.unread)
    return fake


def watcher(state: Any = None, **changes: Any) -> OffsetRangeTrigger:
    trigger = OffsetRangeTrigger(**{"topics": ["src"], "group_id": "g", "poll_interval": 0.005, **changes})
    trigger.asset_state_store = state
    return trigger


async def next_event(events: Any) -> Any:
    return (await asyncio.wait_for(anext(events), PATIENCE)).payload


async def looked(topic: Topic, times: int = 3) -> None:
    """Wait until the watcher has polled some more times."""
    goal = topic.looks + times
    while topic.looks < goal:  # noqa: ASYNC110 - a counter of the watcher's thread
        await asyncio.sleep(0.001)


def ranges(event: Any) -> list[Any]:
    return [tuple(row[1:]) for row in event["ranges"]]


def test_each_record_is_announced_once_whether_or_not_it_is_read(topic: Topic) -> None:
    """A slow or failing consumer brings no second event for the same records, and new ones are not lost."""

    async def scenario() -> list[Any]:
        events = watcher().run()
        topic.ends = [5, 0]
        payloads = [await next_event(events)]
        pending = asyncio.create_task(anext(events))
        await looked(topic)
        assert not pending.done()
        topic.ends = [5, 3]
        payloads.append((await asyncio.wait_for(pending, PATIENCE)).payload)
        topic.positions = [5, 3]
        topic.ends = [9, 4]
        payloads.append(await next_event(events))
        return payloads

    payloads = asyncio.run(scenario())
    assert [ranges(event) for event in payloads] == [[(0, 0, 5)], [(1, 0, 3)], [(0, 5, 9), (1, 3, 4)]]
    assert [event["records"] for event in payloads] == [5, 3, 5]
    assert len({event["batch"] for event in payloads}) == 3


def test_batch_waits_until_it_is_full_or_the_delay_is_over(topic: Topic) -> None:
    """min_records holds a small batch back; max_delay releases it."""

    async def scenario() -> list[Any]:
        events = watcher(min_records=10, max_delay=0.05).run()
        topic.ends = [10, 0]
        full = await next_event(events)
        topic.ends = [13, 0]
        late = await next_event(events)
        return [ranges(full), ranges(late)]

    assert asyncio.run(scenario()) == [[(0, 0, 10)], [(0, 10, 13)]]

    async def never() -> None:
        events = watcher(min_records=10).run()
        topic.ends = [5, 0]
        waiting = asyncio.create_task(anext(events))
        await looked(topic, 5)
        assert not waiting.done()
        waiting.cancel()

    asyncio.run(never())


def test_large_backlog_is_cut_into_batches(topic: Topic) -> None:
    """max_records bounds a batch; the next one follows at once."""

    async def scenario() -> list[Any]:
        events = watcher(max_records=4).run()
        topic.ends = [7, 2]
        return [ranges(await next_event(events)) for _ in range(3)]

    assert asyncio.run(scenario()) == [[(0, 0, 2), (1, 0, 2)], [(0, 2, 6)], [(0, 6, 7)]]


def test_restarted_watcher_repeats_an_unread_batch_word_for_word(topic: Topic) -> None:
    """The event may be lost with the old triggerer: the same payload is sent again, then newer records."""
    state = State()

    async def first() -> Any:
        events = watcher(state).run()
        topic.ends = [5, 1]
        payload = await next_event(events)
        waiting = asyncio.create_task(anext(events))
        await looked(topic)  # stored by now
        waiting.cancel()
        return payload

    async def second(count: int) -> list[Any]:
        events = watcher(state).run()
        return [await next_event(events) for _ in range(count)]

    before = asyncio.run(first())
    topic.ends = [8, 1]
    again, new = asyncio.run(second(2))
    assert again == before
    assert ranges(new) == [(0, 5, 8)]
    topic.positions, topic.ends = [8, 1], [9, 1]
    (only,) = asyncio.run(second(1))
    assert ranges(only) == [(0, 8, 9)]


@pytest.mark.parametrize("positions", [[3, 1], [5, 0], [0, 1]], ids=str)
def test_restarted_watcher_repeats_a_batch_of_which_a_part_is_unread(
    topic: Topic, positions: list[int | None]
) -> None:
    """A run that was planned before has read the rest; if the event was lost, no run reads this part."""
    memory = BatchMemory()
    topic.ends = [5, 1]
    batch = memory.announce("g", memory.pending(topic.unread(start="earliest", ledger=None).ranges), None)
    state = State()
    key = watcher()._state_key
    asyncio.run(state.aset(key, memory.to_state()))
    topic.positions = positions
    assert asyncio.run(next_event(watcher(state).run())) == batch


def test_watcher_of_two_assets_has_one_memory(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow runs equal triggers once, and does not know which asset's state is meant."""
    from airflow.sdk.execution_time.context import AssetStateStoreAccessor, AssetStateStoreAccessors

    state = State()
    monkeypatch.setattr(AssetStateStoreAccessor, "aget", lambda _, key: state.aget(key))
    monkeypatch.setattr(AssetStateStoreAccessor, "aset", lambda _, key, value: state.aset(key, value))
    topic.ends = [3, 0]

    async def restarted(*, until_stored: bool) -> Any:
        store = AssetStateStoreAccessors(inlets=[Asset("second"), Asset("first")])
        events = watcher(store).run()
        event = await next_event(events)
        if until_stored:
            waiting = asyncio.create_task(anext(events))
            await looked(topic)
            waiting.cancel()
        return event

    first = asyncio.run(restarted(until_stored=True))
    topic.ends = [5, 0]
    assert asyncio.run(restarted(until_stored=False)) == first


def test_group_that_was_moved_back_is_announced_again(topic: Topic) -> None:
    """After reset-offsets the records count as new."""

    async def scenario() -> list[Any]:
        events = watcher().run()
        topic.ends = [5, 0]
        payloads = [await next_event(events)]
        topic.positions = [5, 0]
        waiting = asyncio.create_task(anext(events))
        await looked(topic)
        topic.positions = [2, 0]
        payloads.append((await asyncio.wait_for(waiting, PATIENCE)).payload)
        return [ranges(event) for event in payloads]

    assert asyncio.run(scenario()) == [[(0, 0, 5)], [(0, 2, 5)]]


def test_group_that_begins_at_the_end_is_woken_at_once_and_for_what_comes_then(topic: Topic) -> None:
    """Its first run sets the position; until then the first log end counts as one, so that nothing stalls."""
    topic.ends, topic.positions = [5, 3], [None, None]

    async def scenario() -> list[Any]:
        events = watcher(start="latest", min_records=2).run()
        payloads = [await next_event(events)]
        waiting = asyncio.create_task(anext(events))
        topic.ends = [6, 3]
        await looked(topic)
        assert not waiting.done()
        topic.ends = [7, 3]
        payloads.append((await asyncio.wait_for(waiting, PATIENCE)).payload)
        topic.positions, topic.ends = [7, 3], [9, 3]
        payloads.append(await next_event(events))
        return payloads

    payloads = asyncio.run(scenario())
    assert [ranges(event) for event in payloads] == [[(0, 5, 5), (1, 3, 3)], [(0, 5, 7)], [(0, 7, 9)]]
    assert [event["records"] for event in payloads] == [0, 2, 2]
    assert len({event["batch"] for event in payloads}) == 3


def test_group_that_begins_at_the_start_is_not_woken_for_nothing(topic: Topic) -> None:
    """An empty topic causes no event: its first record does."""
    topic.positions = [None, None]

    async def scenario() -> Any:
        events = watcher().run()
        waiting = asyncio.create_task(anext(events))
        await looked(topic)
        assert not waiting.done()
        topic.ends = [1, 0]
        return (await asyncio.wait_for(waiting, PATIENCE)).payload

    assert ranges(asyncio.run(scenario())) == [(0, 0, 1)]


def test_keys_of_the_state_fit_into_airflows_database(topic: Topic) -> None:
    """Topic names have up to 249 characters each; Airflow stores keys of up to 512."""
    state = State()

    async def announce(**changes: Any) -> None:
        events = watcher(state, **changes).run()
        await next_event(events)
        waiting = asyncio.create_task(anext(events))
        await looked(topic)  # stored by now
        waiting.cancel()

    topic.ends = [1, 1]
    asyncio.run(announce(topics=["src"]))
    for last in "xy":
        asyncio.run(announce(topics=["a" * 249, "b" * 249, last]))
    assert len(state.kept) == 3
    assert max(map(len, state.kept)) <= 512
    assert "airflow_eos.offset_range.g.src" in state.kept


def test_restarted_watcher_wakes_a_group_until_its_position_is_fixed(topic: Topic) -> None:
    """The first event may be lost with the old triggerer; a position proves that it was handled."""
    state = State()
    topic.ends, topic.positions = [5, 3], [None, None]

    async def restarted() -> Any:
        events = watcher(state, start="latest", min_records=2).run()
        payload = await next_event(events)
        waiting = asyncio.create_task(anext(events))
        await looked(topic)  # stored by now
        waiting.cancel()
        return payload

    first = asyncio.run(restarted())
    topic.ends = [5, 4]
    assert asyncio.run(restarted()) == first
    topic.positions, topic.ends = [5, 3], [7, 4]
    assert ranges(asyncio.run(restarted())) == [(0, 5, 7), (1, 3, 4)]


def test_log_that_lost_its_end_wakes_the_group_again(topic: Topic) -> None:
    """What was announced up to the old end does not apply to the new one."""
    topic.ends, topic.positions = [5, 3], [None, None]

    async def scenario() -> list[Any]:
        events = watcher(start="latest").run()
        payloads = [await next_event(events)]
        topic.ends = [1, 3]
        payloads.append(await next_event(events))
        return [ranges(event) for event in payloads]

    assert asyncio.run(scenario()) == [[(0, 5, 5), (1, 3, 3)], [(0, 1, 1)]]


def test_watcher_tells_a_topic_made_again_by_its_id(topic: Topic) -> None:
    """The new log is as long as the old one."""
    topic.ends = [5, 3]

    async def scenario() -> list[Any]:
        events = watcher().run()
        payloads = [await next_event(events)]
        topic.topic_id = "another"
        payloads.append(await next_event(events))
        return [ranges(event) for event in payloads]

    assert asyncio.run(scenario()) == [[(0, 0, 5), (1, 0, 3)]] * 2


@pytest.mark.parametrize("end", [12, 10, 3], ids=["longer", "as long", "shorter"])
@pytest.mark.parametrize("restarts", [False, True], ids=["runs on", "restarted"])
def test_topic_made_again_is_announced_from_its_beginning(end: int, restarts: bool) -> None:
    """However long it is, and whether or not the group had read the old one."""
    memory, log = BatchMemory(), TopicPartition("src", 0)
    other = OffsetRange("other", 0, 0, 4)
    memory.look({"src": "old", "other": "id"})
    memory.announce("g", memory.pending([OffsetRange("src", 0, 0, 10), other]), None)
    if restarts:
        memory = BatchMemory.from_state(json.loads(json.dumps(memory.to_state())))
    memory.look({"src": "new", "other": "id"})
    unread = [OffsetRange("src", 0, 0, end), other]
    spans = {offsets.topic_partition: (offsets.start, offsets.end) for offsets in memory.pending(unread)}
    assert spans == {log: (0, end), other.topic_partition: (4, 4)}
    assert not memory.is_unread(unread)


@pytest.mark.parametrize(("given", "ledger_topic"), [(None, "airflow-eos-ledger"), ("other", "other")])
def test_position_of_an_idle_group_comes_from_the_ledger(
    topic: Topic, given: str | None, ledger_topic: str
) -> None:
    """Committed offsets expire, the cursor does not; polling creates no ledger."""
    topic.ends = [1, 0]

    async def scenario() -> None:
        await next_event(watcher(ledger_topic=given).run())

    asyncio.run(scenario())
    assert topic.ledgers == [LedgerSettings(topic=ledger_topic, create=False)]


@pytest.mark.parametrize(
    "failure", [UnknownTopic("topic 'src' does not exist"), RuntimeError("API server is busy")]
)
def test_watcher_outlives_what_cannot_answer(topic: Topic, failure: Exception) -> None:
    """Airflow restarts a watcher that has ended at once, without a pause: so it retries after errors."""
    topic.failures = [failure] * 3
    topic.ends = [1, 0]

    async def scenario() -> tuple[Any, float]:
        began = time.monotonic()
        return await next_event(watcher(poll_interval=0.05).run()), time.monotonic() - began

    event, seconds = asyncio.run(scenario())
    assert ranges(event) == [(0, 0, 1)]
    assert seconds >= 3 * 0.05


@pytest.mark.parametrize("start", ["earliest", "latest"])
@pytest.mark.parametrize("seed", range(20))
def test_batches_tile_the_log(seed: int, start: str) -> None:
    """Whatever arrives and is read in any order, the ranges tile the log from 0 to the end."""
    rng = random.Random(seed)
    memory, ends = BatchMemory(), [0, 0, 0]
    positions: list[int | None] = [0, 0, 0] if start == "earliest" else [None, None, None]
    announced: list[OffsetRange] = []
    begins: list[int] = []
    for _ in range(200):
        n = rng.randrange(3)
        if rng.random() < 0.5:
            ends[n] += rng.randrange(5)
        else:  # runs read what was announced, and sometimes more
            stands = positions[n]
            positions[n] = ends[n] if stands is None else rng.randint(stands, ends[n])
        unread = look("t", positions, ends, start)
        begins = begins or [r.start for r in unread.ranges]
        pending = memory.pending(unread.ranges, unread.without_position)
        first_seen = unread.without_position - memory.announced.keys()
        if first_seen or sum(r.span for r in pending) >= rng.randrange(1, 8):
            batch = memory.announce("g", pending, rng.choice([None, 3, 50]), first_seen)
            announced += [OffsetRange.from_list(row) for row in batch["ranges"]]
        if rng.random() < 0.1:
            memory = BatchMemory.from_state(memory.to_state())
    unread = look("t", positions, ends, start)
    batch = memory.announce("g", memory.pending(unread.ranges, unread.without_position), None)
    announced += [OffsetRange.from_list(row) for row in batch["ranges"]]
    for partition in range(3):
        begin, end = begins[partition], ends[partition]
        batches = [(r.start, r.end) for r in announced if r.partition == partition]
        tiles = [(begin, begin), *batches, (end, end)]
        assert all(before[1] <= after[0] for before, after in pairwise(tiles))
        gaps = [(b, a) for (_, b), (a, _) in pairwise(tiles) if a > b]
        # Offsets in no batch were read before they could be announced.
        assert all(end <= (positions[partition] or 0) for _, end in gaps)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"topics": "src"}, "must be a sequence"),
        ({"topics": []}, "distinct topic names"),
        ({"group_id": ""}, "group_id ''"),
        ({"group_id": ""}, "must have 1 to 8,000 bytes"),
        ({"min_records": 0}, "min_records must be a whole number of at least 1"),
        ({"min_records": 5, "max_records": 4}, "got 4 and 5"),
        ({"start": "erliest"}, "'earliest' or 'latest'"),
        ({"poll_interval": 0}, "poll_interval"),
        ({"max_delay": -1}, "max_delay"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments: dict[str, Any], says: str) -> None:
    """At Dag parse, not in the triggerer."""
    with pytest.raises(ConfigurationError, match=says):
        OffsetRangeTrigger(**{"topics": ["src"], "group_id": "g", **arguments})


@pytest.mark.parametrize("given", [{"min_record": 2}, {"min_records": 0}, {"start": "newest"}, {"other": 1}])
def test_stored_watcher_that_is_refused_does_not_end_the_triggerer(given: dict[str, Any]) -> None:
    """Another version of this package may have stored it: Airflow fails the trigger, and runs the others."""
    path, stored = watcher().serialize()

    async def make() -> Any:
        runner = TriggerRunner()
        kwargs = Trigger.encrypt_kwargs({**stored, **given})
        runner.to_create.append(RunTrigger(id=1, ti=None, classpath=path, encrypted_kwargs=kwargs))
        await runner.create_triggers()
        return runner.failed_triggers

    ((_, error),) = asyncio.run(make())
    assert next(iter(given)) in str(error)
