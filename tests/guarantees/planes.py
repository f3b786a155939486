"""Data planes of the experiments: transforms and faults of the local plane."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from airflow_eos.exceptions import SendError
from airflow_eos.model.identity import ProducerIdentity
from tests.integration.run_support import LocalDataPlane, LocalSealed, Out, Row


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


class ManyBatchesPlane(LocalDataPlane):
    """Batches of a few records, so that a send takes many requests."""

    batch_bytes = 400
