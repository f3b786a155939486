"""Transforms whose result changes if they are evaluated again, and a gate that holds some of their tasks.

Each takes records of :meth:`tests.support.spark_sessions.Broker.numbered` and shuffles them by a value that
is not a function of the record: if Spark recomputes lost map outputs, a record goes to another task.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.patience import wait_until

PARTS = 6
_DIRS = "SPARK_EXECUTOR_DIRS"
SCHEMA = "key binary, value binary"


@dataclass(frozen=True)
class Gate:
    """A gate that tasks 0 and 1 of a stage pass; the others wait until it is opened.

    They run on two executors of one core, so once two wait, the first two have ended.
    """

    folder: str
    created: float = field(default_factory=time.time)

    def __call__(self, batches):
        import pathlib
        import time as clock
        from os import getppid

        from pyspark import TaskContext

        part = TaskContext.get().partitionId()
        folder = pathlib.Path(self.folder)
        jvm = pathlib.Path(f"/proc/{getppid()}/stat").read_text().rpartition(")")[2].split()[1]
        if part <= 1:
            (folder / f"passes-{part}-{jvm}").touch()
        else:
            (folder / f"waits-{part}-{jvm}").touch()
            while not (folder / "open").exists():
                clock.sleep(0.05)
        yield from batches

    def attach(self, df):
        return df.mapInArrow(self, SCHEMA)

    def meet(self, df):
        """Hold all tasks of a stage until tasks of it run on two executors."""
        folder = self.folder

        def wait_for_another(batches):
            import pathlib
            import time as clock
            from os import getppid

            place = pathlib.Path(folder)
            jvm = pathlib.Path(f"/proc/{getppid()}/stat").read_text().rpartition(")")[2].split()[1]
            (place / f"meets-{jvm}").touch()
            while len([*place.glob("meets-*")]) == 1:
                clock.sleep(0.05)
            yield from batches

        return df.select("key", "value").mapInArrow(wait_for_another, SCHEMA)

    def kill_one_and_open(self):
        """Once both executors wait, SIGKILL one that holds the tasks' input, then open the gate."""
        folder = Path(self.folder)
        waiting = wait_until(lambda: len(pids := self._executors("waits-*")) > 1 and pids, 120)
        written = {pid: _shuffles(pid, self.created) for pid in waiting}
        # The last shuffle was written by the first two tasks.
        *_, read, _ = [None, None, *sorted(set().union(*written.values()))]
        holders = [pid for pid in waiting if read in written[pid]]
        # A cached DataFrame has no shuffle: what task 0 took from the other executor's blocks stays.
        os.kill(min(holders or waiting - self._executors("passes-0-*")), signal.SIGKILL)
        (folder / "open").touch()

    def _executors(self, pattern):
        return {int(path.name.rpartition("-")[2]) for path in Path(self.folder).glob(pattern)}


def _shuffles(pid, since):
    """Return the ids of the shuffles for which an executor has written rows since a time."""
    environment = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    (folders,) = (value for name, _, value in (line.partition("=") for line in environment) if name == _DIRS)
    shuffles = set()
    for path in (path for folder in folders.split(":") for path in Path(folder).rglob("shuffle_*.data")):
        with suppress(FileNotFoundError):  # Spark cleans up behind earlier runs
            if path.stat().st_size and path.stat().st_mtime >= since:
                shuffles.add(int(path.name.split("_")[1]))
    return shuffles


def _random(df, column="r"):
    from pyspark.sql import functions as F  # noqa: N812

    @F.udf("string")
    def drawn(value):
        import uuid

        return uuid.uuid4().hex

    return df.select("key", "value", drawn("value").alias(column))


def random_keys(df, gate):
    return gate.attach(_random(df).repartition(PARTS, "r").select("key", "value"))


def random_values_without_a_shuffle(df, gate):
    """Draw random values entirely within the seal tasks."""
    return gate.attach(_random(df, "drawn").selectExpr("cast(drawn AS binary) AS key", "value"))


def random_keys_below_two_shuffles(df, gate):
    """Mix two evaluations in a middle stage, while the seal's tasks all run in one attempt."""
    return gate.attach(_random(df).repartition(PARTS, "r").select("key", "value")).repartition(PARTS, "value")


def clock_time(df, gate):
    from pyspark.sql import functions as F  # noqa: N812

    @F.udf("long")
    def now(value):
        import time

        return time.time_ns()

    return gate.attach(df.withColumn("r", now("value")).repartition(PARTS, "r").select("key", "value"))


def cached_halves(df, gate):
    """Read cached blocks twice, without a shuffle: by its drawn value, each record once."""
    kept = _random(df).cache()
    halves = kept.where("r < '8'").union(kept.where("r >= '8'"))
    return gate.attach(halves.select("key", "value"))


def lazily_checkpointed_halves(df, _gate):
    """Read the only block of a lazy checkpoint twice at the same time: one task on each executor."""

    def slowly(batches):
        import time as clock

        clock.sleep(3)
        yield from batches

    slow = df.select("key", "value").coalesce(1).mapInArrow(slowly, SCHEMA)
    kept = _random(slow).localCheckpoint(eager=False)
    return kept.where("r < '8'").union(kept.where("r >= '8'")).select("key", "value")


def half_of_a_filled_cache_in_one_task(df, gate):
    """Fill a cache on both executors, of which task 0 takes one half, wherever the blocks are.

    Its result outlives the blocks of the other executor.
    """
    kept = _random(gate.meet(df)).cache()
    kept.write.format("noop").mode("overwrite").save()  # count() would shuffle
    halves = kept.where("r < '8'").coalesce(1).union(kept.where("r >= '8'"))
    return gate.attach(halves.select("key", "value"))


def cached_beyond_memory(df, _gate):
    """Read cached blocks twice that do not fit into a memory-only cache: no executor needs to die."""
    from pyspark import StorageLevel
    from pyspark.sql import functions as F  # noqa: N812

    @F.udf("string")
    def drawn(value):
        import os

        return os.urandom(10_000).hex()

    kept = df.select("key", "value", drawn("value").alias("r")).persist(StorageLevel.MEMORY_ONLY)
    return kept.where("r < '8'").union(kept.where("r >= '8'")).select("key", "value")


def _per_key(rows, gate):
    return gate.attach(rows.repartition(PARTS, "value").select("key", "value"))


def drop_duplicates(df, gate):
    return _per_key(df.select("key", "value").dropDuplicates(["key"]), gate)


def first_of_key(df, gate):
    from pyspark.sql import functions as F  # noqa: N812

    return _per_key(df.groupBy("key").agg(F.first("value").alias("value")), gate)


def list_of_key(df, gate):
    from pyspark.sql import functions as F  # noqa: N812

    joined = F.concat_ws(",", F.collect_list(F.col("value").cast("string"))).cast("binary")
    return _per_key(df.groupBy("key").agg(joined.alias("value")), gate)


def row_number_over_ties(df, gate):
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    ties = Window.partitionBy("key").orderBy(F.length("key"))
    numbered = df.select("key", "value", F.row_number().over(ties).alias("n"))
    return _per_key(numbered.where("n = 1"), gate)


ALL_RECORDS = (random_keys, random_keys_below_two_shuffles, clock_time, cached_halves)
"""Transforms that output each value once, unchanged."""
ONE_PER_KEY = (drop_duplicates, first_of_key, list_of_key, row_number_over_ties)
"""Transforms that output each key once."""
