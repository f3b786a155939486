"""JSON forms of values; parses those of ledger values, versioned, which may come from untrusted writers."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from airflow_eos.exceptions import ConfigurationError, LedgerUnreadable
from airflow_eos.model.ledger import LedgerValue

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)

T = TypeVar("T")
V = TypeVar("V", bound="LedgerForm")
_SHOWN = 60
_REFUSALS = (
    ArithmeticError,
    AttributeError,
    ConfigurationError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
_INT64 = range(-(2**63), 2**63)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class JsonForm:
    """Base of dataclasses with a JSON form that has all of their fields, under the same names."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)  # type: ignore[call-overload]


class LedgerForm:
    """A value of the ledger: a dataclass whose JSON form has a version.

    :cvar KIND: the kind of value, for errors.
    :cvar VERSIONS: the versions that can be read; the first one is written, unless the content has another.
    """

    __slots__ = ()
    KIND: ClassVar[str]
    VERSIONS: ClassVar[tuple[int, ...]]

    def _content(self) -> Mapping[str, Any]:
        """Return the JSON form without version and writer."""
        return asdict(self)  # type: ignore[call-overload]

    @classmethod
    def from_json(cls, value: LedgerValue | str | bytes | Mapping[str, Any], key: str = "") -> Self:
        """Read the JSON form: a ledger value, text, or already parsed.

        :param key: key of the ledger record, for errors.
        :raises LedgerUnreadable: the value is not of this kind, or of another version.
        """
        return read_versioned(cls.KIND, value, cls.VERSIONS, cls._of, key)

    @classmethod
    def _of(cls, data: Mapping[str, Any]) -> Self:
        """Build the value from its parsed form; see :func:`read_versioned` for what this may raise."""
        raise NotImplementedError


class Versioned(LedgerForm):
    """A value that does not name its writer, or has it among its fields."""

    __slots__ = ()

    def to_json(self) -> str:
        """Return the versioned JSON form."""
        return json.dumps({"v": self.VERSIONS[0], **self._content()}, separators=(",", ":"))


class VersionedOfTransaction(LedgerForm):
    """A value that names the transaction that writes it."""

    __slots__ = ()

    def to_json(self, producer: tuple[int, int]) -> str:
        """Return the versioned JSON form.

        :param producer: producer id and epoch of the transaction that writes the record.
        """
        return json_of_transaction(self.VERSIONS[0], producer, self._content())


def read_versioned(
    kind: str,
    value: LedgerValue | str | bytes | Mapping[str, Any],
    versions: Collection[int],
    build: Callable[[Mapping[str, Any]], T],
    key: str = "",
) -> T:
    """Build a record from its JSON form.

    :param kind: kind of record, for errors.
    :param value: JSON, or the parsed form.
    :param versions: versions that ``build`` can read.
    :param key: key of the ledger record, for errors.
    :raises LedgerUnreadable: the value is not JSON, of another version, or incomplete; or it contains an
        integer of more than 64 bits, a number that is not finite, or half of a surrogate pair.
    """
    source = value.text if isinstance(value, LedgerValue) else value
    try:
        data = _parsed(json.dumps(dict(source)) if isinstance(source, Mapping) else source)
        version = data["v"]
        if version in versions:
            return build(data)
    except LedgerUnreadable as error:
        raise LedgerUnreadable(
            f"the ledger's {_name(kind, key, value)} contains a record that cannot be read: {error}"
        ) from error
    except _REFUSALS as error:
        raise LedgerUnreadable(
            f"the ledger's {_name(kind, key, value)} cannot be read ({type(error).__name__}: {error}), it "
            f"begins {str(source)[:_SHOWN]!r}; see who else writes to the ledger topic"
        ) from error
    raise LedgerUnreadable(
        f"the ledger's {_name(kind, key, value)} has version {version!r}, this package reads "
        f"{', '.join(map(str, versions))}: a newer airflow-eos wrote it, upgrade this one"
    )


