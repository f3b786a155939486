"""S: delivery semantics. At most once, at least once and exactly once, under the same crash."""

from __future__ import annotations

import random

import pytest

from airflow_eos.engine import Run
from airflow_eos.exceptions import SendError
from airflow_eos.run.states import State
from airflow_eos.spark import blocks
from airflow_eos.spark.data_plane import SparkDataPlane
from tests.guarantees import without_transactions
from tests.guarantees.data_planes import (
    CounterPlane,
    EvaluatesAgainPlane,
    FailsOnceRandomPlane,
    LosesBlocksRandomPlane,
    RandomPlane,
)
from tests.guarantees.driver import in_a_process
from tests.guarantees.experiment import Experiment, Watcher, judged, values
from tests.support.cases import rest_in_chaos

EVERY_STATE = (
    State.ASKED, State.FENCED, State.CHECKED, State.PLANNED, State.SEALED,
    State.OPEN, State.WRITTEN, State.STAGED, State.PROVEN, State.COMMITTED,
)  # fmt: skip


def plain_copy(experiment, order, *, die=False):
    """Run the job without transactions in a process of its own; return its exit code."""
    config = experiment.kafka.client_config()
    group = experiment.spec.group_id
    return in_a_process(
        without_transactions.copy, config, experiment.source, experiment.sink, group, order, die
    )


# -- S1, S2, S3: the same crash between the two halves ---------------------------------------------------


def test_offsets_first_loses_records_at_a_crash(experiment):
    """S1, contrast: at most once. SIGKILL between the offsets and the output: the records are gone."""
    experiment.feed(30)
    assert plain_copy(experiment, "offsets first", die=True) == -9
    experiment.feed(10)
    assert plain_copy(experiment, "offsets first") == 0
    lost, duplicated = judged(experiment)
    assert (len(lost), duplicated) == (30, [])


def test_output_first_duplicates_records_at_a_crash(experiment):
    """S2, contrast: at least once. SIGKILL between the output and the offsets: the records come twice."""
    experiment.feed(30)
    assert plain_copy(experiment, "output first", die=True) == -9
    experiment.feed(10)
    assert plain_copy(experiment, "output first") == 0
    lost, duplicated = judged(experiment)
    assert (lost, len(duplicated)) == ([], 30)


def test_sparks_own_kafka_sink_duplicates_records_at_a_crash(experiment, spark):
    """S2, contrast: SIGKILL of a Spark driver between Kafka sink and offsets: the records come twice."""
    first = experiment.feed(30)
    job = (experiment.kafka.client_config(), experiment.source, experiment.sink, experiment.spec.group_id)
    assert in_a_process(without_transactions.copy_with_spark, *job, True) == -9
    assert (experiment.committed(), len(experiment.output())) == ([-1, -1], 30)
    experiment.feed(10)
    without_transactions.copy_with_spark(*job, session=spark)
    assert experiment.committed() == [20, 20]
    assert judged(experiment) == ([], sorted(first))


def test_one_transaction_is_exact_after_the_same_crash(experiment):
    """S3: SIGKILL between output and offsets, then a retry: every record once, for every reader."""
    experiment.feed(30)
    dead = experiment.driver(stop_at=State.WRITTEN).wait_for(State.WRITTEN)
    assert len(experiment.output("read_uncommitted")) == 30  # written, as in S2
    dead.kill()
    experiment.feed(10)
    assert experiment.run(try_number=2).records_written == 40
    experiment.assert_exact()
    experiment.assert_log_as_claimed()


def test_readers_that_do_not_ask_for_committed_data_see_the_dead_attempt(experiment):
    """S3, counter-test: isolation.level=read_uncommitted breaks exactly-once: readers see aborted records."""
    experiment.feed(30)
    dead = experiment.driver(stop_at=State.WRITTEN).wait_for(State.WRITTEN)
    dead.kill()
    experiment.run(try_number=2)
    lost, duplicated = judged(experiment, "read_uncommitted")
    assert (lost, len(duplicated)) == ([], 30)
    experiment.assert_exact()


# -- S4: 31, 33, never 35 --------------------------------------------------------------------------------


