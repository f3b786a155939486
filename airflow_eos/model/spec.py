"""RunSpec: the complete specification of one run."""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model import relations
from airflow_eos.model.command_line import CommandLine
from airflow_eos.model.kinds import FLAG, NONE, Kind, duration, whole_number, word
from airflow_eos.model.names import PREFIX_LIMIT, checked_name, checked_prefix, checked_topic, checked_topics
from airflow_eos.model.ranges import Cursor, OffsetRange, RangeMode
from airflow_eos.model.sink_table import SinkTable

OnCommitted = Literal["skip", "fail", "reprocess", "accept"]
MarkOutput = Literal["never", "reprocessed", "always"]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]

CHOICES: Mapping[str, Kind] = {
    "max_dead_letters": whole_number(1),
    "max_send_attempts": whole_number(1),
    "allow_loop": FLAG,
    "on_committed": word(*get_args(OnCommitted)),
    "mark_output": word(*get_args(MarkOutput)),
    "compression": word(*get_args(Compression)),
    "transaction_timeout": duration(above=True),
    "delivery_timeout": duration(above=True),
}
"""Kinds of the parameters of a run that are neither names nor ranges."""


DEFAULT_PREFIX = "airflow-eos"
"""The prefix of all environments that have not chosen their own."""


class MayCreate(enum.Enum):
    """Whether a missing ledger may be created, or a topic without an identity receive one.

    An empty ledger answers "not committed" for every run, so a lost ledger must not be replaced by a new one.
    Only ``ANYWAY`` creates a ledger although a witness proves that there was one
    (:mod:`airflow_eos.ledger.witnesses`).
    """

    NEVER = "never"
    WHERE_BEGUN = "where begun"
    """Only if a task began and died before the identity was committed: for work that may be so old that the
    witnesses of its ledger have expired."""
    WHERE_NEW = "where new"
    ANYWAY = "anyway"
    """Even if there was one: a user has decided that its runs may be written again."""


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """The ledger topic, which decides whether a run is committed.

    :param topic: name of the compacted topic.
    :param create: whether a run may create the ledger if there never was one.
    :param partitions: partitions of a new ledger.
    :param replication_factor: replicas of a new ledger; None uses the brokers' default.
    :param key: secrets that sign its records, see :class:`~airflow_eos.model.signature.LedgerKey`; empty for
        unsigned records. In Airflow it comes from ``[eos] ledger_key``, not from a Dag.
    """

    topic: str = "airflow-eos-ledger"
    create: bool = True
    partitions: int = 32
    replication_factor: int | None = None
    key: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        checked_topic("LedgerSettings(topic=...)", self.topic)
        relations.refuse_internal("LedgerSettings(topic=...)", self.topic)
        FLAG.check("LedgerSettings(create=...)", self.create)
        whole_number(1).check("LedgerSettings(partitions=...)", self.partitions)
        (whole_number(1) | NONE).check("LedgerSettings(replication_factor=...)", self.replication_factor)


TRANSACTION_TIMEOUT = dt.timedelta(seconds=300)
DELIVERY_TIMEOUT = dt.timedelta(seconds=120)


