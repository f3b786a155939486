"""Pins: values that are written to the ledger once, each in its own small transaction.

To get a pinned value, a task fences the pin's transactional id, reads the ledger, writes the value if it is
absent, and commits. Concurrent writers of a pin fence each other; the loser reads the value of the winner. A
value is used only after its marker is visible: a pin whose marker a broker left out is aborted and written
again.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from airflow_eos.exceptions import (
    ConfigurationError,
    DeliveryTimedOut,
    EosError,
    PlanError,
    RecordRefused,
    RunFenced,
)
from airflow_eos.ledger.authority import Authority
from airflow_eos.ledger.records.ledger_index import Around
from airflow_eos.ledger.writer import LedgerTransaction, LedgerWriter
from airflow_eos.model.ledger import LedgerMessage, LedgerValue

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 12
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 8.0

Compute = Callable[[Mapping[str, LedgerValue], Callable[[], Mapping[str, LedgerValue]]], str]
"""Computes a value from the pinned values of the prefixes; its second argument returns all of them."""


@dataclass(eq=False)
class Pins:
    """Pins values, each under the fence of a transactional id."""

    writer: LedgerWriter
    authority: Authority
    sleep: Callable[[float], None] = time.sleep

    def pin(
        self,
        transactional_id: str,
        key: str,
        routing: str,
        compute: Compute,
        prefixes: tuple[str | Around, ...] = (),
    ) -> LedgerValue | str:
        """Return the pinned value of ``key``; pins it first if it is absent: then its text.

        :param compute: computes the value under the fence, from the committed values of ``prefixes``.
        :raises PlanError: ``compute`` raised it, or no attempt succeeded: other tasks kept fencing this pin,
            or the brokers kept failing.
        :raises SendError: the ledger topic refuses the value, or does not acknowledge it in time.
        """
        attempt = 0
        while (pinned := self.authority.peek([key], routing=routing).get(key)) is None:
            attempt += 1
            try:
                return self._attempt(transactional_id, key, routing, compute, prefixes)
            except _NotWritten as failure:
                log.info("Did not write the ledger entry %r: %s", key, failure)
                if attempt == MAX_ATTEMPTS:
                    raise PlanError(
                        f"{key} could not be pinned in {MAX_ATTEMPTS} attempts; the last one: {failure}"
                    ) from failure.__cause__
            self.sleep(random.uniform(_SHORTEST_PAUSE, min(0.2 * 1.5**attempt, _LONGEST_PAUSE)))
        return pinned

    def _attempt(
        self,
        transactional_id: str,
        key: str,
        routing: str,
        compute: Compute,
        prefixes: tuple[str | Around, ...],
    ) -> LedgerValue | str:
        try:
            with self.writer.fenced(transactional_id, [self.authority.place(routing)]) as transaction:
                values = self.authority.settle([key], routing=routing, prefixes=prefixes)
                if key in values:
                    return values[key]
                whole = [prefix.prefix if isinstance(prefix, Around) else prefix for prefix in prefixes]
                settle_all = partial(self.authority.settle, [key], routing=routing, prefixes=whole)
                value = compute(values, settle_all)
                self._write(transaction, LedgerMessage(key, value, routing))
                return value
        except RunFenced as fenced:
            raise _NotWritten(fenced.message) from fenced

    def _write(self, transaction: LedgerTransaction, message: LedgerMessage) -> None:
        """Write the value, and wait until its marker is in the ledger.

        :raises _NotWritten: the caller must read the ledger, which decides the outcome.
        """
        try:
            transaction.commit([message])
            transaction.wait_until_seen()
        except (PlanError, ConfigurationError, DeliveryTimedOut, RecordRefused):
            raise
        except Exception as failure:
            reason = failure.message if isinstance(failure, EosError) else str(failure)
            raise _NotWritten(reason) from failure


class _NotWritten(Exception):
    """An attempt did not write its value; the ledger may hold that of another task."""
