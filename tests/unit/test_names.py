"""Values are named by what they are."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "airflow_eos"
VAGUE = {
    *("found", "one", "said", "what", "its", "mine", "ours", "theirs", "told"),
    *("known", "asked", "gone", "there", "made", "going", "where"),
}
ANSWERS = {"ledger/records/run_record.py": 1, "operations/checks.py": 1, "operations/findings.py": 1}
"""Fields of answers that users read: ``found`` of a run, of a check, of a count."""
AIRFLOWS_KINDS = {"sensors", "triggers", "hooks", "decorators"}


def bindings(source):
    """Count what a module gives a vague name to: variables, parameters, what a loop goes through."""
    nodes = list(ast.walk(ast.parse(source)))
    stored = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    parameters = [node.arg for node in nodes if isinstance(node, ast.arg)]
    return sum(name in VAGUE for name in [*stored, *parameters])


def test_no_value_has_a_vague_name():
    """``receipt``, ``partition``, ``answer``: a reader need not look up what ``found`` is."""
    counts = {
        path.relative_to(PACKAGE).as_posix(): bindings(path.read_text()) for path in PACKAGE.rglob("*.py")
    }
    assert {path: count for path, count in counts.items() if count} == ANSWERS


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
