"""Whole runs through Spark on secured clusters: SCRAM with the least permissions, mTLS, expiring tokens."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import time

import pytest

from airflow_eos.engine import RunAttempt
from airflow_eos.exceptions import AuthorizationFailed, ConfigurationError, CredentialsRefused, RunFailed
from airflow_eos.ledger import keys
from airflow_eos.model.ranges import Cursor, Interval
from airflow_eos.operations.queries import create_ledger
from airflow_eos.operators.retriable import is_final
from airflow_eos.run.states import State
from airflow_eos_testing import EmbeddedKafka
from airflow_eos_testing.access import create_user
from tests.support.cases import rest_in_chaos
from tests.support.client_certificates import Authority, mutual_tls
from tests.support.local_runs import LocalPlane, Pipeline, Session
from tests.support.short_tokens import SECONDS, noted

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
    create_ledger(pipeline.spec.deployment)
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


def test_a_run_through_spark_under_mutual_tls(spark, tmp_path):
    """Driver and executors present the client's certificate; a run with an untrusted one writes nothing."""
    trusted, strange = Authority(tmp_path, "trusted-ca"), Authority(tmp_path, "strange-ca")
    with mutual_tls(trusted) as secured:
        pipeline = Pipeline(secured, partitions=2)
        pipeline.publish([f"r{n}" for n in range(50)])
        stranger = {**pipeline.spec.kafka, **strange.client("stranger")}
        with pytest.raises(ConfigurationError, match="refused this client's certificate"):
            RunAttempt(spark, pipeline.changed("r1", kafka=stranger), copy).execute()
        assert pipeline.output("read_uncommitted") == []
        spec = pipeline.changed("r1", kafka={**pipeline.spec.kafka, **trusted.client("tenant")})
        assert RunAttempt(spark, spec, copy).execute().records_written == 50
        assert pipeline.output() == sorted(f"r{n}" for n in range(50))
        assert RunAttempt(spark, spec, copy).execute().found


@pytest.fixture(scope="module")
def short_sessions():
    """A broker that ends a session when its token expires, unless the client re-authenticates (KIP-368)."""
    listener = "listener.name.client"
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    with EmbeddedKafka(
        security="SASL_PLAINTEXT",
        broker_config={
            f"{listener}.sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
            f"{listener}.oauthbearer.connections.max.reauth.ms": str(int(SECONDS * 1000)),
            f"{listener}.oauthbearer.sasl.jaas.config": (
                f'{module} required unsecuredLoginStringClaim_sub="broker";'
            ),
        },
    ) as running:
        yield running


def with_tokens(kafka, callback, argument):
    return {
        "bootstrap.servers": kafka.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": f"tests.support.short_tokens:{callback}",
        "sasl.oauthbearer.config": argument,
    }


def test_a_run_outlives_its_tokens(short_sessions, spark, tmp_path):
    """Tokens expire during Spark's work, and during the transaction: driver and workers get new ones."""
    pipeline = Pipeline(short_sessions, partitions=2)
    pipeline.publish([f"r{n}" for n in range(50)])
    log = tmp_path / "tokens"
    config = with_tokens(short_sessions, "short_token", str(log))
    seconds = 2 * SECONDS

    def slow(df):
        def wait(batches):
            time.sleep(seconds)
            yield from batches

        return df.select("key", "value").mapInArrow(wait, "key binary, value binary")

    states = []

    def entered(state):
        states.append(state)
        if state is State.WRITTEN:
            time.sleep(1.5 * SECONDS)

    spec = pipeline.changed("r1", kafka=config)
    assert RunAttempt(spark, spec, slow, on_state=entered).execute().records_written == 50
    assert State.ABORTED not in states
    assert pipeline.output() == sorted(f"r{n}" for n in range(50))
    tokens = noted(log)
    assert len(tokens.pop(os.getpid())) > 2
    assert tokens, "executors have tokens of their own"


@pytest.mark.parametrize("state", rest_in_chaos(1, [State.PLANNED, State.COMMITTED]))
def test_a_password_that_is_changed_while_a_run_works_is_read_by_the_next_try(
    short_sessions, monkeypatch, state
):
    """It was valid when the run began: the task is retried, and reads the connection again."""
    monkeypatch.setattr("airflow_eos.spark.data_plane.SparkDataPlane", LocalPlane)
    pipeline = Pipeline(short_sessions, partitions=1)
    pipeline.publish(["a", "b"])
    user = pipeline.spec.group_id
    ranges = Cursor(max_records=1, until_caught_up=True)
    spec = pipeline.changed("r1", kafka=short_sessions.user(user), ranges=ranges)

    def entered(now):
        if now is state:
            create_user(short_sessions.admin(), user, "changed")

    with pytest.raises(RunFailed, match=r"refused the credentials.*a retry reads the connection") as failed:
        RunAttempt(Session(), spec, copy, on_state=entered).execute()
    assert not is_final(failed.value)
    again = dataclasses.replace(spec, kafka={**spec.kafka, "sasl.password": "changed"}, try_number=2)
    assert RunAttempt(Session(), again, copy).execute().records_written == 2
    assert pipeline.output() == ["a", "b"]


def test_an_issuer_that_answers_an_error_while_a_run_works_costs_a_try(short_sessions, monkeypatch, tmp_path):
    """A token function fails on an error response: a retry may succeed."""
    monkeypatch.setattr("airflow_eos.spark.data_plane.SparkDataPlane", LocalPlane)
    pipeline = Pipeline(short_sessions, partitions=1)
    pipeline.publish(["a", "b"])
    answer = tmp_path / "answer"
    answer.write_text("{}")
    spec = pipeline.changed("r1", kafka=with_tokens(short_sessions, "token_of_an_answer", str(answer)))
    with pytest.raises(CredentialsRefused, match=r"'oauth_cb' failed: KeyError: 'expires_in'"):
        RunAttempt(Session(), spec, copy).execute()

    def entered(state):
        if state is State.PLANNED:
            answer.write_text("{}")

    answer.write_text('{"expires_in": 60}')
    with pytest.raises(RunFailed, match=r"KeyError: 'expires_in'.*a retry") as failed:
        RunAttempt(Session(), spec, copy, on_state=entered).execute()
    assert not is_final(failed.value)
    answer.write_text('{"expires_in": 60}')
    assert RunAttempt(Session(), spec, copy).execute().records_written == 2
    assert pipeline.output() == ["a", "b"]


@pytest.mark.parametrize("ahead", [-3600, 3600], ids=["behind", "ahead"])
def test_a_token_of_another_clock_is_refused(short_sessions, ahead):
    """By the brokers' clock it has expired, or is not valid yet: the run reports it before it begins."""
    pipeline = Pipeline(short_sessions, partitions=1)
    pipeline.publish(["r"])
    config = with_tokens(short_sessions, "token_of_another_clock", str(ahead))
    with pytest.raises(ConfigurationError, match=r"refused the credentials.*invalid_token"):
        pipeline.run("r1", kafka=config)
