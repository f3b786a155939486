"""Signs ledger records: who may write to the topic and has no key makes none."""

from __future__ import annotations

import hashlib
import hmac
import struct

from airflow_eos.exceptions import ConfigurationError

HEADER = "airflow-eos-signature"
"""Header of a ledger record that holds its signature, 32 bytes; it is the first one."""
_CONTEXT_1 = b"airflow-eos ledger record 1"
_CONTEXT = b"airflow-eos ledger record 2"
_SHORTEST = 16


class LedgerKey:
    """The secrets of a ledger; without one nothing is signed, and nothing has to be.

    A signature is HMAC-SHA256 over topic, topic id, partition, producer id, epoch, key and value, each with
    its length. Producer id and epoch are those of the record's batch: brokers let nobody else write them, so
    that others cannot write a signed record again, at another place or later. Each cluster numbers its
    producers itself; the topic id (KIP-516) tells its ledger from the ledgers of other clusters. Signatures
    of version 1 lack it.

    :param text: secrets, separated by white space: the first one signs, each is believed. Empty: none.
    :raises ConfigurationError: a secret is shorter than 16 characters.
    """

    __slots__ = ("_secrets",)

    def __init__(self, text: str = "") -> None:
        self._secrets = tuple(one.encode() for one in text.split())
        if any(len(one) < _SHORTEST for one in self._secrets):
            raise ConfigurationError(
                f"a secret of the ledger's key has fewer than {_SHORTEST} characters: make one with "
                "`openssl rand -base64 32`"
            )

    def __repr__(self) -> str:
        return f"LedgerKey({'***' if self else ''})"

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def sign(
        self,
        topic: str,
        topic_id: str,
        partition: int,
        producer: tuple[int, int],
        key: str,
        value: str | None,
    ) -> bytes | None:
        """Return the signature of a record, None without a key.

        :param topic_id: of the ledger topic, as Kafka writes it.
        :param producer: id and epoch of the batch it stands in.
        :param value: None: a tombstone.
        """
        if not self._secrets:
            return None
        return _digest(self._secrets[0], topic, topic_id, partition, producer, key, value)

    def made(
        self,
        signature: bytes | None,
        topic: str,
        topic_id: str,
        partition: int,
        producer: tuple[int, int],
        key: str,
        value: str | None,
        *,
        version_1: bool = False,
    ) -> bool:
        """Tell whether a signature is one of ours, made of exactly this.

        :param version_1: believe signatures without the topic id, too.
        """
        if signature is None:
            return False
        topic_ids = (topic_id, None) if version_1 else (topic_id,)
        return any(
            hmac.compare_digest(signature, _digest(secret, topic, signed_id, partition, producer, key, value))
            for secret in self._secrets
            for signed_id in topic_ids
        )


def _digest(
    secret: bytes,
    topic: str,
    topic_id: str | None,
    partition: int,
    producer: tuple[int, int],
    key: str,
    value: str | None,
) -> bytes:
    """Return the signature of version 2, or of version 1 where the topic id is None."""
    texts = [one.encode() for one in (topic, key, value or "")]
    lengths = [len(texts[0]), len(texts[1]), -1 if value is None else len(texts[2])]
    if topic_id is not None:
        texts.append(topic_id.encode())
        lengths.append(len(texts[-1]))
    sizes = struct.pack(f">{3 + len(lengths)}q", partition, *producer, *lengths)
    context = _CONTEXT_1 if topic_id is None else _CONTEXT
    return hmac.digest(secret, b"".join((context, sizes, *texts)), hashlib.sha256)
