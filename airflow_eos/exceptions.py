"""Every error this package raises on purpose, in one tree.

::

    EosError
    ├── ConfigurationError            a parameter, a client setting or an environment is wrong
    │   ├── UntranslatableConfig      a librdkafka setting has no counterpart in the wire layer
    │   ├── EnvironmentMismatch       driver and executors run different versions, or one lacks a package
    │   ├── TimeoutsInconsistent      delivery, transaction and broker time-outs do not fit together
    │   └── DifferentWork             the ledger's record of this name is of other work
    ├── PlanError                     the run cannot be planned: nothing was read, nothing written
    │   ├── UnknownTopic
    │   ├── AuthorizationFailed       the principal lacks a permission
    │   ├── BrokerUnsupported         the broker cannot keep the promise (no partition verification)
    │   ├── GroupNotEmpty             the consumer group has live members
    │   ├── GroupOwned                the group's cursor belongs to another pipeline
    │   ├── CursorMoved               group offsets and the ledger's cursor disagree
    │   ├── NoStartingPoint           no cursor, and the start policy is ``fail``
    │   ├── OffsetsOutOfRange         the range lies outside the log: records are gone, or never were
    │   ├── RangeUndecided            a transaction is still open inside the range
    │   ├── SinkChanged               a sink topic lost partitions that records were sealed for
    │   ├── TopicRecreated            the topic has another id than the cursor remembers
    │   ├── IntervalNotReady          the boundary cannot be pinned yet
    │   ├── IntervalUnaccountable     records of the interval may be deleted, or timestamps run far ahead
    │   ├── LedgerMissing             the ledger topic does not exist
    │   ├── LedgerReplaced            the ledger topic is not the one that was used before
    │   ├── LedgerTruncated           records of the ledger were deleted: what it lacks may be committed
    │   ├── LedgerPruned              the run was committed, and its record was pruned since
    │   ├── LedgerTampered            somebody else wrote to the ledger: what it lacks may be committed
    │   └── LedgerUnreadable          a ledger record is garbage, or of a newer version of this package
    ├── RunError                      a run was started and did not commit
    │   ├── RunFenced                 a newer attempt owns the transactional id
    │   ├── RunAlreadyCommitted       ``on_committed="fail"`` found the run in the ledger
    │   ├── RunFailed                 the run was aborted; nothing is visible
    │   ├── OutcomeUnknown            the authority could not be asked: neither yes nor no
    │   ├── NotYetVisible             committed, and some leader does not show it yet
    │   ├── OutputLost                committed, and a sink topic was deleted or made again meanwhile
    │   ├── SealedBlockLost           sealed batches are gone, or were replaced
    │   └── ProcessFailed             the author's ``process`` raised or returned wrong columns
    ├── SendError                     the wire layer could not write a batch
    │   ├── SessionLost               the Spark session with the sealed batches is gone
    │   ├── ProducerFenced            the broker refused the producer's epoch
    │   ├── DeliveryTimedOut
    │   ├── DuplicateReceipt          an acknowledgement belongs to another attempt
    │   ├── RecordRefused             the settings of the topic refuse a record, whoever sends it again
    │   │   └── RecordTooLarge
    │   ├── SecondAttempt             a send task was started twice
    │   └── ProtocolViolation         the broker answered what must not happen (a bug, stop)
    ├── DecodeError                   bytes from the log are not a record batch we can read
    │   ├── CorruptBatch
    │   └── UnsupportedMagic
    ├── BrokersUnavailable            no broker answered in time
    │   └── FetchStalled              a read made no progress in time
    └── RequestRefused                a broker refused a request for a reason no retry can help
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_eos.printable import printable


class EosError(Exception):
    """Base of every error raised on purpose by this package.

    Messages may quote names and records that others chose: as a text they show control characters escaped.
    """

    @property
    def message(self) -> str:
        """The message, nothing escaped: for what is read by programs."""
        return super().__str__()

    def __str__(self) -> str:
        return printable(self.message, keep="\n\t")


class ConfigurationError(EosError):
    """A parameter, a client setting or an environment is wrong."""


class UntranslatableConfig(ConfigurationError):
    """A librdkafka setting has no counterpart in the wire layer; the message names the key."""


class EnvironmentMismatch(ConfigurationError):
    """Driver and executors run different versions, or one lacks a package; names hosts and the fix."""


class TimeoutsInconsistent(ConfigurationError):
    """Delivery, transaction and broker time-outs do not fit together."""


class DifferentWork(ConfigurationError):
    """The ledger holds a run of this name that did other work; the message lists what differs."""


class PlanError(EosError):
    """The run cannot be planned: nothing was read and nothing was written."""


class UnknownTopic(PlanError):
    """A topic does not exist or is not visible to this principal."""


class AuthorizationFailed(PlanError):
    """The principal lacks a permission; the message names operation and resource."""


class BrokerUnsupported(PlanError):
    """The broker cannot keep the promise: it lacks or disables transaction partition verification."""


class GroupNotEmpty(PlanError):
    """The consumer group has live members; two owners of one cursor lose or repeat records."""


class GroupOwned(PlanError):
    """The consumer group's cursor belongs to another pipeline."""


