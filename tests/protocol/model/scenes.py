"""Scenes: what happens concurrently, and the oracle that judges the outcome."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from airflow_eos.exceptions import ConfigurationError, CursorMoved, EosError, LedgerPruned
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.kafka import CommittedOffset, TransactionState
from airflow_eos.model.ranges import Cursor, Explicit, Interval, OffsetRange, TopicPartition
from airflow_eos.model.spec import LedgerSettings, RunSpec
from airflow_eos.operations.cursor_reset import Reset
from tests.protocol.model.broker import LEDGER, STRANGER, Entry, ModelBroker, Transaction, digest
from tests.protocol.model.explorer import Run
from tests.protocol.model.ports import (
    Clock,
    ModelData,
    attempt,
    dismisser,
    indexer,
    ledger_partition,
    pruner,
    repairer,
    resetter,
)


class Inline:
    """Runs an attempt outside the search: at once, without faults, with all markers written."""

    def __init__(self, broker: ModelBroker) -> None:
        self._broker = broker

    def step(self, name: str, run: Callable[[], Any], faults: Any = (), late: Any = None) -> Any:
        del name, faults, late
        self._broker.settle()
        return run()

    def look(self, run: Callable[[], Any]) -> Any:
        return run()


class Scene:
    """A cluster, the attempts that share it, and what must hold at the end.

    :param closers: runs made one after the other at the end, without faults: they must succeed.
    """

    def __init__(self, broker: ModelBroker, *, source: str = "src", sink: str = "out") -> None:
        self.broker = broker
        self.clock = Clock()
        broker.now = lambda: int(self.clock.now().timestamp() * 1000)
        self.source, self.sink = source, sink
        self.broken: str | None = None
        self.closers: list[RunSpec] = []
        self.once: dict[str, Callable[[], None]] = {}
        self.time_outs = True
        self.timed_out = False
        self.expected: Callable[[], list[str]] = self._all_input
        self.processes: dict[str, Any] = {}
        self.superseded: set[tuple[str, str]] = set()
        """Pairs of a process and a transactional id that it knows another process has taken."""
        self.fired: set[str] = set()
        self._answered: set[str] = set()
        self._of_broker: str | None = None
        """Digest of the broker's fingerprint since its last change."""

    def prepare(self, act: Callable[[], Any]) -> Any:
        """Act before the processes begin, and write all markers."""
        outcome = act()
        self.broker.settle()
        return outcome

    # -- world, as the explorer sees it --

    def fingerprint(self) -> str:
        parts = (self.clock.seconds, sorted(self.once), self.timed_out, self.broken)
        if self._of_broker is None:
            self._of_broker = digest(self.broker.fingerprint())
        return f"{self._of_broker}{parts}"

    def changed(self) -> None:
        self._of_broker = None

    def saved(self) -> Any:
        sets = (set(self.superseded), set(self.fired), set(self._answered))
        return self.broker.saved(), self.clock.seconds, dict(self.once), self.timed_out, self.broken, sets

    def restore(self, saved: Any) -> None:
        broker, self.clock.seconds, once, self.timed_out, self.broken, sets = saved
        self.broker.restore(broker)
        self.changed()
        self.once = dict(once)
        self.superseded, self.fired, self._answered = map(set, sets)

    def events(self) -> list[str]:
        names = [f"markers of {tid}" for tid in self.broker.unsettled()]
        names += sorted(self.once)
        if self.time_outs and not self.timed_out:
            names += [
                f"time-out of {tid}"
                for tid, txn in sorted(self.broker.transactions.items())
                if txn.state is TransactionState.ONGOING
            ]
        return names

    def fire(self, event: str) -> None:
        if event.startswith("markers of "):
            self.broker.write_marker(self.broker.transactions[event.removeprefix("markers of ")])
        elif event.startswith("time-out of "):
            self.timed_out = True
            self.broker.time_out(event.removeprefix("time-out of "))
        else:
            self.fired.add(event)
            self.once.pop(event)()

    def check_step(self) -> str | None:
        return self.broken or self._answers()

    def check_end(self) -> str | None:
        for event in sorted(self.once):
            self.fire(event)
        # All processes that left one open are dead by now, so it times out.
        self.broker.settle()
        for tid in list(self.broker.transactions):
            self.broker.time_out(tid)
        for spec in self.closers:
            try:
                attempt(Inline(self.broker), self, "closer", spec)()  # type: ignore[arg-type]
            except EosError as error:
                return f"a retry without faults failed: {type(error).__name__}: {error}"
        self.broker.settle()
        return self.broken or self._output() or self._ledger()

    # -- the oracle --

    def _visible(self, topic: str) -> list[str]:
        n = self.broker.topics[topic].partitions
        return [e.value for p in range(n) for _, e in self.broker.committed_entries(TopicPartition(topic, p))]

    def _all_input(self) -> list[str]:
        return self._visible(self.source)

    def _output(self) -> str | None:
        output, wanted = Counter(self._visible(self.sink)), Counter(self.expected())
        if output == wanted:
            return None
        return (
            f"lost {sorted((wanted - output).elements())}, duplicated {sorted((output - wanted).elements())}"
        )

    def _ledger(self) -> str | None:
        runs = [
            RunRecord.from_json(v)
            for k, v in self.broker.ledger_records()
            if keys.is_run_record(k) and v is not None
        ]
        twice = [key for key, n in Counter(r.run_key for r in runs).items() if n > 1]
        if twice:
            return f"committed twice: {twice}"
        written = self._written(runs)
        if written != len(self._visible(self.sink)):
            return f"the ledger counts {written} records, the topic holds {len(self._visible(self.sink))}"
        cursors = {k: v for k, v in self.broker.ledger_records() if k.startswith(keys.CURSORS)}
        for value in cursors.values():
            group = json.loads(value)["group"]
            ends = {TopicPartition(t, p): end for t, p, end in json.loads(value)["ends"]}
            offsets = {tp: o.offset for tp, o in self.broker.groups.get(group, {}).items()}
            if ends != offsets:
                return f"group {group} stands at {offsets}, its cursor at {ends}"
        return None

    def _written(self, runs: Sequence[RunRecord]) -> int:
        """Return how many records of the runs the sink must have."""
        return sum(r.records_written for r in runs)

    def _answers(self) -> str | None:
        """Check at the moment of the answer: a retry may make a wrong answer true later."""
        for name, process in self.processes.items():
            if name in self._answered or not isinstance(process.result, RunRecord):
                continue
            self._answered.add(name)
            key = process.result.run_key
            if keys.run_record_key(key) not in self.broker.committed_keys():
                return f"{name} reported success, the ledger does not hold {key}"
            for receipt in process.result.receipts:
                tp = TopicPartition(receipt.topic, receipt.partition)
                begin = self.broker.open[tp].get(process.result.producer.producer_id)
                if receipt.records and begin is not None and begin <= receipt.last_offset:
                    return f"{name} reported success, nobody sees what it wrote to {tp}"
        return None


