"""Which tests may run side by side: a file stays together, and files that share a costly fixture do, too.

A fixture of the session is made once per process. Two Airflows, or two clusters of three brokers, would cost
more than the second process gains. Tests of the protocol's model share nothing and take long: each may run
anywhere.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

COSTLY = ("airflow", "replicated", "embedded_kafka_cluster")
"""Fixtures that are to be made once; what needs them begins first, for it takes longest."""
ALONE = "tests/protocol/"
"""Folder whose tests are dealt out one by one."""


class SideBySide:
    """Orders tests, and deals them out to the processes of pytest-xdist."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Begin with the costly ones; the rest keeps its order."""
        items.sort(key=lambda item: _rank(group_of(config.rootpath, item.nodeid)))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Keep groups together, in the order of the tests."""
        from xdist.scheduler import LoadScopeScheduling

        class Scheduling(LoadScopeScheduling):
            def _split_scope(self, nodeid: str) -> str:
                return group_of(config.rootpath, nodeid)

        config.option.loadscopereorder = False
        return Scheduling(config, log)


def group_of(root: Path, nodeid: str) -> str:
    """Return the costly fixture that a test of the file takes as an argument, else the file or the test."""
    if nodeid.startswith(ALONE):
        return nodeid
    file = nodeid.partition("::")[0]
    return min([*_costly(root / file), file], key=_rank)


@cache
def _costly(file: Path) -> list[str]:
    arguments = re.findall(r"^ *def \w+\(([^)]*)\)", file.read_text(), re.MULTILINE)
    return [name for name in COSTLY if any(re.search(rf"\b{name}\b", each) for each in arguments)]


def _rank(group: str) -> int:
    return COSTLY.index(group) if group in COSTLY else len(COSTLY)
