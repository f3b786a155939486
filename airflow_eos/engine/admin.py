"""What an operator of the system does by hand: end a transaction, move a cursor."""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from airflow_eos.engine.control_plane import ControlPlane, utc_now
from airflow_eos.engine.index_keeper import rebuilt
from airflow_eos.engine.pruner import Pruner
from airflow_eos.exceptions import ConfigurationError, OffsetsOutOfRange, OutcomeUnknown, UnknownTopic
from airflow_eos.ledger import keys
from airflow_eos.ledger.cursor import CursorRecord, counts_kept
from airflow_eos.model.kafka import CommittedOffset, ProducerIdentity, TopicDescription, TransactionState
from airflow_eos.model.ledger import LedgerId, LedgerMessage, LedgerText
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.record import RunRecord
from airflow_eos.model.signature import signed_from_json
from airflow_eos.model.spec import DEFAULT_PREFIX, Deployment, LedgerSettings
from airflow_eos.model.versioned import has_version
from airflow_eos.run import laws
from airflow_eos.run.unfinished import open_of
from airflow_eos.run.visibility import Visibility
from airflow_eos.wire.txn_requests import TransactionStatus

Target = Literal["earliest", "latest", "cursor", "committed"]
_OPEN = (TransactionState.ONGOING, TransactionState.PREPARE_ABORT, TransactionState.PREPARE_COMMIT)
_SETTLE_SECONDS = 30.0
_POLL_SECONDS = 0.1


def abort_transaction(
    kafka: Mapping[str, Any],
    transactional_id: str,
    *,
    prefix: str = DEFAULT_PREFIX,
    epoch: int | None = None,
    foreign: bool = False,
    execute: bool = True,
) -> dict[str, Any]:
    """End an open transaction by EndTxn(abort) under the very identity the coordinator names.

    Nothing is initialised: no epoch is taken. A live owner learns of it by an error at its next request, and
    its run starts over or is retried.

    :param prefix: ids of this one are ours.
    :param epoch: the producer epoch that a look before has shown: what began since is left alone.
    :param foreign: end it although it is not of the prefix.
    :param execute: False only says what is there, also of foreign ids.
    :returns: among others ``started`` (ISO, by the coordinator's clock), ``age_seconds`` (by this machine's)
        and ``timeout_seconds``.
    :raises ConfigurationError: the coordinator does not know the id; it is foreign; the epoch is another one.
    """
    with ControlPlane(Deployment(kafka)) as control:
        found = control.cluster.describe_transaction(transactional_id)
        if found is None:
            raise ConfigurationError(
                f"the coordinator does not know the transactional id {transactional_id!r}; "
                f"a cursor's is {keys.ID_FORMS['cursor']}; a run's is in its record, and its log has it "
                "at 'Only writer of transaction'"
            )
        ours = keys.is_id_of(transactional_id, prefix)
        is_open = found.state is TransactionState.ONGOING
        # A transaction that is already being ended completes by itself, the way the coordinator has decided.
        answer = "dry run" if is_open else "ending" if found.state in _OPEN else "nothing open"
        if is_open and execute:
            _check_abort(transactional_id, prefix, found.producer_epoch, epoch, allowed=ours or foreign)
            owner = ProducerIdentity(transactional_id, found.producer_id, found.producer_epoch)
            answer = control.transactions.abort(owner).value
            _settle(control, transactional_id)
        after = control.cluster.describe_transaction(transactional_id)
    return {
        "transactional_id": transactional_id,
        "foreign": not ours,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        **times_of(found, utc_now()),
        "state_before": found.state.value,
        "state": after.state.value if after else None,
        "partitions": sorted(str(one) for one in found.partitions),
        "answer": answer,
        "done": is_open and execute,
    }


def oldest_open_transaction(
    kafka: Mapping[str, Any], transactional_ids: Sequence[str]
) -> dict[str, Any] | None:
    """Return the one of these transactions that is open for the longest time, None when none is.

    As ``{"transactional_id", "started", "age_seconds", "timeout_seconds"}``, see :func:`abort_transaction`.
    """
    with ControlPlane(Deployment(kafka)) as control:
        found = _open_ones(control, transactional_ids)
    return next(iter(found), None)


