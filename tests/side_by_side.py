"""Which tests may run side by side: a file stays together, and files that share a costly fixture do, too.

A fixture of the session is made once per process. Two Airflows, or two clusters of three brokers, would cost
more than the second process gains.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

COSTLY = ("airflow", "replicated_kafka")
"""Fixtures that are to be made once; what needs them begins first, for it takes longest."""


class SideBySide:
    """Marks the groups that ``pytest --dist loadgroup`` keeps together."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Give each test its group; the rest keeps its order."""
        groups = groups_of((_file(item), getattr(item, "fixturenames", ())) for item in items)
        for item in items:
            item.add_marker(pytest.mark.xdist_group(groups[_file(item)]))
        items.sort(key=lambda item: _rank(groups[_file(item)]))


def groups_of(tests: Iterable[tuple[str, Iterable[str]]]) -> dict[str, str]:
    """Return the group of each file: a costly fixture that one of its tests needs, else the file itself.

    :param tests: file and fixtures of every test.
    """
    groups: dict[str, str] = {}
    for file, fixtures in tests:
        needed = [name for name in COSTLY if name in set(fixtures)]
        groups[file] = min([*needed, groups.get(file, file)], key=_rank)
    return groups


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _rank(group: str) -> int:
    return COSTLY.index(group) if group in COSTLY else len(COSTLY)
