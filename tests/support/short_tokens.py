"""OAuth tokens that end within seconds, each of them noted in a file."""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path

SECONDS = 6.0
"""The life of a token."""


def short_token(log: str) -> tuple[str, float]:
    """Return a token without signature (RFC 7515, appendix A.5), and note process and time in a file.

    Issued at a whole second, as issuers do: a broker's clock has milliseconds, and a token that comes within
    the one of its fractions is refused as a token of the future.

    :param log: the file; comes from ``sasl.oauthbearer.config``.
    """
    now = time.time()
    with Path(log).open("a") as file:
        file.write(f"{os.getpid()} {now}\n")
    return _token(now)


def token_of_another_clock(seconds: str) -> tuple[str, float]:
    """Return a token of an issuer whose clock is ahead by so many seconds.

    :param seconds: comes from ``sasl.oauthbearer.config``.
    """
    return _token(time.time() + float(seconds))


def token_of_an_answer(answer: str) -> tuple[str, float]:
    """Return a token of the seconds that an issuer's answer has.

    :param answer: a file with JSON; comes from ``sasl.oauthbearer.config``.
    """
    return _token(time.time(), json.loads(Path(answer).read_text())["expires_in"])


def _token(now: float, seconds: float = SECONDS) -> tuple[str, float]:
    parts = ({"alg": "none"}, {"sub": "short", "iat": int(now), "exp": now + seconds})
    texts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*texts, ""]), now + seconds


def noted(log: Path) -> dict[int, list[float]]:
    """Return the times at which each process got a token."""
    found: dict[int, list[float]] = {}
    for line in log.read_text().splitlines():
        process, when = line.split()
        found.setdefault(int(process), []).append(float(when))
    return found