def open_transactions(kafka: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    """Return the open transactions of a prefix, the oldest first; as :func:`oldest_open_transaction`.

    Those that this principal may not Describe are left out.
    """
    with ControlPlane(Deployment(kafka)) as control:
        ids = control.cluster.open_transactional_ids()
        return _open_ones(control, sorted(one for one in ids if keys.is_id_of(one, prefix)))


def _open_ones(control: ControlPlane, transactional_ids: Sequence[str]) -> list[dict[str, Any]]:
    described = {name: control.cluster.describe_transaction(name) for name in transactional_ids}
    found = [
        {"transactional_id": name, **times_of(one, utc_now())}
        for name, one in described.items()
        if one is not None and one.state in _OPEN
    ]
    return sorted(found, key=lambda one: -float(one["age_seconds"]))


def _check_abort(name: str, prefix: str, epoch: int, expected: int | None, *, allowed: bool) -> None:
    """Refuse to end what nobody has looked at, or what is somebody else's."""
    if not allowed:
        raise ConfigurationError(
            f"{name!r} is not of the prefix {prefix!r}: another environment or application owns the "
            "transaction, and may be at work; --foreign ends it all the same"
        )
    if expected != epoch:
        raise ConfigurationError(
            f"the open transaction of {name!r} has producer epoch {epoch}, {expected} was given: look again "
            "without --yes, then give the epoch that is shown"
        )


def times_of(found: TransactionStatus, now: dt.datetime) -> dict[str, Any]:
    """Return when an open transaction began, how long ago, and when it is ended by itself.

    As ``{"started", "age_seconds", "timeout_seconds"}``: ISO, seconds, seconds; the first two are None where
    nothing is open.
    """
    times: dict[str, Any] = {"started": None, "age_seconds": None, "timeout_seconds": found.timeout_ms / 1000}
    if found.state in _OPEN and found.start_ms >= 0:  # of one that is over the coordinator keeps the start
        started = dt.datetime.fromtimestamp(found.start_ms / 1000, dt.timezone.utc)
        age = max(0.0, (now - started).total_seconds())
        times |= {"started": keys.utc_text(started), "age_seconds": round(age, 1)}
    return times


def dismiss_record(
    kafka: Mapping[str, Any],
    settings: LedgerSettings,
    key: str,
    *,
    routing: str,
    prefix: str = DEFAULT_PREFIX,
    execute: bool = True,
) -> dict[str, Any]:
    """Write a tombstone over a ledger record that no run wrote, or garbage, where there is none of ours.

    The key is unused then: a run that it names is done (again).

    :param key: as the ledger has it, such as ``run:<run key>``.
    :param routing: the pipeline of a run, the group of a cursor.
    :param execute: False only says what is there.
    :raises ConfigurationError: no such record, or one of ours is there too, which is what counts.
    """
    with ControlPlane(Deployment(kafka, settings, prefix)) as control:
        tp = control.authority.place(routing)
        view = control.ledger.view(tp.partition, [key])
        offset = view.no_evidence.get(key)
        value = control.authority.peek([key], routing=routing).get(key)
        if isinstance(value, LedgerText) and not has_version(value):
            # In somebody's transaction; a run's record may have been there.
            offset, value = value.where[1], None
        if offset is None or value is not None:
            raise ConfigurationError(
                f"{tp} holds no record of {key!r} that could be dismissed: "
                + ("there is none of others" if offset is None else "there is one of ours, which counts")
            )
        if execute:
            session = control.transactions.fence(keys.ledger_transactional_id(prefix, settings.topic))
            try:
                session.begin()
                session.stage("", {}, [LedgerMessage(key, None, routing)])
                session.commit()
            finally:
                session.close()
    return {"key": key, "partition": tp.partition, "offset": offset, "done": execute}


def sign_ledger(
    kafka: Mapping[str, Any],
    settings: LedgerSettings,
    *,
    prefix: str = DEFAULT_PREFIX,
    execute: bool = True,
) -> dict[str, Any]:
    """Let what a ledger holds now count without a signature, and nothing that is written later.

    For a ledger that was used before it had a key.

    :param execute: False only says from which offsets on records would have to be signed.
    :raises ConfigurationError: the settings have no key.
    :raises LedgerMissing: there is no ledger.
    """
    with ControlPlane(Deployment(kafka, settings, prefix)) as control:
        if not control.ledger.key:
            raise ConfigurationError("there is no key to sign with: set [eos] ledger_key")
        # Not verified: its identity may be what lacks the signature.
        partitions = control.ledger.describe().topic_partitions
        ends = {tp.partition: end for tp, end in sorted(control.cluster.log_ends(partitions).items())}
        if execute:
            message = LedgerMessage(keys.SIGNED_KEY, signed_from_json(ends), keys.LEDGER_IDENTITY_ROUTING)
            session = control.transactions.fence(keys.ledger_transactional_id(prefix, settings.topic))
            try:
                session.begin()
                session.stage("", {}, [message])
                session.commit()
            finally:
                session.close()
    return {"from": ends, "done": execute}


def index_ledger(
    kafka: Mapping[str, Any], settings: LedgerSettings, *, prefix: str = DEFAULT_PREFIX
) -> list[dict[str, Any]]:
    """Index all that is decided in each partition of the ledger, whatever has to be read for it.

    :raises LedgerMissing: there is no ledger.
    :raises OutcomeUnknown: others kept writing the index of a partition.
    """
    with ControlPlane(Deployment(kafka, settings, prefix)) as control:
        known = control.verify_ledger()
        keeper = control.index_keeper(known.prefix)
        done = {partition: rebuilt(keeper, partition) for partition in range(known.partitions)}
    return [
        {"partition": partition, "through": one.through, "keys": one.keys, "leaves": one.leaves}
        for partition, one in done.items()
    ]


MIN_AGE = dt.timedelta(days=1)
"""Younger records are not pruned: a retry, or an answer that was lost, may still need them."""


def prune_ledger(
    kafka: Mapping[str, Any],
    settings: LedgerSettings,
    before: dt.datetime,
    *,
    pipeline: str | None = None,
    prefix: str = DEFAULT_PREFIX,
    execute: bool = True,
) -> dict[str, Any]:
    """Remove the records of runs that committed before a moment; it reads the whole ledger.

    See :class:`~airflow_eos.engine.pruner.Pruner`.

    :param before: aware.
    :param pipeline: only its runs.
    :param execute: False only says how many there are.
    :raises ConfigurationError: the moment is less than a day ago.
    :raises LedgerMissing: there is no ledger.
    :raises OutcomeUnknown: what an earlier one left open was ended; call again.
    """
    if before > utc_now() - MIN_AGE:
        raise ConfigurationError(
            f"{keys.utc_text(before)} is less than a day ago: records that a retry may still need are kept"
        )
    moment = keys.utc_text(before)
    counts: dict[str, dict[str, int]] = {}
    with ControlPlane(Deployment(kafka, settings, prefix)) as control:
        known = control.verify_ledger()
        pruner = Pruner(
            control.cluster, control.ledger, control.transactions, control.authority, known.prefix
        )
        partitions = [*range(known.partitions)]
        if pipeline is not None:
            partitions = [control.ledger.partition_for(pipeline)]
        for partition in partitions:
            runs = pruner.old_runs(partition, moment, pipeline)
            if execute:
                pruner.prune(partition, moment, runs)
            for one in runs:
                count = counts.setdefault(one.pipeline, {"runs": 0, "records": 0})
                count["runs"] += 1
                count["records"] += len(one.run_keys)
    return {"before": moment, "pipelines": dict(sorted(counts.items())), "done": execute}


def _settle(control: ControlPlane, transactional_id: str) -> None:
    """Wait until markers are written everywhere; a time-out is no failure."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while time.monotonic() < deadline:
        found = control.cluster.describe_transaction(transactional_id)
        if found is None or found.state not in _OPEN:
            return
        time.sleep(_POLL_SECONDS)


@dataclass(frozen=True, slots=True)
class Reset:
    """Where to put a cursor.

    :param group: the consumer group.
    :param to: start or end of the log, what the ledger says, or what the group has committed.
    :param offsets: these offsets instead, per partition.
    :param topics: only these topics; default: those of the cursor.
    :param pipeline: owner of a group that has no cursor yet.
    """

    group: str
    to: Target | None = None
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    topics: Collection[str] = ()
    pipeline: str | None = None

    def __post_init__(self) -> None:
        if (self.to is None) == (not self.offsets):
            raise ConfigurationError("give either a target (earliest, latest, cursor, committed) or offsets")


def reset_cursor(
    kafka: Mapping[str, Any],
    settings: LedgerSettings,
    prefix: str,
    reset: Reset,
    *,
    execute: bool = True,
) -> dict[str, Any]:
    """Move a group's offsets and its cursor together, in one transaction that fences live runs.

    The reset is recorded in the ledger beside the cursor. A mapped cursor is moved partition by partition.

    :param execute: False only says what would change.
    :raises GroupNotEmpty: the group has live members.
    :raises OffsetsOutOfRange: an offset lies outside the log.
    :raises NotYetVisible: it is committed, and some leader does not show it.
    """
    with ControlPlane(Deployment(kafka, settings or LedgerSettings(), prefix)) as control:
        ledger = control.verify_ledger()
        work = _Work(control, reset, prefix, ledger)
        changes = work.carry_out() if execute else work.dry_run()
    return {
        "group": reset.group,
        "pipeline": work.pipeline,
        "done": execute,
        "offsets": [
            {"partition": str(tp), "committed": before, "cursor": recorded, "new": new}
            for tp, before, recorded, new in changes
        ],
    }


_Change = tuple[TopicPartition, "int | None", "int | None", int]


class _Work:
    def __init__(self, control: ControlPlane, reset: Reset, prefix: str, ledger: LedgerId) -> None:
        self._control = control
        self._reset = reset
        self._ledger = ledger
        self._moment = keys.utc_text(utc_now())
        self._known = known = self._record(control.authority.peek, None)
        if known is None and reset.pipeline is None:
            raise ConfigurationError(
                f"group {reset.group!r} has no cursor in the ledger; name the pipeline that will own it"
            )
        self.pipeline = known.pipeline if known else str(reset.pipeline)
        self._prefix = known.prefix if known else prefix
        self._mapped = known is not None and known.layout == "mapped"
        topics = (
            set(reset.topics) or {one.topic for one in reset.offsets} or set(known.topic_ids if known else ())
        )
        if not topics:
            raise ConfigurationError(f"group {reset.group!r} has no cursor in the ledger; name its topics")
        self._topics = control.cluster.describe_topics(topics)
        self._partitions = self._wanted()
        laws.group_is_empty(reset.group, control.cluster.group_members(reset.group))

    def dry_run(self) -> list[_Change]:
        return [
            change
            for only in self._works()
            for change in self._changes(self._record(self._control.authority.peek, only), only)
        ]

    def carry_out(self) -> list[_Change]:
        changes: list[_Change] = []
        for only in self._works():
            name = keys.cursor_transactional_id(self._prefix, self._reset.group, only)
            session = self._control.transactions.fence(name)
            try:
                self._refuse_unfinished(session.identity)
                # Under the fence nobody moves the cursor any more.
                before = self._record(self._control.authority.settle, only)
                mine = self._changes(before, only)
                session.begin()
                try:
                    self._stage(session, before, only, mine)
                    session.commit()
                except Exception:
                    self._control.transactions.abort(session.identity)
                    raise
            finally:
                session.close()
            self._wait_until_seen(session.identity, mine)
            changes += mine
        return changes

    def _refuse_unfinished(self, producer: ProducerIdentity) -> None:
        """Law 12: an earlier transaction of this id that a leader holds for open would be decided by ours.

        :raises OutcomeUnknown: naming the partitions.
        """
        places = {self._control.authority.place(one) for one in (self._reset.group, self.pipeline)}
        left_open = open_of(self._control.cluster, producer.producer_id, sorted(places))
        if not laws.nothing_open(left_open):
            raise OutcomeUnknown(
                f"{', '.join(map(str, sorted(left_open)))}: an earlier transaction of "
                f"{producer.transactional_id} was not ended there; run the pipeline once, which ends it, "
                "or see `airflow eos repair`"
            )

    def _wait_until_seen(self, producer: ProducerIdentity, changes: list[_Change]) -> None:
        """Law 12: a move is done when ledger and offsets show it, whatever the coordinator says.

        The next run would take what lacks its marker for aborted, and undo it.

        :raises NotYetVisible: it is committed, and a marker is missing that this principal may not write.
        """
        move = RunRecord(
            run_key=self._run_key,
            pipeline=self.pipeline,
            mode="explicit",
            run_id=self._moment,
            clear_number=0,
            try_number=0,
            group_id="",  # of no group that only goes forward
            ranges=(),
            records_read_by_partition={},
            receipts=(),
            producer=producer,
            started_at=self._moment,
            staged_at=self._moment,
        )
        Visibility(self._control.cluster, self._control.transactions).wait_for_own(
            move,
            [self._control.authority.place(self._reset.group)],
            {tp: new for tp, _, _, new in changes},
            self._reset.group,
            seconds=_SETTLE_SECONDS,
        )

    @property
    def _run_key(self) -> str:
        return keys.reset_run_key(self.pipeline, self._reset.group, self._moment)

    def _works(self) -> list[TopicPartition | None]:
        """One transaction for a whole cursor, one a partition for a mapped one."""
        return [*self._partitions] if self._mapped else [None]

    def _wanted(self) -> list[TopicPartition]:
        every = [tp for name in sorted(self._topics) for tp in self._topics[name].topic_partitions]
        unknown = sorted(set(self._reset.offsets) - set(every))
        if unknown:
            raise UnknownTopic(f"{', '.join(map(str, unknown))} does not exist")
        return sorted(self._reset.offsets) if self._reset.offsets else every

    def _record(
        self, ask: Callable[..., Mapping[str, str]], only: TopicPartition | None
    ) -> CursorRecord | None:
        key = keys.cursor_key(self._reset.group, only)
        value = ask([key], routing=self._reset.group).get(key)
        return None if value is None else CursorRecord.from_json(value, key)

    def _changes(self, before: CursorRecord | None, only: TopicPartition | None) -> list[_Change]:
        partitions = self._partitions if only is None else [only]
        cluster = self._control.cluster
        committed = cluster.committed(self._reset.group, partitions)
        recorded = {tp: (before.ends.get(tp) if before else None) for tp in partitions}
        begins, ends = cluster.log_starts(partitions), cluster.last_stable_offsets(partitions)
        changes = []
        for tp in partitions:
            offset = committed[tp].offset if tp in committed else None
            new = {
                "earliest": begins[tp],
                "latest": ends[tp],
                "cursor": recorded[tp],
                "committed": offset,
                None: self._reset.offsets.get(tp),
            }[self._reset.to]
            if new is None:
                raise ConfigurationError(
                    f"group {self._reset.group!r} has no {self._reset.to} offset for {tp}; give offsets, "
                    "or earliest or latest"
                )
            if not begins[tp] <= new <= ends[tp]:
                raise OffsetsOutOfRange(
                    f"{tp}: offset {new} is outside the log, which has {begins[tp]} to {ends[tp]}"
                )
            changes.append((tp, offset, recorded[tp], new))
        return changes

    def _stage(
        self, session: Any, before: CursorRecord | None, only: TopicPartition | None, changes: list[_Change]
    ) -> None:
        new = {tp: offset for tp, _, _, offset in changes}
        after = self._moved(before, new)
        run_key = after.run_key
        group = self._reset.group
        partition = self._control.ledger.partition_for(group)
        metadata = keys.offset_metadata(run_key, partition, self._ledger.topic_id)
        audit = {
            "v": 1,
            "group": group,
            "pipeline": self.pipeline,
            "changes": [[str(tp), was, recorded, offset] for tp, was, recorded, offset in changes],
        }
        messages = [
            LedgerMessage(keys.cursor_key(group, only), after.to_json(), group),
            LedgerMessage(keys.reset_key(group, self._moment, only), json.dumps(audit), group),
        ]
        if only is not None and self._known is not None:
            layout = replace(
                self._known, topic_ids=after.topic_ids, partition_counts=self._counts(self._known)
            )
            messages.append(LedgerMessage(keys.cursor_key(group), layout.to_json(), group))
        session.stage(group, {tp: CommittedOffset(offset, metadata) for tp, offset in new.items()}, messages)

    def _moved(self, before: CursorRecord | None, new: Mapping[TopicPartition, int]) -> CursorRecord:
        topics: Mapping[str, TopicDescription] = self._topics
        kept = dict(before.ends) if before else {}
        if before is not None:
            # Offsets of a topic that was made again mean nothing.
            kept = {
                tp: end
                for tp, end in kept.items()
                if tp.topic not in topics or before.topic_ids.get(tp.topic) == topics[tp.topic].topic_id
            }
        return CursorRecord(
            group=self._reset.group,
            pipeline=self.pipeline,
            prefix=self._prefix,
            layout="mapped" if self._mapped else "whole",
            ends={**kept, **new},
            topic_ids={
                **(before.topic_ids if before else {}),
                **{name: one.topic_id for name, one in topics.items()},
            },
            partition_counts=self._counts(before),
            run_key=self._run_key,
            ledger_topic_id=self._ledger.topic_id,
            ledger_partitions=self._ledger.partitions,
            origin=before.origin if before else "",
        )

    def _counts(self, before: CursorRecord | None) -> dict[str, int]:
        return counts_kept(
            before,
            {name: one.topic_id for name, one in self._topics.items()},
            {name: one.partitions for name, one in self._topics.items()},
        )
