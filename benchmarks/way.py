"""The path of a small run through the code: the driver's calls from ``RunAttempt.execute`` to the commit.

Counts, not times: they hardly differ between machines, so a test keeps them within bounds, and a change that
makes the path longer shows in its own review. Waiting for the brokers adds to the path (readers see a commit
only when its markers are written), so the shortest of three runs counts.

- functions: distinct named functions of ``airflow_eos`` that the driver's thread enters, to the commit.
- modules: distinct modules of these functions.
- package changes: distinct pairs of caller and called function in different packages.
- commit frames: functions of ``airflow_eos`` on the stack when the commit is sent.
- requests: requests that the package sends over its own connections, by kind; librdkafka's do not count.
- describe_topics: calls of the cluster port's ``describe_topics``.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType

import airflow_eos
from airflow_eos.engine.run import RunAttempt
from airflow_eos.model.spec import LedgerSettings, RunSpec
from airflow_eos.run.states import State
from airflow_eos_testing import EmbeddedKafka
from benchmarks.broker import benchmark_broker
from benchmarks.records import PARTITIONS, publish
from benchmarks.session import spark_session

RECORDS = 1_000
_RUNS = 3
_PACKAGE = str(Path(airflow_eos.__file__).parent)
_SENDS = f"{_PACKAGE}/wire/node_connections.py", "send"
_DESCRIBES = f"{_PACKAGE}/broker/cluster.py", "describe_topics"
_COMMITS = f"{_PACKAGE}/broker/librdkafka.py", "bounded"


@dataclass(frozen=True, slots=True)
class Way:
    """The counts of one run; see the module.

    :param requests: number per kind, such as ``{"ListOffsets": 12}``.
    """

    functions: int
    modules: int
    package_changes: int
    commit_frames: int
    describe_topics: int
    requests: Mapping[str, int]

    @property
    def own_requests(self) -> int:
        """Number of requests over the package's own connections."""
        return sum(self.requests.values())

    def __str__(self) -> str:
        kinds = ", ".join(f"{number} {kind}" for kind, number in self.requests.items())
        return (
            f"{self.functions} functions of {self.modules} modules, {self.package_changes} changes of "
            f"package, {self.commit_frames} frames at the commit, {self.describe_topics} x describe_topics, "
            f"{self.own_requests} requests: {kinds}"
        )


@dataclass
class _Counter:
    """Counts during a run: functions up to its commit, requests up to its end."""

    functions: set[CodeType] = field(default_factory=set)
    crossings: set[tuple[CodeType, CodeType]] = field(default_factory=set)
    commit_frames: int = 0
    describe_topics: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    committed: bool = False

    def profile(self, frame: FrameType, event: str, _argument: object) -> None:
        """Count a call; for :func:`sys.setprofile`."""
        code = frame.f_code
        if event != "call" or not _is_function(code):
            return
        place = code.co_filename, code.co_name
        if place == _SENDS:
            self.requests[_kind(frame.f_locals["request"])] += 1
        if place == _DESCRIBES:
            self.describe_topics += 1
        if self.committed:
            return
        if place == _COMMITS:
            self.commit_frames = _depth(frame)  # the last one: the commit itself
        self.functions.add(code)
        caller = _nearest(frame.f_back)
        if caller is not None and _folder(caller.f_code) != _folder(code):
            self.crossings.add((caller.f_code, code))

    def on_state(self, state: State) -> None:
        """Note whether the run has committed."""
        self.committed = self.committed or state is State.COMMITTED

    def way(self) -> Way:
        """Return the counts."""
        return Way(
            functions=len(self.functions),
            modules=len({code.co_filename for code in self.functions}),
            package_changes=len(self.crossings),
            commit_frames=self.commit_frames,
            describe_topics=self.describe_topics,
            requests=dict(sorted(self.requests.items())),
        )


def way(out: Path) -> int:
    """Print the counts of a small run and of an empty one, and write them as JSON."""
    with benchmark_broker() as kafka:
        small, empty = measure(kafka)
    report = {"small run": asdict(small), "empty run": asdict(empty)}
    (out / "way.json").write_text(json.dumps(report, indent=2) + "\n")
    print(f"way: an empty run: {empty}")
    print(f"way: a run of {RECORDS:,} records: {small}")
    return 0


def measure(kafka: EmbeddedKafka) -> tuple[Way, Way]:
    """Return the paths of a run with records and of an empty one; neither is the first of its pipeline.

    Each is the shortest of three.
    """
    for topic in ("way-source", "way-sink"):
        kafka.create_topic(topic, partitions=PARTITIONS)
    spark = spark_session(peers=False)

    numbers = itertools.count(1)

    def run() -> Way:
        spec = RunSpec(
            kafka=kafka.client_config(),
            pipeline="way",
            run_id=f"run {next(numbers)}",
            source_topics=("way-source",),
            sink_topic="way-sink",
            group_id="way",
            ledger=LedgerSettings(partitions=1, replication_factor=1, create=True),
        )
        counter = _Counter()
        attempt = RunAttempt(spark, spec, lambda df: df.select("key", "value"), on_state=counter.on_state)
        sys.setprofile(counter.profile)
        try:
            attempt.execute()
        finally:
            sys.setprofile(None)
        return counter.way()

    def small_run() -> Way:
        publish(kafka.bootstrap_servers, "way-source", RECORDS)
        return run()

    def shortest(ways: Iterable[Way]) -> Way:
        return min(ways, key=lambda way: (way.functions, way.own_requests))

    try:
        small_run()
        small = shortest(small_run() for _ in range(_RUNS))
        return small, shortest(run() for _ in range(_RUNS))
    finally:
        spark.stop()


def _is_function(code: CodeType) -> bool:
    """Return whether the code is a named function of the package."""
    return (
        code.co_filename.startswith(_PACKAGE)
        and bool(code.co_flags & CO_OPTIMIZED)  # not a module, not the body of a class
        and not code.co_name.startswith("<")
    )


def _nearest(frame: FrameType | None) -> FrameType | None:
    while frame is not None and not _is_function(frame.f_code):
        frame = frame.f_back
    return frame


def _depth(frame: FrameType | None) -> int:
    depth = 0
    while (frame := _nearest(frame)) is not None:
        depth, frame = depth + 1, frame.f_back
    return depth


def _folder(code: CodeType) -> str:
    """Return the first-level package below ``airflow_eos``, such as ``ledger`` for its records."""
    return code.co_filename.removeprefix(f"{_PACKAGE}/").partition("/")[0]


def _kind(request: object) -> str:
    return type(request).__name__.removesuffix("Request").partition("_")[0]
