"""The error tables: the action for each broker code."""

from __future__ import annotations

import kafka.errors as kafka_errors
import pytest

from airflow_eos.exceptions import (
    AuthorizationFailed,
    BrokerUnsupported,
    ConfigurationError,
    CorruptBatch,
    OffsetsOutOfRange,
    ProducerFenced,
    ProtocolViolation,
    RecordRefused,
    RecordTooLarge,
    RequestRefused,
)
from airflow_eos.wire.error_codes import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    COORDINATOR,
    FETCH,
    LIST_OFFSETS,
    PRODUCE,
    PRODUCERS,
    TXN_MARKERS,
    TXN_OFFSET_COMMIT,
    Fatal,
    Retry,
    reaction,
)

AGAIN = "again"
REFRESH = "refresh"

PRODUCE_ACTIONS = {
    -1: ProtocolViolation,
    2: ProtocolViolation,
    3: REFRESH,
    5: REFRESH,
    6: REFRESH,
    7: AGAIN,
    8: REFRESH,
    9: REFRESH,
    10: RecordTooLarge,
    13: REFRESH,
    14: AGAIN,
    15: AGAIN,
    16: AGAIN,
    17: ProtocolViolation,
    18: RecordTooLarge,
    19: AGAIN,
    20: AGAIN,
    21: ProtocolViolation,
    29: AuthorizationFailed,
    31: AuthorizationFailed,
    32: RecordRefused,
    35: BrokerUnsupported,
    42: ProtocolViolation,
    43: BrokerUnsupported,
    44: RecordRefused,
    45: ProtocolViolation,
    46: ProtocolViolation,
    47: ProducerFenced,
    48: ProtocolViolation,
    49: ProtocolViolation,
    51: AGAIN,
    53: AuthorizationFailed,
    56: REFRESH,
    59: ProtocolViolation,
    72: REFRESH,
    74: REFRESH,
    75: REFRESH,
    76: BrokerUnsupported,
    87: RecordRefused,
    89: AGAIN,
    90: ProducerFenced,
    120: ProtocolViolation,
}
FETCH_ACTIONS = {
    -1: REFRESH,
    1: OffsetsOutOfRange,
    2: CorruptBatch,
    3: REFRESH,
    5: REFRESH,
    6: REFRESH,
    7: AGAIN,
    8: REFRESH,
    9: REFRESH,
    13: REFRESH,
    29: AuthorizationFailed,
    35: BrokerUnsupported,
    43: BrokerUnsupported,
    56: REFRESH,
    72: REFRESH,
    74: REFRESH,
    75: REFRESH,
    76: BrokerUnsupported,
    78: AGAIN,
    89: AGAIN,
    100: REFRESH,
    103: REFRESH,
}
ADD_ACTIONS = {
    3: AGAIN,
    7: AGAIN,
    13: REFRESH,
    14: REFRESH,
    15: REFRESH,
    16: REFRESH,
    29: AuthorizationFailed,
    47: ProducerFenced,
    48: ProtocolViolation,
    49: ProtocolViolation,
    51: AGAIN,
    53: AuthorizationFailed,
    55: AGAIN,
    90: ProducerFenced,
    120: ProtocolViolation,
}
COORDINATOR_ACTIONS = {
    7: AGAIN,
    13: REFRESH,
    14: REFRESH,
    15: REFRESH,
    16: REFRESH,
    51: AGAIN,
    53: AuthorizationFailed,
}
ADD_OFFSETS_ACTIONS = {
    7: AGAIN,
    13: REFRESH,
    14: REFRESH,
    15: REFRESH,
    16: REFRESH,
    30: AuthorizationFailed,
    47: ProducerFenced,
    48: ProtocolViolation,
    49: ProtocolViolation,
    51: AGAIN,
    53: AuthorizationFailed,
    90: ProducerFenced,
    120: ProtocolViolation,
}
TXN_OFFSET_COMMIT_ACTIONS = {
    3: AGAIN,
    7: AGAIN,
    12: ConfigurationError,
    13: REFRESH,
    14: REFRESH,
    15: REFRESH,
    16: REFRESH,
    22: RequestRefused,
    24: ConfigurationError,
    25: RequestRefused,
    28: RequestRefused,
    29: AuthorizationFailed,
    30: AuthorizationFailed,
    47: ProducerFenced,
    48: ProtocolViolation,
    49: ProtocolViolation,
    51: AGAIN,
    53: AuthorizationFailed,
    69: ConfigurationError,
    90: ProducerFenced,
    120: ProtocolViolation,
}
TABLES = [
    pytest.param(PRODUCE, PRODUCE_ACTIONS, id="produce"),
    pytest.param(FETCH, FETCH_ACTIONS, id="fetch"),
    pytest.param(LIST_OFFSETS, FETCH_ACTIONS, id="list-offsets"),
    pytest.param(PRODUCERS, FETCH_ACTIONS, id="describe-producers"),
    pytest.param(ADD_PARTITIONS, ADD_ACTIONS, id="add-partitions"),
    pytest.param(ADD_OFFSETS, ADD_OFFSETS_ACTIONS, id="add-offsets"),
    pytest.param(TXN_OFFSET_COMMIT, TXN_OFFSET_COMMIT_ACTIONS, id="txn-offset-commit"),
    pytest.param(COORDINATOR, COORDINATOR_ACTIONS, id="coordinator"),
]


def action(decision):
    if isinstance(decision, Fatal):
        return decision.error
    return REFRESH if decision.refresh else AGAIN


@pytest.mark.parametrize(("table", "expected"), TABLES)
def test_every_code_has_its_action(table, expected):
    """Each code has the action in PROTOCOL and Kafka's documentation; no code is missing or superfluous."""
    assert {code: action(table[code]) for code in table} == expected


def test_a_version_that_a_broker_does_not_know_is_called_by_the_request():
    """A request for offsets is not called Fetch."""
    requests = {"Fetch": FETCH, "ListOffsets": LIST_OFFSETS, "DescribeProducers": PRODUCERS}
    requests["WriteTxnMarkers"] = TXN_MARKERS
    for request, table in requests.items():
        named = [name for name in requests if name in table[35].meaning]
        assert named == [request]


@pytest.mark.parametrize(("table", "expected"), TABLES)
def test_every_other_code_stops_the_run(table, expected):
    """A code the table does not know is never retried and never taken for success."""
    for code in range(-1, 200):
        if code not in expected and code != 0:
            assert reaction(table, code) == Fatal(
                ProtocolViolation, f"error code {code} must not happen here"
            )


@pytest.mark.parametrize(("table", "expected"), TABLES)
def test_every_meaning_begins_with_the_name_kafka_uses(table, expected):
    """A message can be looked up: it begins with the code's constant, not another code's."""
    for code, decision in table.items():
        assert isinstance(decision, Retry | Fatal)
        constant = decision.meaning.split(":")[0]
        kafka_name = getattr(kafka_errors.for_code(code), "message", None)
        if kafka_name and code not in RENAMED:
            assert constant == kafka_name, code
        assert constant == constant.upper()


RENAMED = {-1, 6, 10, 17, 45}
"""Codes that have an older name in kafka-python than in Kafka 4."""
