"""Scenes in which the sink is a table, and what must be true of its rows at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.iceberg_table import IcebergTable
from airflow_eos.model.ranges import Cursor, Explicit, OffsetRange
from airflow_eos.model.spec import RunSpec
from tests.protocol.model import scenes
from tests.protocol.model.broker import ModelBroker
from tests.protocol.model.explorer import Run
from tests.protocol.model.ports import attempt
from tests.protocol.model.table_sink import ModelTable

SINK = IcebergTable("db.t", catalog="c")
BOTH = Explicit((OffsetRange("src", 0, 0, 1), OffsetRange("src", 1, 0, 1)))


class TableScene(scenes.Scene):
    """A cluster and a table; the visible output is the table's rows and the dead letters."""

    def __init__(self, *, compares: bool = True) -> None:
        super().__init__(ModelBroker({"src": 2, "dead": 1}), sink="the table")
        self.table = ModelTable(compares=compares)

    def fingerprint(self) -> str:
        return f"{super().fingerprint()}{self.table.fingerprint()}"

    def saved(self) -> Any:
        return super().saved(), self.table.saved()

    def restore(self, saved: Any) -> None:
        of_scene, of_table = saved
        super().restore(of_scene)
        self.table.restore(of_table)

    def _visible(self, topic: str) -> list[str]:
        if topic != self.sink:
            return super()._visible(topic)
        return [*self.table.rows, *super()._visible("dead")]

    def _written(self, runs: Sequence[RunRecord]) -> int:
        tables = [record.details.get("table", {}) for record in runs]
        replaced = {snapshot for table in tables for snapshot in table.get("replaced", ())}
        left = [r for r in runs if r.details.get("table", {}).get("snapshot") not in replaced]
        return super()._written(left)


def spec(run_id: str = "r1", **changes: Any) -> RunSpec:
    return replace(scenes.spec(run_id), **{"sink_topic": None, "sink": SINK, **changes})


def stage(
    run: Run,
    attempts: Sequence[tuple[str, RunSpec]],
    closers: Sequence[RunSpec],
    *,
    compares: bool = True,
    events: Callable[[TableScene], None] | None = None,
) -> TableScene:
    """Set a scene: a record in each of two partitions, and concurrent attempts.

    :param events: adds what other writers do to the table.
    """
    scene = TableScene(compares=compares)
    for partition in range(2):
        scene.broker.write_input("src", partition, f"p{partition}r0")
    # Time-outs of open transactions matter for topics only; here they would just multiply the schedules.
    scene.time_outs = False
    if events is not None:
        events(scene)
    run.world = scene
    for name, of_attempt in attempts:
        run.spawn(name, attempt(run, scene, name, of_attempt))
    scene.processes = run.processes
    scene.closers = list(closers)
    return scene


def alone(run: Run) -> TableScene:
    """One attempt, then its retry."""
    return stage(run, [("first", spec())], [spec(try_number=2), spec("last")])


def twins(run: Run, *, compares: bool = True) -> TableScene:
    """A zombie and its replacement, over given ranges: no cursor would notice a repetition."""
    return stage(
        run,
        [("try1", spec(ranges=BOTH)), ("try2", spec(ranges=BOTH, try_number=2))],
        [spec(ranges=BOTH, try_number=3)],
        compares=compares,
    )


def successive(run: Run) -> TableScene:
    """Two runs of one cursor: the later one settles the INTENT of the one that sleeps or died."""
    return stage(
        run,
        [("r1", spec("r1")), ("r2", spec("r2"))],
        [spec("r1", try_number=2), spec("r2", try_number=2), spec("last")],
    )


def rounds(run: Run) -> TableScene:
    """A run in rounds that dies between two of them, and its retry."""
    looped = spec(ranges=Cursor(max_records=1, until_caught_up=True))
    return stage(run, [("try1", looped)], [replace(looped, try_number=2), spec("last")])


def maintained(run: Run) -> TableScene:
    """A run and its replacement while others compact the table and expire its snapshots."""

    def events(scene: TableScene) -> None:
        scene.once["a compaction of the table"] = scene.table.foreign_commit
        scene.once["expiry of the table's snapshots"] = scene.table.expire_snapshots

    return stage(
        run, [("try1", spec()), ("r2", spec("r2"))], [spec(try_number=3), spec("last")], events=events
    )


def side_by_side(run: Run) -> TableScene:
    """A zombie, its replacement, and a concurrent run that removes committed claims from the property."""
    first, second = (Explicit((OffsetRange("src", partition, 0, 1),)) for partition in range(2))
    return stage(
        run,
        [
            ("try1", spec(ranges=first)),
            ("try2", spec(ranges=first, try_number=2)),
            ("other", spec("r2", ranges=second)),
        ],
        [spec(ranges=first, try_number=3), spec("r2", ranges=second, try_number=2)],
    )


def with_letters(run: Run) -> TableScene:
    """As successive, with a record whose dead letter is in the transaction after the table's commit."""
    letters = {"dead_letter_topic": "dead"}
    return stage(
        run,
        [("r1", spec("r1", **letters)), ("r2", spec("r2", **letters))],
        [spec("r1", try_number=2, **letters), spec("r2", try_number=2), spec("last", **letters)],
    )


def replaced(run: Run) -> TableScene:
    """Two attempts at a reprocessing that replaces the rows of a committed run, beside a foreign commit."""
    replacing = replace(SINK, reprocess="replace")
    again = {"sink": replacing, "ranges": BOTH, "clear_number": 1, "on_committed": "reprocess"}

    def events(scene: TableScene) -> None:
        scenes.before(scene, spec(ranges=BOTH))
        scene.once["a foreign commit to the table"] = scene.table.foreign_commit

    return stage(
        run,
        [("try1", spec(**again)), ("try2", spec(try_number=2, **again))],
        [spec(try_number=3, **again)],
        events=events,
    )


SCENES = [alone, twins, successive, rounds, maintained, side_by_side, with_letters, replaced]
