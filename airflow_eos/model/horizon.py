"""What a ledger still knows of runs without records: that they were committed, and what they read.

A digest per run, in buckets, so that a look-up reads one of them; and per pipeline one *horizon*, with the
offsets and the intervals that those runs have read. A bucket knows exactly which runs it speaks of: a run
that was never committed, however old, is not among them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_eos.model.versioned import integer, read_versioned, text

HORIZON_VERSION = 1
DIGEST_BYTES = 10
"""Of a run key. Two of a thousand million keys are the same with a probability of about 1 to 2,400,000."""


@dataclass(frozen=True, slots=True)
class PrunedRuns:
    """The runs of a pipeline whose records are pruned and whose digests begin alike.

    :param before: the latest moment before which records were pruned, UTC.
    :param digests: hexadecimal.
    """

    before: str = ""
    digests: frozenset[str] = frozenset()

    def adding(self, before: str, digests: Iterable[str]) -> PrunedRuns:
        """Return this with more of them."""
        return PrunedRuns(max(self.before, before), self.digests | frozenset(digests))

    def to_json(self, producer: tuple[int, int]) -> str:
        """Return the versioned JSON form.

        :param producer: id and epoch of the transaction that it is written in.
        """
        packed = base64.b64encode(b"".join(bytes.fromhex(one) for one in sorted(self.digests))).decode()
        return _enclosed({"before": self.before, "digests": packed}, producer)

    @classmethod
    def from_json(cls, value: str, key: str = "") -> PrunedRuns:
        """Read the JSON form.

        :raises LedgerUnreadable: it is none, or of another version.
        """

        def build(data: Mapping[str, Any]) -> PrunedRuns:
            packed = base64.b64decode(text(data["digests"]), validate=True)
            if len(packed) % DIGEST_BYTES:
                raise ValueError("digests are cut off")
            parts = (packed[at : at + DIGEST_BYTES].hex() for at in range(0, len(packed), DIGEST_BYTES))
            return cls(text(data["before"]), frozenset(parts))

        return read_versioned("record of pruned runs", value, (HORIZON_VERSION,), build, key)


@dataclass(frozen=True, slots=True)
class Horizon:
    """What the pruned runs of a pipeline covered.

    :param pipeline: its name.
    :param before: the latest moment before which records were pruned, UTC.
    :param runs: how many runs were pruned.
    :param read: what they have read, as :meth:`airflow_eos.ledger.earlier.Earlier.to_dict` writes it.
    :param intervals: their intervals, joined where they touch: ``[topics, partition, start, end]``.
    """

    pipeline: str
    before: str = ""
    runs: int = 0
    read: Mapping[str, Any] = field(default_factory=dict)
    intervals: tuple[tuple[tuple[str, ...], int | None, str, str], ...] = ()

    def to_json(self, producer: tuple[int, int]) -> str:
        """Return the versioned JSON form, as :meth:`PrunedRuns.to_json`."""
        return _enclosed(
            {
                "pipeline": self.pipeline,
                "before": self.before,
                "runs": self.runs,
                "read": dict(self.read),
                "intervals": [[list(topics), *rest] for topics, *rest in self.intervals],
            },
            producer,
        )

    @classmethod
    def from_json(cls, value: str, key: str = "") -> Horizon:
        """Read the JSON form.

        :raises LedgerUnreadable: it is none, or of another version.
        """

        def build(data: Mapping[str, Any]) -> Horizon:
            intervals = tuple(
                (
                    tuple(text(topic) for topic in topics),
                    None if partition is None else integer(partition),
                    text(start),
                    text(end),
                )
                for topics, partition, start, end in data["intervals"]
            )
            return cls(
                text(data["pipeline"]),
                text(data["before"]),
                integer(data["runs"]),
                dict(data["read"]),
                intervals,
            )

        return read_versioned("horizon", value, (HORIZON_VERSION,), build, key)


def _enclosed(content: Mapping[str, Any], producer: tuple[int, int]) -> str:
    named = {"producer_id": producer[0], "producer_epoch": producer[1]}
    return json.dumps({"v": HORIZON_VERSION, "producer": named, **content}, separators=(",", ":"))
