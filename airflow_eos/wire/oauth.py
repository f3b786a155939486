"""OAUTHBEARER: confluent-kafka's ``oauth_cb`` as a token provider of kafka-python."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from kafka.net.sasl.oauth import AbstractTokenProvider

from airflow_eos.exceptions import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

_USED_LIFETIME = 0.8
_TUPLE_WITH_EXTENSIONS = 4


class _CallbackTokens(AbstractTokenProvider):
    """Calls ``oauth_cb(config)`` and keeps the token for 80% of its life, as librdkafka does.

    The call-back returns ``(token, expiry)``, or ``(token, expiry, principal, extensions)``, with the expiry
    in seconds since the epoch.
    """

    def __init__(self, callback: Callable[[str], Any], argument: str) -> None:
        super().__init__()
        self._callback = callback
        self._argument = argument
        self._token = ""
        self._extensions: dict[str, str] = {}
        self._renew_at = 0.0

    def token(self) -> str:
        """Return a token that is still good for a while."""
        now = time.time()
        if not self._token or now >= self._renew_at:
            answer = self._callback(self._argument)
            if not isinstance(answer, tuple) or len(answer) < 2:  # noqa: PLR2004 - (token, expiry)
                raise ConfigurationError(
                    "'oauth_cb' must return a tuple (token, expiry in seconds since the epoch)"
                )
            self._token = str(answer[0])
            self._renew_at = now + max(0.0, float(answer[1]) - now) * _USED_LIFETIME
            has_extensions = len(answer) >= _TUPLE_WITH_EXTENSIONS and answer[3]
            self._extensions = dict(answer[3]) if has_extensions else {}
        return self._token

    def extensions(self) -> dict[str, str]:
        """Return the SASL extensions that came with the token (KIP-342)."""
        return self._extensions


def token_provider(callback: Callable[[str], Any], argument: str) -> AbstractTokenProvider:
    """Wrap an ``oauth_cb``; ``argument`` is ``sasl.oauthbearer.config``.

    :raises ConfigurationError: when it cannot be called.
    """
    if not callable(callback):
        raise ConfigurationError(
            f"client setting 'oauth_cb' must be a function, got {type(callback).__name__}"
        )
    return _CallbackTokens(callback, argument)
