"""Keeps properties of catalogs and storages out of messages: libraries put addresses and keys into errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import parse_qsl, quote, unquote, urlsplit

_SHORTEST = 5
"""Characters: a shorter value, such as a port or "true", would blank out ordinary words."""


def redacted(text: str, properties: Mapping[str, object] | None) -> str:
    """Return a text in which no property's value stands: ``<name>`` stands in its place.

    Of an address also user, password and parameters are taken out, which libraries repeat alone.
    """
    values = [
        (part, name)
        for name, value in (properties or {}).items()
        for part in _parts(str(value))
        if len(part) >= _SHORTEST
    ]
    # The longest first: an address holds its own password.
    for part, name in sorted(values, key=lambda pair: len(pair[0]), reverse=True):
        text = text.replace(part, f"<{name}>")
    return text


def _parts(value: str) -> Iterator[str]:
    yield from (value, quote(value, safe=""))
    try:
        address = urlsplit(value)
    except ValueError:
        return
    for secret in (address.password, *(given for _, given in parse_qsl(address.query))):
        if secret:
            yield from (secret, unquote(secret))
    if not address.netloc and ":" in value:
        yield value.partition(":")[2]  # client id and secret of a REST catalog
