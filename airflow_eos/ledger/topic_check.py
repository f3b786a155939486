"""Checks that the ledger topic is the one that was used before.

A look-up in a replaced ledger would answer *not committed* for every run.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from airflow_eos.exceptions import ConfigurationError, LedgerMissing, LedgerReplaced
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import Authority, answer_of
from airflow_eos.ledger.pins import Pins
from airflow_eos.ledger.records.identity import IdentityRecord
from airflow_eos.ledger.witnesses import Testimony, Witnesses
from airflow_eos.model.kafka import TopicDescription
from airflow_eos.model.ledger import LedgerId, LedgerValue
from airflow_eos.model.spec import DEFAULT_PREFIX, LedgerSettings, MayCreate
from airflow_eos.ports import Ledger

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LedgerCheck:
    """Checks the ledger against its identity record.

    The first user pins topic id and partition count in partition 0 of the ledger, with its prefix. The check
    detects a topic that was created again, which would forget every run. Keys stay where they are when
    partitions are added: they are routed by the pinned count.

    :param witnesses: asked if the ledger or its identity is missing.
    """

    ledger: Ledger
    authority: Authority
    pins: Pins
    settings: LedgerSettings
    prefix: str
    witnesses: Witnesses
    may_create: MayCreate

    def verified(self) -> LedgerId:
        """Return the ledger's topic id and partition count.

        :raises ConfigurationError: the identity is missing, and the topic deletes records, or the ledger is
            signed and the settings have no key.
        :raises LedgerMissing: the ledger or its identity is missing, and may not be created.
        :raises LedgerReplaced: the topic id differs from the pinned one, or the identity is missing and a
            witness knows that there was a ledger.
        """
        topic = self._existing_or_created()
        own = _own_records(self.authority, self.settings)
        identity = self._pinned_identity(topic, own)
        if identity.topic_id != topic.topic_id:
            raise LedgerReplaced(
                f"ledger {self.settings.topic!r} was made as topic id {identity.topic_id} and is now "
                f"{topic.topic_id}: restore the original"
            )
        self.ledger.route_over(identity.partitions)
        prefix = identity.prefix or self.prefix
        return LedgerId(identity.topic_id, identity.partitions, prefix, _any_signed(own))

    def _existing_or_created(self) -> TopicDescription:
        """Return the ledger topic; create it if it does not exist and may be created."""
        try:
            return self.ledger.describe(wait=False)
        except LedgerMissing as missing:
            refusal = self._refusal()
            if refusal is None:
                self.ledger.create()
                return self.ledger.describe()
            try:
                return self.ledger.describe()  # with retries: the broker's metadata may be stale
            except LedgerMissing:
                if isinstance(refusal, LedgerReplaced):
                    raise LedgerMissing(str(refusal)) from missing
                raise

    def _pinned_identity(self, topic: TopicDescription, own: Mapping[str, LedgerValue]) -> IdentityRecord:
        """Return the ledger's identity; pin it if there is none and it may be pinned."""
        key, routing = keys.LEDGER_IDENTITY_KEY, keys.LEDGER_IDENTITY_ROUTING
        if key in own:
            return IdentityRecord.from_json(own[key], key)
        refuse_unsigned(_any_signed(own), self.settings)
        refusal = self._refusal()
        begun = answer_of(self.ledger.view(0, [key])).open_records
        if refusal is not None and not (begun and self.may_create is not MayCreate.NEVER):
            # The writer of the pin continues once its commit is answered; the marker becomes visible later.
            settled = self.authority.record(IdentityRecord, key, routing=routing, fenced=True)
            if settled is None:
                raise refusal
            return settled
        policy = self.ledger.cleanup_policy()
        if "delete" in policy:
            raise ConfigurationError(
                f"topic {self.settings.topic!r} has cleanup.policy={policy}: a ledger that deletes records "
                "forgets runs; set compact, or name another topic"
            )
        # Finish a pin that an authorised task has begun, even if a broker left out its marker.
        pinned = self.pins.pin(
            keys.ledger_transactional_id(self.prefix, self.settings.topic),
            key,
            routing,
            lambda *_: IdentityRecord(topic.topic_id, topic.partitions, self.prefix).to_json(),
        )
        if self.prefix == DEFAULT_PREFIX:
            log.warning(
                "the new ledger %s is used with the default prefix %r: where another environment may use "
                "this cluster, give each its own [eos] prefix and ledger_topic before there are runs",
                self.settings.topic,
                self.prefix,
            )
        return IdentityRecord.from_json(pinned, key)

    def _refusal(self) -> LedgerMissing | LedgerReplaced | None:
        """Return why the ledger must not be created; None if it may."""
        if self.may_create is MayCreate.ANYWAY:
            return None
        # A run that may not create one needs no witness, and may lack the permission to ask one.
        testimony = Testimony() if self.may_create is MayCreate.NEVER else self.witnesses.testify()
        if lost := lost_ledger(testimony, self.settings.topic):
            return lost
        may_begin = self.may_create is MayCreate.WHERE_BEGUN and testimony.begun
        if may_begin or self.may_create is MayCreate.WHERE_NEW:
            return None
        return LedgerMissing(
            f"topic {self.settings.topic!r} was never initialised as a ledger, and this run may not do it; "
            "if there never was one, run `python -m airflow_eos init`; if there was, restore it: "
            "runs committed before are unknown to an empty one"
        )


def is_signed(authority: Authority, settings: LedgerSettings) -> bool:
    """Return whether a ledger's own records are signed; False if the records are missing."""
    return _any_signed(_own_records(authority, settings))


def refuse_unsigned(is_signed: bool, settings: LedgerSettings) -> None:
    """Refuse to write to a signed ledger without a key.

    :raises ConfigurationError: names the setting.
    """
    if is_signed and not settings.key:
        raise ConfigurationError(
            f"the ledger {settings.topic!r} is signed, and this environment has no [eos] ledger_key: what it "
            "writes would be ignored by all others, and compaction would remove signed records for it. Set "
            "the key that the ledger's other users have"
        )


def lost_ledger(testimony: Testimony, topic: str) -> LedgerReplaced | None:
    """Return the error of a lost ledger; None if no witness knows of an earlier one."""
    if not testimony.of_a_ledger:
        return None
    return LedgerReplaced(
        f"the ledger {topic!r} is not there or has no identity, but {testimony.of_a_ledger}: "
        "it was deleted or re-created. Restore it: to an empty one every run is uncommitted, "
        "and what is cleared or retried is written again. Where that is known to be harmless: "
        "`python -m airflow_eos init --adopt-new`"
    )


def replaced_ledger(ledger: TopicDescription, ledger_id: LedgerId) -> LedgerReplaced:
    """Return the error of a run during which the ledger was created again: *not committed* proves nothing.

    :param ledger_id: the ledger that the run began with.
    """
    return LedgerReplaced(
        f"the ledger {ledger.topic!r} had topic id {ledger_id.topic_id} when this run began, and has "
        f"{ledger.topic_id} now: it was deleted and recreated meanwhile. Restore the original"
    )


def _own_records(authority: Authority, settings: LedgerSettings) -> Mapping[str, LedgerValue]:
    """Return the identity and, without a key, the record that says from which offsets on it is signed."""
    own = [keys.LEDGER_IDENTITY_KEY] if settings.key else [keys.LEDGER_IDENTITY_KEY, keys.SIGNED_KEY]
    return authority.peek(own, routing=keys.LEDGER_IDENTITY_ROUTING)


def _any_signed(records: Mapping[str, LedgerValue]) -> bool:
    return any(value.is_signed for value in records.values())
