"""Distributes tests over processes: a file stays together, and so do files that share a costly fixture.

A package's fixture is created once per process. Two Airflows, or two clusters of three brokers, would cost
more than the second process gains. Tests of the protocol's model, and those that start their own pytest
without a law, share nothing and take long: each may run anywhere. The former keep a processor busy, while
tests with brokers often wait, so they are interleaved with those. Unit tests come last, and of these the
files that wait for no program: small pieces, so that the processes end together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

COSTLY = ("airflow", "replicated")
"""Fixtures that must be created only once; their tests start first, because they take longest."""
ALONE = ("tests/protocol/", "tests/guarantees/test_without_law.py")
"""Prefixes of the ids of tests that are distributed one by one."""
SMALL = "tests/unit/"
"""Folder whose files take only seconds."""
WITH_BROKERS = ("tests/guarantees/", "tests/integration/", "tests/system/", *COSTLY)
"""Prefixes of the groups whose tests wait most of the time."""


class SideBySide:
    """Orders tests, and distributes them over the processes of pytest-xdist."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Put tests of costly fixtures first; the rest keeps its order, except for the searches."""
        root = config.rootpath
        items.sort(key=lambda item: _rank(group_of(root, item.nodeid)))
        items[:] = small_ones_last(items, _file_of, waits)
        searches = [item for item in items if is_search(item)]
        others = [item for item in items if not is_search(item)]
        items[:] = dealt_out(searches, others, lambda item: group_of(root, item.nodeid), WITH_BROKERS)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Keep groups together, in the order of the tests."""
        from xdist.scheduler import LoadScopeScheduling

        class Scheduling(LoadScopeScheduling):
            def _split_scope(self, nodeid: str) -> str:
                return group_of(config.rootpath, nodeid)

        config.option.loadscopereorder = False
        return Scheduling(config, log)


def small_ones_last(tests: Sequence[T], file: Callable[[T], str], waits: Callable[[T], bool]) -> list[T]:
    """Return the tests in their order, but with those of unit test files in which none waits at the end."""
    waiting = {file(test) for test in tests if waits(test)}
    return sorted(tests, key=lambda test: file(test).startswith(SMALL) and file(test) not in waiting)


def waits(item: pytest.Item) -> bool:
    """Return whether a test starts another program, by the marks of `make unit` and `make quick`."""
    return any(item.get_closest_marker(name) is not None for name in ("jvm", "process"))


def is_search(item: pytest.Item) -> bool:
    """Return whether a test steps through thousands of cases of the protocol's model."""
    return item.nodeid.startswith(ALONE) and item.get_closest_marker("search") is not None


def dealt_out(
    searches: Sequence[T], others: Sequence[T], group: Callable[[T], str], between: tuple[str, ...]
) -> list[T]:
    """Return the other tests in their order, with the searches spread evenly between their groups.

    :param group: returns the group of one of the other tests.
    :param between: name prefixes of groups that a search may follow.
    """
    groups = [(name, [*members]) for name, members in groupby(others, group)]
    places = sum(name.startswith(between) for name, _ in groups)
    order: list[T] = []
    passed = dealt = 0
    for name, members in groups:
        order += members
        passed += name.startswith(between)
        due = len(searches) * passed // places if places else 0
        order += searches[dealt:due]
        dealt = due
    return [*order, *searches[dealt:]]


def group_of(root: Path, nodeid: str) -> str:
    """Return the costly fixture that a test of the file uses, else the file, or the test itself."""
    if nodeid.startswith(ALONE):
        return nodeid
    file = nodeid.partition("::")[0]
    return min([*_costly(root / file), file], key=_rank)


@cache
def _costly(file: Path) -> list[str]:
    arguments = re.findall(r"^ *def \w+\(([^)]*)\)", file.read_text(), re.MULTILINE)
    return [name for name in COSTLY if any(re.search(rf"\b{name}\b", each) for each in arguments)]


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _rank(group: str) -> int:
    return COSTLY.index(group) if group in COSTLY else len(COSTLY)
