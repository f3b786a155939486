"""The constraints of several Pythons in one file."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def lock():
    """Load the tool, which is not a package."""
    spec = importlib.util.spec_from_file_location("lock", ROOT / "tools" / "lock.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_package_that_resolves_alike_gets_one_line(lock):
    """It has no unnecessary marker."""
    assert lock.merge({"3.9": {"a": "1"}, "3.10": {"a": "1"}}) == ["a==1"]


def test_pythons_that_differ_get_markers_that_do_not_overlap(lock):
    """Bounds cover neighbours, and a later Python gets the newest pin."""
    resolved = {"3.12": {"a": "3"}, "3.9": {"a": "1"}, "3.10": {"a": "2"}, "3.11": {"a": "2"}}
    assert lock.merge(resolved) == [
        "a==1 ; python_version < '3.10'",
        "a==2 ; python_version >= '3.10' and python_version < '3.12'",
        "a==3 ; python_version >= '3.12'",
    ]


def test_a_version_of_scattered_pythons_names_each(lock):
    """It is not described as a range."""
    resolved = {"3.10": {"a": "1"}, "3.11": {"a": "2"}, "3.12": {"a": "1"}}
    assert lock.merge(resolved)[0] == "a==1 ; python_version == '3.10' or python_version == '3.12'"


def test_names_are_canonical(lock):
    """As PEP 503 has it, so that pip and a sort agree."""
    assert lock.canonical("Deprecated_x.Y--z") == "deprecated-x-y-z"
