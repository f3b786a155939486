"""Evidence of a second evaluation in the status store makes the run seal again, or not."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.operators.retriable import is_final
from airflow_eos.spark.sealed_blocks import InconsistentSeal
from airflow_eos.spark.single_evaluation import (
    REPEATABLE,
    ServerEvidence,
    StageRun,
    StatusStoreEvidence,
    computed_twice,
    not_rolled_back,
    refuse_caches_filled_by_several,
    refuse_caches_in_memory_only,
)
from tests.support.status_store import Driver


def ran(stage, *rdds, attempt=0, written=10):
    return StageRun(stage, attempt, frozenset(rdds), written)


READ, AGGREGATED, SEALED, KEPT = ran(0, 1, 2), ran(1, 3, 4), ran(2, 5, 6), ran(3, 7, 8, written=0)


def test_each_stage_once_is_one_evaluation():
    """No data was lost."""
    assert computed_twice([READ, AGGREGATED, SEALED, KEPT]) is None


@pytest.mark.parametrize("again", range(4))
def test_a_second_attempt_of_any_stage_of_a_shuffling_transform_is_seen(again):
    """Whatever was lost: earlier reads of it may be mixed with later ones."""
    runs = [READ, AGGREGATED, SEALED, KEPT]
    first = runs[again]
    runs[again] = StageRun(first.stage, 1, first.rdds, first.written)
    assert computed_twice(runs) == f"Spark ran stage {first.stage} of the transform again (attempt 1)"


def test_a_shuffle_that_a_later_job_writes_again_is_seen():
    """Adaptive execution makes a job of each shuffle: in the next job its stage has another number."""
    runs = [READ, AGGREGATED, ran(5, 3, 4, written=3), SEALED, KEPT]
    assert computed_twice(runs) == "Spark ran stage 1 of the transform again, as stage 5"


def test_a_shuffle_that_is_empty_the_second_time_is_seen():
    """The second evaluation wrote no rows for the lost partitions."""
    assert computed_twice([READ, ran(4, 1, 2, written=0), SEALED, KEPT]) is not None


def test_parts_of_a_result_are_no_second_evaluation():
    """``df.show()`` reads partitions until it has enough rows: one-stage jobs over the same RDDs."""
    shown = [ran(0, 9, written=0), ran(1, 9, written=0), ran(2, 9, written=0)]
    assert computed_twice([*shown, ran(3, 1, 2), SEALED, KEPT]) is None


def test_a_transform_without_a_shuffle_is_judged_by_its_rows():
    """Seal tasks that run again make other attempts; there is no stage below them."""
    again = StageRun(SEALED.stage, 1, SEALED.rdds, SEALED.written)
    assert computed_twice([again, KEPT]) is None


@pytest.mark.parametrize(
    "reason",
    [
        "A shuffle map stage with indeterminate output was failed and retried. However, Spark cannot [...]",
        "cannot rollback a running result stage, please re-run the query to ensure data correctness",
        "rollback failed due to: ShuffleMapStage 3 has failed the maximum allowable number of times: 4.",
    ],
    ids=["a result that is half computed", "a result that is being computed", "too often"],
)
def test_a_job_that_spark_cannot_roll_back_is_sealed_again(reason):
    """The messages are those of Spark 4.0 to 4.2."""
    assert not_rolled_back(RuntimeError(f"SparkException: Job aborted due to stage failure: {reason}"))


def test_the_words_of_a_record_are_not_taken_for_sparks():
    """Writers of records must not decide how a run ends."""
    text = (
        "SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent "
        "failure: ValueError: Job aborted due to stage failure: cannot rollback a running result stage"
    )
    assert not_rolled_back(RuntimeError(text)) is None


class Conf(dict):
    """The settings of a session."""

    set = dict.__setitem__
    unset = dict.pop


class Server:
    """A Spark Connect session, with what it reports about its server."""

    def __init__(self, version, **conf):
        self.version = version
        self.conf = Conf({name.replace("__", "."): value for name, value in conf.items()})


class Plan:
    def __init__(self, text):
        self._text = text

    def _explain_string(self):
        return self._text


SHUFFLE = "+- Exchange hashpartitioning(r#12, 6), REPARTITION_BY_NUM, [plan_id=7]"
CACHE = "+- InMemoryTableScan [key#1, r#12]"
CHECKPOINT = "+- Scan ExistingRDD[key#1,value#2]"
BROADCAST = "+- BroadcastExchange HashedRelationBroadcastMode(List(input[0, bigint, false]))"


@pytest.mark.parametrize(
    ("version", "plan"),
    [
        ("4.0.0", SHUFFLE),
        ("4.1.3", SHUFFLE),
        ("4.1.3", CHECKPOINT),
        ("4.1.3", "PhotonShuffleExchangeSink"),
        ("4.2.0", CACHE),
    ],
)
def test_a_plan_of_which_a_server_does_not_tell_is_refused(version, plan):
    """The error has the version and a remedy; a retry would meet the same plan and server."""
    with pytest.raises(ConfigurationError) as refused:
        ServerEvidence(Server(version)).admit(Plan(f"*(1) Project\n{plan}\n   +- BatchScan"))
    assert re.search(rf"Spark {version} .* classic session .*{REPEATABLE}=true", str(refused.value))
    assert is_final(refused.value)


@pytest.mark.parametrize(
    ("version", "plan"), [("4.2.0", SHUFFLE), ("4.0.0", BROADCAST), ("4.0.0", "+- BatchScan")]
)
def test_other_plans_are_taken(version, plan):
    """The server compares checksums, or there is no shuffle."""
    ServerEvidence(Server(version)).admit(Plan(f"*(1) Project\n{plan}\n   +- BatchScan"))


@pytest.mark.parametrize("plan", [SHUFFLE, CACHE])
def test_an_author_can_say_that_a_transform_is_repeatable(plan):
    """Then it does not matter how often it is evaluated."""
    ServerEvidence(Server("4.0.0", spark__airflowEos__repeatable="true")).admit(Plan(plan))


DISK, NO_DISK = "StorageLevel(disk, memory, deserialized, 1 replicas)", "StorageLevel(memory, 1 replicas)"


class Session:
    """A classic session on a cluster, with its settings and a plan with caches."""

    def __init__(self, *levels, filled=False, speculation="false", repeatable="false"):
        self.conf = Conf({REPEATABLE: repeatable})
        self.sparkContext = SimpleNamespace(getConf=lambda: {"spark.speculation": speculation})
        manager = SimpleNamespace(isEmpty=lambda: not levels)
        shared = SimpleNamespace(cacheManager=lambda: manager)
        self._jsparkSession = SimpleNamespace(sharedState=lambda: shared)
        names = [*["InMemoryRelation"] * len(levels), "RelationV2"]
        builder = SimpleNamespace(isCachedColumnBuffersLoaded=lambda: filled)
        leaves = [
            SimpleNamespace(
                getClass=lambda name=name: SimpleNamespace(getSimpleName=lambda: name),
                cacheBuilder=lambda: builder,
            )
            for name in names
        ]
        relations = "\n".join(f"   +- InMemoryRelation [key#1, r#2], {level}" for level in levels)
        tree = SimpleNamespace(
            toString=lambda: f"Union false, false\n{relations}",
            collectLeaves=lambda: SimpleNamespace(size=lambda: len(leaves), apply=leaves.__getitem__),
        )
        execution = SimpleNamespace(optimizedPlan=lambda: tree)
        self.plan = SimpleNamespace(_jdf=SimpleNamespace(queryExecution=lambda: execution))

    def check(self):
        refuse_caches_in_memory_only(self, self.plan)
        refuse_caches_filled_by_several(self, self.plan)


@pytest.mark.parametrize(
    ("session", "says"),
    [
        (Session(NO_DISK), "cached in memory only"),
        (Session(DISK, NO_DISK, filled=True), "cached in memory only"),
        (Session(DISK, DISK), "at several places"),
        (Session(DISK, DISK, filled=True, speculation="true"), "at several places"),
    ],
)
def test_a_cache_whose_blocks_may_be_computed_twice_is_refused(session, says):
    """They do not fit, or tasks that read them in two places compute them concurrently."""
    with pytest.raises(ConfigurationError, match=f"{says}.*localCheckpoint.*{REPEATABLE}=true"):
        session.check()


@pytest.mark.parametrize(
    "session",
    [
        Session(),
        Session(DISK, DISK, filled=True),
        Session(DISK, speculation="true"),
        Session(NO_DISK, NO_DISK, repeatable="true"),
    ],
    ids=["no cache", "filled", "one place", "repeatable"],
)
def test_other_caches_are_taken(session):
    """Recomputation of their blocks is detected."""
    session.check()


TAG = ("seal",)
READ_JOB, SEAL_JOB = [(0, 0, (1, 2), 10)], [(1, None, (1, 2), 0), (2, 0, (3, 4), 10)]
KEEP_JOB, COUNT_JOB = [(3, None, (3, 4), 0), (4, 0, (5, 6), 0)], [(5, 0, (6, 7), 0)]


def sealed(driver, *jobs, first=()):
    """Evidence of a seal that ran these jobs, and then counted its blocks."""
    for job in first:
        driver.job(*job, tags=TAG)
    evidence = StatusStoreEvidence(driver, *TAG)
    for job in (*jobs, COUNT_JOB):
        driver.job(*job, tags=TAG)
    return evidence


def test_a_seal_whose_stages_ran_once_is_taken():
    """Its blocks are in the counted RDD, which is a cache, and no executor was lost."""
    driver = Driver()
    evidence = sealed(driver, READ_JOB, SEAL_JOB, KEEP_JOB)
    driver.keep(6, "0", "1")
    evidence.check()


def test_a_second_attempt_below_the_seal_is_an_inconsistent_seal():
    """The job of a shuffle met lost map outputs."""
    evidence = sealed(Driver(), [(0, 1, (1, 2), 5)], SEAL_JOB, KEEP_JOB)
    with pytest.raises(InconsistentSeal, match=r"stage 0 of the transform again \(attempt 1\)"):
        evidence.check()


def test_what_ran_before_the_seal_or_for_others_is_no_evidence():
    """Jobs of the previous seal, and of another run in the same session."""
    driver = Driver()
    evidence = sealed(driver, READ_JOB, SEAL_JOB, KEEP_JOB, first=[[(8, 3, (1, 2), 10)]])
    driver.job((9, 2, (30, 31), 10), tags=("airflow-eos-another", "spark-session-1"))
    evidence.check()


def test_a_second_attempt_in_a_thread_of_the_author_is_an_inconsistent_seal():
    """A thread's jobs have Spark's tags, but none of the run's."""
    driver = Driver()
    evidence = StatusStoreEvidence(driver, *TAG)
    driver.job((9, 1, (30, 31), 10), tags=("spark-session-1",))
    for job in (SEAL_JOB, KEEP_JOB, COUNT_JOB):
        driver.job(*job, tags=TAG)
    with pytest.raises(InconsistentSeal, match=r"stage 9 of the transform again \(attempt 1\)"):
        evidence.check()