def before(scene: Scene, its_spec: RunSpec, data: Callable[..., ModelData] = ModelData) -> RunRecord:
    """Make a whole run before the scene begins, without faults; return its record."""
    inline: Any = Inline(scene.broker)
    record: RunRecord = scene.prepare(attempt(inline, scene, "before", its_spec, data))
    return record


def reset(scene: Scene, offsets: Mapping[TopicPartition, int]) -> None:
    """Move the cursor as `reset-offsets` does, without faults."""
    base = spec()
    resetter(Inline(scene.broker), scene, "reset", base, Reset(base.group_id, offsets=offsets))()  # type: ignore[arg-type]


@cache
def spec(run_id: str = "r1", **changes: Any) -> RunSpec:
    """Return a run of a cursor; all executions share it, since it does not change."""
    base = RunSpec(
        kafka={"bootstrap.servers": "model:1"},
        pipeline="pipe",
        run_id=run_id,
        source_topics=("src",),
        sink_topic="out",
        group_id="group",
        prefix="eos",
        max_send_attempts=2,
        ledger=LedgerSettings(topic=LEDGER),
    )
    return replace(base, **changes)


def stage(
    run: Run,
    attempts: Sequence[tuple[str, RunSpec]],
    *,
    broker: ModelBroker | None = None,
    records: int = 2,
    data: Callable[..., ModelData] = ModelData,
    closers: Sequence[RunSpec] | None = None,
    prepare: Callable[[Scene], None] | None = None,
    time_outs: bool = True,
) -> Scene:
    """Set a scene: a source of two partitions, a sink, and concurrent attempts."""
    scene = Scene(broker or ModelBroker({"src": 2, "out": 2}))
    run.world = scene
    scene.time_outs = time_outs
    for i in range(records):
        for p in range(2):
            scene.broker.write_input("src", p, f"p{p}r{i}")
    if prepare is not None:
        prepare(scene)
    for name, its_spec in attempts:
        run.spawn(name, attempt(run, scene, name, its_spec, data))
    scene.processes = run.processes
    scene.closers = list(closers) if closers is not None else [spec("last")]
    return scene


