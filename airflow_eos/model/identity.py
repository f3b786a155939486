"""Who writes: the identity every transactional request of one attempt carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """The (transactional id, producer id, producer epoch) of one fenced attempt (KIP-98).

    :param transactional_id: stable name of the *work*, the same for every attempt at it.
    :param producer_id: 64-bit id the transaction coordinator gave out.
    :param producer_epoch: 16-bit epoch; a higher epoch of the same producer id fences this one.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ProducerIdentity:
        """Read the JSON form."""
        return cls(str(data["transactional_id"]), int(data["producer_id"]), int(data["producer_epoch"]))
