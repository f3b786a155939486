"""Values are named by what they are: vague names may only become fewer."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "airflow_eos"
VAGUE = {"found", "one", "said", "what", "its", "mine", "ours", "theirs", "told"}
CEILINGS = {
    "recordbatch": 0,
    "wire": 0,
    # Code moves between these, so they share a ceiling.
    "ledger coverage model": 1,
    "engine operations": 2,
    "spark spark_host": 4,
    "ui": 0,
    "run": 8,
    "cli": 0,
    "broker": 1,
    "operators triggers sensors hooks links decorators": 0,
    "modules beside the packages": 0,
}
"""How many values of the packages have a vague name: lower a number when you have made it smaller."""
AIRFLOWS_KINDS = {"sensors", "triggers", "hooks", "decorators"}


def bindings(source):
    """Count what a module gives a vague name to: variables, parameters, what a loop goes through."""
    nodes = list(ast.walk(ast.parse(source)))
    stored = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    parameters = [node.arg for node in nodes if isinstance(node, ast.arg)]
    return sum(name in VAGUE for name in [*stored, *parameters])


def row_of(path):
    """Return the row of a module."""
    package, _, module = path.relative_to(PACKAGE).as_posix().partition("/")
    if not module:
        return "modules beside the packages"
    (row,) = [row for row in CEILINGS if package in row.split()] or [package]
    return row


def test_vague_names_become_fewer():
    """``receipt``, ``partition``, ``answer``: a reader need not look up what ``found`` is."""
    counts = Counter()
    for path in PACKAGE.rglob("*.py"):
        counts[row_of(path)] += bindings(path.read_text())
    different = {
        row: (count, CEILINGS.get(row, 0)) for row, count in counts.items() if count != CEILINGS.get(row, 0)
    }
    assert different == {}, "(values with a vague name, ceiling): name them by what they are; lower ceilings"


def test_every_kind_of_binding_is_counted():
    """Assignments, parameters, loops, comprehensions, walruses; uses and attributes are not."""
    assert bindings("found = 1\ndef f(one, *, what=2): ...\nfor its in x: ...\n[y for said in z]") == 5
    assert bindings("if (found := f()): ...\nwith a as one: ...\nlambda what: 0") == 3
    assert bindings("print(found, a.one)\nf(what=3)\nfounded = 1") == 0


def test_no_file_name_stands_in_two_packages():
    """But for Airflow's kinds, whose modules have the name of what they sense, trigger or hook."""
    folders = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        folders[path.name].add(path.parent.relative_to(PACKAGE).as_posix())
    del folders["__init__.py"]

    assert {name: where for name, where in folders.items() if len(where - AIRFLOWS_KINDS) > 1} == {}
    assert folders["kafka_lag.py"] == {"sensors", "triggers"}
