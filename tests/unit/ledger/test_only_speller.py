"""Only :mod:`airflow_eos.ledger.keys` spells out run keys, ledger keys and transactional ids.

A second place would keep the old formula when the first changes, without any error: its id fences nobody.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from airflow_eos.ledger import keys

ROOT = Path(__file__).parents[3]
MAKER = ROOT / "airflow_eos/ledger/keys.py"
FOLDERS = ("airflow_eos", "chaos", "demo", "benchmarks", "dags", "spark_apps", "tools")

HOLE = "\0"
"""Stands for a value in a composed text."""
PREFIX = "\1"
"""Stands for such a value that is called a prefix."""

_KINDS = "|".join(re.escape(kind) for kind in sorted(keys.ID_FORMS, key=len, reverse=True))
_RECORDS = "|".join(sorted({kind.split(":")[0] for kind in keys.RECORD_KINDS}))
_RUNS = "|".join(re.escape(kind) for kind in (*keys.RUN_KINDS, "rounds", "reset"))
SPELLED = {
    "ledger key": re.compile(rf"(?:{_RECORDS}):(?! |$)|(?:{_RECORDS}):$"),
    "run key": re.compile(rf"(?:{_RUNS})/"),
    "transactional id, from its prefix on": re.compile(f".*{PREFIX}\\."),
    "transactional id, its kind": re.compile(rf"[\w{HOLE}-]*\.(?:{_KINDS})(?:\.|$)"),
    "kind of a transactional id": re.compile(r"(?:mapped-cursor|used-ledger|ledger-index|ledger-prune)$"),
    "transactional id of the default prefix": re.compile(r"airflow-eos\."),
    "form of a transactional id": re.compile(r".*<prefix>\.[\w<]", re.DOTALL),
    "mark of a reprocessing": re.compile(rf"{HOLE}#{HOLE}"),
}
MODULES = re.compile(r"\.?(?:airflow_eos|airflow)\.[a-z_.]+|\.[a-z]+_[a-z_]+")
"""Texts that are names of modules."""
OTHER_NAMES = {
    "enable.partition.eof",
    "heartbeat.interval.ms",
    "max.partition.fetch.bytes",
    "source.partition",
    "statistics.interval.ms",
    "transaction.partition.verification.enable",
}
"""Kafka settings, and a DataFrame column, that look like the kind of an id."""


def docstrings(tree):
    """Return the texts that are statements: docstrings of modules, classes, functions and constants."""
    constants = set()
    for node in ast.walk(tree):
        for statement in getattr(node, "body", None) if isinstance(getattr(node, "body", None), list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                constants.add(statement.value)
    return constants


def text_of(node):
    """Return what a text looks like; None if the node is not a text."""
    if isinstance(node, ast.Constant):
        value = node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
        return value if isinstance(value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(
            text_of(part) if isinstance(part, ast.Constant) else hole(part.value) for part in node.values
        )
    if isinstance(node, ast.BinOp):
        return operation(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return call(text_of(node.func.value), node.func.attr, node)
    return None


def operation(node):
    """Return the text that an operator makes of two operands."""
    left, right = text_of(node.left), text_of(node.right)
    if isinstance(node.op, ast.Mod):
        return filled(left, r"%[sd]", tuple_of(node.right))
    if isinstance(node.op, ast.Add) and (left is not None or right is not None):
        return (hole(node.left) if left is None else left) + (hole(node.right) if right is None else right)
    return None


def call(text, method, node):
    """Return the text that a string method makes of its arguments."""
    if text is not None and method == "format":
        return filled(text, r"\{\w*\}", [*node.args, *(keyword.value for keyword in node.keywords)])
    if text is not None and method == "join" and isinstance(node.args[0], ast.Tuple | ast.List):
        return text.join(text_of(element) or hole(element) for element in node.args[0].elts)
    return None


def tuple_of(node):
    """Return the values after a percent sign."""
    return node.elts if isinstance(node, ast.Tuple) else [node]


def filled(template, place, values):
    """Return a template with its placeholders marked; None if there is no text to fill."""
    if template is None:
        return None
    left = list(values)
    return re.sub(place, lambda _: hole(left.pop(0)) if left else HOLE, template)


def hole(node):
    """Return the mark of a value, which tells whether it is named a prefix."""
    called = node.func if isinstance(node, ast.Call) else None
    if getattr(called, "attr", getattr(called, "id", "")) == "ids_prefix":
        return f"{PREFIX}."  # it brings the dot
    names = {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}
    names |= {child.attr for child in ast.walk(node) if isinstance(child, ast.Attribute)}
    return PREFIX if any(re.fullmatch(r"_?(\w+_)?prefix", name.lower()) for name in names) else HOLE


def spelled(source):
    """Return (line, text, kind of key or id) for every key and id that a source spells out."""
    tree = ast.parse(source)
    prose = docstrings(tree)
    spellings = []
    for node in ast.walk(tree):
        text = None if node in prose else text_of(node)
        if text is None or text in OTHER_NAMES or MODULES.fullmatch(text):
            continue
        spellings += [(node.lineno, text, kind) for kind, form in SPELLED.items() if form.match(text)]
    return spellings


def sources():
    """Return every file that must use the functions of the module."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    assert MAKER in paths
    assert len(paths) > len(FOLDERS)
    return [path for path in paths if path != MAKER]