# -- the scenes --


def alone(run: Run) -> Scene:
    """One attempt, then its retry."""
    return stage(run, [("first", spec())], closers=[spec(), spec("last")])


def twins(run: Run) -> Scene:
    """A zombie and its replacement: two tries of one run at once."""
    return stage(
        run,
        [("try1", spec(try_number=1)), ("try2", spec(try_number=2))],
        closers=[spec(try_number=3), spec("last")],
    )


def successive(run: Run) -> Scene:
    """Two concurrent runs of one pipeline, on one cursor."""
    return stage(
        run, [("r1", spec("r1")), ("r2", spec("r2"))], closers=[spec("r1"), spec("r2"), spec("last")]
    )


def cleared(run: Run) -> Scene:
    """An old, committed run is cleared while the next one is live: the live one must not be touched."""

    def prepare(scene: Scene) -> None:
        before(scene, spec("r1"))
        for p in range(2):
            scene.broker.write_input("src", p, f"p{p}new")

        def watch() -> str | None:
            process = scene.processes.get("cleared")
            if process is not None and process.pending and process.pending.name.startswith("fence"):
                return "the clear of a committed run is about to fence the live one"
            return scene.broken

        scene.check_step = watch  # type: ignore[method-assign]

    return stage(
        run,
        [("cleared", spec("r1", clear_number=1)), ("live", spec("r2"))],
        closers=[spec("r2"), spec("last")],
        prepare=prepare,
        records=1,
    )


def reprocessed(run: Run) -> Scene:
    """A committed run is cleared twice with on_committed=reprocess, beside the live cursor."""

    def prepare(scene: Scene) -> None:
        before(scene, spec("r1"))
        old = [f"p{p}r0" for p in range(2)]
        for p in range(2):
            scene.broker.write_input("src", p, f"p{p}new")
        scene.expected = lambda: [*scene._all_input(), *old]

    again = spec("r1", clear_number=1, on_committed="reprocess")
    return stage(
        run,
        [("again", again), ("live", spec("r2"))],
        closers=[again, spec("r2"), spec("last")],
        prepare=prepare,
        records=1,
    )


def other_dag(run: Run) -> Scene:
    """Another pipeline uses the same group: one of them owns it, whatever the order."""

    def prepare(scene: Scene) -> None:
        before(scene, spec("r0", pipeline="owner"))
        for p in range(2):
            scene.broker.write_input("src", p, f"p{p}new")
        ledger = scene._ledger

        def owned() -> str | None:
            runs = [RunRecord.from_json(v) for k, v in scene.broker.ledger_records() if keys.is_run_record(k)]
            thieves = sorted({r.pipeline for r in runs} - {"owner"})
            return f"{thieves} read from a group that is not theirs" if thieves else ledger()

        scene._ledger = owned  # type: ignore[method-assign]

    return stage(
        run,
        [("thief", spec("t1", pipeline="thief")), ("owner", spec("r1", pipeline="owner"))],
        closers=[spec("r1", pipeline="owner"), spec("last", pipeline="owner")],
        prepare=prepare,
        records=1,
    )


