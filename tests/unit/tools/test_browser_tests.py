"""Without a browser, tests are skipped with what to install; in continuous integration they fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugins.waiting import Waiting
from tests.support import browser

ROOT = Path(__file__).parents[3]
TEST = """
import pytest
from tests.support.browser import with_browser

@with_browser
def test_looks(a_costly_fixture):
    pass
"""
PLUGIN = """
from tests.plugins.waiting import Waiting

def pytest_configure(config):
    config.pluginmanager.register(Waiting())
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("ci", "code", "message"),
    [
        ("", 0, "skipped, needs a browser: apt-get install chromium chromium-driver: test_it.py::test_looks"),
        ("true", 1, "needs a browser: apt-get install chromium chromium-driver; where CI is set"),
    ],
)
def test_without_a_browser_a_test_is_skipped_aloud_and_fails_in_ci(tmp_path, ci, code, message):
    """Neither case sets up fixtures for it."""
    (tmp_path / "test_it.py").write_text(TEST)
    (tmp_path / "conftest.py").write_text(PLUGIN)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "."],
        cwd=tmp_path,
        env={"PATH": str(tmp_path), "PYTHONPATH": str(ROOT), "CI": ci, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout
    assert message in done.stdout


def test_with_a_browser_the_test_is_itself(monkeypatch):
    """The mark does not change it."""
    monkeypatch.setattr(browser, "_NOT_FOUND", False)

    def look():
        pass

    assert browser.with_browser(look) is look
    assert Waiting().lines() == []


def test_ci_installs_a_browser_where_it_may_and_hides_no_failure(tmp_path):
    """With fakes of apt-get and make: their failure is printed, and the tests still run."""
    script = (ROOT / ".ci/run").read_text().replace('cd "$(dirname "${BASH_SOURCE[0]}")/.."', "")
    for name, body in {
        "id": "echo 0",
        "apt-get": "echo E: no such mirror >&2; exit 100",
        "make": 'echo "make $1 with CI=$CI"',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    for name in ("mktemp", "cat", "rm", "bash"):
        (tmp_path / name).symlink_to(
            Path("/bin") / name if (Path("/bin") / name).exists() else f"/usr/bin/{name}"
        )
    done = subprocess.run(
        ["/bin/bash", "-c", script], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "make test with CI=true\n")
    assert "E: no such mirror" in done.stderr
    assert "the browser tests will fail" in done.stderr