class Counter(Experiment):
    """A count of 31 in its own topic, and one event worth 2."""

    def __init__(self, kafka):
        super().__init__(kafka, partitions=1)
        self.publish(["31"])
        # The count's first value comes from a run of its own, as every later one.
        self.run("start")
        self.events, self.source = self.source, self.sink
        self.kafka.create_topic(f"{self.events}-2")
        self.source, self.count = f"{self.events}-2", self.sink

    def event(self, worth):
        self.publish([str(worth)])

    def counting(self):
        """Spec changes of a run over events and count."""
        return {
            "source_topics": (self.source, self.count),
            "pipeline": f"{self.spec.pipeline}-count",
            "group_id": f"{self.spec.group_id}-count",
            "allow_loop": True,
        }

    def shown(self):
        """Return the count as a downstream reader sees it."""
        return values(self.kafka, self.count)[-1]


@pytest.mark.parametrize(
    # Starts at the last state before the transaction; T6 kills at each of the earlier ones, too.
    "state",
    rest_in_chaos(6, (*EVERY_STATE[4:], *EVERY_STATE[:4])),
    ids=lambda state: state.value,
)
def test_a_count_of_31_and_an_event_worth_2_are_31_or_33_at_every_moment(embedded_kafka, state):
    """S4: the driver is killed at any state: readers see 31 until they see 33, and 35 never."""
    counter = Counter(embedded_kafka)
    counter.event(2)
    with Watcher(embedded_kafka, counter.count) as watcher:
        dead = counter.driver("add", plane=CounterPlane, stop_at=state, **counter.counting()).wait_for(state)
        dead.kill()
        assert counter.shown() == ("33" if state is State.COMMITTED else "31")
        counter.run("add", data=CounterPlane, try_number=2, **counter.counting())
        assert counter.shown() == "33"
        counter.run("once more", data=CounterPlane, **counter.counting())
        watcher.wait_for(3)
    assert watcher.seen == [b"31", b"33", b"33"]  # the last run carries the count on


def test_without_a_transaction_the_count_is_35(embedded_kafka):
    """S4, contrast: output first, a crash, and the event is counted again."""
    counter = Counter(embedded_kafka)
    counter.event(2)
    for die in (True, False):
        settings = (embedded_kafka.client_config(), counter.source, counter.count, counter.spec.group_id)
        assert in_a_process(without_transactions.count, *settings, die) == (-9 if die else 0)
    assert counter.shown() == "35"


# -- S5: deterministic and not ---------------------------------------------------------------------------


def results(output):
    """{input: [results]} of what a random transform wrote."""
    by_input = {}
    for value in output:
        tag, number = value.split(" ")
        by_input.setdefault(tag, []).append(number)
    return by_input


def evaluated_twice(experiment):
    """Return the inputs whose committed result differs from the one that the aborted attempt wrote."""
    everything = results(experiment.output("read_uncommitted"))
    committed = results(experiment.output())
    assert sorted(committed) == sorted(experiment.sent)
    assert all(len(numbers) == 1 for numbers in committed.values())
    return sorted(tag for tag, numbers in everything.items() if numbers != committed[tag] * 2)


def test_a_retried_random_transform_gives_one_result_set(experiment):
    """S5: the driver dies after its writes; the retry computes other numbers: readers see only those."""
    experiment.feed(30)
    dead = experiment.driver(plane=RandomPlane, stop_at=State.STAGED).wait_for(State.STAGED)
    first = results(experiment.output("read_uncommitted"))
    dead.kill()
    experiment.run(data=RandomPlane, try_number=2)
    second = results(experiment.output())
    assert sorted(second) == sorted(experiment.sent)
    assert all(len(numbers) == 1 for numbers in second.values())
    assert not {n for numbers in first.values() for n in numbers} & {n for m in second.values() for n in m}


def test_a_repeated_send_repeats_the_sealed_bytes(experiment):
    """S5: a lost send is repeated from sealed batches: the same numbers under a new epoch, not a mix."""
    experiment.feed(30)
    record = experiment.run(data=FailsOnceRandomPlane)
    assert [s for s, _ in record.trace].count("OPEN") == 2
    assert evaluated_twice(experiment) == []


def test_a_seal_that_is_repeated_in_a_run_gives_one_result_set(experiment):
    """S5: sealed batches are lost when half is written: all is computed again, and no first result stays."""
    experiment.feed(30)
    record = experiment.run(data=LosesBlocksRandomPlane)
    assert [s for s, _ in record.trace].count("SEALED") == 2
    assert evaluated_twice(experiment) == sorted(experiment.sent)


