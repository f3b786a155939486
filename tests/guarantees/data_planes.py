"""Data planes of the experiments: transforms and faults of the local plane."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from airflow_eos.exceptions import SealedBlockLost, SendError
from airflow_eos.model.kafka import ProducerIdentity
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.produce import send_partitions
from tests.guarantees.driver import go_on, processes, stop
from tests.support.local_runs import LocalDataPlane, LocalSealed, Out, Row

_TIMEOUT = 60.0


class CounterPlane(LocalDataPlane):
    """A running count: the last value, read from the sink itself, plus the values of the events.

    The sink is the second source topic; one partition each.
    """

    def transform(self, rows: Sequence[Row]) -> Sequence[Out]:
        counter = str(self._spec.sink_topic)
        counts = [int(row.value or b"0") for row in rows if row.topic == counter]
        events = [int(row.value or b"0") for row in rows if row.topic != counter]
        if not rows:
            return []
        return [Out(str(counts[-1] + sum(events)).encode(), b"count")]


class RandomPlane(LocalDataPlane):
    """Adds a random number to every record, another one in each evaluation."""

    def transform(self, rows: Sequence[Row]) -> Sequence[Out]:
        return [Out(b"%s %d" % (row.value, random.getrandbits(60)), row.key) for row in rows]


class RoutedPlane(LocalDataPlane):
    """Routes rows by their last digit: 0 to the dead letters, odd ones to a topic of their own."""

    def transform(self, rows: Sequence[Row]) -> Sequence[Out]:
        sink = str(self._spec.sink_topic)
        outs = []
        for row in rows:
            last = (row.value or b"")[-1:]
            topic = f"{sink}-dead" if last == b"0" else f"{sink}-odd" if int(last) % 2 else sink
            outs.append(Out(row.value, row.key, topic))
        return outs


class FailsOncePlane(LocalDataPlane):
    """The first send of a run writes everything and then fails, as if an executor had been lost."""

    def send(self, sealed: LocalSealed, identity: ProducerIdentity, timeout: float) -> Sequence[Any]:
        receipts = super().send(sealed, identity, timeout)
        if not getattr(self, "_failed", False):
            self._failed = True
            raise SendError("an executor was lost")
        return receipts


class FailsOnceRandomPlane(FailsOncePlane, RandomPlane):
    """A random transform whose first send fails."""


class EvaluatesAgainPlane(FailsOnceRandomPlane):
    """What a seal must prevent: a repeated send computes every other target again."""

    def seal(self, plan: Any) -> LocalSealed:
        self._plan = plan
        return super().seal(plan)

    def send(self, sealed: LocalSealed, identity: ProducerIdentity, timeout: float) -> Sequence[Any]:
        if getattr(self, "_failed", False):
            again = super().seal(self._plan).batches
            mixed = {**sealed.batches, **{tp: again[tp] for tp in sorted(again)[::2]}}
            sealed = replace(sealed, batches=mixed)
        return super().send(sealed, identity, timeout)


class LosesBlocksPlane(LocalDataPlane):
    """The first sealed batches are lost for good halfway through their send, as if all executors had died."""

    def send(self, sealed: LocalSealed, identity: ProducerIdentity, timeout: float) -> Sequence[Any]:
        if not hasattr(self, "_lost"):
            self._lost = sealed
            first = min(sealed.batches)
            half = replace(sealed, batches={first: sealed.batches[first]})
            super().send(half, identity, timeout)
        if sealed is self._lost:
            raise SealedBlockLost("both replicas are gone with their executors")
        return super().send(sealed, identity, timeout)


class LosesBlocksRandomPlane(LosesBlocksPlane, RandomPlane):
    """A random transform whose first sealed batches are lost."""


class ManyBatchesPlane(LocalDataPlane):
    """Batches of a few records, so that a send takes many requests."""

    batch_bytes = 400


class Executor:
    """A process that sends half of its partitions and waits; it can be stopped there.

    :ivar error: the error of its send; None if it succeeded.
    """

    def __init__(self, *arguments: Any) -> None:
        self._pipe, child_end = processes.Pipe()
        self._process = processes.Process(target=_execute, args=(*arguments, child_end), daemon=True)
        self._process.start()
        child_end.close()
        self.error: Exception | None = None

    def wait_half(self) -> None:
        """Wait until the first half is acknowledged; :meth:`result` lets it continue."""
        assert self._pipe.poll(_TIMEOUT)
        assert self._pipe.recv() == "half"

    def pause(self) -> None:
        """SIGSTOP."""
        stop(self._process)

    def resume(self) -> None:
        """SIGCONT."""
        go_on(self._process)

    def result(self) -> Sequence[Any]:
        """Let it write the rest; return its receipts or raise its error."""
        self._pipe.send("go")
        assert self._pipe.poll(_TIMEOUT)
        receipts, self.error = self._pipe.recv()
        self._process.join(_TIMEOUT)
        if self.error is not None:
            raise self.error
        return list(receipts)


def _execute(config: Any, identity: ProducerIdentity, batches: Any, timeout: float, pipe: Any) -> None:
    first, *rest = sorted(batches)
    receipts: list[Any] = []
    error = None
    with BrokerConnections(config) as connections:
        try:
            receipts += send_partitions(connections, identity, {first: batches[first]}, timeout=timeout)
            pipe.send("half")
            pipe.recv()
            others = {tp: batches[tp] for tp in rest}
            receipts += send_partitions(connections, identity, others, timeout=timeout)
        except Exception as failure:
            error = failure
    pipe.send((receipts, error))


class ExecutorPlane(LocalDataPlane):
    """Sends in a separate process, as an executor does; a subclass may stop it halfway."""

    def half_written(self, executor: Executor) -> None:
        """Called when half of the partitions are written."""

    def send(self, sealed: LocalSealed, identity: ProducerIdentity, timeout: float) -> Sequence[Any]:
        executor = Executor(self._config, identity, sealed.batches, timeout)
        executor.wait_half()
        self.half_written(executor)
        return executor.result()