def explicit(run: Run) -> Scene:
    """Two tries over given ranges: no cursor would notice a repetition."""
    ranges = Explicit((OffsetRange("src", 0, 0, 2), OffsetRange("src", 1, 0, 2)))
    return stage(
        run,
        [("try1", spec(ranges=ranges)), ("try2", spec(ranges=ranges, try_number=2))],
        closers=[spec(ranges=ranges, try_number=3)],
    )


def indexed(run: Run, *, indexers: int = 1, tries: int = 2) -> Scene:
    """Tries over given ranges, while the ledger is indexed and compacted.

    No cursor would notice a repetition: everything depends on the look-up.
    """
    partition = ledger_partition("pipe")
    first = Explicit((OffsetRange("src", 0, 0, 1),))
    ranges = Explicit((OffsetRange("src", 0, 1, 2), OffsetRange("src", 1, 0, 2)))

    def prepare(scene: Scene) -> None:
        before(scene, spec("r0", ranges=first))
        inline: Any = Inline(scene.broker)
        assert scene.prepare(indexer(inline, scene, "before", partition)) is not None
        for number in range(indexers):
            name = f"indexer{number}"
            run.spawn(name, indexer(run, scene, name, partition))
        scene.once["compaction of the ledger"] = scene.broker.compact_ledger

    return stage(
        run,
        [(f"try{n}", spec(ranges=ranges, try_number=n)) for n in range(1, tries + 1)],
        closers=[spec(ranges=ranges, try_number=tries + 1), spec("r0", ranges=first, try_number=2)],
        prepare=prepare,
    )


def indexed_twice(run: Run) -> Scene:
    """Two processes write the index at once."""
    return indexed(run, indexers=2, tries=1)


def indexed_away(run: Run) -> Scene:
    """As :func:`indexed`, and the ledger's partition loses its leader, so that markers are omitted."""
    scene = indexed(run, tries=1)
    away = TopicPartition(LEDGER, ledger_partition("pipe"))
    check_end = scene.check_end

    def check_when_indexed() -> str | None:
        """The next writer of the index ends what a leader has open of an earlier one."""
        for event in sorted(scene.once):
            scene.fire(event)
        scene.broker.away.clear()
        scene.broker.settle()
        inline: Any = Inline(scene.broker)
        indexer(inline, scene, "later", away.partition)()
        return check_end()

    scene.check_end = check_when_indexed  # type: ignore[method-assign]

    def leave() -> None:
        scene.broker.away.add(away)
        scene.once["the leader returns"] = scene.broker.leaders_return

    scene.once["the leader leaves"] = leave
    return scene


