"""Values, functions and attributes are named by what they are or do."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "airflow_eos"
FOLDERS = ("airflow_eos", "benchmarks", "chaos", "dags", "demo", "spark_apps", "testing", "tests", "tools")
VAGUE = {
    *("found", "one", "said", "what", "its", "mine", "ours", "theirs", "told"),
    *("known", "asked", "gone", "there", "made", "going", "where"),
}
ANSWERS = {
    "airflow_eos/ledger/records/run_record.py": 1,
    "airflow_eos/operations/checks.py": 1,
    "airflow_eos/operations/verification.py": 1,
}
"""Fields of answers that users read: ``found`` of a run, of a check, of a count."""
AIRFLOWS_KINDS = {"sensors", "triggers", "hooks", "decorators"}


def bound_name(node):
    """Return the name that a node binds, or an empty string."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return name
        case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name
        case ast.ClassDef(name=name):
            return name.lower()
        case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
            return name
    return ""


def bindings(source):
    """Count the vague names that a module binds, private ones too.

    Variables, parameters, loop targets, stored attributes, functions, methods, classes, aliases of imports.
    """
    return sum(bound_name(node).strip("_") in VAGUE for node in ast.walk(ast.parse(source)))


def test_no_value_has_a_vague_name():
    """``receipt``, ``partition``, ``answer``: a reader need not look up what ``found`` is."""
    modules = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    counts = {path.relative_to(ROOT).as_posix(): bindings(path.read_text()) for path in modules}
    assert {path: count for path, count in counts.items() if count} == ANSWERS


def test_every_kind_of_binding_is_counted():
    """Values, functions, classes, stored attributes, aliases; uses and arguments by name are not."""
    assert bindings("found = 1\ndef f(one, *, what=2): ...\nfor its in x: ...\n[y for said in z]") == 5
    assert bindings("if (found := f()): ...\nwith a as one: ...\nlambda what: 0") == 3
    assert bindings("def made(): ...\nasync def _asked(): ...\nclass Known:\n    found: int = 0") == 4
    assert bindings("self.asked = 0\nself._known: int = 0\nself.gone += 1\na.told, b[0] = c") == 4
    assert bindings("import os as there\nfrom a import b as ours, c as d") == 2
    assert bindings("try: ...\nexcept E as one: ...\nmatch a:\n    case [1 as found, its]: ...") == 3
    assert bindings("print(found, a.one)\nf(what=3)\nfounded = 1\nimport made\nb.told()\nc[a.its] = 0") == 0


def test_no_file_name_stands_in_two_packages():
    """Except Airflow's kinds, whose modules are named by what they sense, trigger or hook."""
    folders = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        folders[path.name].add(path.parent.relative_to(PACKAGE).as_posix())
    del folders["__init__.py"]

    assert {name: packages for name, packages in folders.items() if len(packages - AIRFLOWS_KINDS) > 1} == {}
    assert folders["kafka_lag.py"] == {"sensors", "triggers"}
