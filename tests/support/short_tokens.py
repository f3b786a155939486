"""OAuth tokens that expire within seconds, with each issue logged to a file."""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path

SECONDS = 6.0
"""The lifetime of a token."""


def short_token(log: str) -> tuple[str, float]:
    """Return an unsigned token (RFC 7515, appendix A.5), and log process and time to a file.

    Its issue time is a whole second, as with real issuers: brokers' clocks have milliseconds, so a token with
    finer fractions that arrives in the same millisecond would be refused as one from the future.

    :param log: the file; comes from ``sasl.oauthbearer.config``.
    """
    now = time.time()
    with Path(log).open("a") as file:
        file.write(f"{os.getpid()} {now}\n")
    return _token(now)


def token_of_another_clock(seconds: str) -> tuple[str, float]:
    """Return a token of an issuer whose clock is ahead by ``seconds``.

    :param seconds: comes from ``sasl.oauthbearer.config``.
    """
    return _token(time.time() + float(seconds))


def token_of_an_answer(answer: str) -> tuple[str, float]:
    """Return a token with the lifetime of an issuer's answer.

    :param answer: a file with JSON; comes from ``sasl.oauthbearer.config``.
    """
    return _token(time.time(), json.loads(Path(answer).read_text())["expires_in"])


def _token(now: float, seconds: float = SECONDS) -> tuple[str, float]:
    parts = ({"alg": "none"}, {"sub": "short", "iat": int(now), "exp": now + seconds})
    texts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*texts, ""]), now + seconds


def noted(log: Path) -> dict[int, list[float]]:
    """Return the times at which each process got a token."""
    times: dict[int, list[float]] = {}
    for line in log.read_text().splitlines():
        process, when = line.split()
        times.setdefault(int(process), []).append(float(when))
    return times
