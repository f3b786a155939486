"""Instructions for contributors and a public forge: paths, commands and files exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tools.matrix import CI_CELL

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
GITHUB = ROOT / ".github"
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
TEXTS = [ROOT / "CONTRIBUTING.md", GITHUB / "pull_request_template.md", ROOT / "Makefile"]


def parsed(path):
    """Return the contents of a YAML file; ``on`` is a key there, not a boolean."""
    return yaml.load(path.read_text(), Loader=yaml.BaseLoader)


def is_there(command):
    """Return whether a command is a make target, a tool of the environment, or a repository's executable."""
    program, *arguments = command.split()
    if program == "make":
        return bool(arguments) and arguments[0] in TARGETS
    if program.startswith(".venv/bin/"):
        # The environment of this test stands for it: that of `make test AIRFLOW=3.2` has another name.
        return os.access(Path(sys.executable).with_name(program.removeprefix(".venv/bin/")), os.X_OK)
    return os.access(ROOT / program, os.X_OK)


def commands(node):
    """Yield all ``run`` and ``entry`` commands of parsed YAML, and the local actions it uses."""
    if isinstance(node, dict):
        yield from (line for key in ("run", "entry") if key in node for line in node[key].splitlines())
        node = list(node.values())
    if isinstance(node, list):
        for each in node:
            yield from commands(each)


def actions(node):
    """Yield the actions that the steps of a workflow use."""
    return re.findall(r"uses: (\S+)", node)


@pytest.mark.parametrize(
    "path",
    [ROOT / ".pre-commit-config.yaml", *sorted((GITHUB / "workflows").glob("*.yml"))],
    ids=lambda path: path.name,
)
def test_hooks_and_workflows_run_commands_that_exist(path):
    """Developers, hooks and continuous integration use the same commands."""
    used = list(commands(parsed(path)))
    assert used
    assert [command for command in used if not is_there(command)] == []


def test_a_command_that_is_gone_is_found():
    """The check above would see it."""
    assert is_there("make quick")
    assert is_there(".ci/run")
    assert not is_there("make quickly")
    assert not is_there("make")
    assert not is_there("tools/gone")
    assert is_there(".venv/bin/ruff check")
    assert not is_there(".venv/bin/gone")


def test_hooks_download_nothing():
    """They use the tools in ``.venv``, in the versions of continuous integration."""
    repositories = parsed(ROOT / ".pre-commit-config.yaml")["repos"]
    assert {repository["repo"] for repository in repositories} == {"local"}
    assert {hook["language"] for each in repositories for hook in each["hooks"]} == {"system"}


def test_the_workflow_tries_every_python_that_the_package_admits_and_runs_the_whole_once():
    """A classifier without a job would be an untested promise."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    jobs = parsed(GITHUB / "workflows" / "ci.yml")["jobs"]

    assert jobs["quick"]["strategy"]["matrix"]["python"] == named
    assert f">={named[0]}" == project["requires-python"]
    assert [name for name, job in jobs.items() if ".ci/run" in commands(job)] == ["whole"]
    assert {"make unit", "make coverage"} <= {*commands(jobs["unit"]), *commands(jobs["coverage"])}


def test_local_actions_exist_and_the_others_have_a_version():
    """``uses: ./path`` is an action in the repository."""
    used = {name for path in GITHUB.rglob("*.yml") for name in actions(path.read_text())}
    assert used
    own = {name for name in used if name.startswith("./")}
    assert [name for name in own if not (ROOT / name / "action.yml").exists()] == []
    assert [name for name in used - own if not re.fullmatch(r"[\w-]+/[\w-]+@v\d+", name)] == []


@pytest.mark.parametrize("path", sorted((GITHUB / "ISSUE_TEMPLATE").glob("*_*.yml")), ids=lambda p: p.name)
def test_issue_forms_are_whole(path):
    """Name, description and a body; each question has an id of its own."""
    form = parsed(path)
    assert form["name"]
    assert form["description"]
    questions = [item for item in form["body"] if item["type"] != "markdown"]
    ids = [question["id"] for question in questions]
    assert len(ids) == len(set(ids)) > 1
    assert all(question["attributes"]["label"] for question in questions)


def test_a_bug_report_asks_for_the_doctor_and_the_log_and_says_to_look_for_secrets_first():
    """What is needed for an answer, and what must not be public."""
    first, *questions = parsed(GITHUB / "ISSUE_TEMPLATE" / "bug_report.yml")["body"]
    assert "secrets" in first["attributes"]["value"]
    fields = {item["id"]: item for item in questions}
    assert "airflow eos doctor --output json" in fields["doctor"]["attributes"]["label"]
    assert "log" in fields["log"]["attributes"]["label"]
    assert all(fields[name]["validations"]["required"] == "true" for name in ("doctor", "log"))
    assert fields["secrets"]["attributes"]["options"][0]["required"] == "true"


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_make_targets_that_are_named_exist(path):
    """In prose and in tables too, not only in code."""
    named = set(re.findall(r"`(?:\S+ )?make ([a-z]+)", path.read_text()))
    assert named - TARGETS == set()


def test_every_place_that_contributors_are_sent_to_exists():
    """The table changes together with the code."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    quoted = [word for span in re.findall(r"`([^`\n]+)`", text) for word in span.split()]
    generated = {".venv", "build", "dist"}
    tops = {path.name for path in ROOT.iterdir() if path.is_dir()} - generated
    places = {word for word in quoted if "/" in word and word.partition("/")[0] in tops}
    assert len(places) > 40
    assert [place for place in sorted(places) if not (ROOT / place).exists()] == []


def test_the_table_of_changes_sends_every_change_to_code_and_to_a_test():
    """A row without a test would say that none is expected."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text[text.index("| change | code") : text.index("Layers point one way")].strip().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]
    assert len(rows) > 12
    assert [row[0] for row in rows if len(row) != 4 or "`" not in row[1] or "`tests/" not in row[2]] == []


def test_jobs_of_ci_run_on_the_python_that_the_documents_name() -> None:
    """Unless a job names another version."""
    python = parsed(GITHUB / "actions" / "setup" / "action.yml")["inputs"]["python"]
    assert f"python-{python['default']}" == CI_CELL


@pytest.mark.parametrize("target", ["lint", "types", "layers", "class-data"])
def test_a_target_sets_itself_up(target: str) -> None:
    """A fresh clone has no environment."""
    plan = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "tools/setup" in plan.stdout


def test_a_part_of_make_chaos_that_fails_stops_none_of_the_others(tmp_path: Path) -> None:
    """The other results of an hour are kept, and the exit code is that of a failure."""
    stub = """#!/bin/sh
    echo $2 >> .cache/calls
    [ $2 != chaos ] || { echo line > .cache/chaos.txt; exit 1; }
    """
    makefile = (ROOT / "Makefile").read_text()
    for path, text in (("Makefile", makefile), ("tools/setup", "#!/bin/sh"), (".venv/bin/python", stub)):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)

    # As at a prompt: a make process around the tests would add its own lines.
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["make", "chaos"], cwd=tmp_path, env=own, capture_output=True, text=True, check=False
    )

    calls = (tmp_path / ".cache" / "calls").read_text().split()
    assert calls == ["chaos", "chaos.table_campaign", "pytest"]
    assert done.stdout.splitlines()[-1] == "line"
    assert done.returncode != 0
