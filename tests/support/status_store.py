"""A hand-written stand-in for a driver's status store, as a classic session exposes it."""

from __future__ import annotations

from types import SimpleNamespace


def _call(value):
    return lambda *_: value


class Option:
    def __init__(self, value):
        self._value = value

    def isDefined(self):  # noqa: N802 - Scala's name
        return self._value is not None

    def get(self):
        return self._value


class Driver:
    """A stand-in for a classic ``SparkSession`` and everything behind it.

    :param evicts: whether it evicts each job as soon as another begins.
    """

    def __init__(self, *, evicts=False):
        self.conf = {}
        self.dropped = 0
        self.executors = {"0": True, "1": True}
        self.rdd_blocks = {"0": 2, "1": 2}
        self.cached = {}
        self._evicts = evicts
        self._tags = set()
        self._jobs = {}
        self._stages = {}
        self._next_job = 0
        self.sparkContext = self
        self._jsc = self

    def job(self, *stages, tags=()):
        """Run a job with stages (stage, attempt, RDDs, records written); attempt None: skipped."""
        if self._evicts:
            self._jobs.clear()
        self._jobs[self._next_job] = (self._tags | set(tags), [stage for stage, *_ in stages])
        for stage, attempt, rdds, written in stages:
            self._stages[stage] = SimpleNamespace(
                status=_call("SKIPPED" if attempt is None else "COMPLETE"),
                attemptId=_call(attempt or 0),
                rddIds=_call(SimpleNamespace(mkString=lambda by, rdds=rdds: by.join(map(str, rdds)))),
                shuffleWriteRecords=_call(written),
            )
        self._next_job += 1

    # -- as PySpark and Spark have it ---------------------------------------------------------------------

    def addJobTag(self, tag):  # noqa: N802
        self._tags.add(tag)

    def removeJobTag(self, tag):  # noqa: N802
        self._tags.discard(tag)

    def emptyRDD(self):  # noqa: N802
        return SimpleNamespace(count=self.job)

    def keep(self, rdd, *partitions, copies=1):
        """Cache an RDD: for each partition, the executors that have its block."""
        self.cached[rdd] = ([frozenset(holders) for holders in partitions], copies)

    def getPersistentRDDs(self):  # noqa: N802
        return {
            rdd: SimpleNamespace(
                id=_call(rdd),
                getNumPartitions=_call(len(partitions)),
                getStorageLevel=_call(SimpleNamespace(replication=_call(copies))),
            )
            for rdd, (partitions, copies) in self.cached.items()
        }

    @property
    def _jvm(self):
        spark = SimpleNamespace(
            storage=SimpleNamespace(RDDBlockId=lambda rdd, partition: (rdd, partition)),
        )
        return SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(spark=spark)))

    def getClass(self):  # noqa: N802
        """Return a class each of whose fields holds the block manager."""
        field = SimpleNamespace(setAccessible=_call(None), get=_call(SimpleNamespace(master=self.sc)))
        field.getType = lambda: SimpleNamespace(getDeclaredField=lambda _name: field)
        return field.getType()

    def getLocations(self, block):  # noqa: N802
        rdd, partition = block
        holders = [SimpleNamespace(executorId=_call(name)) for name in self.cached[rdd][0][partition]]
        return SimpleNamespace(size=lambda: len(holders), apply=holders.__getitem__)

    def sc(self):
        return self

    def statusStore(self):  # noqa: N802
        return SimpleNamespace(
            job=self.store_of_job,
            lastStageAttempt=self._stages.__getitem__,
            executorList=self.executorList,
        )

    statusTracker = listenerBus = metrics = metricRegistry = sc  # noqa: N815

    def counter(self, _name):
        return SimpleNamespace(getCount=lambda: self.dropped)

    def executorList(self, _active_only):  # noqa: N802
        every = [
            SimpleNamespace(id=_call(k), isActive=_call(v), rddBlocks=_call(self.rdd_blocks[k]))
            for k, v in self.executors.items()
        ]
        return SimpleNamespace(size=lambda: len(every), apply=every.__getitem__)

    def getJobIdsForTag(self, tag):  # noqa: N802
        return [number for number, (tags, _) in self._jobs.items() if tag in tags]

    def store_of_job(self, number):
        tags = self._jobs[number][0]
        return SimpleNamespace(jobTags=lambda: SimpleNamespace(mkString=lambda by: by.join(tags)))

    def getJobInfo(self, number):  # noqa: N802
        job = self._jobs.get(number)
        return Option(job and SimpleNamespace(stageIds=lambda: job[1]))

    def forget_stage(self, stage):
        """Evict a stage, as the store does with the oldest when it is full."""
        del self._stages[stage]

    def getStageInfo(self, stage):  # noqa: N802
        return Option(self._stages.get(stage))
