"""Signatures of ledger records: without the key, a principal that may write to the topic cannot forge one."""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import NamedTuple

from airflow_eos.exceptions import ConfigurationError

HEADER = "airflow-eos-signature"
"""First header of a signed ledger record; its value is the signature, 32 bytes."""
_CONTEXT = b"airflow-eos ledger record 2"
_SHORTEST = 16


class SignedRecord(NamedTuple):
    """What the signature of a ledger record covers.

    :param topic_id: id of the ledger topic, as Kafka writes it.
    :param producer: producer id and epoch of the record's batch.
    :param value: None for a tombstone.
    """

    topic: str
    topic_id: str
    partition: int
    producer: tuple[int, int]
    key: str
    value: str | None

    def digest(self, secret: bytes) -> bytes:
        """Return the signature by a secret."""
        topic, key, value, topic_id = (
            text.encode() for text in (self.topic, self.key, self.value or "", self.topic_id)
        )
        lengths = len(topic), len(key), -1 if self.value is None else len(value), len(topic_id)
        sizes = struct.pack(">7q", self.partition, *self.producer, *lengths)
        return hmac.digest(secret, b"".join((_CONTEXT, sizes, topic, key, value, topic_id)), hashlib.sha256)


class LedgerKey:
    """The secrets of a ledger; without a secret, records are neither signed nor need a signature.

    A signature is HMAC-SHA256 over topic, topic id, partition, producer id, epoch, key and value, each with
    its length. Producer id and epoch are those of the record's batch: brokers do not let other producers use
    them, which prevents the replay of a signed record. Each cluster numbers its producers independently, so
    the topic id (KIP-516) distinguishes ledgers of different clusters.

    :param text: secrets, separated by whitespace: the first one signs, all of them verify. Empty for none.
    :raises ConfigurationError: a secret is shorter than 16 characters.
    """

    __slots__ = ("_secrets",)

    def __init__(self, text: str = "") -> None:
        self._secrets = tuple(secret.encode() for secret in text.split())
        if any(len(secret) < _SHORTEST for secret in self._secrets):
            raise ConfigurationError(
                f"a secret of the ledger's key has fewer than {_SHORTEST} characters: make one with "
                "`openssl rand -base64 32`"
            )

    def __repr__(self) -> str:
        return f"LedgerKey({'***' if self else ''})"

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def sign(self, record: SignedRecord) -> bytes | None:
        """Return the signature of a record; None without a secret."""
        return record.digest(self._secrets[0]) if self._secrets else None

    def verifies(self, signature: bytes | None, record: SignedRecord) -> bool:
        """Return whether a signature is valid for exactly this record."""
        return signature is not None and any(
            hmac.compare_digest(signature, record.digest(secret)) for secret in self._secrets
        )
