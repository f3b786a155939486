"""``make check`` covers the whole repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path, PurePosixPath

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
UNTYPED = {"tests"}
"""Folders whose Python files mypy does not check."""


def git(*arguments):
    """Return the lines of a git command's output."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.splitlines()


def mypy():
    """Return mypy's configuration."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]


def test_mypy_checks_every_folder_but_the_tests():
    """A new folder of scripts is typed from its first file."""
    folders = {PurePosixPath(path).parts[0] for path in git("ls-files", "*.py")}

    assert folders - UNTYPED == set(mypy()["files"])
    assert mypy()["strict"] is True


def test_no_file_is_excused_from_all_type_errors():
    """An ignore comment names its error, and no override switches errors off."""
    pattern = "# type: ignore($|[^[])|# mypy:"
    blanket = git("grep", "-nE", pattern, "--", "*.py", ":!tests/unit/test_checks.py")

    assert blanket == []
    assert [override["module"] for override in mypy()["overrides"] if "ignore_errors" in override] == []
