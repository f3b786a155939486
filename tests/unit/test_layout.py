"""The walls between kinds of tests: what two kinds need stands in ``tests/support``."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
KINDS = {"unit", "protocol", "integration", "guarantees", "system"}
SHARED = {"support", "plugins"}


def imports(file):
    """Return the parts of every ``tests.…`` module that a file imports."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "tests":
            for alias in node.names:
                yield [*node.module.split("."), alias.name]


def test_every_folder_is_a_kind_or_shared():
    """There is nothing next to the kinds."""
    folders = {path.name for path in TESTS.iterdir() if path.is_dir() and list(path.rglob("*.py"))}

    assert folders == KINDS | SHARED


def test_no_test_imports_another_kind():
    """If a test needs something of another kind, that moves to ``support``."""
    imported = [(file, parts) for file in TESTS.rglob("*.py") for parts in imports(file)]
    assert len(imported) > 100

    crossing = [
        f"{file.relative_to(TESTS)}: {'.'.join(parts)}"
        for file, parts in imported
        if parts[1] not in SHARED and parts[1] != file.relative_to(TESTS).parts[0]
    ]

    assert crossing == []


def test_support_knows_no_kind():
    """Shared code depends on no kind of test."""
    shared = [file for folder in SHARED for file in (TESTS / folder).rglob("*.py")]

    assert [parts for file in shared for parts in imports(file) if parts[1] in KINDS] == []
