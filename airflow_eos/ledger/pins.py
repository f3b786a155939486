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

from airflow_eos.exceptions import ConfigurationError, PlanError, RunFenced
from airflow_eos.ledger.authority import Authority
from airflow_eos.ledger.records.ledger_index import Around
from airflow_eos.ledger.writer import LedgerTransaction, LedgerWriter
from airflow_eos.model.ledger import LedgerMessage, LedgerValue

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 12
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 8.0

Compute = Callable[[Mapping[str, LedgerValue], Callable[[], Mapping[str, LedgerValue]]], str]
"""Computes a value from the pinned values of the prefixes; its second argument returns all of them."""


class Pins:
    """Pins values, each under the fence of a transactional id.

    :param writer: runs the pins' transactions.
    :param authority: reads pinned values.
    """

    def __init__(
        self, writer: LedgerWriter, authority: Authority, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._writer = writer
        self._authority = authority
        self._sleep = sleep

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
        :raises PlanError: ``compute`` raised it, or other tasks kept fencing this pin.
        """
        pinned: LedgerValue | str | None = self._authority.peek([key], routing=routing).get(key)
        attempt = 0
        while pinned is None:
            attempt += 1
            if attempt > MAX_ATTEMPTS:
                raise PlanError(
                    f"{key} could not be pinned in {MAX_ATTEMPTS} attempts: other runs kept fencing it; retry"
                )
            pinned = self._attempt(transactional_id, key, routing, compute, prefixes)
            if pinned is None:
                self._sleep(random.uniform(_SHORTEST_PAUSE, min(0.2 * 1.5**attempt, _LONGEST_PAUSE)))
                pinned = self._authority.peek([key], routing=routing).get(key)
        return pinned

    def _attempt(
        self,
        transactional_id: str,
        key: str,
        routing: str,
        compute: Compute,
        prefixes: tuple[str | Around, ...],
    ) -> LedgerValue | str | None:
        try:
            with self._writer.fenced(transactional_id, [self._authority.place(routing)]) as transaction:
                values = self._authority.settle([key], routing=routing, prefixes=prefixes)
                if key in values:
                    return values[key]
                value = compute(values, lambda: self._all_known(key, routing, prefixes))
                return self._write(transaction, LedgerMessage(key, value, routing))
        except RunFenced as fenced:
            log.info("Did not write the ledger entry %r: %s", key, fenced)
            return None

    def _write(self, transaction: LedgerTransaction, message: LedgerMessage) -> str | None:
        """Return the value once its marker is in the ledger; None if the caller must read the ledger."""
        try:
            transaction.commit([message])
            transaction.wait_until_seen()
        except (PlanError, ConfigurationError):
            raise
        except Exception as failure:  # noqa: BLE001 - the ledger decides the outcome after any error
            log.info(
                "Did not write the ledger entry %r (%s); checking whether another task has written it",
                message.key,
                failure,
            )
            return None
        return message.value

    def _all_known(
        self, key: str, routing: str, prefixes: tuple[str | Around, ...]
    ) -> Mapping[str, LedgerValue]:
        whole = [prefix.prefix if isinstance(prefix, Around) else prefix for prefix in prefixes]
        return self._authority.settle([key], routing=routing, prefixes=whole)