def _name(kind: str, key: str, value: object) -> str:
    """Return a record's kind, its key and its place in the ledger, if these are known, for errors."""
    named = f"{kind} {key!r}" if key else kind
    return f"{named} ({value.place})" if isinstance(value, LedgerValue) else named


def readable(
    kind: type[V], values: Iterable[tuple[str, LedgerValue]], unreadable: list[str] | None = None
) -> Iterator[tuple[str, V]]:
    """Yield the key and the parsed form of each ledger value; omits unreadable ones.

    :param values: ledger values of one kind, with their keys.
    :param unreadable: receives the errors of unreadable values; default: they are logged.
    """
    for key, value in values:
        try:
            yield key, kind.from_json(value, key)
        except LedgerUnreadable as error:  # noqa: PERF203 - one by one
            if unreadable is None:
                log.warning("left out: %s", error)
            else:
                unreadable.append(str(error))


def json_of_transaction(version: int, producer: tuple[int, int], content: Mapping[str, Any]) -> str:
    """Return the JSON form of a record that names the producer id and epoch that write it."""
    named = {"producer_id": producer[0], "producer_epoch": producer[1]}
    return json.dumps({"v": version, "producer": named, **content}, separators=(",", ":"))


def _parsed(value: str | bytes) -> Any:
    """Parse JSON; raises ValueError for a value that JSON, UTF-8 or a 64-bit integer cannot represent."""
    text = value if isinstance(value, str) else value.decode()
    data = _DECODER.decode(text)
    if _SURROGATE.search(text):
        json.dumps(data, ensure_ascii=False).encode()
    return data


def finite(digits: str) -> float:
    """Return a number of JSON; raises ValueError for NaN and infinity, which JSON cannot represent."""
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:_SHOWN]} is not a finite number")
    return number


def _int64(digits: str) -> int:
    number = int(digits)
    if number not in _INT64:
        raise ValueError(f"{digits[:_SHOWN]} is not an integer of 64 bits")
    return number


_DECODER = json.JSONDecoder(parse_constant=finite, parse_float=finite, parse_int=_int64)


def has_version(value: str) -> bool:
    """Return whether a ledger value has a version, known or not; its other fields are not checked."""
    try:
        return type(json.loads(value)["v"]) is int
    except (LookupError, RecursionError, TypeError, ValueError):
        return False


def integer(value: Any, minimum: int | None = None) -> int:
    """Return a JSON integer; raises TypeError for any other type, ValueError below the minimum."""
    if type(value) is not int:
        raise TypeError(f"{value!r} is not an integer")
    if minimum is not None and value < minimum:
        raise ValueError(f"{value} is less than {minimum}")
    return value


def flag(value: Any) -> bool:
    """Return a value that must be true or false; raises TypeError."""
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def text(value: Any) -> str:
    """Return a value that must be a JSON string; raises TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def json_object(value: Any) -> dict[str, Any]:
    """Return a value that must be a JSON object; raises TypeError, even if ``dict()`` would convert it."""
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is not an object")
    return value


def by_partition_json(numbers: Mapping[int, int]) -> dict[str, int]:
    """Return the JSON form of numbers by partition."""
    return {str(partition): number for partition, number in sorted(numbers.items())}


def by_partition(numbers: Mapping[str, Any], minimum: int) -> dict[int, int]:
    """Read the JSON form of numbers by partition; raises as :func:`integer`."""
    return {integer(int(partition), 0): integer(number, minimum) for partition, number in numbers.items()}


def is_topic_name(name: str) -> bool:
    """Return whether brokers accept a topic name: 1 to 249 of ``[a-zA-Z0-9._-]``, not "." or ".."."""
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")


def topic_name(value: Any) -> str:
    """Return a value that must be the name of a topic; raises TypeError, or ValueError as brokers would."""
    if not is_topic_name(text(value)):
        raise ValueError(f"{value[:_SHOWN]!r} is not the name of a topic")
    return str(value)
