"""A Spark session of the kind under test, topics with records, and a real transaction to send under."""

from __future__ import annotations

import json
import os
import sys
import uuid
from contextlib import contextmanager

from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_eos.model.kafka import EndTxnAnswer, ProducerIdentity
from airflow_eos.model.plan import RunPlan
from airflow_eos.model.ranges import OffsetRange, TopicPartition
from airflow_eos.model.spec import RunSpec
from airflow_eos.spark import SparkDataPlane
from airflow_eos.spark.encryption import local_defaults
from airflow_eos.spark.local_python import is_local
from airflow_eos.spark_host import worker_daemon
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.offsets import list_offsets
from airflow_eos.wire.txn_requests import add_partitions_to_txn, end_txn
from tests.support.markers import wait_for_markers

KIND = "AIRFLOW_EOS_TEST_SPARK"
BOOTSTRAP = "AIRFLOW_EOS_TEST_BOOTSTRAP"


def new_session(kind, master="local[2]", **settings):
    """Create a session, classic or Connect; a process has one kind only, and all share the first one's jars.

    An active classic session is stopped first: the new one would inherit its master.

    Spark's own Kafka connector is among the jars: some tests compare with it. Python workers of a local
    session come from the tasks' daemon; each worker of PySpark's own would import Arrow and pandas again.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from benchmarks.spark_kafka_jars import connector_jars

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder
    if kind == "connect":
        return builder.remote(master).getOrCreate()
    if SparkContext._active_spark_context is not None:
        SparkContext._active_spark_context.stop()
    builder = builder.master(master).appName("airflow-eos tests")
    daemon = {"spark.python.daemon.module": worker_daemon.__name__} if is_local(master) else {}
    for key, value in {
        **daemon,
        "spark.ui.enabled": "false",
        # An earlier local session of this process leaves its settings in the JVM.
        **dict.fromkeys(("spark.authenticate", "spark.network.crypto.enabled"), "false"),
        **local_defaults(master, private_folders=True),
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.jars": ",".join(map(str, connector_jars())),
        **settings,
    }.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


class Broker:
    """Topics, records and transactions on a broker."""

    def __init__(self, bootstrap):
        self.bootstrap = bootstrap
        self.config = {"bootstrap.servers": bootstrap}
        self._admin = AdminClient(self.config)

    def topic(self, prefix, partitions=1, **config):
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        (created,) = self._admin.create_topics([NewTopic(name, partitions, config=config)]).values()
        created.result(30)
        return name

    def produce(self, topic, records):
        """Produce records, given as dicts of confluent-kafka's arguments.

        One request at a time: a batch that a new leader refuses must not be overtaken by the next.
        """
        producer = Producer({**self.config, "linger.ms": 20, "max.in.flight": 1})
        for record in records:
            producer.produce(topic, **record)
            producer.poll(0)
        assert producer.flush(60) == 0

    def numbered(self, prefix, partitions, records, **config):
        """Create a topic with values ``<partition>:<number>``, numbers rising in each partition."""
        name = self.topic(prefix, partitions, **config)
        self.produce(
            name,
            (
                {"key": b"k%d" % (i % 97), "value": b"%d:%d" % (p, i), "partition": p}
                for p in range(partitions)
                for i in range(records)
            ),
        )
        return name

    def plan(self, *topics, mode="explicit"):
        with BrokerConnections(self.config) as connections:
            described = connections.topics(topics)
            partitions = sorted(TopicPartition(t.topic, n) for t in described.values() for n in t.leaders)
            starts = list_offsets(connections, partitions, "earliest")
            ends = list_offsets(connections, partitions, "latest")
            ids = {name: topic.topic_id for name, topic in described.items()}
        ranges = tuple(OffsetRange(p.topic, p.partition, starts[p], ends[p]) for p in partitions)
        return RunPlan(mode, ranges, ids, "group.runs", advances=False)

    def spec(self, source, sink, **changes):
        settings = {
            "kafka": self.config,
            "pipeline": "tests",
            "run_id": "1",
            "source_topics": (source,) if isinstance(source, str) else source,
            "group_id": "group",
            "sink_topic": sink,
            **changes,
        }
        return RunSpec(**settings)

    def delete_head(self, topic, partition, before):
        """Delete the records below an offset, as retention does."""
        (deleted,) = self._admin.delete_records([ClientPartition(topic, partition, before)]).values()
        deleted.result(30)

    def fence(self, transactional_id):
        """Fence the current producer, as a newer attempt does."""
        producer = Producer({**self.config, "transactional.id": transactional_id})
        producer.init_transactions(60)

    @contextmanager
    def transaction(self, partitions, *, commit=True):
        """Begin a transaction, add the partitions, commit or abort at the end; an exception aborts."""
        stats, name = {}, f"tests-{uuid.uuid4().hex[:8]}"
        producer = Producer(
            {
                **self.config,
                "transactional.id": name,
                "statistics.interval.ms": 50,
                "stats_cb": lambda text: stats.update(json.loads(text).get("eos", {})),
            }
        )
        producer.init_transactions(60)
        producer.begin_transaction()
        while stats.get("txn_state") != "InTransaction":
            producer.poll(0.02)
        identity = ProducerIdentity(name, stats["producer_id"], stats["producer_epoch"])
        with BrokerConnections(self.config) as connections:
            add_partitions_to_txn(connections, identity, partitions)
            try:
                yield identity
            except BaseException:
                end_txn(connections, identity, commit=False)
                raise
            ended = end_txn(connections, identity, commit=commit)
            assert ended is EndTxnAnswer.ENDED or not commit
        wait_for_markers(self.config, partitions)


def run(broker, spark, spec, process, plan=None):
    """Seal, send and commit; return the manifest and the receipts."""
    plane = SparkDataPlane(spark, spec, process)
    sealed = plane.seal(plan or broker.plan(*spec.source_topics))
    if not sealed.manifest.targets:
        return sealed.manifest, plane.send(sealed, ProducerIdentity("none", 0, 0), 60)
    with broker.transaction(sealed.manifest.partitions) as identity:
        receipts = plane.send(sealed, identity, 120)
    plane.release(sealed)
    return sealed.manifest, receipts


def attempt(call, *arguments):
    """Return the error that a call raises, or None."""
    try:
        call(*arguments)
    except Exception as error:
        return error
    return None
