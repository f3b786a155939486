"""The documentation is consistent: links lead somewhere, and quoted code is the real code."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.support.documented_code import BLOCK, NAMES_FILE, PAGES, ROOT

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_TARGET = re.compile(r"\bmake ([a-z]+)\b")
EXECUTORS = {"L": "LocalExecutor", "C": "CeleryExecutor"}
"""Set-ups in docs/retries.md that use PostgreSQL; without a name it is S, the one with SQLite."""


def name_of(page):
    """Return a page's name for test ids."""
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_to_files(page):
    """A moved file needs its links changed."""
    links = [link.partition("#")[0] for link in _LINK.findall(page.read_text())]
    local = [link for link in links if link and "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_page_has_conflict_markers(page):
    """Sphinx renders them as text, and other checks ignore them."""
    assert re.findall(r"^(?:<{7} |>{7} ).*$", page.read_text(), re.MULTILINE) == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_that_names_its_file_is_an_excerpt_of_it(page):
    """Examples are excerpts, never copies: the reader sees code that a test runs."""
    stale = []
    for block in BLOCK.findall(page.read_text()):
        source = NAMES_FILE.match(block)
        if source and block[source.end() :] not in (ROOT / source[1]).read_text():
            stale.append(block)
    assert stale == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_other_code_is_valid_python(page):
    """A reader can paste it."""
    for block in BLOCK.findall(page.read_text()):
        if not NAMES_FILE.match(block):
            ast.parse(block)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_names_that_link_to_code_are_in_it(page):
    """``[`name`](module.py)``: the module, or something it defines; a renaming changes the page, too."""
    stale = []
    for name, link in re.findall(r"\[`([\w.]+)`\]\(([^)\s]+\.py)\)", page.read_text()):
        target = page.parent / link
        last = name.removesuffix(".py").rpartition(".")[2]
        defined = re.compile(rf"^(?:class|def) {last}\b|^{last}\b", re.MULTILINE)
        if last != target.stem and not (target.exists() and defined.search(target.read_text())):
            stale.append((name, link))
    assert stale == []


@cache
def own_files_and_folders():
    """Return the Python files of this project and its folders, from the root."""
    own = ("airflow_eos", "tests", "dags", "spark_apps", "chaos", "demo", "benchmarks", "tools", "docs")
    files = [str(path.relative_to(ROOT)) for folder in own for path in (ROOT / folder).rglob("*.py")]
    folders = {str(path.relative_to(ROOT)) for folder in own for path in (ROOT / folder).rglob("*/")} | {*own}
    return files, folders


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=name_of)
def test_files_and_folders_that_a_page_names_exist(page):
    """Also names without a link; only a change log may name deleted ones."""
    files, folders = own_files_and_folders()
    text = page.read_text()
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", text))
    assert [
        name for name in sorted(named) if not any(f"/{path}".endswith(f"/{name}") for path in files)
    ] == []
    inside = [
        name for name in re.findall(r"`((?:\w+/)+)`", text) if f"airflow_eos/{name}"[:-1] not in folders
    ]
    assert [name for name in inside if name[:-1] not in folders] == []


@pytest.mark.parametrize(("page", "packages"), [("README.md", "tree"), ("docs/architecture.md", "layers")])
def test_maps_of_packages_are_complete(page, packages):
    """Every package has a place in the map, and the map has no other."""
    text = (ROOT / page).read_text()
    existing = {path.parent.name for path in (ROOT / "airflow_eos").glob("*/__init__.py")}
    if packages == "tree":
        (tree,) = re.findall(r"```\nairflow_eos/\n(.*?)```", text, re.DOTALL)
        inside = re.findall(r"^  ((?:\w+/ ?)+)", tree, re.MULTILINE)
        assert {name for line in inside for name in line.replace("/", " ").split()} == existing
    else:
        (layers,) = re.findall(r"## Layers\n\n```\n(.*?)```", text, re.DOTALL)
        names = set(re.findall(r"[a-z_]+", layers))
        assert existing - names - {"links", "testing"} == set()  # in addition to the layers


