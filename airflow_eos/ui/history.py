"""The runs of a ledger in memory, for pages and listings."""

from __future__ import annotations

from collections.abc import Collection

from airflow_eos.broker.ledger_log.reader import LedgerChange, LedgerReader
from airflow_eos.closeable import Closeable
from airflow_eos.coverage.folded import Earlier
from airflow_eos.coverage.lanes import Reset
from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import LedgerUnreadable
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.horizon import Horizon
from airflow_eos.ledger.records.intent import Intent
from airflow_eos.ledger.records.reset import ResetRecord
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.ledger import LedgerValue
from airflow_eos.model.spec import Deployment
from airflow_eos.ui.broker_answers import BrokerAnswers
from airflow_eos.ui.known_runs import AskBrokers, KnownRuns, PipelineHistory

RUNS_KEPT = 2_000
"""Records of one pipeline in memory; older records are reduced to the offsets they read."""
CHARACTERS_KEPT = 32 << 20
"""Characters of JSON of all records in memory; above it the largest pipeline drops its oldest records."""
_UNREADABLE_KEPT = 100


class RunHistory(KnownRuns, Closeable):
    """Keeps the committed runs of a ledger in memory: :meth:`refresh` reads new ones. Writes nothing.

    Bounded by :data:`RUNS_KEPT` and :data:`CHARACTERS_KEPT`. Only one thread may refresh it at a time; others
    may read it meanwhile: a refresh changes copies, which replace :attr:`pipelines` and :attr:`intents` at
    its end.
    """

    def __init__(
        self, deployment: Deployment, *, runs_kept: int = RUNS_KEPT, characters_kept: int = CHARACTERS_KEPT
    ) -> None:
        self._control = ControlPlane(deployment)
        kinds = (keys.RUN_RECORDS, keys.RESETS, keys.HORIZONS, keys.INTENTS)
        reader = LedgerReader(self._control.ledger, self._control.link, kinds)
        super().__init__(deployment, {}, {}, reader, (), BrokerAnswers(deployment))
        self._runs_kept, self._characters_kept = runs_kept, characters_kept
        self._verified = False
        self._characters = 0
        self._dead: dict[str, tuple[int, int]] = {}
        self._next: dict[str, PipelineHistory] = {}
        self._copied: set[str] = set()
        self._resets: dict[str, tuple[Reset, ...]] = {}
        self._next_intents: dict[str, Intent] = {}

    def close(self) -> None:
        """Close all connections."""
        self.brokers.close()
        self._control.close()

    def as_of_now(self, ask_brokers: AskBrokers, damaged: Collection[tuple[str, str]]) -> KnownRuns:
        """Return the runs of the last refresh for one query, with its own function to call brokers."""
        return KnownRuns(
            self.deployment,
            self.pipelines,
            self.intents,
            self.reader,
            self.unreadable,
            self.brokers,
            ask_brokers,
            damaged,
        )

    def refresh(self) -> None:
        """Read the records committed since the last refresh.

        :raises LedgerMissing: there is no ledger, and there never was one.
        :raises LedgerReplaced: the ledger is not the one that was used before, or is lost.
        """
        with self._control.refusing_lost_ledger():
            if not self._verified:
                self._control.ledger.describe(wait=False)  # a page does not wait for a topic to appear
                self._control.verify_ledger()
                self._verified = True
            self._refresh()

    def _refresh(self) -> None:
        for _ in range(2):
            self._next, self._copied = dict(self.pipelines), set()
            self._next_intents = dict(self.intents)
            try:
                if self.reader.look():
                    self._forget()
                is_outdated = self._read()
                if is_outdated:
                    self.reader.start_over()
                    self._forget()
            finally:
                # What was read before an error is not read again.
                self.pipelines, self.intents = self._next, self._next_intents
            if not is_outdated:
                return

    def _forget(self) -> None:
        self._next.clear()
        self._characters = 0
        self._resets.clear()
        self._next_intents.clear()
        self.unreadable = ()

    def _read(self) -> bool:
        """Add new records; return whether the whole ledger must be read again.

        This is necessary after the dismissal of a record of which only the reads are kept, and after a new
        record of the signed offsets.
        """
        is_outdated = False
        first = not self._next
        for change in self.reader.changes():
            if change.key == keys.SIGNED_KEY:
                is_outdated |= not first
            elif change.value is None:
                is_outdated |= self._apply_tombstone(change)
            elif (place := self._dead.get(change.key)) is None or place[1] < change.offset:
                self._apply(change, change.value)
        return is_outdated

    def _apply_tombstone(self, change: LedgerChange) -> bool:
        """Apply a tombstone; return whether its record may be one of which only the reads are kept."""
        place = self._dead.get(change.key)
        if place is not None and place[1] >= change.offset:
            return False
        self._dead[change.key] = (change.partition, change.offset)
        self._next_intents.pop(change.key, None)
        if not keys.is_run_record(change.key):
            return False
        name = change.key.removeprefix(keys.RUN_RECORDS)
        owner = next((pipeline.name for pipeline in self._next.values() if name in pipeline.runs), None)
        if owner is None:
            return any(pipeline.earlier.runs for pipeline in self._next.values())
        pipeline = self._mutable(owner)
        self._characters -= pipeline.drop(name)
        if not pipeline.runs and not pipeline.earlier.runs:
            del self._next[owner]
        return False

    def _apply(self, change: LedgerChange, value: LedgerValue) -> None:
        try:
            if keys.is_run_record(change.key):
                self._add(_record_of(change.key, value), len(value.text))
            elif change.key.startswith(keys.HORIZONS):
                horizon = Horizon.from_json(value, change.key)
                self._mutable(horizon.pipeline).pruned = Earlier.of_horizon(horizon)
            elif change.key.startswith(keys.INTENTS):
                self._next_intents[change.key] = Intent.from_json(value, change.key)
            else:
                self._add_reset(change.key, value)
        except LedgerUnreadable as error:
            if len(self.unreadable) < _UNREADABLE_KEPT:
                self.unreadable = (*self.unreadable, str(error))

    def _add(self, record: RunRecord, size: int) -> None:
        pipeline = self._mutable(record.pipeline)
        self._characters += size - pipeline.add(record, size)
        if len(pipeline.runs) > self._runs_kept:
            self._characters -= pipeline.forget_oldest()
        while self._characters > self._characters_kept:
            largest = max(self._next.values(), key=lambda pipeline: pipeline.characters)
            if len(largest.runs) == 1:
                return
            self._characters -= self._mutable(largest.name).forget_oldest()

    def _add_reset(self, key: str, value: LedgerValue) -> None:
        record = ResetRecord.from_json(value, key)
        # reset:<group>/<moment>, and the partition of a mapped cursor
        moment = key.removeprefix(keys.reset_key(record.group, "")).split("/", 1)[0]
        resets = (*self._resets.get(record.pipeline, ()), Reset.of(moment, record))
        self._resets[record.pipeline] = resets
        if record.pipeline in self._next:
            self._mutable(record.pipeline).resets = resets

    def _mutable(self, name: str) -> PipelineHistory:
        """Return a mutable pipeline for the next state."""
        if name not in self._copied:
            history = self._next.get(name)
            self._next[name] = (
                history.copy() if history else PipelineHistory(name, resets=self._resets.get(name, ()))
            )
            self._copied.add(name)
        return self._next[name]


def _record_of(key: str, value: LedgerValue) -> RunRecord:
    record = RunRecord.from_json(value, key)
    if keys.run_record_key(record.run_key) != key:
        raise LedgerUnreadable(
            f"the ledger's record {key!r} ({value.place}) is of another run: {record.run_key!r}"
        )
    return record
