"""One experiment per fault: hold a run at a state, inject it, check that the run or its next try commits."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_eos.exceptions import EosError
from airflow_eos.run.states import State
from airflow_eos_testing import Broker
from airflow_eos_testing.exceptions import DriverDied, EmbeddedDriverError
from airflow_eos_testing.faults import HALF_WRITTEN
from chaos.playground import GROUP, LEDGER, SINK, Playground, process_of
from chaos.report import Outcome
from chaos.table import Cell, Fault
from chaos.zombie_requests import zombie_requests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_eos.ledger.records.run_record import RunRecord
    from airflow_eos.model.spec import RunSpec
    from airflow_eos_testing.faults import Attempt, DriverProcess
    from chaos.airflow_task import AirflowTasks
    from chaos.drivers import ClusterDriver, DriverPool

log = logging.getLogger(__name__)

_NEXT_TRY, _TRIES = 2, 5
_TIMEOUT = 240.0
_STORM_SECONDS = 8.0
_OUTAGE_SECONDS = 5.0
_COUNT_TIMEOUT = 10.0
"""Seconds within which the proxy counts the faults of a run that has ended."""
_WAKES_AFTER_COMMIT = (State.OPEN, State.WRITTEN, State.PROVEN)
"""States where a zombie could publish its output: in the table it wakes after another try has committed."""
_COMMITTED_ITSELF = "had committed itself"
# Error codes of Kafka's protocol.
_INVALID_RECORD = 87
_CORRUPT_MESSAGE = 2


class Experiments:
    """Runs cells of the table. Each starts a new run of the pipeline, and ends when it is committed.

    :param slow: sometimes use variants that take a whole time-out, too.
    """

    def __init__(
        self,
        playground: Playground,
        pool: DriverPool,
        cluster: ClusterDriver,
        airflow: AirflowTasks,
        chance: random.Random,
        *,
        slow: bool = True,
    ) -> None:
        self._playground = playground
        self._pool = pool
        self._cluster = cluster
        self._airflow = airflow
        self._chance = chance
        self._slow = slow
        self._zombies: set[State] = set()
        self._do: dict[Fault, Callable[[State], Outcome]] = {
            Fault.BROKER: lambda state: self._broker(state, playground.sink_leader),
            Fault.COORDINATOR: lambda state: self._broker(state, playground.coordinator),
            Fault.DISK: lambda state: self._broker(state, playground.sink_leader, Broker.fill_disk),
            Fault.ALL_REPLICAS: self._all_replicas,
            Fault.DRIVER: self._driver,
            Fault.ZOMBIE: self._zombie,
            Fault.EXECUTOR: self._executor,
            Fault.PRODUCE_ACK: self._produce_ack,
            Fault.END_TXN_ACK: self._end_txn_ack,
            Fault.AIRFLOW_TASK: self._airflow.kill_at,
        }

    def run(self, cell: Cell) -> Outcome:
        """Inject the cell's fault once; return when its run is committed."""
        return self._do[cell.fault](cell.state)

    def run_with_broker_killed(self, cell: Cell) -> Outcome:
        """Run the cell and kill a random broker at a random moment, unless the cell has ended by then."""
        self._playground.wait_whole()
        broker = self._chance.choice(self._playground.kafka.brokers)
        killed: list[Broker] = []

        def kill() -> None:
            broker.kill()
            killed.append(broker)

        killer = threading.Timer(self._chance.uniform(0, _STORM_SECONDS), kill)
        killer.start()
        try:
            outcome = self.run(cell)
        finally:
            killer.cancel()
            killer.join()
            for each in killed:
                each.start(wait=False)
        if not killed:
            return outcome
        return Outcome(f"{outcome.text}; a broker killed beside it", outcome.seconds, outcome.faults + 1)

    def plain_run(self) -> RunRecord:
        """Execute a run without a fault, and return its record."""
        with self._pool.lent() as driver:
            return self._run_until_committed(driver, self._playground.next_run(), 1)[0]

    # -- brokers ------------------------------------------------------------------------------------------

    def _all_replicas(self, state: State) -> Outcome:
        """Kill all brokers for some seconds: each has a replica of every sink partition, so none is left."""
        spec = self._playground.next_run()
        self._playground.wait_whole()
        with self._pool.lent() as driver:
            attempt = self._held(driver, spec, state)
            for broker in self._playground.kafka.brokers:
                broker.kill()
            begun = time.monotonic()
            try:
                attempt.release(for_good=True)
                time.sleep(_OUTAGE_SECONDS)
            finally:
                for broker in self._playground.kafka.brokers:
                    broker.start(wait=False)
            return self._outcome_of(driver, spec, attempt, begun)

    def _broker(
        self, state: State, choose: Callable[[], Broker], damage: Callable[[Broker], None] = Broker.kill
    ) -> Outcome:
        spec = self._playground.next_run()
        self._playground.wait_whole()
        with self._pool.lent() as driver:
            attempt = self._held(driver, spec, state)
            broker = choose()
            damage(broker)
            begun = time.monotonic()
            try:
                attempt.release(for_good=True)
                outcome = self._outcome_of(driver, spec, attempt, begun)
            finally:
                broker.start(wait=False)  # it recovers during the next cells
        return outcome

    # -- drivers ------------------------------------------------------------------------------------------

    def _driver(self, state: State) -> Outcome:
        spec = self._playground.next_run()
        with self._pool.lent() as driver:
            attempt = self._held(driver, spec, state)
            driver.kill()
            begun = time.monotonic()
            try:
                attempt.result()
            except DriverDied:
                pass
            else:
                raise RuntimeError("the run of a dead driver succeeded")
        with self._pool.lent() as driver:
            record, number = self._run_until_committed(driver, spec, _NEXT_TRY)
        seconds = time.monotonic() - begun
        # A later try may find a commit of the second one whose answer was lost.
        if number == _NEXT_TRY:
            _require(record.found == (state is State.COMMITTED), _next_try(record))
        return Outcome(_next_try(record), seconds)

    def _zombie(self, state: State) -> Outcome:
        """Freeze a driver at the state until the next try has committed; then try all a zombie could do."""
        spec = self._playground.next_run()
        with self._pool.lent() as driver, self._pool.lent() as successor:
            attempt = self._held(driver, spec, state)
            identity = self._playground.current_identity()
            driver.pause()
            begun = time.monotonic()
            try:
                live: Attempt | None = None
                if self._wakes_early(state):
                    # The zombie wakes while its successor's transaction is open, and must not touch it.
                    live = self._held(successor, replace(spec, try_number=2), State.WRITTEN)
                    seconds = time.monotonic() - begun
                else:
                    record, _ = self._run_until_committed(successor, spec, 2)
                    seconds = time.monotonic() - begun
            finally:
                attempt.release(for_good=True)
                driver.resume()
            zombie = _zombie_end(attempt)
            _require(state is State.COMMITTED or zombie != _COMMITTED_ITSELF, f"the zombie {zombie}")
            refused = zombie_requests(self._playground, identity) if state is not State.COMMITTED else ""
            if live is not None:
                live.release(for_good=True)
                record = live.result(_TIMEOUT)
            again, _ = self._run_until_committed(driver, spec, 1)
            _require(again.found, "the zombie's own retry did the work a second time")
        when = "woke before the commit" if live is not None else "woke after the commit"
        return Outcome(f"{_next_try(record)}; zombie {when}: {zombie}{refused}", seconds)

    def _wakes_early(self, state: State) -> bool:
        """Return whether to wake the zombie while its successor's transaction is still open."""
        if state is State.COMMITTED:
            return False
        if state not in self._zombies:
            self._zombies.add(state)
            return state not in _WAKES_AFTER_COMMIT
        return self._chance.random() < 1 / 2

    # -- executors ----------------------------------------------------------------------------------------

    def _executor(self, state: State) -> Outcome:
        spec = self._playground.next_run()
        cluster, driver = self._cluster.get()
        attempt = self._held(driver, spec, state, half=True)
        executors = cluster.wait_for_executors(2, driver.application_id)
        # Kill one that has run tasks: a new one, in place of a dead one, holds nothing of this run.
        busy = [pid for pid in executors if cluster.python_workers(pid)]
        begun = time.monotonic()
        cluster.kill_executor(self._chance.choice(busy or executors))
        attempt.release(for_good=True)
        outcome = self._outcome_of(driver, spec, attempt, begun)
        _require(state is not State.OPEN or _has_aborted(attempt), "half of a send was lost, nothing aborted")
        return outcome

    # -- answers ------------------------------------------------------------------------------------------

    def _produce_ack(self, state: State) -> Outcome:
        """Lose the ack of an executor's batch (OPEN), or of the driver's ledger records (WRITTEN)."""
        topic = SINK if state is State.OPEN else LEDGER
        spec = self._playground.behind_proxy(self._playground.next_run())
        with self._pool.lent() as driver:
            attempt = self._held(driver, spec, state, half=False)
            fault = self._playground.proxy.lose_response("Produce", containing=topic)
            try:
                begun = time.monotonic()
                attempt.release(for_good=True)
                outcome = self._outcome_of(driver, spec, attempt, begun)
                fault.wait(_COUNT_TIMEOUT)
            finally:
                fault.cancel()
        return outcome

    def _end_txn_ack(self, state: State) -> Outcome:
        """Lose the answer of the commit (PROVEN), or of an abort that a second fault causes (before)."""
        spec = self._playground.behind_proxy(self._playground.next_run())
        with self._pool.lent() as driver:
            attempt = self._held(driver, spec, state, half=False)
            # An open connection without an answer is the commit's worst case: it takes the whole time-out.
            silent = self._slow and state is State.PROVEN and self._chance.random() < 1 / 3
            fault = self._playground.proxy.lose_response(
                "EndTxn", silent=silent, containing=self._playground.transactional_id
            )
            try:
                with self._failing(state):
                    begun = time.monotonic()
                    attempt.release(for_good=True)
                    _wait_over(attempt)
                    fault.wait(_COUNT_TIMEOUT)
                outcome = self._outcome_of(driver, spec, attempt, begun)
            finally:
                fault.cancel()
        of = "commit" if state is State.PROVEN else "abort"
        _require(
            state is State.PROVEN or _has_aborted(attempt), "nothing aborted: the commit's answer was lost"
        )
        how = ", connection left open" if silent else ""
        return Outcome(f"answer of the {of} lost{how}; {outcome.text}", outcome.seconds)

    @contextmanager
    def _failing(self, state: State) -> Iterator[None]:
        """Make a held attempt fail for a separate reason, so that it must abort."""
        proxy = self._playground.proxy
        if state is State.OPEN:
            fault = proxy.refuse("Produce", _CORRUPT_MESSAGE, containing=SINK)
        elif state is State.WRITTEN:
            fault = proxy.refuse("Produce", _INVALID_RECORD, containing=LEDGER)
        elif state is State.STAGED:
            with self._member():
                yield
            return
        else:
            yield
            return
        try:
            yield
            fault.wait(_COUNT_TIMEOUT)
        finally:
            fault.cancel()

    @contextmanager
    def _member(self) -> Iterator[None]:
        """Keep a live member in the cursor's group, so that the proof refuses to commit."""
        from confluent_kafka import Consumer

        consumer = Consumer(
            {**self._playground.kafka.client_config(), "group.id": GROUP, "enable.auto.commit": False}
        )
        try:
            consumer.subscribe([SINK])
            deadline = time.monotonic() + 60
            while not consumer.assignment():
                consumer.poll(0.1)
                if time.monotonic() > deadline:
                    raise RuntimeError("the disturbing consumer got no assignment")
            yield
        finally:
            consumer.close()

    # -- runs ---------------------------------------------------------------------------------------------

    def _held(
        self, driver: DriverProcess, spec: RunSpec, state: State, *, half: bool | None = None
    ) -> Attempt:
        """Start a try and wait until it is held; OPEN is either at its beginning, or half written.

        :param half: whether half written; None: random.
        """
        point: State | str = state
        if state is State.OPEN and (half or (half is None and self._chance.random() < 2 / 3)):
            point = HALF_WRITTEN
        self._playground.wait_for_input()
        attempt = driver.run(spec, process_of(spec), stop_at=point)
        attempt.wait_for(point, _TIMEOUT)
        return attempt

    def _outcome_of(self, driver: DriverProcess, spec: RunSpec, attempt: Attempt, begun: float) -> Outcome:
        """Wait for a try's end, and retry if it failed, as Airflow does."""
        try:
            record = attempt.result(_TIMEOUT)
        except EmbeddedDriverError:
            raise
        except EosError as error:
            log.warning("%s: %s: %s", spec.run_id, type(error).__name__, error)
            record, _ = self._run_until_committed(driver, spec, 2)
            text = f"{type(error).__name__}, {_next_try(record)}"
        else:
            aborted = sum(point == State.ABORTED.value for point, _ in attempt.trace)
            unknown = any(point == State.UNKNOWN.value for point, _ in attempt.trace)
            text = "the same try committed"
            if aborted:
                text += f" after {aborted} abort{'s' if aborted > 1 else ''}"
            if unknown:
                text += ", outcome asked from the ledger"
        return Outcome(text, time.monotonic() - begun)

    def _run_until_committed(
        self, driver: DriverProcess, spec: RunSpec, number: int
    ) -> tuple[RunRecord, int]:
        """Retry until the run is committed; return the record and the number of the try."""
        while True:
            try:
                attempt = driver.run(replace(spec, try_number=number), process_of(spec))
                return attempt.result(_TIMEOUT), number
            except EmbeddedDriverError:
                raise
            except EosError:
                if number >= _TRIES:
                    raise
            number += 1


def _wait_over(attempt: Attempt) -> None:
    """Wait until a try has ended, whether it failed or not."""
    try:
        attempt.result(_TIMEOUT)
    except EmbeddedDriverError:
        raise
    except EosError:
        pass


def _has_aborted(attempt: Attempt) -> bool:
    """Return whether an ended try has aborted a transaction, or failed."""
    if any(point == State.ABORTED.value for point, _ in attempt.trace):
        return True
    try:
        attempt.result()
    except EosError:
        return True
    return False


def _require(condition: object, otherwise: str) -> None:
    """Fail a cell whose fault did not have its intended effect: it would prove nothing."""
    if not condition:
        raise RuntimeError(otherwise)


def _zombie_end(attempt: Attempt) -> str:
    """Return how a zombie ended."""
    try:
        record = attempt.result(_TIMEOUT)
    except EmbeddedDriverError:
        raise
    except EosError as error:
        return type(error).__name__
    return "found the commit" if record.found else _COMMITTED_ITSELF


def _next_try(record: RunRecord) -> str:
    return "next try found the commit" if record.found else "next try committed"
