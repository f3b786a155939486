"""The TLS context of a client configuration: PEM files or PEM text, as librdkafka reads them."""

from __future__ import annotations

import os
import ssl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.wire.client_config import read_bool

if TYPE_CHECKING:
    from airflow_eos.wire.client_config import ClientConfig


def ssl_context(config: ClientConfig) -> ssl.SSLContext:
    """Build the context once per client; host names are verified unless the configuration says ``none``.

    :raises ConfigurationError: naming the setting whose file or text cannot be read; never its content.
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
        _guarded("ssl.ca.pem", lambda: context.load_verify_locations(cadata=str(config["ssl.ca.pem"])))
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


def _load_client_certificate(context: ssl.SSLContext, config: ClientConfig) -> None:
    password = config.get("ssl.key.password")
    secret = None if password is None else str(password)
    if "ssl.certificate.pem" in config:
        if "ssl.key.pem" not in config:
            raise ConfigurationError("client setting 'ssl.key.pem' is missing; ssl.certificate.pem needs it")
        text = f"{config['ssl.key.pem']}\n{config['ssl.certificate.pem']}\n"
        _guarded("ssl.certificate.pem", lambda: _load_pem_text(context, text, secret))
    elif "ssl.certificate.location" in config:
        key = config.get("ssl.key.location")
        _guarded(
            "ssl.certificate.location",
            lambda: context.load_cert_chain(
                str(config["ssl.certificate.location"]),
                None if key is None else str(key),
                # Without a password OpenSSL would ask on the terminal and hang the task.
                password=secret if secret is not None else "",
            ),
        )


def _load_pem_text(context: ssl.SSLContext, text: str, password: str | None) -> None:
    # Python's ssl reads certificates from files only; mkstemp makes it readable for this user alone.
    handle, name = tempfile.mkstemp(suffix=".pem")
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(text)
        context.load_cert_chain(name, password=password if password is not None else "")
    finally:
        Path(name).unlink()


def _guarded(key: str, load: object) -> None:
    try:
        load()  # type: ignore[operator]
    except (OSError, ValueError, ssl.SSLError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
        raise ConfigurationError(f"client setting {key!r} cannot be used for TLS: {reason}") from None