def test_a_cache_read_while_an_executor_is_lost_is_an_inconsistent_seal():
    """Blocks are recomputed without a second attempt of any stage."""
    driver = Driver()
    evidence = sealed(driver, [(1, 0, (1, 2), 10)], [(2, None, (1, 2), 0), (4, 0, (5, 6), 0)])
    driver.keep(1, "0", "1")
    driver.keep(6, "0", "1")
    evidence.check()
    driver.executors["1"] = False
    with pytest.raises(InconsistentSeal, match="executor 1 was lost while the transform read a DataFrame"):
        evidence.check()
    driver.rdd_blocks["1"] = 0  # idle, so dynamic allocation removes it
    evidence.check()


CACHED_JOBS = [(1, 0, (1, 2), 10)], [(2, None, (1, 2), 0), (4, 0, (5, 6), 0)]


@pytest.mark.parametrize(
    ("before", "after", "copies"),
    [
        (["0"], ["1"], 1),
        (["0"], ["0", "1"], 1),
        (["0"], ["0", "1"], 2),
        (["0", "1"], ["1", "2"], 2),
        ([], ["0", "1"], 1),
        ([], ["0", "1", "2"], 2),
        (["0", "1"], ["0", "1"], 1),
    ],
)
def test_a_cached_block_at_a_new_place_is_an_inconsistent_seal(before, after, copies):
    """Its executor is dead, and the driver does not know that yet."""
    driver = Driver()
    driver.keep(1, before, copies=copies)
    evidence = sealed(driver, *CACHED_JOBS)
    driver.keep(1, after, copies=copies)
    with pytest.raises(InconsistentSeal, match="block 0 of a cache or lazy checkpoint is on exec"):
        evidence.check()