def pruned(run: Run, *, pruners: int = 1, beside: bool = False) -> Scene:
    """An old run is cleared while its record is pruned and compacted away; a new one is made afterwards.

    A look-up of the old run finds it or is refused; the new run is done.
    """
    partition = ledger_partition("pipe")
    old = Explicit((OffsetRange("src", 0, 0, 2),))
    kept = Explicit((OffsetRange("src", 1, 0, 1),))
    new = Explicit((OffsetRange("src", 1, 1, 2),))

    def prepare(scene: Scene) -> None:
        before(scene, spec("r0", ranges=old))
        scene.clock.seconds += 100
        moment = keys.utc_text(scene.clock.now())
        before(scene, spec("r1", ranges=kept))
        for number in range(pruners):
            name = f"pruner{number}"
            run.spawn(name, pruner(run, scene, name, partition, moment))
        scene.once["compaction of the ledger"] = scene.broker.compact_ledger

        def asked_for_the_old_one() -> str | None:
            """Compaction leaves no counts to compare: the output tells whether the run was repeated."""
            inline: Any = Inline(scene.broker)
            try:
                record = attempt(inline, scene, "cleared", spec("r0", ranges=old, clear_number=2))()
            except LedgerPruned:
                return scene._output()
            return scene._output() or (None if record.found else "the old run was done again")

        scene._ledger = asked_for_the_old_one  # type: ignore[method-assign]

    return stage(
        run,
        [
            ("cleared", spec("r0", ranges=old, clear_number=1, try_number=2)),
            *([("new", spec("r2", ranges=new))] if beside else []),
        ],
        closers=[spec("r1", ranges=kept, try_number=2), spec("r2", ranges=new, try_number=2)],
        prepare=prepare,
    )


def pruned_twice(run: Run) -> Scene:
    """Two processes prune at once."""
    return pruned(run, pruners=2)


def pruned_beside(run: Run) -> Scene:
    """A new run is made during the pruning."""
    return pruned(run, beside=True)


def dismissed(run: Run) -> Scene:
    """Another client writes under the key of an active run, and an administrator dismisses its record.

    No cursor would notice a repetition: the run's record must remain the last value of the key.
    """
    ranges = Explicit((OffsetRange("src", 0, 0, 1),))
    key, partition = keys.run_record_key(keys.run_key(spec(ranges=ranges))), ledger_partition("pipe")

    def prepare(scene: Scene) -> None:
        def forge() -> None:
            scene.broker.logs[TopicPartition(LEDGER, partition)].append(
                Entry("data", STRANGER, value="{}", key=key)
            )

        scene.once["a stranger writes under the key"] = forge
        run.spawn("administrator", dismisser(run, scene, "administrator", partition, key))
        check_end = scene.check_end

        def check_when_dismissed() -> str | None:
            """Whichever process died, the command is repeated when no other process is active."""
            for event in sorted(scene.once):
                scene.fire(event)
            scene.broker.settle()
            for tid in list(scene.broker.transactions):
                scene.broker.time_out(tid)
            with contextlib.suppress(ConfigurationError):  # we have a record, or the key is dismissed
                dismisser(Inline(scene.broker), scene, "later", partition, key)()  # type: ignore[arg-type]
            scene.broker.settle()
            return check_end()

        scene.check_end = check_when_dismissed  # type: ignore[method-assign]
        scene.expected = lambda: ["p0r0"]

    return stage(
        run,
        [("try1", spec(ranges=ranges))],
        records=1,
        closers=[spec(ranges=ranges, try_number=2), spec(ranges=ranges, clear_number=1, try_number=3)],
        prepare=prepare,
    )


def reset_beside(run: Run) -> Scene:
    """`reset-offsets --to committed`, which moves nothing, beside a run that moves the cursor."""

    def prepare(scene: Scene) -> None:
        before(scene, spec("r0"))
        scene.broker.write_input("src", 0, "p0new")
        base = spec()
        reset = Reset(base.group_id, to="committed")
        run.spawn("administrator", resetter(run, scene, "administrator", base, reset))

    return stage(
        run,
        [("r1", spec("r1"))],
        records=1,
        closers=[spec("r1", try_number=2), spec("last")],
        prepare=prepare,
    )


