"""Helpers of the broker layer's integration tests: settings, foreign writers and polling."""

from __future__ import annotations

import datetime as dt
import traceback
import uuid
from contextlib import contextmanager

import confluent_kafka

from airflow_eos.broker.ledger_log.topic import KafkaLedger
from airflow_eos.broker.shared_connections import Link
from airflow_eos.broker.transactions import KafkaTransactions
from airflow_eos.model.ledger import LedgerMessage
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.spec import LedgerSettings

QUIET = {"log_level": 0}


def unique(prefix):
    """Return a unique name on the shared broker."""
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def message(key, value, routing="any"):
    return LedgerMessage(key, value, routing)


def tp(topic, partition=0):
    return TopicPartition(topic, partition)


def make_ledger(config, link=None, partitions=1, name=None):
    """Create a new ledger topic, and return its ledger."""
    settings = LedgerSettings(topic=name or unique("ledger"), partitions=partitions, replication_factor=1)
    ledger = KafkaLedger(link or Link(config), settings)
    ledger.create()
    return ledger


def make_transactions(config, ledger, link=None, **settings):
    return KafkaTransactions(
        link or Link(config),
        ledger=ledger,
        **{
            "transaction_timeout": dt.timedelta(seconds=60),
            "delivery_timeout": dt.timedelta(seconds=20),
            **settings,
        },
    )


@contextmanager
def foreign_transaction(config, topic, *records, partition=0):
    """Yield the producer of an open foreign transaction with these (key, value) records."""
    producer = confluent_kafka.Producer(
        {**config, **QUIET, "transactional.id": unique("foreign"), "linger.ms": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    write(producer, topic, *records, partition=partition)
    yield producer


def assert_hidden(secret, error, caplog):
    """Assert that neither the error with its causes nor the log so far contains the secret."""
    for text in (repr(error), "".join(traceback.format_exception(error)), caplog.text):
        assert secret not in text


def write(producer, topic, *records, partition=0):
    """Send records and wait until they are in the log."""
    for key, value in records:
        producer.produce(topic, key=key, value=value, partition=partition)
    assert producer.flush(20) == 0