class CursorMoved(PlanError):
    """Committed group offsets and the ledger's cursor disagree."""


class NoStartingPoint(PlanError):
    """Neither group offsets nor a ledger cursor exist and the start policy is ``fail``."""


class OffsetsOutOfRange(PlanError):
    """The log starts above the range's start, or ends below its end: records are gone, or never were."""


class RangeUndecided(PlanError):
    """The range ends above the last stable offset: a transaction inside it is still open."""


class TopicRecreated(PlanError):
    """The topic has another id than the one the plan or the cursor remembers."""


class SinkChanged(PlanError):
    """A sink topic has fewer partitions than records were sealed for; the next try seals anew."""


class IntervalNotReady(PlanError):
    """The interval's boundary cannot be pinned yet, or the log has not reached it."""


class IntervalUnaccountable(PlanError):
    """The log cannot tell what an interval holds: deleted records, or a timestamp of the far future."""


class LedgerMissing(PlanError):
    """The ledger topic does not exist and this run may not create it."""


class LedgerReplaced(PlanError):
    """The ledger topic's id or partition count is not the one that was used before."""


class LedgerTruncated(PlanError):
    """The ledger partition has lost its first records, and what was asked for may have been among them."""


class LedgerPruned(PlanError):
    """The run was committed, and `airflow eos prune` has removed its record: it is not done again."""


class LedgerTampered(PlanError):
    """Somebody else wrote a record of a key that was asked for, and there is none of ours."""


class LedgerUnreadable(PlanError):
    """A value of the ledger is not what its key says, or of a version that this package does not know."""


class RunError(EosError):
    """A run was started and did not commit."""


class RunFenced(RunError):
    """A newer attempt owns the transactional id, and the authority says this run is not committed."""


class RunAlreadyCommitted(RunError):
    """The ledger holds this run from another Dag run or clear, and ``on_committed`` is ``fail``."""


class RunFailed(RunError):
    """The run was aborted after all attempts; nothing of it is visible to read_committed readers."""


class OutcomeUnknown(RunError):
    """The authority could not be asked. A retry finds out; nothing may be assumed until then."""


class NotYetVisible(RunError):
    """The run is committed, but some leader does not show it yet; names the partitions. A retry waits."""


class OutputLost(RunError):
    """The run is committed, and a sink topic was deleted or made again before it was: output is gone."""


class ProcessFailed(RunError):
    """The author's ``process`` raised, or returned columns the sink cannot write.

    :param raised: qualified names of the class that ``process`` raised and of its bases; empty: not known.
    """

    raised: tuple[str, ...] = ()

    def __init__(self, *args: object, raised: Iterable[str] = ()) -> None:
        super().__init__(*args)
        self.raised = tuple(raised)


class SealedBlockLost(RunError):
    """Sealed batches went with an executor, or another copy took their place: the ranges are sealed again."""


class SendError(EosError):
    """The wire layer could not write a batch."""


class SessionLost(SendError):
    """The Spark session that held the sealed batches is gone, and they with it; only another try has one."""


class ProducerFenced(SendError):
    """The broker refused the producer's epoch (47, 90): a newer attempt exists, or it timed out."""


class DeliveryTimedOut(SendError):
    """A batch was not acknowledged within the delivery time-out."""


class DuplicateReceipt(SendError):
    """An acknowledgement belongs to another attempt of the same epoch."""


class RecordRefused(SendError):
    """The settings or the policy of a topic refuse a record: sent again it would be refused again."""


class RecordTooLarge(RecordRefused):
    """A single record exceeds the topic's ``max.message.bytes``."""


class SecondAttempt(SendError):
    """A send task was started a second time within one epoch; it wrote nothing."""


class ProtocolViolation(SendError):
    """The broker answered what the protocol rules out; the run aborts rather than guess."""


class DecodeError(EosError):
    """Bytes read from the log are not a record batch this package can read."""


class CorruptBatch(DecodeError):
    """A record batch fails its CRC or its framing; the message names topic, partition and offset."""


class UnsupportedMagic(DecodeError):
    """A record batch has message format v0 or v1 (before Kafka 0.11)."""


class SparkUnavailable(EosError):
    """A Spark Connect server is away, or has forgotten the session; nothing was written. Try again."""


class BrokersUnavailable(EosError):
    """No broker answered in time; the message names the request, the servers and the last error."""


class FetchStalled(BrokersUnavailable):
    """A read made no progress in time; the message names the position and what it waits for."""


class RequestRefused(EosError):
    """A broker refused a request for a reason no retry can help; the message names request and answer."""
