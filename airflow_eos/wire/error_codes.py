"""The reaction to each error code of brokers: retry, look up the leader and retry, or stop.

One table per request. A code that is in no table is fatal: the protocol rules it out here, and guessing would
risk a duplicate. Codes: https://kafka.apache.org/protocol#protocol_error_codes
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_eos.exceptions import (
    AuthorizationFailed,
    BrokerUnsupported,
    ConfigurationError,
    CorruptBatch,
    EosError,
    OffsetsOutOfRange,
    ProducerFenced,
    ProtocolViolation,
    RecordRefused,
    RecordTooLarge,
    RequestRefused,
    SinkChanged,
)


@dataclass(frozen=True, slots=True)
class Retry:
    """Send the same bytes again after a pause.

    :param meaning: for messages.
    :param refresh: whether the leader or coordinator must be looked up first.
    """

    meaning: str
    refresh: bool = False


@dataclass(frozen=True, slots=True)
class Fatal:
    """Stop everything with this error.

    :param error: class to raise.
    :param meaning: for messages, with advice.
    """

    error: type[EosError]
    meaning: str


Reaction = Retry | Fatal

_MOVED: Mapping[int, Reaction] = {
    3: Retry("UNKNOWN_TOPIC_OR_PARTITION: this broker does not have it", refresh=True),
    5: Retry("LEADER_NOT_AVAILABLE", refresh=True),
    6: Retry("NOT_LEADER_OR_FOLLOWER: the leader moved", refresh=True),
    8: Retry("BROKER_NOT_AVAILABLE", refresh=True),
    9: Retry("REPLICA_NOT_AVAILABLE", refresh=True),
    13: Retry("NETWORK_EXCEPTION", refresh=True),
    72: Retry("LISTENER_NOT_FOUND", refresh=True),
    74: Retry("FENCED_LEADER_EPOCH: the leader moved", refresh=True),
    75: Retry("UNKNOWN_LEADER_EPOCH: the broker is behind", refresh=True),
}

COORDINATOR: Mapping[int, Reaction] = {
    7: Retry("REQUEST_TIMED_OUT"),
    13: Retry("NETWORK_EXCEPTION", refresh=True),
    14: Retry("COORDINATOR_LOAD_IN_PROGRESS", refresh=True),
    15: Retry("COORDINATOR_NOT_AVAILABLE", refresh=True),
    16: Retry("NOT_COORDINATOR: it moved", refresh=True),
    51: Retry("CONCURRENT_TRANSACTIONS: markers of the previous transaction are still being written"),
    53: Fatal(
        AuthorizationFailed,
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED: grant Write and Describe on the transactional id",
    ),
}
"""Codes that every request to a transaction coordinator may return."""

PRODUCE: Mapping[int, Reaction] = {
    **_MOVED,
    -1: Fatal(ProtocolViolation, "UNKNOWN_SERVER_ERROR: the broker could not read the batch; see its log"),
    2: Fatal(ProtocolViolation, "CORRUPT_MESSAGE: the broker found a wrong checksum"),
    7: Retry("REQUEST_TIMED_OUT: followers are slow"),
    10: Fatal(
        RecordTooLarge,
        "MESSAGE_TOO_LARGE: the batch, or what the broker makes of it where the topic's compression.type is "
        "another codec, exceeds the topic's max.message.bytes; raise that, or write in the topic's codec",
    ),
    14: Retry("COORDINATOR_LOAD_IN_PROGRESS: the transaction cannot be verified yet"),
    15: Retry("COORDINATOR_NOT_AVAILABLE: the transaction cannot be verified yet"),
    16: Retry("NOT_COORDINATOR: the transaction cannot be verified yet"),
    17: Fatal(ProtocolViolation, "INVALID_TOPIC_EXCEPTION"),
    18: Fatal(
        RecordTooLarge, "RECORD_LIST_TOO_LARGE: the batch exceeds the topic's segment.bytes; raise that"
    ),
    # Usually the transaction verification, whose codes 13, 14-16 and 51 brokers return as this one.
    19: Retry("NOT_ENOUGH_REPLICAS: the transaction is being verified, or replicas are missing"),
    20: Retry("NOT_ENOUGH_REPLICAS_AFTER_APPEND: written, replicas are missing"),
    21: Fatal(ProtocolViolation, "INVALID_REQUIRED_ACKS"),
    29: Fatal(AuthorizationFailed, "TOPIC_AUTHORIZATION_FAILED: grant Write on the topic"),
    31: Fatal(AuthorizationFailed, "CLUSTER_AUTHORIZATION_FAILED: grant IdempotentWrite on the cluster"),
    32: Fatal(
        RecordRefused,
        "INVALID_TIMESTAMP: a timestamp is outside of the topic's message.timestamp.before.max.ms and "
        "message.timestamp.after.max.ms; return another one, or raise the setting. Where process returns "
        "none, it is the time of sealing: correct the clocks of brokers and executors",
    ),
    35: Fatal(BrokerUnsupported, "UNSUPPORTED_VERSION: the broker does not speak Produce 9 to 11"),
    42: Fatal(ProtocolViolation, "INVALID_REQUEST"),
    43: Fatal(
        BrokerUnsupported, "UNSUPPORTED_FOR_MESSAGE_FORMAT: the topic's message format is older than 0.11"
    ),
    44: Fatal(
        RecordRefused, "POLICY_VIOLATION: a policy of the brokers refuses the batch; ask who runs the brokers"
    ),
    45: Fatal(
        ProtocolViolation,
        "OUT_OF_ORDER_SEQUENCE: a second attempt wrote, or the broker restarted and has forgotten what it "
        "had not answered yet; the next attempt writes everything again",
    ),
    46: Fatal(ProtocolViolation, "DUPLICATE_SEQUENCE_NUMBER: a second attempt wrote"),
    47: Fatal(ProducerFenced, "INVALID_PRODUCER_EPOCH: a newer attempt exists, or the transaction timed out"),
    48: Fatal(
        ProtocolViolation, "INVALID_TXN_STATE: the partition is not in the transaction, or it has ended"
    ),
    49: Fatal(
        ProtocolViolation,
        "INVALID_PRODUCER_ID_MAPPING: producer id and transactional id do not belong together",
    ),
    51: Retry("CONCURRENT_TRANSACTIONS: the transaction is being verified"),
    53: COORDINATOR[53],
    56: Retry("KAFKA_STORAGE_ERROR: a disk of the broker fails", refresh=True),
    59: Fatal(ProtocolViolation, "UNKNOWN_PRODUCER_ID: the broker lost the producer's state"),
    76: Fatal(BrokerUnsupported, "UNSUPPORTED_COMPRESSION_TYPE: choose another compression"),
    87: Fatal(
        RecordRefused, "INVALID_RECORD: the topic's settings refuse a record; a compacted topic needs keys"
    ),
    89: Retry("THROTTLING_QUOTA_EXCEEDED"),
    90: Fatal(ProducerFenced, "PRODUCER_FENCED: a newer attempt exists, or the transaction timed out"),
    120: Fatal(
        ProtocolViolation, "TRANSACTION_ABORTABLE: the partition is not in the transaction, or it has ended"
    ),
}
"""Answer to Produce, version 9 to 11, of a transactional producer."""

BATCH_TOO_LARGE = Fatal(
    SinkChanged,
    "the batch exceeds max.message.bytes or segment.bytes of the topic, its records alone may not: the limit "
    "was lowered since they were sealed, and the next try makes smaller batches; or this principal may not "
    "read it: grant DescribeConfigs on the topic",
)
"""Reaction to a batch of several records that is too large: its records may fit into smaller batches."""

_LEADER: Mapping[int, Reaction] = {
    **_MOVED,
    -1: Retry("UNKNOWN_SERVER_ERROR", refresh=True),
    1: Fatal(OffsetsOutOfRange, "OFFSET_OUT_OF_RANGE"),
    2: Fatal(CorruptBatch, "CORRUPT_MESSAGE: the broker's own log is damaged; see its log"),
    7: Retry("REQUEST_TIMED_OUT"),
    29: Fatal(AuthorizationFailed, "TOPIC_AUTHORIZATION_FAILED: grant Read on the topic"),
    43: Fatal(BrokerUnsupported, "UNSUPPORTED_FOR_MESSAGE_FORMAT"),
    56: Retry("KAFKA_STORAGE_ERROR: a disk of the broker fails", refresh=True),
    76: Fatal(BrokerUnsupported, "UNSUPPORTED_COMPRESSION_TYPE"),
    78: Retry("OFFSET_NOT_AVAILABLE: a new leader waits until min.insync.replicas replicas have followed it"),
    89: Retry("THROTTLING_QUOTA_EXCEEDED"),
    100: Retry("UNKNOWN_TOPIC_ID", refresh=True),
    103: Retry("INCONSISTENT_TOPIC_ID", refresh=True),
}
"""Answer of a partition's leader."""

