"""Users and permissions of a secured cluster, through its admin clients."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_eos.exceptions import ConfigurationError
from airflow_eos_testing.exceptions import EmbeddedKafkaError
from airflow_eos_testing.topics import settle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ITERATIONS = 4096
_POLL = 0.02
_TIMEOUT = 30.0


@dataclass(frozen=True)
class Resource:
    """The resource of a permission: exactly one of topic, group, transactional id and the cluster itself.

    :param prefixed: the name is a prefix: the permission covers every name that begins with it.
    """

    topic: str | None = None
    group: str | None = None
    transactional_id: str | None = None
    cluster: bool = False
    prefixed: bool = False

    def __post_init__(self) -> None:
        if len(self._given()) != 1:
            raise ConfigurationError(f"Give one of topic, group, transactional_id and cluster, not {self}")

    def _given(self) -> list[tuple[str, str]]:
        pairs = [
            ("TOPIC", self.topic),
            ("GROUP", self.group),
            ("TRANSACTIONAL_ID", self.transactional_id),
            ("BROKER", "kafka-cluster" if self.cluster else None),
        ]
        return [(kind, name) for kind, name in pairs if name is not None]

    def binding_fields(self, user: str, operation: str) -> dict[str, Any]:
        """Arguments of ``AclBinding`` and ``AclBindingFilter`` for one operation from any host."""
        from confluent_kafka.admin import AclOperation, AclPermissionType, ResourcePatternType, ResourceType

        if operation.upper() not in AclOperation.__members__:
            operations = ", ".join(AclOperation.__members__)
            raise ConfigurationError(f"Operation {operation!r} is not one of {operations}")
        kind, name = self._given()[0]
        return {
            "restype": ResourceType[kind],
            "name": name,
            "resource_pattern_type": ResourcePatternType["PREFIXED" if self.prefixed else "LITERAL"],
            "principal": f"User:{user}",
            "host": "*",
            "operation": AclOperation[operation.upper()],
            "permission_type": AclPermissionType.ALLOW,
        }


def create_user(admin: Any, user: str, password: str) -> None:
    """Create a SCRAM-SHA-512 user, or give it another password."""
    from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, _ITERATIONS)
    request = admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion(user, info, password.encode())]
    )
    settle(f"create user {user!r}", request[user])


def grant(admins: Sequence[Any], user: str, operations: Sequence[str], resource: Resource) -> None:
    """Allow operations; return when every broker enforces it."""
    from confluent_kafka.admin import AclBinding

    bindings = [AclBinding(**resource.binding_fields(user, operation)) for operation in operations]
    for binding, future in admins[0].create_acls(bindings, request_timeout=_TIMEOUT).items():
        settle(f"grant {binding}", future)
    _wait(admins, user, operations, resource, lambda count: count > 0)


def revoke(admins: Sequence[Any], user: str, operations: Sequence[str], resource: Resource) -> None:
    """Revoke operations; return when every broker enforces it."""
    from confluent_kafka.admin import AclBindingFilter

    filters = [AclBindingFilter(**resource.binding_fields(user, operation)) for operation in operations]
    for each, future in admins[0].delete_acls(filters, request_timeout=_TIMEOUT).items():
        settle(f"revoke {each}", future)
    _wait(admins, user, operations, resource, lambda count: count == 0)


def _wait(
    admins: Sequence[Any],
    user: str,
    operations: Sequence[str],
    resource: Resource,
    holds: Callable[[int], bool],
) -> None:
    from confluent_kafka.admin import AclBindingFilter

    deadline = time.monotonic() + _TIMEOUT
    for admin in admins:
        for operation in operations:
            wanted = AclBindingFilter(**resource.binding_fields(user, operation))
            while not holds(len(admin.describe_acls(wanted, request_timeout=_TIMEOUT).result())):
                if time.monotonic() > deadline:
                    raise EmbeddedKafkaError(f"A broker did not apply {operation} for {user!r} in time")
                time.sleep(_POLL)
