"""Names the operations that a broker reports as allowed on a topic or a group (KIP-430)."""

from __future__ import annotations

from collections.abc import Collection

_CODES = {"READ": 3, "WRITE": 4, "DESCRIBE": 8}  # of AclOperation


def names(codes: Collection[int] | None) -> frozenset[str] | None:
    """Return which of READ, WRITE and DESCRIBE are among the codes; None if the broker does not say.

    :param codes: ``authorized_operations`` of an answer.
    """
    return None if codes is None else frozenset(name for name, code in _CODES.items() if code in codes)
