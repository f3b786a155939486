"""The error names the records that a broker refuses, as far as the broker tells."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from airflow_eos.model.ranges import TopicPartition
from airflow_eos.recordbatch.sealer import seal
from airflow_eos.wire.produce import refused_records

WHERE = TopicPartition("out", 0)


@pytest.fixture
def batch():
    keys = pa.array([b"a", None, b"k" * 500, b"d", b"e"], pa.binary())
    times = np.arange(5) + 1_700_000_000_000
    (sealed,) = seal(pa.array([b"v"] * 5), np.zeros(5, np.int32), topic="out", key=keys, timestamp=times)
    return sealed.data


def test_refused_records_are_named_by_key_and_timestamp(batch):
    """Keys are truncated, and long lists cut."""
    assert refused_records(WHERE, batch, [1]) == (
        "; refused of the batch: record 1 with key None and timestamp 1700000000001 ms"
    )
    assert len(refused_records(WHERE, batch, [2])) < 250
    assert refused_records(WHERE, batch, range(5)).endswith("ms, 2 more")


@pytest.mark.parametrize("indices", [[], [5], [-1]])
def test_what_the_broker_does_not_say_is_not_made_up(batch, indices):
    """Older brokers and some errors name no record."""
    assert refused_records(WHERE, batch, indices) == ""


def test_a_batch_that_cannot_be_read_hides_no_refusal(batch):
    """The broker's own message stays."""
    assert refused_records(WHERE, batch[:70], [0]) == ""
