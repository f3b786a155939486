"""The index of a ledger partition: the offset of the last decided record of each key.

It is stored in the partition itself, and derived from it alone. A *leaf* has the places of neighbouring keys;
the *root* says which offsets the index covers, and where its leaves are. Keys are sorted, so that the next
runs of a pipeline are near its last ones, and a look-up by prefix works like one by key.

The index only says where to look. A look-up reads every indexed record in the log; if the log does not
confirm it, the index is unusable and the whole partition is read instead. The *absence* of a key is trusted
only if a transaction of this package wrote the root, the leaf is byte for byte the one that the root names,
and all records after the covered offsets were read.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from airflow_eos.model.versioned import (
    VersionedOfTransaction,
    integer,
    json_of_transaction,
    read_versioned,
    text,
)

INDEX_VERSION = 1
LEAF_ENTRIES = 2_000
LEAF_CHARACTERS = 250_000
"""Characters of keys in a leaf, before compression; far below the brokers' default message limit."""
_DIGEST = 20

PlaceKind = Literal["record", "tombstone", "other"]
_KINDS: tuple[PlaceKind, ...] = ("record", "tombstone", "other")


class IndexUnusable(Exception):
    """The index cannot answer this look-up, which must read the whole partition instead."""


class IndexDamaged(IndexUnusable):
    """The index is permanently unusable: the log does not have a leaf or a record that it names."""


class Place(NamedTuple):
    """The offset of the last decided record of a key.

    :param kind: ``other`` if the last record was not written by a transaction of this package.
    """

    offset: int
    kind: PlaceKind


@dataclass(frozen=True, slots=True)
class IndexKeys:
    """The ledger keys of an index.

    :param leaves: prefix of the key of a leaf, followed by its digest.
    """

    root: str
    leaves: str

    def leaf(self, digest: str) -> str:
        """Return the key of a leaf."""
        return self.leaves + digest

    def __contains__(self, key: str) -> bool:
        return key == self.root or key.startswith(self.leaves)


@dataclass(frozen=True, slots=True)
class OwnKeys:
    """The keys of the records that a ledger holds about itself; without them it is read as a plain log.

    :param identity: of the record in partition 0 that says with how many partitions the ledger was made;
        empty: as many as the topic has.
    :param signed: of the record in partition 0 that says from which offsets on records are signed; empty
        for none.
    :param index: of the records that index a partition; None: look-ups read the whole partition.
    """

    identity: str = ""
    signed: str = ""
    index: IndexKeys | None = None


@dataclass(frozen=True, slots=True)
class Around:
    """A key prefix of which a look-up needs only the neighbours of one key; it may return more.

    :param needed: number of neighbours needed on each side of it, in key order.
    """

    prefix: str
    key: str
    needed: int


def may_speak_for(last_stable_offset: int, high_watermark: int) -> int:
    """Return the end of the offsets that an index may cover: all records below it are decided (law 3)."""
    return min(last_stable_offset, high_watermark)


@dataclass(frozen=True, slots=True)
class LeafAt:
    """A root's reference to a leaf.

    :param digest: digest of the leaf's content; also the last part of its ledger key.
    """

    first: str
    offset: int
    digest: str


