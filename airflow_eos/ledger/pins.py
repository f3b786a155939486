"""Pins: values fixed once, in the ledger, by a small transaction of their own.

Whoever needs a pinned value fences the pin's transactional id, reads the ledger, writes the value if it is
absent, and commits. Two that pin at the same time fence each other; the one that loses reads what the other
wrote. Nobody uses a value before its marker is seen: a pin whose marker a broker left out is aborted and made
anew.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping

from airflow_eos.exceptions import ConfigurationError, PlanError, RunFenced
from airflow_eos.ledger.authority import Authority
from airflow_eos.ledger.writer import LedgerTransaction, LedgerWriter
from airflow_eos.model.ledger import LedgerMessage

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 12

Compute = Callable[[Mapping[str, str], Callable[[], Mapping[str, str]]], str]
"""Makes a value of what is pinned, as far as the prefixes ask for it; the function returns all of it."""


class Pins:
    """Pins values under fences.

    :param writer: takes and ends the pins' own transactions.
    :param authority: says what is pinned already.
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
        prefixes: tuple[str, ...] = (),
    ) -> str:
        """Return the pinned value of ``key``, fixing it first where it is absent.

        :param compute: makes the value, under the fence; gets the committed values of ``prefixes``.
        :raises PlanError: what ``compute`` raises, or when others kept fencing this pin.
        """
        pinned = self._authority.peek([key], routing=routing).get(key)
        attempt = 0
        while pinned is None:
            attempt += 1
            if attempt > MAX_ATTEMPTS:
                raise PlanError(
                    f"{key} could not be pinned in {MAX_ATTEMPTS} attempts: other runs kept fencing it; retry"
                )
            pinned = self._attempt(transactional_id, key, routing, compute, prefixes)
            if pinned is None:
                self._sleep(random.uniform(0.05, 0.2) * attempt)
                pinned = self._authority.peek([key], routing=routing).get(key)
        return pinned

    def _attempt(
        self,
        transactional_id: str,
        key: str,
        routing: str,
        compute: Compute,
        prefixes: tuple[str, ...],
    ) -> str | None:
        try:
            with self._writer.fenced(transactional_id, [self._authority.place(routing)]) as transaction:
                known = self._authority.settle([key], routing=routing, prefixes=prefixes)
                if key in known:
                    return known[key]
                value = compute(known, lambda: self._all_known(key, routing, prefixes))
                return self._write(transaction, LedgerMessage(key, value, routing))
        except RunFenced as fenced:
            log.info("the ledger entry %r was not written here: %s", key, fenced)
            return None

    def _write(self, transaction: LedgerTransaction, message: LedgerMessage) -> str | None:
        """Return the value once its marker is in the ledger; None: the ledger has to be asked."""
        try:
            transaction.commit([message])
            transaction.wait_until_seen()
        except (PlanError, ConfigurationError):
            raise
        except Exception as failure:  # noqa: BLE001 - whatever it was, the ledger says what came of it
            log.info(
                "the ledger entry %r was not written here (%s): the ledger is asked whether another task has "
                "written it",
                message.key,
                failure,
            )
            return None
        return message.value

    def _all_known(self, key: str, routing: str, prefixes: tuple[str, ...]) -> Mapping[str, str]:
        whole = [str(prefix) for prefix in prefixes]
        return self._authority.settle([key], routing=routing, prefixes=whole)