def test_nobody_else_spells_a_key_or_an_id():
    """Others call its functions for keys, their prefixes, their kinds, and the forms of ids."""
    complaints = [
        f"{path.relative_to(ROOT)}:{line}: {text!r}: {kind}"
        for path in sources()
        for line, text, kind in spelled(path.read_text())
    ]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize(
    "source",
    [
        'name = f"{self._prefix}.{group}"',
        'name = f"{target.prefix}.doctor"',
        'name = prefix + "." + group',
        'name = "%s.%s" % (prefix, group)',
        'name = "{}.{}".format(spec.prefix, group)',
        'name = ".".join((prefix, group))',
        'name.startswith(f"{prefix}.")',
        'name = f"{environment}.cursor.{group}"',
        'name.startswith(f"{keys.ids_prefix(prefix)}mapped-cursor.{group}/")',
        'start = f"{keys.ids_prefix(prefix)}{kind}.{pipeline.name}."',
        'start = ids_prefix(prefix) + kind + "."',
        'kinds = ("cursor", "mapped-cursor")',
        'name = "eos.boundary.orders"',
        'kind = ".boundary."',
        'text = "a cursor\'s is <prefix>.cursor.<group>"',
        'name = "airflow-eos.flights"',
        'key = f"run:{record.run_key}"',
        'key.startswith("run:")',
        'key.startswith(b"run:")',
        'KINDS = ("cursor:", "boundary:")',
        'key = "reset:" + group',
        'key = "ledger:identity"',
        'key = f"run/{pipeline}/{run_id}"',
        'key = f"rounds/{run_key}/final"',
        'key = "/".join(("run", pipeline, run_id))',
        'key = f"{key}#{number}"',
    ],
)
def test_the_scan_finds_a_second_speller(source):
    """Each way that once occurred in the package, and alternatives to an f-string."""
    assert spelled(source)


@pytest.mark.parametrize(
    "source",
    [
        'log.info("run: %s", name)',
        'name = "airflow_eos.ledger.authority"',
        '"""Under ``<prefix>.boundary.<topic>``, and run: keys."""',
        'path = f"{prefix}-{name}"',
        'path = f"runs/{name}"',
    ],
)
def test_the_scan_leaves_other_texts_alone(source):
    """Prose, module names, log lines and paths."""
    assert not spelled(source)


def test_prose_names_ids_as_they_are_made():
    """Docstrings and pages say ``<prefix>.`` followed by a kind, in the form of the kind, or nothing."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    complaints = []
    for path in (*pages, MAKER, *sources()):
        for match in re.finditer(r"<prefix>\.[^\s`'\",;)]*", path.read_text()):
            form = match[0].rstrip(".")
            if form != "<prefix>" and form not in keys.ID_FORMS.values():
                complaints.append(f"{path.relative_to(ROOT)}: {form}")
    assert not complaints, "\n".join(complaints)