@pytest.mark.parametrize(
    ("before", "after", "copies"),
    [
        (["0"], ["0"], 1),
        ([], ["0"], 1),
        ([], ["0", "1"], 2),
        (["0"], [], 1),
        (["0", "1"], ["1"], 2),
    ],
)
def test_a_cached_block_that_stays_where_it_was_is_no_evidence(before, after, copies):
    """It was filled during the seal, or only a copy of it is lost."""
    driver = Driver()
    driver.keep(1, before, copies=copies)
    evidence = sealed(driver, *CACHED_JOBS)
    driver.keep(1, after, copies=copies)
    evidence.check()


def test_a_cached_block_that_the_transform_does_not_read_is_no_evidence():
    """Another run of the session lost it."""
    driver = Driver()
    driver.keep(70, ["0"])
    evidence = sealed(driver, *CACHED_JOBS)
    driver.keep(70, ["1"])
    evidence.check()


def test_an_executor_lost_without_a_cache_is_no_evidence():
    """Dynamic allocation removes executors that have no blocks."""
    driver = Driver()
    evidence = sealed(driver, READ_JOB, SEAL_JOB, KEEP_JOB)
    driver.executors["1"] = False
    evidence.check()


def test_events_that_spark_dropped_leave_it_open():
    """The run seals again, and the error names the setting to raise."""
    driver = Driver()
    evidence = sealed(driver, READ_JOB, SEAL_JOB, KEEP_JOB)
    driver.dropped = 1
    with pytest.raises(InconsistentSeal, match=r"raise spark\.scheduler\.listenerbus"):
        evidence.check()