FETCH: Mapping[int, Reaction] = {
    **_LEADER,
    35: Fatal(BrokerUnsupported, "UNSUPPORTED_VERSION: the broker does not speak Fetch 10"),
}
"""Answer to Fetch, version 10."""

LIST_OFFSETS: Mapping[int, Reaction] = {
    **_LEADER,
    35: Fatal(
        BrokerUnsupported, "UNSUPPORTED_VERSION: the broker does not know this question of ListOffsets 2 to 8"
    ),
}
"""Answer to ListOffsets, version 2 to 8: brokers answer 35 to a special timestamp they do not know."""

PRODUCERS: Mapping[int, Reaction] = {
    **_LEADER,
    35: Fatal(BrokerUnsupported, "UNSUPPORTED_VERSION: the broker does not speak DescribeProducers"),
}
"""Answer to DescribeProducers."""

TXN_MARKERS: Mapping[int, Reaction] = {
    **_LEADER,
    31: Fatal(AuthorizationFailed, "CLUSTER_AUTHORIZATION_FAILED: grant ClusterAction on the cluster"),
    35: Fatal(BrokerUnsupported, "UNSUPPORTED_VERSION: the broker does not speak WriteTxnMarkers"),
    47: Fatal(ProducerFenced, "INVALID_PRODUCER_EPOCH: a newer attempt has written there since"),
    52: Fatal(
        AuthorizationFailed,
        "TRANSACTION_COORDINATOR_FENCED: the producer's last marker has a later coordinator epoch, which "
        "this principal may not see; grant Read on the topic",
    ),
}
"""Answer to WriteTxnMarkers, which goes to leaders too."""