def test_a_send_that_computes_again_mixes_two_result_sets(experiment):
    """S5, counter-test: batches are not kept: half of them come from another evaluation, and counts match."""
    experiment.feed(30)
    experiment.run(data=EvaluatesAgainPlane)
    assert 0 < len(evaluated_twice(experiment)) < 30


def with_rand(df):
    """Return a result that differs in each evaluation; rand() does not: its seed is part of the plan."""
    from pyspark.sql import functions as F  # noqa: N812

    drawn = F.udf(lambda: f":{random.getrandbits(60)}").asNondeterministic()
    value = F.concat(F.col("value").cast("string"), F.lit(" "), F.rand().cast("string"), drawn())
    return df.select("key", value.alias("value"))


def test_rand_on_spark_survives_a_lost_send_as_one_result_set(experiment, spark, monkeypatch):
    """S5: rand() in Spark: the send stage fails once after its writes; the output is of one evaluation."""
    experiment.feed(200)
    send, calls = SparkDataPlane.send, []

    def fails_once(self, sealed, identity, timeout):
        receipts = send(self, sealed, identity, timeout)
        calls.append(identity.producer_epoch)
        if len(calls) == 1:
            raise SendError("an executor was lost")
        return receipts

    monkeypatch.setattr(SparkDataPlane, "send", fails_once)
    Run(spark, experiment.spec, with_rand).execute()
    assert len(calls) == 2
    assert evaluated_twice(experiment) == []


def with_attempt(df):
    """Append to each input partition and attempt id of the seal task that computed it."""

    def named(batches):
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        suffix = b" %d.%d" % (context.partitionId(), context.taskAttemptId())
        for batch in batches:
            values = pa.array([value + suffix for value in batch.column("value").to_pylist()], pa.binary())
            yield pa.RecordBatch.from_arrays([batch.column("key"), values], names=["key", "value"])

    return df.select("key", "value").mapInArrow(named, "key binary, value binary")


def test_blocks_of_two_attempts_are_never_sent(experiment, spark, monkeypatch):
    """S5: one block owner has blocks of a second seal attempt: all is sealed again, nothing mixed is sent."""
    experiment.feed(200)
    kept, seals = blocks.checkpointed, []

    def tasks_run_again_between_two_owners(routed, level):
        seals.append(kept(routed, level))
        if len(seals) > 1:
            return seals[-1]
        again = kept(routed.select("*"), level)
        return seals[0].where("partition < 1").union(again.where("partition = 1"))

    monkeypatch.setattr(blocks, "checkpointed", tasks_run_again_between_two_owners)
    record = Run(spark, experiment.spec, with_attempt).execute()
    assert "ABORTED" not in [state for state, _ in record.trace], "found by the send only"
    by_tag = results(experiment.output())
    assert sorted(by_tag) == sorted(experiment.sent)
    assert len({name for names in by_tag.values() for name in names}) == 2  # a task for each source partition
    assert len(seals) == 2


def test_without_the_seal_a_failed_task_mixes_two_result_sets(experiment, spark):
    """S5, contrast: a task of Spark's own sink fails at its last row; its retry writes the others twice."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F  # noqa: N812

    *written, last = experiment.feed(200)
    kafka = {"kafka.bootstrap.servers": experiment.kafka.bootstrap_servers}

    def job(process):
        # One task, so that it has written all but the last row when it fails.
        source = spark.read.format("kafka").options(**kafka, subscribe=experiment.source).load().coalesce(1)
        process(source).write.format("kafka").options(**kafka, topic=experiment.sink).save()

    def fails_at_the_last_row(df):
        fails = F.raise_error(F.lit("the task fails")).cast("string")
        return with_rand(df).withColumn(
            "value", F.when(F.col("key") == F.lit(last).cast("binary"), fails).otherwise(F.col("value"))
        )

    with pytest.raises(PySparkException, match="the task fails"):
        job(fails_at_the_last_row)
    job(with_rand)
    by_tag = results(experiment.output())
    assert {tag for tag, numbers in by_tag.items() if len(set(numbers)) == 2} == set(written)
    assert len(by_tag[last]) == 1
