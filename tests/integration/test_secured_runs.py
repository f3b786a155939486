"""Whole runs through Spark on a cluster with TLS, SCRAM and permissions, under the least of them."""

from __future__ import annotations

import datetime as dt

import pytest

from airflow_eos.engine import RunAttempt
from airflow_eos.engine.queries import create_ledger
from airflow_eos.exceptions import AuthorizationFailed
from airflow_eos.ledger import keys
from airflow_eos.model.ranges import Cursor, Interval
from airflow_eos_testing import EmbeddedKafka
from tests.support.local_runs import Pipeline

DAY = dt.datetime(2026, 1, 5, tzinfo=dt.timezone.utc)
MODES = {"cursor": Cursor(), "interval": Interval(DAY, DAY + dt.timedelta(hours=1))}


@pytest.fixture(scope="module")
def kafka():
    with EmbeddedKafka(security="SASL_SSL", acls=True) as running:
        yield running


def copy(df):
    return df.select("key", "value")


@pytest.mark.parametrize("ranges", MODES.values(), ids=MODES)
def test_the_least_permissions_are_enough_for_a_run_through_spark(kafka, spark, ranges):
    """Executors read and write as the same principal; a grant that is missing is named first."""
    pipeline = Pipeline(kafka, partitions=1)
    pipeline.publish([f"r{n}" for n in range(50)], timestamp=int(DAY.timestamp() * 1000) + 60_000)
    pipeline.publish(["later"], timestamp=int(DAY.timestamp() * 1000) + 7_200_000)
    create_ledger(pipeline.spec.kafka, pipeline.spec.ledger, pipeline.spec.prefix)
    principal = f"user-{pipeline.ledger}"
    spec = pipeline.changed("r1", kafka=kafka.user(principal), ranges=ranges)
    expected = [f"r{n}" for n in range(50)] + (["later"] if isinstance(ranges, Cursor) else [])

    def grant(*operations, **resource):
        kafka.grant(principal, *operations, **resource)

    grant("READ", topic=pipeline.source)
    grant("WRITE", topic=pipeline.sink)
    grant("READ", "WRITE", topic=pipeline.ledger)
    grant("DESCRIBE", topic="__consumer_offsets")
    grant("READ", group=keys.offsets_group(spec))
    grant("WRITE", transactional_id=keys.ids_prefix(spec.prefix), prefixed=True)
    with pytest.raises(AuthorizationFailed, match=f"READ on topic '{pipeline.sink}'"):
        RunAttempt(spark, spec, copy).execute()
    assert pipeline.output("read_uncommitted") == []
    grant("READ", topic=pipeline.sink)
    record = RunAttempt(spark, spec, copy).execute()
    assert (record.records_read, record.records_written) == (len(expected), len(expected))
    assert pipeline.output() == sorted(expected)
    assert RunAttempt(spark, spec, copy).execute().found