@dataclass(frozen=True, slots=True)
class Deployment:
    """The environment of runs: a cluster, its ledger, and the prefix of transactional ids.

    :param kafka: client configuration in librdkafka's names; never shown.
    :param prefix: first part of every transactional id, without a dot.
    :param command_line: reaches it; for the commands that pages and answers show.
    :raises ConfigurationError: ``prefix`` is invalid.
    """

    kafka: Mapping[str, Any] = field(repr=False)
    ledger: LedgerSettings = field(default_factory=LedgerSettings)
    prefix: str = DEFAULT_PREFIX
    command_line: CommandLine = field(default_factory=CommandLine)

    def __post_init__(self) -> None:
        checked_prefix(self.prefix)


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One read-process-write run: what it reads, where it writes, under which identity.

    Transactional ids, run keys and ledger keys are derived from it (:mod:`airflow_eos.ledger.keys`).

    :param kafka: client configuration in librdkafka's names; never part of a repr or a record.
    :param pipeline: stable name of the pipeline; a renamed Dag keeps its ledger records if this stays.
    :param run_id: the run that this work belongs to (a Dag run id, a date).
    :param source_topics: topics to read.
    :param sink_topic: topic of rows without a ``topic`` column; None requires the column.
    :param sink: a table that the run writes to instead of topics:
        :class:`~airflow_eos.model.iceberg_table.IcebergTable`,
        :class:`~airflow_eos.model.delta_table.DeltaTable` or
        :class:`~airflow_eos.model.postgres_table.PostgresTable`.
    :param group_id: consumer group that holds the cursor.
    :param dead_letter_topic: topic of the records on which ``process`` raises; without it such a record
        fails the run.
    :param max_dead_letters: a run, or a round, with more dead letters fails.
    :param allow_loop: allow the run to write to a topic that it reads; the next run reads its output.
    :param ranges: how offsets are chosen; see :mod:`airflow_eos.model.ranges`.
    :param prefix: first part of every transactional id, without a dot; one per environment that shares a
        cluster.
    :param origin: the run's environment (an address, never a secret); a record with another one does not
        count.
    :param skip_offsets: unreadable offsets to skip: the run commits past them, and its record says so.
    :param source_partition: read only this partition of the only source topic.
    :param clear_number: how often the run was cleared; identifies the work together with ``run_id``.
    :param try_number: number of the try; only recorded.
    :param round: round of a cursor that reads until it has caught up, from 0; set by the engine.
    :param audit: who requested the run and why; kept in the run record.
    :param task: the Airflow task (``dag_id``, ``task_id``, ``map_index``, ``run_id``, ``max_tries``,
        ``dag_run_start``); users who may read that Dag see the run record.
    :param on_committed: what to do if another run id or clear has committed the run; ``accept`` also accepts
        a record of a run with other parameters.
    :param mark_output: which records get headers that name their run: those of a reprocessing or a replay
        (``reprocessed``), all (``always``), or none.
    :param transaction_timeout: the coordinator aborts the transaction after this time.
    :param delivery_timeout: a batch not acknowledged within this time fails the attempt.
    :param max_send_attempts: how often one try sends its output, each time in a new transaction.
    :param compression: ``none``, ``gzip``, ``snappy``, ``lz4`` or ``zstd``.
    :param ledger: see :class:`LedgerSettings`.
    """

    kafka: Mapping[str, Any] = field(repr=False)
    pipeline: str
    run_id: str
    source_topics: tuple[str, ...]
    group_id: str
    sink_topic: str | None = None
    sink: SinkTable | None = None
    dead_letter_topic: str | None = None
    max_dead_letters: int = 100
    allow_loop: bool = False
    ranges: RangeMode = field(default_factory=Cursor)
    prefix: str = DEFAULT_PREFIX
    origin: str = ""
    skip_offsets: tuple[OffsetRange, ...] = ()
    source_partition: int | None = None
    clear_number: int = 0
    try_number: int = 1
    round: int | None = None
    audit: Mapping[str, Any] = field(default_factory=dict)
    task: Mapping[str, Any] = field(default_factory=dict)
    on_committed: OnCommitted = "skip"
    mark_output: MarkOutput = "never"
    transaction_timeout: dt.timedelta = TRANSACTION_TIMEOUT
    delivery_timeout: dt.timedelta = DELIVERY_TIMEOUT
    max_send_attempts: int = 3
    compression: Compression = "zstd"
    ledger: LedgerSettings = field(default_factory=LedgerSettings)
    output_topics: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """The topics of rows and of dead letters, as far as they are known before a run reads."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kafka", dict(self.kafka))
        topics = (name for name in (self.sink_topic, self.dead_letter_topic) if name is not None)
        object.__setattr__(self, "output_topics", tuple(topics))
        if not isinstance(self.source_topics, str):
            object.__setattr__(self, "source_topics", tuple(self.source_topics))
        object.__setattr__(self, "skip_offsets", tuple(self.skip_offsets))
        self._check_topics()
        self._check_names()
        for name, kind in CHOICES.items():
            kind.check(name, getattr(self, name))

    @property
    def deployment(self) -> Deployment:
        """The run's cluster, ledger and prefix."""
        return Deployment(self.kafka, self.ledger, self.prefix)

    @property
    def may_create_ledger(self) -> MayCreate:
        """Whether this run may create a ledger.

        The try number does not matter, because witnesses of a ledger outlive the pause between two tries. A
        clear may come months after the run, when they may have expired.
        """
        if not self.ledger.create:
            return MayCreate.NEVER
        return MayCreate.WHERE_BEGUN if self.clear_number else MayCreate.WHERE_NEW

    def _check_topics(self) -> None:
        if not self.kafka.get("bootstrap.servers"):
            raise ConfigurationError("kafka['bootstrap.servers'] is missing; give host:port of a broker")
        checked_topics("source_topics", self.source_topics)
        for field_name in ("sink_topic", "dead_letter_topic"):
            topic = getattr(self, field_name)
            if topic is not None:
                checked_topic(field_name, topic)
        sources, ledger = self.source_topics, self.ledger.topic
        relations.check_sink(self.sink_topic, sources, ledger, allow_loop=self.allow_loop)
        relations.check_dead_letter_topic(self.dead_letter_topic, sources, ledger)
        relations.check_letters_beside_table(self.sink, self.dead_letter_topic, self.max_dead_letters)
        relations.check_table(self.sink, {name: getattr(self, name) for name in relations.TABLE_REFUSES})
        relations.check_topics_of("skip_offsets", self.skip_offsets, sources)
        if self.source_partition is not None:
            whole_number(0).check("source_partition", self.source_partition)
        relations.check_source_partition(self.source_partition, sources)
        relations.check_explicit(self.ranges, sources, self.source_partition)

    def _check_names(self) -> None:
        checked_prefix(self.prefix)
        for name in ("pipeline", "group_id"):
            checked_name(name, getattr(self, name))
        if len(self.origin) > PREFIX_LIMIT:
            raise ConfigurationError(f"origin must have at most {PREFIX_LIMIT} characters: {self.origin!r}")
        if not self.run_id:
            raise ConfigurationError("run_id is empty; give the id of the run, for example its date")
