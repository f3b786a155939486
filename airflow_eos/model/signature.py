"""Signs ledger records: who may write to the topic and has no key makes none."""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from collections.abc import Mapping
from typing import Any

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.versioned import integer, read_versioned

HEADER = "airflow-eos-signature"
"""Header of a ledger record that holds its signature, 32 bytes; it is the first one."""
_SIGNED_VERSION = 1
_CONTEXT = b"airflow-eos ledger record 1"
_SHORTEST = 16


class LedgerKey:
    """The secrets of a ledger; without one nothing is signed, and nothing has to be.

    A signature is HMAC-SHA256 over topic, partition, producer id, epoch, key and value, each with its length.
    Producer id and epoch are those of the record's batch: brokers let nobody else write them, so that others
    cannot write a signed record again, at another place or later.

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
        self, topic: str, partition: int, producer: tuple[int, int], key: str, value: str | None
    ) -> bytes | None:
        """Return the signature of a record, None without a key.

        :param producer: id and epoch of the batch it stands in.
        :param value: None: a tombstone.
        """
        if not self._secrets:
            return None
        return _digest(self._secrets[0], topic, partition, producer, key, value)

    def made(
        self,
        signature: bytes | None,
        topic: str,
        partition: int,
        producer: tuple[int, int],
        key: str,
        value: str | None,
    ) -> bool:
        """Tell whether a signature is one of ours, made of exactly this."""
        return signature is not None and any(
            hmac.compare_digest(signature, _digest(secret, topic, partition, producer, key, value))
            for secret in self._secrets
        )


def _digest(
    secret: bytes, topic: str, partition: int, producer: tuple[int, int], key: str, value: str | None
) -> bytes:
    name, of_key, content = topic.encode(), key.encode(), (value or "").encode()
    sizes = struct.pack(
        ">qqqqqq", partition, *producer, len(name), len(of_key), -1 if value is None else len(content)
    )
    return hmac.digest(secret, b"".join((_CONTEXT, sizes, name, of_key, content)), hashlib.sha256)


def signed_from_json(offsets: Mapping[int, int]) -> str:
    """Return the record that says which records need no signature: those below an offset per partition."""
    data = {"v": _SIGNED_VERSION, "from": {str(one): offset for one, offset in sorted(offsets.items())}}
    return json.dumps(data, separators=(",", ":"))


def signed_from(value: str, key: str) -> Mapping[int, int]:
    """Read it.

    :param key: of the ledger record, for the message.
    :raises LedgerUnreadable: it is none, or of a newer version.
    """

    def build(data: Mapping[str, Any]) -> Mapping[int, int]:
        return {int(one): integer(offset) for one, offset in data["from"].items()}

    return read_versioned("record of what is signed", value, (_SIGNED_VERSION,), build, key)
