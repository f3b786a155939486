"""TLS contexts from PEM files or text, and OAUTHBEARER tokens."""

from __future__ import annotations

import os
import ssl
import tempfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import wait
from functools import partial
from pathlib import Path
from typing import Any

from kafka.net.sasl.oauth import AbstractTokenProvider

from airflow_eos.daemon_thread import in_daemon_thread
from airflow_eos.exceptions import ConfigurationError, CredentialsRefused, is_mistake
from airflow_eos.redaction import redacted
from airflow_eos.wire.client_config import ClientConfig, read_bool


def ssl_context(config: ClientConfig) -> ssl.SSLContext:
    """Build a TLS context; host names are verified unless the configuration disables it.

    :raises ConfigurationError: names the setting whose file or text cannot be read, never its content.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    verify_key = "enable.ssl.certificate.verification"
    algorithm = str(config.get("ssl.endpoint.identification.algorithm", "https")).lower()
    if algorithm not in ("https", "none"):
        raise ConfigurationError(
            "client setting 'ssl.endpoint.identification.algorithm' must be 'https' or 'none', "
            f"got {algorithm!r}"
        )
    verify = read_bool(verify_key, config.get(verify_key, True))
    context.check_hostname = verify and algorithm == "https"
    context.verify_mode = ssl.CERT_REQUIRED if verify else ssl.CERT_NONE
    _load_authorities(context, config)
    _load_client_certificate(context, config)
    if "ssl.cipher.suites" in config:
        _guarded("ssl.cipher.suites", lambda: context.set_ciphers(str(config["ssl.cipher.suites"])))
    return context


def _load_authorities(context: ssl.SSLContext, config: ClientConfig) -> None:
    location = config.get("ssl.ca.location")
    if "ssl.ca.pem" in config:
        text = _pem(config["ssl.ca.pem"])
        _guarded("ssl.ca.pem", lambda: context.load_verify_locations(cadata=text))
    elif location is not None and location != "probe":
        folder = Path(str(location)).is_dir()
        _guarded(
            "ssl.ca.location",
            lambda: context.load_verify_locations(
                cafile=None if folder else str(location), capath=str(location) if folder else None
            ),
        )
    else:
        context.load_default_certs()
    if "ssl.crl.location" in config:
        _guarded("ssl.crl.location", lambda: context.load_verify_locations(str(config["ssl.crl.location"])))
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _pem(value: Any) -> str:
    """Return PEM text in ASCII, as Python's ssl asks for: names in comments may have any letters."""
    return str(value).encode("ascii", "replace").decode("ascii")


def _load_client_certificate(context: ssl.SSLContext, config: ClientConfig) -> None:
    # Without a password OpenSSL would ask on the terminal and hang the task.
    password = str(config.get("ssl.key.password", ""))
    if "ssl.certificate.pem" in config:
        if "ssl.key.pem" not in config:
            raise ConfigurationError("client setting 'ssl.key.pem' is missing; ssl.certificate.pem needs it")
        text = _pem(f"{config['ssl.key.pem']}\n{config['ssl.certificate.pem']}\n")
        _guarded("ssl.certificate.pem", lambda: _load_pem_text(context, text, password))
    elif "ssl.certificate.location" in config:
        key = config.get("ssl.key.location")
        _guarded(
            "ssl.certificate.location",
            lambda: context.load_cert_chain(
                str(config["ssl.certificate.location"]),
                None if key is None else str(key),
                password=password,
            ),
        )


def _load_pem_text(context: ssl.SSLContext, text: str, password: str) -> None:
    # Python's ssl loads certificates from files only. A memfd disappears with the process, however it ends.
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").exists():
        with os.fdopen(os.memfd_create("certificate"), "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password=password)
        return
    handle, name = tempfile.mkstemp(suffix=".pem")  # readable only by this user
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(text)
        context.load_cert_chain(name, password=password)
    finally:
        Path(name).unlink()


def _guarded(key: str, load: Callable[[], object]) -> None:
    try:
        load()
    except (OSError, ValueError, ssl.SSLError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
        # A missing file is a mistake; a certificate that does not fit its key may be one of two new files.
        kind = CredentialsRefused if isinstance(error, ssl.SSLError) else ConfigurationError
        raise kind(f"client setting {key!r} cannot be used for TLS: {reason}") from None


CALLBACK_SECONDS = 30.0
"""Time for ``oauth_cb`` to return."""
_USED_LIFETIME = 0.8
_TUPLE_WITH_EXTENSIONS = 4


def token_of(callback: Callable[[str], Any], argument: str) -> Any:
    """Return the answer of ``oauth_cb``.

    :raises CredentialsRefused: it raised an exception that a retry would repeat.
    :raises ConnectionError: its issuer does not answer.
    """
    # In a thread: if the issuer never answers, it would block the caller's event loop, and all time-outs.
    answer = in_daemon_thread("oauth_cb", partial(callback, argument))
    if not wait([answer], CALLBACK_SECONDS).done:
        raise ConnectionError(
            f"'oauth_cb' has not returned for {CALLBACK_SECONDS:.0f} s: see whether its issuer answers"
        )
    try:
        return answer.result()
    except Exception as error:  # noqa: BLE001 - raised again, without the argument
        hidden = {"sasl.oauthbearer.config": argument}
        message = f"'oauth_cb' failed: {type(error).__name__}: {redacted(str(error), hidden)}"
        if is_mistake(error):
            trace = "".join(traceback.format_exception(error))
            raise CredentialsRefused(message) from (error if trace == redacted(trace, hidden) else None)
        # An issuer that does not answer now. Libraries name the address that they have asked.
        raise ConnectionError(message) from None


class CallbackTokens(AbstractTokenProvider):
    """Calls ``oauth_cb(config)`` and caches the token for 80% of its lifetime, as librdkafka does.

    The callback returns ``(token, expiry)``, or ``(token, expiry, principal, extensions)``, with the expiry
    in seconds since the epoch.

    :param argument: ``sasl.oauthbearer.config``.
    :raises ConfigurationError: ``callback`` is not callable.
    """

    def __init__(self, callback: Callable[[str], Any], argument: str) -> None:
        super().__init__()
        if not callable(callback):
            raise ConfigurationError(
                f"client setting 'oauth_cb' must be a function, got {type(callback).__name__}"
            )
        self._callback = callback
        self._argument = argument
        self._token = ""
        self._extensions: dict[str, str] = {}
        self._renew_at = 0.0

    def token(self) -> str:
        """Return the cached token, or a new one if it expires soon."""
        now = time.time()
        if not self._token or now >= self._renew_at:
            answer = token_of(self._callback, self._argument)
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