def other_ranges(run: Run) -> Scene:
    """Two tries of one run over given ranges that a template renders anew each time."""
    first = Explicit((OffsetRange("src", 0, 0, 2), OffsetRange("src", 1, 0, 1)))
    second = Explicit((OffsetRange("src", 0, 0, 1), OffsetRange("src", 1, 0, 2)))

    def prepare(scene: Scene) -> None:
        def read_by_the_committed_one() -> list[str]:
            records = [
                RunRecord.from_json(v) for k, v in scene.broker.ledger_records() if keys.is_run_record(k)
            ]
            return [
                entry.value
                for r in records[0].ranges
                for offset, entry in scene.broker.committed_entries(r.topic_partition)
                if r.start <= offset < r.end
            ]

        scene.expected = read_by_the_committed_one

    return stage(
        run,
        [("try1", spec(ranges=first)), ("try2", spec(ranges=second, try_number=2))],
        # Only the committed ranges count as done; the last run accepts either.
        closers=[spec(ranges=first, try_number=3, on_committed="accept")],
        prepare=prepare,
    )


def shared_ledger(run: Run) -> Scene:
    """Another pipeline's open transaction in the ledger partition holds the last stable offset back."""

    def prepare(scene: Scene) -> None:
        other = scene.broker.init_producer(keys.cursor_transactional_id("eos", "other"))
        tp = TopicPartition(LEDGER, 0)

        def open_transaction() -> None:
            scene.broker.add_partitions(other, [tp])
            scene.broker.produce(other, tp, 0, "{}", keys.run_record_key(keys.cursor_run_key("other", "x")))

        def end_transaction() -> None:
            scene.broker.end_transaction(other, commit=False)

        open_transaction()
        scene.once["other pipeline aborts"] = end_transaction
        scene.time_outs = False

    return stage(
        run,
        [("try1", spec()), ("try2", spec(try_number=2))],
        closers=[spec(try_number=3), spec("last")],
        prepare=prepare,
        records=1,
    )


def lost_blocks(run: Run) -> Scene:
    """A run loses its sealed batches when the first one is written, and seals again."""
    return stage(
        run,
        [("r1", spec(max_send_attempts=3))],
        data=lambda r, b, s: ModelData(r, b, s, loses_blocks=True),
        closers=[spec(), spec("last")],
    )


def empty(run: Run) -> Scene:
    """Nothing to read: the run commits nevertheless."""
    return stage(run, [("try1", spec()), ("try2", spec(try_number=2))], records=0, closers=[spec()])


def rounds(run: Run) -> Scene:
    """Two tries of one run that reads in rounds; each may die, or be replaced, between two rounds."""
    looped = spec(ranges=Cursor(max_records=1, until_caught_up=True))
    return stage(
        run,
        [("try1", looped), ("try2", replace(looped, try_number=2))],
        records=1,
        closers=[replace(looped, try_number=3), spec("last")],
        time_outs=False,
    )


def _moment(seconds: int) -> dt.datetime:
    return dt.datetime(2025, 12, 31, tzinfo=dt.timezone.utc) + dt.timedelta(seconds=seconds)


def _timestamp(seconds: int) -> int:
    return int(_moment(seconds).timestamp() * 1000)


def intervals(run: Run) -> Scene:
    """Two adjacent intervals at once, the later first, while late records arrive in an idle partition."""
    scene = Scene(ModelBroker({"src": 2, "out": 2}))
    scene.broker.write_input("src", 0, "p0t5", _timestamp(5))
    scene.broker.write_input("src", 0, "p0t15", _timestamp(15))
    scene.broker.write_input("src", 0, "p0t25", _timestamp(25))
    scene.broker.write_input("src", 1, "p1t2", _timestamp(2))
    for second in (4, 7, 12):
        scene.once[f"late record t{second}"] = lambda second=second: scene.broker.write_input(
            "src", 1, f"p1t{second}", _timestamp(second)
        )
    run.world = scene

    def over(run_id: str, start: int, end: int) -> RunSpec:
        return spec(run_id, ranges=Interval(_moment(start), _moment(end)), max_send_attempts=1)

    later, earlier = over("b", 10, 20), over("a", 0, 10)
    run.spawn("later", attempt(run, scene, "later", later))
    run.spawn("earlier", attempt(run, scene, "earlier", earlier))
    scene.processes = run.processes
    scene.time_outs = False
    scene.closers = [earlier, later, over("c", 20, 40)]
    return scene


