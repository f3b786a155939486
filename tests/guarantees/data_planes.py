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
    """A running count: its last value, read from the sink itself, plus the events, if there are any.

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
    """Every record gets a number that no two executions give alike."""

    def transform(self, rows: Sequence[Row]) -> Sequence[Out]:
        return [Out(b"%s %d" % (row.value, random.getrandbits(60)), row.key) for row in rows]


class RoutedPlane(LocalDataPlane):
    """Rows choose their topic: numbers that end in 0 are dead letters, odd ones have a topic too."""

    def transform(self, rows: Sequence[Row]) -> Sequence[Out]:
        sink = str(self._spec.sink_topic)
        found = []
        for row in rows:
            last = (row.value or b"")[-1:]
            topic = f"{sink}-dead" if last == b"0" else f"{sink}-odd" if int(last) % 2 else sink
            found.append(Out(row.value, row.key, topic))
        return found


class FailsOncePlane(LocalDataPlane):
    """The first send of a run writes everything and then fails, as if an executor had been lost."""

    def send(self, sealed: LocalSealed, identity: ProducerIdentity, timeout: float) -> Sequence[Any]:
        receipts = super().send(sealed, identity, timeout)
        if not getattr(self, "_failed", False):
            self._failed = True
            raise SendError("an executor was lost")
        return receipts


class FailsOnceRandomPlane(FailsOncePlane, RandomPlane):
    """Both."""


class EvaluatesAgainPlane(FailsOnceRandomPlane):
    """What no seal must do: a send that is repeated computes every other target again."""

    def seal(self, plan: Any) -> LocalSealed:
        self._plan = plan
        return super().seal(plan)

    def send(self, sealed: LocalSealed, identity: ProducerIdentity, timeout: float) -> Sequence[Any]:
        if getattr(self, "_failed", False):
            again = super().seal(self._plan).batches
            mixed = {**sealed.batches, **{where: again[where] for where in sorted(again)[::2]}}
            sealed = replace(sealed, batches=mixed)
        return super().send(sealed, identity, timeout)


class LosesBlocksPlane(LocalDataPlane):
    """What was sealed first is lost for good, half way through its send, as with all its executors."""

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
    """Both."""


class ManyBatchesPlane(LocalDataPlane):
    """Batches of a few records, so that a send takes many requests."""

    batch_bytes = 400


class Executor:
    """A process that sends, half of its partitions first; it can be stopped there.

    :ivar error: what its send ended with, None where it went well.
    """

    def __init__(self, *arguments: Any) -> None:
        self._pipe, theirs = processes.Pipe()
        self._process = processes.Process(target=_execute, args=(*arguments, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.error: Exception | None = None

    def wait_half(self) -> None:
        """Wait until the first half is acknowledged; it goes on with :meth:`result`."""
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
            others = {where: batches[where] for where in rest}
            receipts += send_partitions(connections, identity, others, timeout=timeout)
        except Exception as failure:
            error = failure
    pipe.send((receipts, error))


class ExecutorPlane(LocalDataPlane):
    """Sends in a process of its own, as an executor does; a subclass may stop it half way."""

    def half_written(self, executor: Executor) -> None:
        """Called when half is written."""

    def send(self, sealed: LocalSealed, identity: ProducerIdentity, timeout: float) -> Sequence[Any]:
        executor = Executor(self._config, identity, sealed.batches, timeout)
        executor.wait_half()
        self.half_written(executor)
        return executor.result()