def test_every_test_that_a_page_names_exists():
    """Each row names tests that exist."""
    files: dict[str, str] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        files[path.name] = files.get(path.name, "") + path.read_text()
    named = {match for page in PAGES for match in re.findall(r"(test_\w+\.py)::(test_\w+)", page.read_text())}
    assert named
    assert [pair for pair in sorted(named) if f"def {pair[1]}(" not in files.get(pair[0], "")] == []


def test_every_row_of_the_retries_table_has_tests_on_the_set_ups_that_it_names():
    """Each row ends with the tests that do what it says, and the Airflow set-ups in which they run."""
    text = (ROOT / "docs" / "retries.md").read_text()
    table = text[text.index("| what you do") : text.index("## Choosing")].strip().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]
    assert len(rows) > 20
    for row in rows:
        assert len(row) == 7, row
        assert re.fullmatch(r"`test_\w+\.py::test_\w+`(, `test_\w+\.py::test_\w+`)*", row[-2]), row
        seen = [set_ups(file, name) for file, name in re.findall(r"`(test_\w+\.py)::(test_\w+)`", row[-2])]
        assert set(row[-1].split()) == set().union(*seen), row


def set_ups(file, name):
    """Return the set-ups of docs/retries.md in which a system test runs, by its fixtures."""
    source = (ROOT / "tests" / "system" / file).read_text()
    module = ast.parse(source)
    (test,) = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == name]
    marks = {ast.unparse(decorator) for decorator in test.decorator_list}
    texts = [ast.unparse(test), *(ast.unparse(node) for node in module.body if is_given(node, marks))]
    executors = {mark for mark, kind in EXECUTORS.items() if any(f"{kind!r}" in text for text in texts)}
    return executors | ({"S"} if "airflow" in {argument.arg for argument in test.args.args} else set())


def is_given(node, names):
    """Return whether a statement assigns one of the names."""
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in names


def test_make_targets_in_the_documents_exist():
    """``make help`` and the documentation agree."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {target for page in PAGES for target in _TARGET.findall("\n".join(code_in(page)))}
    assert named
    assert named - targets == set()


def test_tests_that_the_guarantees_name_exist():
    """A statement names its experiment; renaming an experiment has to change its page, too."""
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    files = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    pages = sorted((ROOT / "docs" / "guarantees").glob("*.md"))
    named = {name for page in pages for name in re.findall(r"\b(test_\w+)\b(?!\.py)", page.read_text())}
    assert named
    assert {name for name in named - files if f"def {name}(" not in sources} == set()


def test_every_guarantee_has_a_row_and_a_page():
    """S1 to A3: a row with tests in the index, and a section that begins with the id."""
    groups = {"S": 5, "P": 5, "T": 6, "C": 6, "A": 3}
    wanted = {f"{group}{n}" for group, last in groups.items() for n in range(1, last + 1)}
    folder = ROOT / "docs" / "guarantees"
    rows = set(re.findall(r"^\| ([A-Z]\d)\*? \|.*test", (folder / "index.md").read_text(), re.MULTILINE))
    text = "\n".join(page.read_text() for page in folder.glob("*.md"))
    sections = set(re.findall(r"^## ([A-Z]\d):", text, re.MULTILINE))
    assert wanted - rows == {"C6"}  # its row refers to a table
    assert sections == wanted


def test_no_belief_has_two_rows():
    """A merge that keeps both sides keeps a row next to its rewritten form."""
    text = (ROOT / "docs" / "guarantees" / "beliefs.md").read_text()
    beliefs = re.findall(r"^\| ([^|*]+) \| [^|\s]", text, re.MULTILINE)
    assert len(beliefs) > 100
    assert sorted(beliefs) == sorted(set(beliefs))


def code_in(page):
    """Return the code of a page: blocks and spans."""
    text = page.read_text()
    return [*re.findall(r"```console\n(.*?)```", text, re.DOTALL), *re.findall(r"`(make [^`]+)`", text)]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_reset_that_names_an_owner_names_topics(page):
    """A group without a cursor has no owner and no topics: the command needs both."""
    resets = re.findall(r".*reset-offsets.* --pipeline [A-Z].*", page.read_text())
    assert [line for line in resets if "--topic " not in line] == []