def intervals_indexed(run: Run) -> Scene:
    """As :func:`intervals`, with earlier boundaries that are indexed meanwhile."""
    scene = intervals(run)
    partition = ledger_partition("src")
    for start in (-40, -30, -20):
        before(scene, spec(f"b{start}", ranges=Interval(_moment(start), _moment(start + 10))))
    inline: Any = Inline(scene.broker)
    assert scene.prepare(indexer(inline, scene, "before", partition)) is not None
    run.spawn("indexer", indexer(run, scene, "indexer", partition))
    scene.once["compaction of the ledger"] = scene.broker.compact_ledger
    return scene


def crossing(run: Run, earlier: str = "eos") -> Scene:
    """A boundary is pinned on an idle log, two late records arrive, then an earlier boundary is pinned.

    :param earlier: prefix, and pipeline, of the environment with the earlier interval.
    """
    scene = Scene(ModelBroker({"src": 1, "out": 1}))
    scene.broker.write_input("src", 0, "t-5", _timestamp(-5))

    def late() -> None:
        scene.broker.write_input("src", 0, "t-3", _timestamp(-3))
        scene.broker.write_input("src", 0, "t4", _timestamp(4))

    scene.once["two late records"] = late
    run.world = scene

    def over(run_id: str, start: int, end: int) -> RunSpec:
        prefix = earlier if start < 0 else "eos"
        interval = Interval(_moment(start), _moment(end))
        return spec(run_id, pipeline=prefix, prefix=prefix, ranges=interval, max_send_attempts=1)

    for name, (start, end) in {"later": (10, 20), "earlier": (-10, 0)}.items():
        run.spawn(name, attempt(run, scene, name, over(name, start, end)))
    scene.processes = run.processes
    scene.time_outs = False
    scene.closers = [over(f"c{start}", start, start + 10) for start in (-10, 0, 10, 20)]
    return scene


def upstream_open(run: Run) -> Scene:
    """A transaction that is open at the time of the plan, and aborts later, writes the input itself."""

    def prepare(scene: Scene) -> None:
        other = scene.broker.init_producer("upstream")
        tp = TopicPartition("src", 0)
        scene.broker.add_partitions(other, [tp])
        scene.broker.produce(other, tp, 0, "never")
        scene.once["upstream aborts"] = lambda: scene.broker.end_transaction(other, commit=False) and None
        scene.time_outs = False

    return stage(run, [("r1", spec())], prepare=prepare, records=1, closers=[spec(), spec("last")])


def foreign_consumer(run: Run) -> Scene:
    """Another client commits to the group during a run, up to the run's last look at the offsets.

    After that look nothing protects the group: Kafka has no compare-and-set for offsets.
    """
    tp = TopicPartition("src", 0)

    def prepare(scene: Scene) -> None:
        before(scene, spec("r0"))
        for p in range(2):
            scene.broker.write_input("src", p, f"p{p}new")
        scene.time_outs = False
        check_step, settle = scene.check_step, scene.broker.write_marker
        commits_to_the_group = "a consumer commits to the group"

        def commit() -> None:
            scene.broker.groups["group"][tp] = CommittedOffset(0)

        def until_the_last_look() -> str | None:
            pending = scene.processes["r1"].pending
            if pending is None or pending.name == "commit":
                scene.once.clear()
            return check_step()

        def watched(txn: Transaction) -> None:
            pending = scene.broker.pending.get(txn.producer_id, {})
            commits = txn.state is TransactionState.PREPARE_COMMIT and ("group", tp) in pending
            moved = commits_to_the_group in scene.fired
            if commits and moved and scene.broker.groups["group"][tp].offset == 0:
                scene.broken = "the run committed over an offset it never planned from"
            settle(txn)

        scene.once[commits_to_the_group] = commit
        scene.check_step = until_the_last_look  # type: ignore[method-assign]
        scene.broker.write_marker = watched  # type: ignore[method-assign]
        scene.check_end = lambda: scene.broken  # type: ignore[method-assign]

    return stage(run, [("r1", spec("r1"))], prepare=prepare, records=1)


