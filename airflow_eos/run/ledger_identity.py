"""Tells whether this is the ledger that was used before.

A look-up in a replaced ledger would answer *not committed* for everything.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from airflow_eos.exceptions import LedgerMissing, LedgerReplaced
from airflow_eos.model.broker import TopicDescription
from airflow_eos.model.spec import LedgerSettings
from airflow_eos.run import identity
from airflow_eos.run.authority import Authority
from airflow_eos.run.pins import Pins
from airflow_eos.run.ports import Ledger


@dataclass(frozen=True, slots=True)
class KnownLedger:
    """A ledger that is the one used before.

    :param prefix: first part of the transactional ids of all that it fixes once: of its first user, so that
        environments that share it fence each other there. Ledgers that do not name one have the asker's.
    """

    topic_id: str
    partitions: int
    prefix: str


def verify(
    ledger: Ledger,
    authority: Authority,
    pins: Pins,
    settings: LedgerSettings,
    prefix: str,
    *,
    may_create: bool,
) -> KnownLedger:
    """Return the ledger's topic id and partition count, after checking them against what it says of itself.

    The first user pins both in partition 0 of the ledger, with its prefix. Adding partitions would route keys
    elsewhere; making the topic again would forget every run: both are found here.

    :param may_create: create a missing ledger, or adopt one without an identity; never on a retry or a clear.
    :raises LedgerMissing: when there is none, or none with an identity, and none may be made.
    :raises LedgerReplaced: when topic id or partition count differ from the pinned ones.
    """
    try:
        topic = ledger.describe(patient=not may_create)
    except LedgerMissing:
        if not may_create:
            raise
        ledger.create()
        topic = ledger.describe()
    key = identity.LEDGER_IDENTITY_KEY
    routing = identity.LEDGER_IDENTITY_ROUTING
    pinned = authority.peek([key], routing=routing).get(key)
    if pinned is None and not may_create:
        # Whoever pins goes on when its commit is answered; the marker that tells others comes after that.
        pinned = authority.decide([key], routing=routing).get(key)
    if pinned is None:
        if not may_create:
            raise LedgerMissing(
                f"topic {settings.topic!r} exists but was never initialised as a ledger; if it is new, run "
                "`python -m airflow_eos init`; if it was re-created, restore it: runs committed "
                "before are unknown to it"
            )
        pinned = pins.pin(
            identity.ledger_transactional_id(prefix, settings.topic),
            key,
            routing,
            lambda _: _identity_json(topic, prefix),
        )
    recorded = json.loads(pinned)
    if (recorded["topic_id"], recorded["partitions"]) != (topic.topic_id, topic.partitions):
        raise LedgerReplaced(
            f"ledger {settings.topic!r} was made as topic id {recorded['topic_id']} with "
            f"{recorded['partitions']} partitions and is "
            f"now {topic.topic_id} with {topic.partitions}: restore the original; partitions of a "
            "ledger must never be added"
        )
    return KnownLedger(topic.topic_id, topic.partitions, recorded.get("prefix", prefix))


def _identity_json(topic: TopicDescription, prefix: str) -> str:
    return json.dumps(
        {"v": 1, "topic_id": topic.topic_id, "partitions": topic.partitions, "prefix": prefix},
        separators=(",", ":"),
    )
