"""Client certificates, and a cluster that requires them."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from airflow_eos_testing import EmbeddedKafka
from airflow_eos_testing.security import Security

_HOUR = dt.timedelta(hours=1)


class Authority:
    """Signs client certificates; its own certificate is ``<name>.pem``."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name, self._key = folder, name, ec.generate_private_key(ec.SECP256R1())
        self.location = self._write(name, self._signed(name, self._key, ends_in=_HOUR, ca=True))

    def client(self, name: str, *, ends_in: dt.timedelta = _HOUR) -> dict[str, str]:
        """Return client settings with a new certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (self._folder / f"{name}.key").write_bytes(text)
        certificate = self._write(name, self._signed(name, key, ends_in=ends_in, ca=False))
        return {
            "ssl.certificate.location": str(certificate),
            "ssl.key.location": str(self._folder / f"{name}.key"),
        }

    def _signed(self, name, key, *, ends_in, ca):
        now = dt.datetime.now(dt.timezone.utc)
        return (
            x509.CertificateBuilder()
            .subject_name(_named(name))
            .issuer_name(_named(self._name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * _HOUR)
            .not_valid_after(now + ends_in)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def _write(self, name, certificate) -> Path:
        path = self._folder / f"{name}.pem"
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return path


def _named(name):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


@dataclass(frozen=True)
class MutualTls(Security):
    """Makes brokers accept only clients of one authority; the cluster's own client is one of them."""

    authority: Authority | None = None

    def broker_settings(self, certificates):
        """Return the settings of :class:`Security`, and the clients' authority."""
        listener = "listener.name.client.ssl"
        return {
            **super().broker_settings(certificates),
            f"{listener}.client.auth": "required",
            f"{listener}.truststore.type": "PEM",
            f"{listener}.truststore.location": str(self.authority.location),
        }

    def client_settings(self, certificates, user="", password=""):
        """Return the settings of :class:`Security`, with a certificate."""
        return {**super().client_settings(certificates, user, password), **self.authority.client("trusted")}


def mutual_tls(authority: Authority) -> EmbeddedKafka:
    """Return a cluster, not yet started."""
    kafka = EmbeddedKafka(security="SSL")
    kafka.security = MutualTls("SSL", authority=authority)
    return kafka
