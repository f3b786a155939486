"""A throw-away certificate authority and a server certificate for loopback, as PEM files."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_eos.exceptions import ConfigurationError
from airflow_eos_testing.ports import HOST

if TYPE_CHECKING:
    from pathlib import Path

_LIFETIME = dt.timedelta(days=2)
_CLOCK_SKEW = dt.timedelta(hours=1)


@dataclass(frozen=True)
class Certificates:
    """Certificate files of brokers and clients; nothing outside the cluster's folder trusts them."""

    ca: Path
    """Certificate of the authority, for a client's ``ssl.ca.location``."""
    keystore: Path
    """Private key (PKCS#8) and certificate chain of every broker, in the order Kafka's PEM stores require."""


def make_certificates(folder: Path) -> Certificates:
    """Write a new authority and a certificate for 127.0.0.1 and localhost.

    The extensions are those that a strict RFC 5280 check (Python 3.13's default) requires.

    :raises ConfigurationError: the ``cryptography`` package is missing.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID
    except ImportError as error:
        raise ConfigurationError(
            "A TLS listener needs the cryptography package for its certificates: pip install cryptography"
        ) from error

    authority_key = ec.generate_private_key(ec.SECP256R1())
    server_key = ec.generate_private_key(ec.SECP256R1())
    authority_name, server_name = _name("airflow-eos embedded Kafka CA"), _name("localhost")
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    authority = (
        _builder(authority_name, authority_name, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(authority=True), critical=True)
        .add_extension(signer, critical=False)
    )
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(HOST))]
    server = (
        _builder(server_name, authority_name, server_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(signer, critical=False)
    )
    return _write(folder, authority, server, authority_key, server_key)


def _write(folder: Path, authority: Any, server: Any, authority_key: Any, server_key: Any) -> Certificates:
    from cryptography.hazmat.primitives import hashes, serialization

    def pem(builder: Any) -> bytes:
        signed = builder.sign(authority_key, hashes.SHA256())
        return bytes(signed.public_bytes(serialization.Encoding.PEM))

    key = server_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    ca = pem(authority)
    files = Certificates(ca=folder / "ca.pem", keystore=folder / "server.pem")
    files.ca.write_bytes(ca)
    files.keystore.touch(mode=0o600)
    files.keystore.write_bytes(key + pem(server) + ca)
    return files


def _name(common_name: str) -> Any:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(subject: Any, issuer: Any, key: Any) -> Any:
    from cryptography import x509

    now = dt.datetime.now(dt.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, authority: bool) -> Any:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
