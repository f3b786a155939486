"""All errors of this package; docs/errors.md is generated from these docstrings.

The first paragraph of a class says what happened. ``Safe:`` says what is committed, and which action loses or
doubles records. ``Do:`` says what to do, with commands in an indented block. A class without one of the two
inherits that of its base. ``python tools/errors_reference.py`` writes the page.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable

from airflow_eos.printable import printable

_ANCHORS = "docs/errors.md#"
_QUOTED_LINK = re.compile(rf" \({re.escape(_ANCHORS)}[a-z]+\)")


class EosError(Exception):
    """The base of all errors of this package.

    Messages may quote names and records of other programs: the text escapes control characters.

    Safe: The class does not tell whether the run is committed.
    Do: Follow the message, then clear the task.
    """

    @property
    def message(self) -> str:
        """The message for programs: not escaped, and without the links of quoted errors."""
        return _QUOTED_LINK.sub("", super().__str__())

    @property
    def documentation(self) -> str:
        """Page and anchor that explain this error; for a class of another module, those of its base here."""
        kind = next(base for base in type(self).__mro__ if base.__module__ == __name__)
        return f"{_ANCHORS}{kind.__name__.lower()}"

    def __str__(self) -> str:
        text = printable(self.message, keep="\n\t")
        return f"{text} ({self.documentation})"


class ConfigurationError(EosError):
    """A parameter, a client setting or an environment is wrong.

    Safe: This try committed nothing.
    Do: Correct what the message names.
    """


class UntranslatableConfig(ConfigurationError):
    """A librdkafka setting has no counterpart in the wire layer.

    Do: Remove the setting from the Kafka connection, or use the one that the message names.
    """


class CredentialsRefused(ConfigurationError):
    """Brokers refused the Kafka connection's credentials; or these, or brokers' certificates, are not valid.

    Do: Correct the Kafka connection. If they were accepted when the run began, it ends as `RunFailed`, and
    its retry reads them again.
    """


class EnvironmentMismatch(ConfigurationError):
    """Driver and executors differ in versions, packages, or the cluster they reach.

    Do: Install the same versions everywhere, or let Airflow retry where executors come and go. Give
    `bootstrap.servers` names that lead to the same brokers from every host. If `pyspark` and
    `pyspark-client`, which share a folder, have different minor versions, run the command of the message.
    This checks the executors:

        airflow eos doctor --spark sc://HOST:PORT
    """


class TimeoutsInconsistent(ConfigurationError):
    """Delivery, transaction and broker time-outs do not fit together.

    Do: Keep `delivery_timeout` + 30 s below `transaction_timeout`, and that at or below the brokers'
    `transaction.max.timeout.ms`.
    """


class DifferentWork(ConfigurationError):
    """The ledger has a run of this name that did other work.

    Safe: The recorded run stays committed. The task's present work was not done.
    Do: Give tasks that share a name a `pipeline` each. If you changed the task on purpose, follow [the list
    of changes](retries.md#when-the-task-was-changed). This shows the record:

        airflow eos ledger --pipeline PIPELINE
    """


class PlanError(EosError):
    """The run cannot be planned, or the conditions of its plan have changed.

    Safe: This try committed nothing.
    Do: Correct what the message names.
    """


class UnknownTopic(PlanError):
    """A topic or partition does not exist or is not visible to this principal.

    Do: Create the topic, correct its name, or grant Describe on it.
    """


class AuthorizationFailed(PlanError):
    """The principal lacks a permission.

    Do: Grant it ([all that a run needs](security.md#permissions)). If it was taken while a run worked, that
    ends as `RunFailed`, and its retry checks all permissions. This lists missing ones:

        airflow eos doctor --group GROUP --source TOPIC --sink TOPIC
    """


class BrokerUnsupported(PlanError):
    """The brokers lack, or have disabled, the verification of a transaction's partitions.

    Do: Upgrade the brokers to Kafka 3.6 or later, and set `transaction.partition.verification.enable=true`. A
    message about a request or a codec names the version that the broker does not support.
    """


class GroupNotEmpty(PlanError):
    """The consumer group has live members; two owners of one cursor lose or repeat records.

    Do: Stop the consumers, or give the pipeline a `group_id` of its own. Airflow's next try checks again.
    """


class GroupOwned(PlanError):
    """The consumer group's cursor belongs to another pipeline, prefix or Airflow.

    Do: Give this pipeline a `group_id` of its own: it starts as its `Cursor(start=...)` says. If it is the
    same pipeline under another name or address, set the recorded value (`pipeline`, `[eos] prefix`, `[eos]
    origin`). This shows the owner:

        airflow eos status --group GROUP
    """


class CursorMoved(PlanError):
    """Committed group offsets and the ledger's cursor disagree.

    Safe: This try committed nothing. `--to cursor` continues where the last run ended: no record is lost or
    doubled. `--to committed` takes the other position: records between the two are skipped or read twice.
    Do: Find out who commits to the group. Then run the reset without `--yes`, which shows the changes. If the
    message names a record without a signature, do not reset: a run without the key committed it. Set `[eos]
    ledger_key` again, or run `airflow eos sign` if that run was yours.

        airflow eos status --group GROUP
        airflow eos reset-offsets --group GROUP --to cursor
    """


class NoStartingPoint(PlanError):
    """Neither group offsets nor a ledger cursor exist, and the start policy is ``fail``.

    Do: Set `Cursor(start="earliest")` (or `"latest"`, which skips existing records), or give the group a
    position, with `--mapped` that of mapped tasks:

        airflow eos reset-offsets --group GROUP --pipeline PIPELINE --topic TOPIC --to earliest
    """


class OffsetsOutOfRange(PlanError):
    """The log starts above the range's start, or ends below its end: records are deleted, or never existed.

    Safe: This try committed nothing. Records deleted unread are lost to this pipeline unless you publish them
    again.
    Do: Publish the records again, or accept the loss: of a cursor by a reset to the offset of the message, of
    an interval or a partition by `accept_deleted=True`, of given ranges by naming offsets that exist. Not
    `--to earliest`: it also moves partitions that lost nothing, whose records are then written again.

        airflow eos reset-offsets --group GROUP --offset TOPIC:PARTITION=OFFSET
    """


class RangeUndecided(PlanError):
    """The range ends, or the group stands, above the last stable offset: a transaction is still open.

    Do: Nothing: the transaction ends, by its owner or its time-out. This shows the owner:

        airflow eos doctor --source TOPIC
    """


class TopicRecreated(PlanError):
    """The topic has another id than the one the plan, the cursor or a boundary remembers.

    Safe: This try committed nothing. Unread records of the old topic are lost. `--to earliest` reads all of
    the new topic; `--to latest` skips its present records.
    Do: Move a cursor to the new topic. For intervals, partitions and reprocessing, give the new topic another
    name.

        airflow eos reset-offsets --group GROUP --topic TOPIC --to earliest
    """


class SinkChanged(PlanError):
    """A sink topic has fewer partitions, or takes smaller batches, than records were sealed for.

    Do: Nothing: the next try seals for the present topic. If its `max.message.bytes` is below 1 MB, grant
    DescribeConfigs on it, so that batches are made to fit.
    """


class UnknownTable(PlanError):
    """The sink's table, branch or catalog does not exist, or cannot be written by this package.

    Do: Create the table or the branch, or correct the parameters of `sink`.
    """

    def __init__(self, *arguments: object, is_missing: bool = False) -> None:
        super().__init__(*arguments)
        self.is_missing = is_missing
        """Whether the catalog says that there is no table of this name."""


class TableChanged(PlanError):
    """Schema or partition spec of the table changed after the run wrote its data files.

    Do: Nothing: the next try writes its files for the present table.
    """


class TableRefused(PlanError):
    """The database or catalog refused a run's rows: a constraint, a trigger, a limit.

    Safe: This try committed nothing. The same rows would be refused again. Records that `skip_offsets` skips
    stay unprocessed.
    Do: Correct the process, the conflicting rows of the table, or its catalog.
    """


class StagedRowsLost(PlanError):
    """Rows or files that tasks staged for a table are lost: a server crashed, or somebody dropped them.

    Do: Nothing: the next try makes them again. If it repeats, check that executors and driver share the
    table's folder, and how long maintenance keeps files that no commit names.
    """


class TableReplaced(PlanError):
    """The table was dropped and created again while a run was about to publish, or had published, in it.

    Safe: The new table has no row of the run, unless it was copied or, in PostgreSQL, restored from a dump.
    Rows in the old table are lost with it. Nothing shows whether it had the run's rows.
    Do: Restore the old table (not from a dump in PostgreSQL, which makes another one), and run the pipeline.
    If it is lost for good, dismiss the run's INTENT, with key and routing of the message. The next run then
    writes the same records to the new table: if they are there, first delete them, or move the cursor past
    them with `airflow eos reset-offsets`. This shows the ranges:

        airflow eos dismiss --key intent:ID --routing GROUP --yes
    """


class TableRewritten(PlanError):
    """A reprocessing should replace the rows of the earlier run, and they are not in the table as written.

    Safe: The table is unchanged, and the earlier run stays committed.
    Do: Delete the run's rows yourself, by a column with their offsets or their day, and run the task with
    `reprocess="append"` of its table. Compaction, updates and deletes of rows rewrite a table.
    """


class IntervalNotReady(PlanError):
    """The interval's boundary cannot be pinned yet, or the log has not reached it.

    Do: Put a [KafkaDataIntervalSensor](sensors-and-assets.md) in front, which waits without failing. A run
    waits for an idle partition until `allowed_lateness` is over.

        airflow eos plan --pipeline PIPELINE --group GROUP --topic TOPIC --interval START END
    """

    until: dt.datetime | None = None
    """The time from which on the boundary is fixed in any case; None: unknown."""


class IntervalUnaccountable(PlanError):
    """The log does not prove which records an interval has: records are deleted, or one is of the far future.

    Safe: Nothing was pinned or committed. `accept_deleted=True` reads the remaining records: those that were
    deleted unread stay lost, and the run's record says so.
    Do: Publish the records again, or accept the loss:
    [alternatives](range-modes.md#what-the-log-can-no-longer-tell).

        airflow eos plan --pipeline PIPELINE --group GROUP --topic TOPIC --interval START END
    """


class LedgerMissing(PlanError):
    """The ledger topic does not exist, or has no identity, and this run may not create it.

    Safe: This try did nothing; an earlier one may have committed the run. In an empty ledger every run is
    uncommitted: runs that are then cleared or retried are written twice.
    Do: If there was a ledger, restore it. Otherwise create it once:

        airflow eos init
    """


class LedgerReplaced(PlanError):
    """The ledger topic was deleted, or its id is not the one that was used before.

    Safe: This try did nothing. With `--adopt-new` no run counts as committed: runs that are then cleared,
    retried or backfilled are written twice.
    Do: Restore the original topic. If it is lost for good, read [the cost of a new
    ledger](guarantees/limits.md#the-ledger-must-be-kept) first, and delete what is left of the topic.

        airflow eos init --adopt-new
    """


class LedgerTruncated(PlanError):
    """The ledger partition has lost its first records, and the run's record may have been among them.

    Safe: This try did nothing; an earlier one may have committed the run. In a new ledger it counts as not
    committed, and is written twice.
    Do: Restore the ledger, and set its `cleanup.policy` to `compact`; if it cannot be restored, see [the cost
    of a new ledger](guarantees/limits.md#the-ledger-must-be-kept).
    """


class LedgerPruned(PlanError):
    """The run was committed, and `airflow eos prune` has removed its record: it does not run again.

    Safe: The run is committed and its output remains. Under another name it is written twice.
    Do: Nothing, if its output is correct. To write it once more, use `ReplayOffsetRangesOperator`, or for an
    interval a task of another `pipeline`.
    """


class LedgerTampered(PlanError):
    """Another program wrote a record of the key, and no run did.

    Safe: This try did nothing; an earlier one may have committed the run. If it did, `dismiss` lets it be
    written twice.
    Do: Revoke that program's right to write to the ledger. If the run's output is in the sink, do nothing; if
    not, dismiss the key. If the record lacks only a signature and a run of yours wrote it, do not dismiss:
    set `[eos] ledger_key` again, or run `airflow eos sign`.
    [Background](security.md#the-ledger).

        airflow eos dismiss --key KEY --routing PIPELINE
    """


class LedgerUnreadable(PlanError):
    """A value of the ledger does not fit its key, or has a version that this package does not know.

    Safe: This try did nothing.
    Do: If a newer airflow-eos uses the ledger, upgrade this environment. Otherwise find out which program
    writes to the ledger: dismiss a value that no run wrote as with `LedgerTampered`.

        airflow eos ledger --key KEY
    """


class RunError(EosError):
    """A run was started and did not end as a success; subclasses say whether it is committed."""


class RunFenced(RunError):
    """A newer attempt owns the transactional id, and this run is not committed, according to the ledger.

    Safe: This attempt committed nothing. The newer one may.
    Do: If the other attempt is of another Dag run, give the Dag `max_active_runs=1`. If no second attempt
    exists, `transactional.id.expiration.ms` of the brokers may be shorter than the run:

        airflow eos doctor
    """


class RunAlreadyCommitted(RunError):
    """Another Dag run or clear has committed this run, and ``on_committed`` is ``fail``.

    Safe: The run is committed, and this try wrote nothing. `on_committed="reprocess"` writes the output once
    more.
    Do: Set `on_committed="skip"` to accept the committed run, or `"reprocess"` to write it again.
    """


class RunFailed(RunError):
    """The run was aborted, after all its attempts or because it was killed.

    Safe: This try committed nothing.
    Do: If it fails again, correct the last error: the executors' logs say more about lost executors, memory
    and disks.
    """


class OutcomeUnknown(RunError):
    """The ledger, or the table that is the sink, did not answer: neither yes nor no.

    Safe: The run may or may not be committed. A retry or a clear asks the ledger and the table. A replay, a
    reset or `dismiss` before that may double records.
    Do: If it persists and the message names a table, check that with `airflow eos doctor --table`. Else the
    first of these names the transactions, of any application, that hold the ledger, the second those of runs
    that brokers forgot to end:

        airflow eos doctor
        airflow eos repair
    """


class NotYetVisible(RunError):
    """The run is committed, but some leader does not show it yet, or may not be asked.

    Safe: Output and offsets are committed. A retry or a clear waits for the leaders and writes nothing.
    Do: If it persists, list the open transactions; `--yes` ends them as they were decided:

        airflow eos repair
    """


class OutputLost(RunError):
    """The run is committed, and a sink topic was deleted or created again before that: its output is lost.

    Safe: Offsets and run record are committed, so a plain clear succeeds and writes nothing. Reprocessing
    writes the run's output to all its sinks once more.
    Do: Create the topic, then clear the task with `on_committed="reprocess"`, or write the recorded ranges by
    `ReplayOffsetRangesOperator`. A clear of a run in rounds continues with the next round: replay the ranges
    of the lost rounds, which these name:

        airflow eos verify --pipeline PIPELINE
        airflow eos ledger --pipeline PIPELINE
    """


class ProcessFailed(RunError):
    """The author's ``process`` raised, or returned columns the sink cannot write.

    Safe: This try committed nothing. No later run reads records that `skip_offsets` or a dead-letter topic
    takes out of this run's output.
    Do: Correct the function. To continue without the record, use the `skip_offsets` of the message, or [dead
    letters](arrow-process.md#dead-letters). A `process` that raises [exceptions of
    Airflow](retries.md#what-process-may-ask-of-airflow) decides itself what follows.

    :param raised: qualified names of the class that ``process`` raised and of its bases; empty: not known.
    """

    raised: tuple[str, ...] = ()

    def __init__(self, *args: object, raised: Iterable[str] = ()) -> None:
        super().__init__(*args)
        self.raised = tuple(raised)


class SealedBlockLost(RunError):
    """Sealed batches were lost with an executor, or replaced by another copy: the ranges are sealed again.

    Safe: This try committed nothing.
    Do: Nothing: the run is retried. If it repeats, see the executors' logs.
    """


class SendError(EosError):
    """The wire layer could not write a batch; its transaction is aborted, or times out.

    Safe: This try committed nothing.
    Do: If it fails again, see the logs of the brokers that the message names.
    """


class SessionLost(SendError):
    """The Spark session with the sealed batches is lost; only another try has a new session.

    Do: If it repeats, see the log of the Spark Connect server.
    """


class ProducerFenced(SendError):
    """The broker refused the producer's epoch (47, 90): a newer attempt exists, or it timed out.

    Do: If no second attempt exists, the run is longer than its `transaction_timeout`: raise that, or read
    less in a run.
    """


class DeliveryTimedOut(SendError):
    """A batch was not acknowledged within the delivery time-out.

    Do: Check that the topic's partitions have leaders and enough in-sync replicas:

        airflow eos doctor --sink TOPIC
    """


class DuplicateReceipt(SendError):
    """An acknowledgement belongs to another attempt of the same epoch."""


class RecordRefused(SendError):
    """The settings or the policy of a topic refuse a record; they would refuse it again.

    Do: Return records that the topic accepts (with a key if it is compacted, another timestamp), or change
    the setting that the message names: [records that topics refuse](retries.md#records-that-a-topic-refuses).
    """


class RecordTooLarge(RecordRefused):
    """A single record exceeds the topic's ``max.message.bytes``.

    Do: Raise `max.message.bytes` of the topic, or store the payload elsewhere and send a reference.
    """


class SecondAttempt(SendError):
    """A send task was started a second time within one epoch; it wrote nothing.

    Do: Nothing: the run sends again under a new epoch, and Airflow retries. If it repeats, see the executors'
    logs.
    """


class ProtocolViolation(SendError):
    """The broker's answer violates the protocol; the run aborts rather than guess.

    Do: If it fails again, keep the task's log and the brokers' logs, and report it.
    """


class DecodeError(EosError):
    """Bytes read from the log are not a record batch this package can read.

    Safe: This try committed nothing.
    Do: Follow the message, which names topic, partition and offset.
    """


class CorruptBatch(DecodeError):
    """A record batch has a wrong CRC or framing, or is larger than the limit.

    Safe: This try committed nothing. No later run reads records that `skip_offsets` skips.
    Do: Compare the replicas with Kafka's `kafka-dump-log.sh`. If the bytes are the same everywhere, give the
    task the `skip_offsets` of the message: [alternatives](range-modes.md#what-can-never-be-read).
    """


class UnsupportedMagic(DecodeError):
    """A record batch has message format v0 or v1 (before Kafka 0.11).

    Do: Let the old segments expire, or copy the topic with a consumer and a producer.
    """


class SparkUnavailable(EosError):
    """A Spark Connect server is unavailable, or has lost the session; nothing was written.

    Safe: This try committed nothing.
    Do: If Spark runs on the task's host:

        airflow eos spark-server
    """


class BrokersUnavailable(EosError):
    """No broker answered in time.

    Safe: If the brokers became unavailable during the commit, the run may be committed.
    Do: If it fails again, see `bootstrap.servers` and `security.protocol` of the connection.

        airflow eos doctor
    """


class FetchStalled(BrokersUnavailable):
    """A read made no progress in time.

    Safe: This try committed nothing.
    Do: If it fails again, see the leader of the partition that the message names. On a slow network raise
    `socket.timeout.ms` of the Kafka connection.
    """


class RequestRefused(EosError):
    """A broker refused a request, and would refuse it again.

    Do: Follow the message, and see the log of the broker.
    """


def is_mistake(error: BaseException) -> bool:
    """Return whether an exception of an author's function is a mistake in it, which a retry would repeat.

    Python's own exceptions are, except ``OSError``. Those of libraries may mean that a service does not
    answer: botocore, google-auth and httpx do not derive theirs from ``OSError``.
    """
    return type(error).__module__ == "builtins" and not isinstance(error, OSError)
