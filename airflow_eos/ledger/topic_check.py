"""Tells whether this is the ledger that was used before.

A look-up in a replaced ledger would answer *not committed* for everything.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from airflow_eos.exceptions import ConfigurationError, LedgerMissing, LedgerReplaced
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import Authority
from airflow_eos.ledger.pins import Pins
from airflow_eos.ledger.records.identity import IdentityRecord
from airflow_eos.ledger.witnesses import Testimony, Witnesses
from airflow_eos.model.kafka import TopicDescription
from airflow_eos.model.ledger import LedgerId, LedgerText
from airflow_eos.model.spec import DEFAULT_PREFIX, LedgerSettings, MayCreate
from airflow_eos.ports import Ledger

log = logging.getLogger(__name__)


def verify(
    ledger: Ledger,
    authority: Authority,
    pins: Pins,
    settings: LedgerSettings,
    prefix: str,
    *,
    witnesses: Witnesses,
    may_create: MayCreate,
) -> LedgerId:
    """Return the ledger's topic id and partition count, after checking them against what it says of itself.

    The first user pins both in partition 0 of the ledger, with its prefix. Adding partitions would route keys
    elsewhere; making the topic again would forget every run: both are found here.

    :param witnesses: asked where there is no ledger, or none with an identity.
    :param may_create: whether to make a ledger where there is none, or none with an identity.
    :raises ConfigurationError: an identity is missing, the ledger is signed, and the settings have no key.
    :raises LedgerMissing: when there is none, or none with an identity, and none may be made.
    :raises LedgerReplaced: when topic id or partition count differ from the pinned ones, or the topic has no
        identity and somebody remembers that it had one.
    """
    try:
        topic = ledger.describe(wait=may_create is MayCreate.NEVER)
    except LedgerMissing as missing:
        refused = _refusal(witnesses, settings.topic, may_create)
        if refused is not None:
            topic = _described(ledger, missing, refused)
        else:
            ledger.create()
            topic = ledger.describe()
    key = keys.LEDGER_IDENTITY_KEY
    routing = keys.LEDGER_IDENTITY_ROUTING
    own = _own_records(authority, settings)
    pinned = own.get(key)
    if pinned is None:
        refuse_unsigned(_any_signed(own), settings)
        refused = _refusal(witnesses, settings.topic, may_create)
        begun = authority.look([key], routing=routing).open_records
        if refused is not None and not (begun and may_create is not MayCreate.NEVER):
            # Whoever pins goes on when its commit is answered; the marker that tells others comes after that.
            pinned = authority.settle([key], routing=routing).get(key)
            if pinned is None:
                raise refused
        else:
            # A pin begun by somebody who was allowed to is finished, even where a broker forgot its marker.
            pinned = pins.pin(
                keys.ledger_transactional_id(prefix, settings.topic),
                key,
                routing,
                lambda *_: IdentityRecord(topic.topic_id, topic.partitions, prefix).to_json(),
            )
            if prefix == DEFAULT_PREFIX:
                log.warning(
                    "the new ledger %s is used with the default prefix %r: where another environment may use "
                    "this cluster, give each its own [eos] prefix and ledger_topic before there are runs",
                    settings.topic,
                    prefix,
                )
    record = IdentityRecord.from_json(pinned, key)
    made = LedgerId(record.topic_id, record.partitions, record.prefix or prefix, _any_signed(own))
    if (made.topic_id, made.partitions) != (topic.topic_id, topic.partitions):
        raise LedgerReplaced(
            f"ledger {settings.topic!r} was made as topic id {made.topic_id} with "
            f"{made.partitions} partitions and is now {topic.topic_id} with {topic.partitions}: "
            "restore the original; partitions of a ledger must never be added"
        )
    return made


def is_signed(authority: Authority, settings: LedgerSettings) -> bool:
    """Return whether a ledger's own records carry signatures; False where they are missing."""
    return _any_signed(_own_records(authority, settings))


def refuse_unsigned(is_signed: bool, settings: LedgerSettings) -> None:
    """Refuse to write without a key to a ledger that is signed.

    :raises ConfigurationError: naming the setting.
    """
    if is_signed and not settings.key:
        raise ConfigurationError(
            f"the ledger {settings.topic!r} is signed, and this environment has no [eos] ledger_key: what it "
            "writes would be ignored by all others, and compaction would remove signed records for it. Set "
            "the key that the ledger's other users have"
        )


def lost_ledger(testimony: Testimony, topic: str) -> LedgerReplaced | None:
    """Return the error of a ledger that is missing and was there before; None where nobody remembers one.

    :param topic: the ledger's.
    """
    if not testimony.of_a_ledger:
        return None
    return LedgerReplaced(
        f"the ledger {topic!r} is not there or has no identity, but {testimony.of_a_ledger}: "
        "it was deleted or re-created. Restore it: to an empty one every run is uncommitted, "
        "and what is cleared or retried is written again. Where that is known to be harmless: "
        "`python -m airflow_eos init --adopt-new`"
    )


def _own_records(authority: Authority, settings: LedgerSettings) -> Mapping[str, str]:
    """Return the identity and, where there is no key, what says from where on records are signed."""
    own = [keys.LEDGER_IDENTITY_KEY] if settings.key else [keys.LEDGER_IDENTITY_KEY, keys.SIGNED_KEY]
    return authority.peek(own, routing=keys.LEDGER_IDENTITY_ROUTING)


def _any_signed(records: Mapping[str, str]) -> bool:
    return any(isinstance(value, LedgerText) and value.is_signed for value in records.values())


def _described(ledger: Ledger, missing: LedgerMissing, refused: Exception) -> TopicDescription:
    """Ask once more, patiently: a broker may not have heard of a topic that others use already."""
    try:
        return ledger.describe()
    except LedgerMissing:
        if isinstance(refused, LedgerReplaced):
            raise LedgerMissing(str(refused)) from missing
        raise


def _refusal(
    witnesses: Witnesses, topic: str, may_create: MayCreate
) -> LedgerMissing | LedgerReplaced | None:
    """Return why no ledger may be made here; None: it may."""
    if may_create is MayCreate.ANYWAY:
        return None
    # A run that may make none needs no reason, and may lack the permission to ask for one.
    said = Testimony() if may_create is MayCreate.NEVER else witnesses.testify()
    if lost := lost_ledger(said, topic):
        return lost
    if may_create is MayCreate.WHERE_NEW or (may_create is MayCreate.WHERE_BEGUN and said.begun):
        return None
    return LedgerMissing(
        f"topic {topic!r} was never initialised as a ledger, and this run may not do it; "
        "if there never was one, run `python -m airflow_eos init`; if there was, restore it: "
        "runs committed before are unknown to an empty one"
    )