ADD_PARTITIONS: Mapping[int, Reaction] = {
    **COORDINATOR,
    3: Retry("UNKNOWN_TOPIC_OR_PARTITION: the coordinator does not know it yet"),
    29: Fatal(AuthorizationFailed, "TOPIC_AUTHORIZATION_FAILED: grant Write on the topic"),
    47: Fatal(ProducerFenced, "INVALID_PRODUCER_EPOCH: a newer attempt exists"),
    48: Fatal(ProtocolViolation, "INVALID_TXN_STATE: the transaction is already ending"),
    49: PRODUCE[49],
    # Set on every partition of the request when another one failed; that one decides.
    55: Retry("OPERATION_NOT_ATTEMPTED: another partition of the request failed"),
    90: Fatal(ProducerFenced, "PRODUCER_FENCED: a newer attempt exists"),
    120: Fatal(ProtocolViolation, "TRANSACTION_ABORTABLE"),
}
"""Answer to AddPartitionsToTxn, version 0 to 3."""

_GROUP_FORBIDDEN = Fatal(AuthorizationFailed, "GROUP_AUTHORIZATION_FAILED: grant Read on the consumer group")

ADD_OFFSETS: Mapping[int, Reaction] = {
    **COORDINATOR,
    **{code: ADD_PARTITIONS[code] for code in (47, 48, 49, 90, 120)},
    30: _GROUP_FORBIDDEN,
}
"""Answer to AddOffsetsToTxn, version 0 to 3."""

SHARE_GROUP = "a share group has this name, and takes no offsets: delete it, or choose another group_id"

TXN_OFFSET_COMMIT: Mapping[int, Reaction] = {
    **COORDINATOR,
    3: Retry("UNKNOWN_TOPIC_OR_PARTITION: the coordinator does not know it, or it was deleted"),
    12: Fatal(
        ConfigurationError, "OFFSET_METADATA_TOO_LARGE: raise offset.metadata.max.bytes of the brokers"
    ),
    22: Fatal(RequestRefused, "ILLEGAL_GENERATION: the group takes offsets of its members only"),
    24: Fatal(ConfigurationError, "INVALID_GROUP_ID: choose another group_id"),
    25: Fatal(RequestRefused, "UNKNOWN_MEMBER_ID: the group takes offsets of its members only"),
    28: Fatal(RequestRefused, "INVALID_COMMIT_OFFSET_SIZE: the brokers cannot store offsets of that size"),
    29: Fatal(AuthorizationFailed, "TOPIC_AUTHORIZATION_FAILED: grant Read on the topic"),
    30: _GROUP_FORBIDDEN,
    47: PRODUCE[47],
    48: Fatal(ProtocolViolation, "INVALID_TXN_STATE: the group is not in the transaction, or it has ended"),
    49: PRODUCE[49],
    69: Fatal(ConfigurationError, f"GROUP_ID_NOT_FOUND: {SHARE_GROUP}"),
    90: PRODUCE[90],
    120: Fatal(
        ProtocolViolation, "TRANSACTION_ABORTABLE: the group is not in the transaction, or it has ended"
    ),
}
"""Answer to TxnOffsetCommit, version 3, of a producer that is not a member of the group (KIP-447)."""

GROUP: Mapping[int, Reaction] = {
    **{code: COORDINATOR[code] for code in (14, 15, 16)},
    29: Fatal(AuthorizationFailed, "TOPIC_AUTHORIZATION_FAILED: grant Describe on the group's topics"),
    30: Fatal(AuthorizationFailed, "GROUP_AUTHORIZATION_FAILED: grant Describe on the consumer group"),
    88: Retry("UNSTABLE_OFFSET_COMMIT: an open transaction holds offsets of the group"),
}
"""Answer to OffsetFetch, DescribeGroups and ListGroups, which ask a group's coordinator."""


def reaction(table: Mapping[int, Reaction], code: int) -> Reaction:
    """Return the reaction to a code that is not 0."""
    return table.get(code) or Fatal(ProtocolViolation, f"error code {code} must not happen here")