@dataclass(frozen=True, slots=True)
class IndexRoot(VersionedOfTransaction):
    """The root.

    :param topic_id: id of the ledger topic; the offsets are not valid in a copy of the topic.
    :param through: the index covers all records below this offset.
    :param recent: places that are not in a leaf yet; they take precedence over the leaves.
    """

    KIND = "index"
    VERSIONS = (INDEX_VERSION,)

    topic_id: str
    through: int = 0
    leaves: tuple[LeafAt, ...] = ()
    recent: Mapping[str, Place] = field(default_factory=dict)

    def _content(self) -> Mapping[str, Any]:
        content = {
            "topic_id": self.topic_id,
            "through": self.through,
            "leaves": [[leaf.first, leaf.offset, leaf.digest] for leaf in self.leaves],
            "recent": _columns(self.recent),
        }
        return {"content": _packed(content)}

    @classmethod
    def _of(cls, data: Mapping[str, Any]) -> IndexRoot:
        content = _unpacked(text(data["content"]))
        return cls(
            text(content["topic_id"]),
            integer(content["through"]),
            tuple(LeafAt(text(first), integer(at), text(sum_)) for first, at, sum_ in content["leaves"]),
            _places(content["recent"]),
        )

    def leaf_of(self, key: str) -> LeafAt | None:
        """Return the leaf that may have a key; None if the key is below the first leaf."""
        index = bisect_right([leaf.first for leaf in self.leaves], key) - 1
        return self.leaves[index] if index >= 0 else None

    def leaves_with(self, prefix: str) -> Sequence[LeafAt]:
        """Return the leaves that may have keys with this prefix."""
        firsts = [leaf.first for leaf in self.leaves]
        begin = max(bisect_right(firsts, prefix) - 1, 0)
        return [leaf for leaf in self.leaves[begin:] if leaf.first <= prefix or leaf.first.startswith(prefix)]

    def places(
        self,
        keys: Iterable[str],
        prefixes: Collection[str | Around],
        read: Callable[[LeafAt], Mapping[str, Place]],
        read_before: Collection[str] = (),
    ) -> dict[str, Place]:
        """Return the places of the last records of these keys; an absent key has no record.

        :param read_before: keys whose last records are beyond the index; they are omitted.
        :raises IndexUnusable: raised by ``read``.
        """
        places: dict[str, Place] = {}
        for key in keys:
            place = self.recent.get(key)
            if place is None and (leaf := self.leaf_of(key)) is not None:
                place = read(leaf).get(key)
            if place is not None:
                places[key] = place
        for prefix in prefixes:
            if isinstance(prefix, Around):
                places |= self._around(prefix, read, read_before)
                continue
            leaf_entries = [entries for leaf in self.leaves_with(prefix) for entries in read(leaf).items()]
            places.update((key, place) for key, place in leaf_entries if key.startswith(prefix))
            places.update((key, place) for key, place in self.recent.items() if key.startswith(prefix))
        return {key: place for key, place in places.items() if key not in read_before}

    def _around(
        self, wanted: Around, read: Callable[[LeafAt], Mapping[str, Place]], read_before: Collection[str]
    ) -> dict[str, Place]:
        """Return the neighbours of a key, reading leaves outwards on both sides of it."""
        leaves = self.leaves_with(wanted.prefix)
        at = bisect_right([leaf.first for leaf in leaves], wanted.key)
        neighbours: dict[str, Place] = {}
        for side, ordered in ((-1, reversed(leaves[:at])), (1, leaves[max(at - 1, 0) :])):
            candidates: dict[str, Place] = dict(self._beside(wanted, self.recent, side, read_before))
            for leaf in ordered:
                beside = self._beside(wanted, read(leaf), side, read_before)
                candidates.update((key, place) for key, place in beside if key not in self.recent)
                if len(candidates) >= wanted.needed + len(self.recent):
                    break
            for key in sorted(candidates, reverse=side < 0)[: wanted.needed]:
                neighbours[key] = candidates[key]
        return neighbours

    @staticmethod
    def _beside(
        wanted: Around, places: Mapping[str, Place], side: int, read_before: Collection[str]
    ) -> list[tuple[str, Place]]:
        return [
            (key, place)
            for key, place in places.items()
            if key.startswith(wanted.prefix)
            and (key < wanted.key if side < 0 else key > wanted.key)
            and key not in read_before
            and place.kind != "tombstone"
        ]


def leaf_json(places: Mapping[str, Place], producer: tuple[int, int]) -> str:
    """Return the versioned JSON form of a leaf."""
    return json_of_transaction(INDEX_VERSION, producer, {"content": _packed(_columns(places))})


def leaf_digest(places: Mapping[str, Place]) -> str:
    """Return the digest of a leaf's content."""
    return hashlib.sha256(json.dumps(_columns(places), sort_keys=True).encode()).hexdigest()[:_DIGEST]


def read_leaf(value: str, at: LeafAt) -> Mapping[str, Place]:
    """Read a leaf.

    :raises IndexDamaged: it is not the leaf that the root names.
    :raises LedgerUnreadable: the value is not a leaf, or of another version.
    """
    places = read_versioned(
        "leaf of the index",
        value,
        (INDEX_VERSION,),
        lambda data: _places(_unpacked(text(data["content"]))),
    )
    if leaf_digest(places) != at.digest:
        raise IndexDamaged(f"the leaf at offset {at.offset} is not the one that the root names")
    return places


def split(places: Mapping[str, Place]) -> list[dict[str, Place]]:
    """Divide places among leaves of about equal size, in key order; return the leaves' contents."""
    ordered = sorted(places)
    ends = list(accumulate(len(key) for key in ordered))
    if not ends:
        return []
    count = max(-(-len(ordered) // LEAF_ENTRIES), -(-ends[-1] // LEAF_CHARACTERS))
    size = -(-len(ordered) // count)
    return [{key: places[key] for key in ordered[at : at + size]} for at in range(0, len(ordered), size)]


# -- content: columns, compressed --


def _columns(places: Mapping[str, Place]) -> dict[str, Any]:
    ordered = sorted(places)
    return {
        "keys": ordered,
        "offsets": [places[key].offset for key in ordered],
        "kinds": "".join(places[key].kind[0] for key in ordered),
    }


_BY_LETTER: Mapping[str, PlaceKind] = {kind[0]: kind for kind in _KINDS}


def _places(data: Mapping[str, Any]) -> dict[str, Place]:
    return {
        text(key): Place(integer(offset), _BY_LETTER[kind])
        for key, offset, kind in zip(data["keys"], data["offsets"], data["kinds"], strict=True)
    }


def _packed(content: Mapping[str, Any]) -> str:
    return base64.b64encode(zlib.compress(json.dumps(content, separators=(",", ":")).encode())).decode()


_LARGEST = 64 << 20


def _unpacked(content: str) -> Any:
    unpacking = zlib.decompressobj()
    try:
        data = unpacking.decompress(base64.b64decode(content, validate=True), _LARGEST)
    except zlib.error as error:
        raise ValueError(f"not compressed by this package: {error}") from error
    if not unpacking.eof:
        raise ValueError(f"larger than {_LARGEST} bytes")
    return json.loads(data)
