"""Keeps settings that are secrets out of messages: libraries put addresses and keys into errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from urllib.parse import parse_qsl, quote, unquote, urlsplit

_SHORTEST = 5
"""In characters: a shorter value, such as a port or "true", would blank out ordinary words."""
_INPUT = re.compile(r"input_value=.*?, (?=input_type=)", re.DOTALL)
"""The input that pydantic could not parse: a catalog's answer may contain a token."""
_SESSION = re.compile(r"(x-amz-security-token\s*[:=]\s*)[^\s&<\"']+", re.IGNORECASE)
"""In a request that S3 refuses and quotes: a token of a role or the environment is not in the properties."""
_WORD = re.compile(r"[=:]\s*[\"']?([^\s,;&\"']+)")
"""A value after its name, in a setting such as "id=me secret=...", or in JSON."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def redacted(text: str, properties: Mapping[str, object] | None) -> str:
    """Return a text with each property's value replaced by ``<name>``.

    Replaces password and parameters of an address, too, which libraries may quote alone. Removes the input
    that pydantic quotes, session tokens of S3, and colours of a terminal.
    """
    text = _COLOUR.sub("", _INPUT.sub("", text))
    values = [
        (spelling, name)
        for name, value in (properties or {}).items()
        for part in _parts(str(value).strip())
        for spelling in (*spellings(part), quote(part, safe="", errors="surrogatepass"))
        if len(spelling) >= _SHORTEST
    ]
    # The longest first: an address contains its own password.
    for spelling, name in sorted(values, key=lambda pair: len(pair[0]), reverse=True):
        text = text.replace(spelling, f"<{name}>")
    return _SESSION.sub(r"\1<session token>", text)


def spellings(value: str) -> frozenset[str]:
    """Return a value without the blanks around it: plain, and as Python shows it in texts and bytes."""
    plain = value.strip()
    return frozenset((plain, repr(plain)[1:-1], ascii(plain)[1:-1]))


def _parts(value: str) -> Iterator[str]:
    yield value
    try:
        address = urlsplit(value)
    except ValueError:
        return
    pairs = address.query or value.replace(",", "&")  # also of a setting such as "id=me,secret=..."
    words = () if address.netloc else _WORD.findall(value)
    for secret in (address.password, *(given for _, given in parse_qsl(pairs)), *words):
        if secret:
            yield from (secret, unquote(secret))
    if not address.netloc and ":" in value:
        yield value.partition(":")[2]  # client id and secret of a REST catalog
