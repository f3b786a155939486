"""Ensures that unit and protocol tests start no JVM unless marked with ``jvm``, as ``make unit`` promises.

For all others, ``JAVA_HOME`` has a stand-in that prints a version, so that paths and options can be computed,
and refuses to run anything.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import pytest

MARKER = "jvm"
FOLDERS = ("tests/unit/", "tests/protocol/")
STAND_IN = """\
#!/bin/sh
case " $* " in
*' -version '*) echo 'openjdk version "17.0.0" (stand-in of the tests)' >&2 ;;
*) echo 'this test starts a JVM: mark it with @pytest.mark.jvm' >&2; exit 1 ;;
esac
"""


class WithoutJava:
    """Hides Java from tests that must not use it."""

    @cached_property
    def _home(self) -> tempfile.TemporaryDirectory[str]:
        home = tempfile.TemporaryDirectory(prefix="no-java-")
        java = Path(home.name) / "bin" / "java"
        java.parent.mkdir()
        java.write_text(STAND_IN)
        java.chmod(0o755)
        return home

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Hide Java during set-up, call and teardown: module fixtures must start no JVM either."""
        if not item.nodeid.startswith(FOLDERS) or item.get_closest_marker(MARKER) is not None:
            return (yield)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JAVA_HOME", self._home.name)
            return (yield)

    def pytest_unconfigure(self) -> None:
        """Remove the stand-in."""
        if "_home" in self.__dict__:
            self._home.cleanup()
