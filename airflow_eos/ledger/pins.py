"""Pins: values fixed once, in the ledger, by a small transaction of their own.

Whoever needs a pinned value fences the pin's transactional id, reads the ledger, writes the value if it is
absent, and commits. Two that pin at the same time fence each other; the one that loses reads what the other
wrote.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping

from airflow_eos.exceptions import ConfigurationError, PlanError
from airflow_eos.ledger.authority import Authority
from airflow_eos.model.kafka import EndTxnAnswer
from airflow_eos.model.ledger import LedgerMessage
from airflow_eos.ports import ProducerSession, Transactions

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 12
SEEN_SECONDS = 15.0
"""A pin's marker takes milliseconds; a ledger partition without a leader takes a fail-over."""
_POLL_SECONDS = 0.02


Compute = Callable[[Mapping[str, str], Callable[[], Mapping[str, str]]], str]
"""Makes a value of what is pinned, as far as the prefixes ask for it; the function returns all of it."""


class Pins:
    """Pins values under fences.

    :param transactions: takes and ends the pins' own transactions.
    :param authority: says what is pinned already.
    """

    def __init__(
        self,
        transactions: Transactions,
        authority: Authority,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._transactions = transactions
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
        session = self._transactions.fence(transactional_id)
        try:
            known = self._known(session, key, routing, prefixes)
            if known is None:
                return None
            if key in known:
                return known[key]
            value = compute(known, lambda: self._all_known(key, routing, prefixes))
            try:
                session.begin()
                session.stage("", {}, [LedgerMessage(key, value, routing)])
                session.commit()
            except (PlanError, ConfigurationError):
                raise
            except Exception as failure:  # noqa: BLE001 - whatever it was, the ledger says what came of it
                answer = self._transactions.abort(session.identity)
                log.info(
                    "the ledger entry %r was not written here (%s; its transaction: %s): the ledger is asked "
                    "whether another task has written it",
                    key,
                    failure,
                    answer.value,
                )
                if answer is EndTxnAnswer.ENDED or answer is EndTxnAnswer.FENCED:
                    return None
            return self._seen(key, routing)
        finally:
            session.close()

    def _known(
        self, session: ProducerSession, key: str, routing: str, prefixes: tuple[str, ...]
    ) -> Mapping[str, str] | None:
        """Return what is pinned; None: an earlier pin of this id was left open, which is aborted now.

        Nobody has used its value: a pin counts when its marker is seen, not when the coordinator says that it
        is committed (:mod:`airflow_eos.run.unfinished`).
        """
        verdict = self._authority.look([key], routing=routing, prefixes=prefixes)
        if any(one.producer_id == session.identity.producer_id for one in verdict.open_records):
            log.warning("the ledger entry %r was left without its end; that is ended, and it is written", key)
            session.close()
            self._transactions.abort_again(session.identity, [self._authority.place(routing)])
            return None
        return self._authority.settle([key], routing=routing, prefixes=prefixes)

    def _all_known(self, key: str, routing: str, prefixes: tuple[str, ...]) -> Mapping[str, str]:
        whole = [str(prefix) for prefix in prefixes]
        return self._authority.settle([key], routing=routing, prefixes=whole)

    def _seen(self, key: str, routing: str) -> str | None:
        """Return the pinned value once its marker is in the ledger; None: it was left out, or is late."""
        deadline = self._clock() + SEEN_SECONDS
        while (value := self._authority.peek([key], routing=routing).get(key)) is None:
            if self._clock() >= deadline:
                return None
            self._sleep(_POLL_SECONDS)
        return value
