"""Finds transactions that hang in partitions, and ends them as they were decided.

A run ends what its own transactional id left open, as far as it may (:mod:`airflow_eos.run.unfinished`). This
is for what no run will come across again, and needs the right to write markers (ClusterAction on the
cluster).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import AuthorizationFailed, ProducerFenced
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import answer_of
from airflow_eos.ledger.records.run import RunRecord, named_writer
from airflow_eos.model.kafka import OFFSETS_TOPIC, ActiveProducer, TransactionDescription
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.spec import Deployment, LedgerSettings
from airflow_eos.operations.left_open import Left, LeftOpen
from airflow_eos.operations.queries import readable_runs
from airflow_eos.run.unfinished import coordinator_said, seen_of

log = logging.getLogger(__name__)

Decision = Literal["commit", "abort", "unknown"]


@dataclass(frozen=True, slots=True)
class Hanging:
    """A transaction that a leader holds for open although nobody will end it.

    :param start_offset: where it begins: readers do not get past it.
    :param decision: how it was decided; ``unknown`` is left alone unless somebody says what to assume.
    :param because: what says so.
    :param done: whether its markers were written.
    :param advice: what to do where they were not.
    """

    partition: str
    start_offset: int
    producer_id: int
    producer_epoch: int
    transactional_id: str
    decision: Decision
    because: str
    done: bool = False
    advice: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def repair(
    kafka: Mapping[str, Any],
    settings: LedgerSettings,
    prefix: str,
    *,
    topics: Collection[str] = (),
    assume: Decision = "unknown",
    execute: bool = False,
) -> list[Hanging]:
    """Return the hanging transactions of our prefix in the ledger, in the topics, and in groups' offsets.

    :param topics: where to look; default: every topic that the ledger's runs wrote to.
    :param assume: for those of which nobody can tell how they were decided.
    :param execute: write the missing markers; False only says what is there.
    :raises LedgerMissing: when there is no initialised ledger.
    """
    with ControlPlane(Deployment(kafka, settings or LedgerSettings(), prefix)) as control:
        partitions = control.verify_ledger().partitions
        runs = _Runs(control, partitions)
        wanted = set(topics) or runs.topics
        found = [
            one if one.decision != "unknown" else replace(one, decision=assume)
            for one in _Search(control, prefix, runs).hanging({*wanted, settings.topic, OFFSETS_TOPIC})
        ]
        return [ended(control, one) if execute else one for one in found]


def hanging(control: ControlPlane, prefix: str, topics: Collection[str], partitions: int) -> list[Hanging]:
    """Return what hangs in some topics; the ledger is read only where something does."""
    return _Search(control, prefix, _Runs(control, partitions)).hanging(set(topics))


class _Runs:
    """The runs of a ledger, read when they are asked for.

    :param partitions: of the ledger.
    """

    def __init__(self, control: ControlPlane, partitions: int) -> None:
        self._control = control
        self._partitions = partitions
        self._read: tuple[list[RunRecord], list[RunRecord]] | None = None
        self._incomplete: list[str] = []
        # Producer id and epoch of all records, also of those that a newer version wrote and this cannot read.
        self._writers: tuple[set[tuple[int, int] | None], set[tuple[int, int] | None]] = set(), set()

    @property
    def topics(self) -> set[str]:
        return {receipt.topic for record in self._records()[0] for receipt in record.receipts}

    def unaccounted(self) -> str:
        """Return why a run that the ledger does not hold may be committed all the same; empty: it is not."""
        self._records()
        return "; ".join(self._incomplete)

    def committed(self, producer_id: int, epoch: int) -> bool:
        self._records()
        return (producer_id, epoch) in self._writers[0]

    def hangs_unread(self, producer_id: int, epoch: int) -> bool:
        """Return whether its run record hangs with it, and cannot be read."""
        return self.undecided(producer_id, epoch) is None and (producer_id, epoch) in self._writers[1]

    def undecided(self, producer_id: int, epoch: int) -> RunRecord | None:
        return next((one for one in self._records()[1] if _made_by(one, producer_id, epoch)), None)

    def transactional_id(self, producer_id: int) -> str | None:
        """Return whose id it was: coordinators forget ids that are not used."""
        both = (record for records in self._records() for record in records)
        return next(
            (r.producer.transactional_id for r in both if r.producer.producer_id == producer_id), None
        )

    def _records(self) -> tuple[list[RunRecord], list[RunRecord]]:
        if self._read is None:
            committed: list[RunRecord] = []
            undecided: list[RunRecord] = []
            for partition in range(self._partitions):
                view = self._control.ledger.view(partition, (), (keys.RUN_RECORDS,))
                answer = answer_of(view)
                if view.log_start:
                    self._incomplete.append(f"ledger partition {partition} has lost its first records")
                if view.no_evidence:
                    self._incomplete.append(
                        f"ledger partition {partition} holds {min(view.no_evidence)!r} at offset "
                        f"{view.no_evidence[min(view.no_evidence)]}, which is not signed or no run wrote"
                    )
                self._writers[0].update(map(named_writer, answer.committed.values()))
                self._writers[1].update(named_writer(one.value or "") for one in answer.open_records)
                committed += readable_runs(answer.committed.items())
                undecided += readable_runs(
                    (one.key, one.value) for one in answer.open_records if one.value is not None
                )
            self._read = committed, undecided
        return self._read


class _Search:
    def __init__(self, control: ControlPlane, prefix: str, runs: _Runs) -> None:
        self._control = control
        self._prefix = prefix
        self._runs = runs

    def hanging(self, topics: Collection[str]) -> list[Hanging]:
        left = LeftOpen(self._control.cluster, self._prefix, self._runs.transactional_id)
        found = [(one, self._described(one)) for one in left.found(topics)]
        still = left.still(one for one, _ in found)
        return [described for one, described in found if one in still]

    def _described(self, left: Left) -> Hanging:
        one = left.producer
        decision, because = self._decision(one, left.word)
        return Hanging(
            partition=str(left.where),
            start_offset=one.current_txn_start_offset,
            producer_id=one.producer_id,
            producer_epoch=one.producer_epoch,
            transactional_id=left.transactional_id,
            decision=decision,
            because=because,
        )

    def _decision(self, one: ActiveProducer, word: TransactionDescription | None) -> tuple[Decision, str]:
        producer_id, epoch = one.producer_id, one.producer_epoch
        if self._runs.committed(producer_id, epoch):
            return "commit", "the ledger holds its run"
        said = coordinator_said(word, producer_id, epoch)
        if said is not None:
            return "commit" if said else "abort", "its coordinator says so"
        undecided = self._runs.undecided(producer_id, epoch)
        if self._runs.hangs_unread(producer_id, epoch):
            return "unknown", "its run record hangs with it and cannot be read: upgrade airflow-eos"
        if undecided is None and (why := self._runs.unaccounted()):
            return "unknown", why
        if undecided is None:
            return "abort", "the ledger has no run of it"
        seen = seen_of(self._control.cluster, undecided)
        if seen is not None:
            return "commit" if seen else "abort", f"what {undecided.run_key} wrote elsewhere shows it"
        return "unknown", f"the record of {undecided.run_key} hangs with it, and nothing else tells"


def ended(control: ControlPlane, one: Hanging) -> Hanging:
    """Write the markers of one hanging transaction; return it with what came of it."""
    topic, _, partition = one.partition.rpartition("-")
    if one.decision == "unknown":
        return replace(one, advice="look at its output, then say --assume commit or --assume abort")
    try:
        control.transactions.write_markers(
            one.producer_id,
            one.producer_epoch,
            [TopicPartition(topic, int(partition))],
            commit=one.decision == "commit",
        )
    except ProducerFenced:
        return replace(one, advice="a newer attempt has written there since: its end decides")
    except AuthorizationFailed as error:
        tool = (
            f"kafka-transactions.sh --bootstrap-server ... abort --topic {topic} --partition {partition} "
            f"--start-offset {one.start_offset}"
        )
        advice = (
            f"{error}, or have somebody run: {tool}"
            if one.decision == "abort"
            else f"{error}. Kafka's own tool can only abort, which would lose what is committed"
        )
        return replace(one, advice=advice)
    return replace(one, done=True)


def _made_by(record: RunRecord, producer_id: int, epoch: int) -> bool:
    return (record.producer.producer_id, record.producer.producer_epoch) == (producer_id, epoch)