def expiring(run: Run) -> Scene:
    """The group's offsets expire at any moment of a run: it continues from those of the ledger."""

    def prepare(scene: Scene) -> None:
        before(scene, spec("r0"))
        for p in range(2):
            scene.broker.write_input("src", p, f"p{p}new")
        scene.time_outs = False
        check_step = scene.check_step

        def expire() -> None:
            # Brokers keep offsets of a partition that a transaction is about to commit.
            pending = {tp for offsets in scene.broker.pending.values() for _, tp in offsets}
            offsets = scene.broker.groups["group"]
            scene.broker.groups["group"] = {tp: offset for tp, offset in offsets.items() if tp in pending}

        def refused() -> str | None:
            if any(isinstance(process.error, CursorMoved) for process in scene.processes.values()):
                return "an offset that expired was taken for a foreign one"
            return check_step()

        scene.once["offsets expire"] = expire
        scene.check_step = refused  # type: ignore[method-assign]

    return stage(
        run,
        [("r1", spec("r1"))],
        closers=[spec("r1", try_number=2), spec("last")],
        prepare=prepare,
        records=1,
    )


def leader_away(*partitions: TopicPartition, twins: bool = False) -> Callable[[Run], Scene]:
    """At any moment partitions lose their leader, and get it back: meanwhile markers are omitted."""
    tries = [("try1", spec(group_id="group1"))]
    if twins:
        tries.append(("try2", spec(group_id="group1", try_number=2)))

    def scene(run: Run) -> Scene:
        def prepare(scene: Scene) -> None:
            def leave() -> None:
                scene.broker.away.update(partitions)
                scene.once["the leader returns"] = scene.broker.leaders_return

            scene.once["the leader leaves"] = leave

        return stage(
            run,
            tries,
            prepare=prepare,
            records=1,
            closers=[spec(group_id="group1", try_number=3), spec("last", group_id="group1")],
        )

    scene.__name__ = "_".join(["leader_away", *map(str, partitions), *(["twins"] if twins else [])])
    return scene


def repaired(*partitions: TopicPartition) -> Callable[[Run], Scene]:
    """As :func:`leader_away`, and somebody repairs at any moment, also during a run."""
    away = leader_away(*partitions)

    def scene(run: Run) -> Scene:
        staged = away(run)
        run.spawn("administrator", repairer(run, staged, "administrator", ["out", LEDGER]))
        return staged

    scene.__name__ = f"repaired_{away.__name__}"
    return scene


def member_joined(run: Run) -> Scene:
    """A live consumer is in the group: the run must refuse to commit."""

    def prepare(scene: Scene) -> None:
        scene.broker.members["group"] = 1

        def check_end() -> str | None:
            return "a run committed beside live members" if scene._visible("out") else None

        scene.check_end = check_end  # type: ignore[method-assign]

    return stage(run, [("r1", spec())], prepare=prepare, records=1)


def unverified(run: Run) -> Scene:
    """A broker that accepts writes outside a transaction, and reports it."""
    broker = ModelBroker({"src": 2, "out": 2}, verifies=False)

    def prepare(scene: Scene) -> None:
        check = scene.check_end

        def check_end() -> str | None:
            if not scene._visible("out"):
                return None
            return check()

        scene.check_end = check_end  # type: ignore[method-assign]
        scene.time_outs = False

    return stage(run, [("r1", spec())], broker=broker, prepare=prepare, records=1, closers=[])


def with_data(**faults: bool) -> Callable[[Run], Scene]:
    """One run whose writers misbehave."""

    def scene(run: Run) -> Scene:
        return stage(
            run,
            [("r1", spec())],
            data=lambda r, b, s: ModelData(r, b, s, **faults),
            closers=[spec(), spec("last")],
        )

    return scene