def test_a_job_that_spark_has_forgotten_leaves_it_open():
    """The status store keeps a limited number of jobs."""
    evidence = sealed(Driver(evicts=True), READ_JOB, SEAL_JOB, KEEP_JOB)
    with pytest.raises(InconsistentSeal, match=r"forgotten job 1 .* raise spark\.ui\.retainedJobs"):
        evidence.check()


def test_a_stage_that_spark_has_forgotten_leaves_it_open():
    """Its job is still in the store."""
    driver = Driver()
    evidence = sealed(driver, READ_JOB, SEAL_JOB, KEEP_JOB)
    driver.forget_stage(0)
    with pytest.raises(InconsistentSeal, match=r"forgotten stage 0 .* raise spark\.ui\.retainedStages"):
        evidence.check()


def test_a_status_store_that_does_not_catch_up_leaves_it_open(monkeypatch):
    """Its queue waits for a slow listener."""
    driver = Driver()
    evidence = sealed(driver, READ_JOB, SEAL_JOB, KEEP_JOB)
    monkeypatch.setattr(driver, "getJobIdsForTag", lambda _tag: [])
    monkeypatch.setattr("airflow_eos.spark.single_evaluation._STORE_TIMEOUT", 0.05)
    with pytest.raises(InconsistentSeal, match="status store is more than"):
        evidence.check()
