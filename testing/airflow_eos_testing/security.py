"""The secured listener of an embedded cluster: broker settings and the matching client settings.

Clients use one listener with the chosen protocol. Brokers and controllers talk to each other over plaintext
loopback listeners, whose anonymous principal is a super user: the cluster is for tests, not for production.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from airflow_eos.exceptions import ConfigurationError

if TYPE_CHECKING:
    from airflow_eos_testing.certificates import Certificates

SecurityProtocol = Literal["PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL"]
SCRAM = "SCRAM-SHA-512"
SUPER_USER = "admin"


@dataclass(frozen=True)
class Security:
    """The protection of the client listener.

    :param protocol: Kafka's security protocol; the SASL ones authenticate by SCRAM-SHA-512.
    :param acls: authorise by ACLs; nothing is allowed by default.
    """

    protocol: SecurityProtocol = "PLAINTEXT"
    acls: bool = False

    def __post_init__(self) -> None:
        if self.protocol not in get_args(SecurityProtocol):
            protocols = ", ".join(get_args(SecurityProtocol))
            raise ConfigurationError(f"security={self.protocol!r} is not one of {protocols}")
        if self.acls and not self.sasl:
            raise ConfigurationError(
                f"acls=True needs clients with names, security={self.protocol!r} has none: use SASL_SSL"
            )

    @property
    def tls(self) -> bool:
        """Whether the client listener is encrypted."""
        return self.protocol.endswith("SSL")

    @property
    def sasl(self) -> bool:
        """Whether clients have to log in."""
        return self.protocol.startswith("SASL")

    @property
    def separate_internal_listener(self) -> bool:
        """Whether brokers need a listener of their own because the client listener is secured."""
        return self.protocol != "PLAINTEXT"

    def broker_settings(self, certificates: Certificates | None) -> dict[str, str]:
        """Return the ``server.properties`` entries of the secured listener, which is named CLIENT."""
        settings: dict[str, str] = {}
        if certificates is not None:
            settings["listener.name.client.ssl.keystore.type"] = "PEM"
            settings["listener.name.client.ssl.keystore.location"] = str(certificates.keystore)
        if self.sasl:
            module = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            settings["listener.name.client.sasl.enabled.mechanisms"] = SCRAM
            settings[f"listener.name.client.{SCRAM.lower()}.sasl.jaas.config"] = module
        if self.acls:
            settings["authorizer.class.name"] = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
            settings["super.users"] = f"User:{SUPER_USER};User:ANONYMOUS"
        return settings

    def client_settings(
        self, certificates: Certificates | None, user: str = "", password: str = ""
    ) -> dict[str, str]:
        """Return client settings in librdkafka's names, with the password in clear text."""
        if not self.separate_internal_listener:
            return {}
        settings: dict[str, str] = {"security.protocol": self.protocol}
        if certificates is not None:
            settings["ssl.ca.location"] = str(certificates.ca)
        if self.sasl:
            settings |= {"sasl.mechanism": SCRAM, "sasl.username": user, "sasl.password": password}
        return settings
