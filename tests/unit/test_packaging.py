"""What is shipped, and what may never be in it."""

from __future__ import annotations

import ast
import configparser
import importlib
import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

import pytest
import yaml
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import airflow_eos
from airflow_eos.spark.distributions import LINES, extra_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
_PIN = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9-]*)==(?P<version>[A-Za-z0-9.+!]+)(?: ; (?P<marker>python_version .+))?"
)

WHEELS = [("wheel", "airflow_eos"), ("testing_wheel", "airflow_eos_testing")]
PROVIDERS = ("apache.kafka", "apache.spark", "cncf.kubernetes", "common.compat", "openlineage")
# By import name; other names differ only by the underscore.
DISTRIBUTIONS = {
    **{name: f"apache-airflow-providers-{name.replace('.', '-')}" for name in PROVIDERS},
    "airflow": "apache-airflow",
    "airflow_eos": "airflow-eos",
    "airflow_eos_testing": "airflow-eos-testing",
    "confluent_kafka": "confluent-kafka",
    "google_crc32c": "google-crc32c",
    "grpc": "grpcio",
    "grpc_status": "grpcio-status",
    "dateutil": "python-dateutil",
    "yaml": "pyyaml",
    "kafka": "kafka-python",
    "opentelemetry": "opentelemetry-api",
    "pyspark": "pyspark-client",
    "typing_extensions": "typing-extensions",
}
OPTIONAL = {
    "apache-airflow-providers-cncf-kubernetes": "only for drivers on Kubernetes",
    "apache-airflow-providers-openlineage": "only where lineage is collected",
    "deltalake": "the extra delta, for sinks that are tables of Delta Lake",
    "psycopg": "the extra postgres, for sinks that are tables of PostgreSQL",
    "pyiceberg": "the extra iceberg, for sinks that are tables of Iceberg",
}

# Composed, so that this file does not contain what it searches for.
_HOSTS = (
    "pypi" + ".org",
    "python" + "hosted.org",
    "maven" + ".org",
    "maven" + ".apache.org",
    "npmjs" + ".org",
    "crates" + ".io",
    "proxy.golang" + ".org",
    "deb.debian" + ".org",
)
_PATHS = ("/wo" + "rk/", "/ro" + "ot/", "/tmp/d" + "ev")


def built(project, folder):
    """Build a distribution's wheel without build isolation, so that no network is needed."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*-py3-none-any.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build what production installs."""
    with built(ROOT, tmp_path_factory.mktemp("dist")) as archive:
        yield archive


@pytest.mark.process
@pytest.mark.parametrize(
    ("project", "package", "files"),
    [
        (ROOT, "airflow_eos", {"CHANGELOG.md", "LICENSE", "README.md"}),
        (ROOT / "testing", "airflow_eos_testing", {"LICENSE", "README.md", "same_version.py"}),
    ],
    ids=["airflow-eos", "airflow-eos-testing"],
)
def test_a_source_archive_holds_the_package_and_what_describes_it(tmp_path, project, package, files):
    """What a wheel is built from, no more: tests need brokers, and the whole repository."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(command, cwd=project, check=True, capture_output=True, timeout=120)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    inside = {name for name in names if name.startswith(f"{package}/")}
    # The builder adds the last two, and .gitignore.
    assert names - inside - {".gitignore"} == files | {"pyproject.toml", "PKG-INFO"}
    tracked = {re.fullmatch(rf"(?:testing/)?({package}/.+)", name) for name, _ in tracked_files()}
    assert inside == {match[1] for match in tracked if match}


@pytest.fixture(scope="module")
def testing_wheel(tmp_path_factory):
    """Build the test equipment."""
    with built(ROOT / "testing", tmp_path_factory.mktemp("testing")) as archive:
        yield archive


def tracked_files():
    """Return the files that git tracks, with their text, without binary ones."""
    command = ["git", "ls-files", "-z"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    for name in filter(None, listing.split("\0")):
        path = ROOT / name
        if path.is_file():  # not one that is deleted and not committed yet
            try:
                yield name, path.read_text()
            except UnicodeDecodeError:
                continue


def pyproject():
    """Return the contents of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def metadata_of(archive):
    """Return a wheel's metadata."""
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    return Parser().parsestr(archive.read(name).decode())


def pins():
    """Return the pins as (name, version, marker or None)."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    matches = [_PIN.fullmatch(line) for line in lines]
    wrong = [line for line, match in zip(lines, matches, strict=True) if match is None]
    assert wrong == []
    return [(m["name"], m["version"], Marker(m["marker"]) if m["marker"] else None) for m in matches if m]


def pins_for(python):
    """Return {name: version} as pip reads the constraints on one Python; no package may have two pins."""
    pinned = [
        (name, version)
        for name, version, marker in pins()
        if marker is None or marker.evaluate({"python_version": python})
    ]
    assert len(pinned) == len(dict(pinned)), f"a package is pinned twice on Python {python}"
    return dict(pinned)


@pytest.mark.parametrize(("fixture", "package"), WHEELS)
def test_a_wheel_is_typed_and_licensed_and_holds_only_its_package(fixture, package, request):
    """Type checkers find ``py.typed``; tests, demo and Dags are not shipped."""
    names = request.getfixturevalue(fixture).namelist()
    assert f"{package}/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    folders = {name.partition("/")[0] for name in names}
    assert folders == {package, next(f for f in folders if f.endswith(".dist-info"))}
    assert [name for name in names if "/tests/" in name or name.rpartition("/")[2].startswith("test_")] == []


@pytest.mark.parametrize(("fixture", "package"), WHEELS)
def test_a_wheel_holds_every_module_that_is_tracked(fixture, package, request):
    """If the build left out a module, only users would miss it."""
    matches = {re.fullmatch(rf"(?:testing/)?({package}/.+\.py)", name) for name, _ in tracked_files()}
    modules = {match[1] for match in matches if match}
    assert modules
    assert modules - set(request.getfixturevalue(fixture).namelist()) == set()


def test_the_pages_are_whole_and_a_plugin(wheel):
    """Templates, style sheet and script are in the wheel; Airflow loads the plugin by its entry point."""
    (place,) = entry_points(wheel)["airflow.plugins"].values()
    module, _, name = place.partition(":")
    assert isinstance(getattr(importlib.import_module(module), name), type)
    paths = {path.relative_to(ROOT).as_posix() for path in (ROOT / "airflow_eos" / "ui").rglob("*.*")}
    files = {name for name in paths if not name.endswith(".pyc")}
    assert {path.rpartition(".")[2] for path in files} == {"py", "html", "css", "js"}
    assert files <= set(wheel.namelist())


def test_production_holds_no_test_equipment(wheel, testing_wheel):
    """No pytest plugin, no errors of embedded servers; the extra installs the other wheel of this version."""
    code = "\n".join(wheel.read(name).decode() for name in wheel.namelist() if name.endswith(".py"))
    assert "class EosError" in code
    assert re.findall(r"class \w*Embedded\w*|import pytest|airflow_eos_testing", code) == []
    assert set(entry_points(wheel)) == {"apache_airflow_provider", "airflow.plugins"}
    production, testing = metadata_of(wheel), metadata_of(testing_wheel)
    spark = ["pyspark", *map(extra_of, LINES)]
    extras = [Requirement(text) for text in production.get_all("Requires-Dist") if "extra" in text]
    assert {(r.name, str(r.marker)) for r in extras} == {
        ("airflow-eos-testing", 'extra == "testing"'),
        *((name, f'extra == "{extra}"') for extra in spark for name in ("pyspark", "pyspark-client")),
        ("deltalake", 'extra == "delta"'),
        ("psycopg", 'extra == "postgres"'),
        ("pyarrow", 'extra == "iceberg"'),
        ("pyiceberg", 'extra == "iceberg"'),
    }
    assert f"airflow-eos=={production['Version']}" in testing.get_all("Requires-Dist")
    assert testing["Version"] == production["Version"] == airflow_eos.__version__


def entry_points(archive):
    """Return a wheel's entry points by group."""
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt")]
    parser = configparser.ConfigParser()
    parser.read_string(archive.read(name).decode())
    return {group: dict(parser[group]) for group in parser.sections()}


def test_the_wheels_register_the_provider_and_the_pytest_plugin(wheel, testing_wheel):
    """Airflow and pytest find us by entry points, whose targets can be imported."""
    module, _, function = entry_points(wheel)["apache_airflow_provider"]["provider_info"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))
    assert importlib.util.find_spec(entry_points(testing_wheel)["pytest11"]["airflow_eos"]) is not None


def test_a_wheel_says_where_the_project_lives_and_who_makes_it(wheel, testing_wheel):
    """As package indexes show it."""
    for archive in (wheel, testing_wheel):
        metadata = metadata_of(archive)
        assert metadata["Author"]
        assert {"Source", "Documentation"} <= {u.partition(",")[0] for u in metadata.get_all("Project-URL")}


@pytest.mark.parametrize("fixture", ["wheel", "testing_wheel"])
def test_links_of_a_published_description_lead_to_the_files_of_its_version(fixture, request):
    """An index shows the text without the repository, where a relative link would be broken."""
    links = re.findall(r"\]\(([^)\s]+)\)", metadata_of(request.getfixturevalue(fixture)).get_payload())
    base = f"https://github.com/airflow-eos/airflow-eos/blob/v{airflow_eos.__version__}/"
    own = [link.removeprefix(base).partition("#")[0] for link in links if link.startswith(base)]
    assert own
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    assert [path for path in own if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(("fixture", "package"), WHEELS)
def test_what_is_imported_is_declared_and_the_other_way_round(fixture, package, request):
    """Dependencies of other packages may disappear with them; unused ones are weight."""
    folder = ROOT / "testing" / package if package != "airflow_eos" else ROOT / package
    requirements = map(Requirement, metadata_of(request.getfixturevalue(fixture)).get_all("Requires-Dist"))
    declared = {canonicalize_name(r.name) for r in requirements if "extra" not in str(r.marker or "")}

    # Production needs the client only; the test equipment starts servers from its jars.
    names = DISTRIBUTIONS if package == "airflow_eos" else {**DISTRIBUTIONS, "pyspark": "pyspark"}
    needed = {names.get(name, name) for name in imported(folder)} - {package.replace("_", "-")}

    assert needed - OPTIONAL.keys() - declared == set()
    assert declared - needed == set()
    assert all(name in {DISTRIBUTIONS.get(n, n) for n in imported(ROOT / "airflow_eos")} for name in OPTIONAL)


@cache
def imported(folder):
    """Return the packages that the modules of a folder import; of Airflow's providers, the provider."""
    packages = set()
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for name in names:
                provider = next((p for p in PROVIDERS if name.startswith(f"airflow.providers.{p}.")), None)
                packages.add(provider or name.partition(".")[0])
    return packages - set(sys.stdlib_module_names)


def test_constraints_are_exact_pins_in_order():
    """``name==version`` lines only, so that pip takes them as constraints and a diff shows what changed."""
    names = [name for name, _, _ in pins()]
    assert names == sorted(names)
    assert all(name == canonicalize_name(name) for name in names)


@cache
def installed():
    """Return the Python versions that each installed package version supports."""
    metadata = [distribution.metadata for distribution in distributions()]
    return {
        (canonicalize_name(package["Name"]), package["Version"]): package.get("Requires-Python")
        for package in metadata
    }


@pytest.mark.parametrize("python", PYTHONS)
def test_a_pin_runs_on_each_python_that_it_is_for(python):
    """By the metadata of installed packages, also for a version that is pinned for other Pythons."""
    refused = {
        name: requires
        for name, version in pins_for(python).items()
        if (requires := installed().get((name, version))) and f"{python}.99" not in SpecifierSet(requires)
    }
    assert refused == {}


@pytest.mark.parametrize("python", PYTHONS)
def test_every_direct_dependency_has_a_pin_that_it_allows(python):
    """A fresh set-up never resolves a direct dependency freely."""
    project = pyproject()["project"]
    others = {extra_of(line) for line in LINES[:-1]}
    extras = {name: texts for name, texts in project["optional-dependencies"].items() if name not in others}
    declared = [text for texts in (project["dependencies"], *extras.values()) for text in texts]
    declared = [text for text in declared if not text.startswith("airflow-eos")]
    declared += [text for group in pyproject()["dependency-groups"].values() for text in group]
    pinned = pins_for(python)
    loose = []
    for text in declared:
        requirement = Requirement(text)
        applies = requirement.marker is None or requirement.marker.evaluate({"python_version": python})
        version = pinned.get(canonicalize_name(requirement.name))
        if applies and (version is None or not requirement.specifier.contains(version, prereleases=True)):
            loose.append(f"{text}: {version}")
    assert loose == []


@pytest.mark.parametrize("python", PYTHONS)
def test_pyspark_and_its_client_have_one_version(python):
    """The Spark provider brings pyspark-client, which installs over pyspark's own files."""
    pinned = pins_for(python)
    assert pinned["pyspark"] == pinned["pyspark-client"]


@pytest.mark.parametrize(
    ("extra", "line"), [*((extra_of(line), line) for line in LINES), ("pyspark", LINES[-1])]
)
def test_an_extra_for_each_line_of_spark_admits_one_minor_version_of_both_distributions(extra, line, wheel):
    """Whatever pip keeps or upgrades, both end with one minor version: they share a folder."""
    requirements = [Requirement(text) for text in metadata_of(wheel).get_all("Requires-Dist")]
    marker = f'extra == "{extra}"'
    bounds = {r.name: r.specifier for r in requirements if str(r.marker) == marker}
    assert set(bounds) == {"pyspark", "pyspark-client"}
    minors = [f"4.{minor}" for minor in range(10)]
    for specifier in bounds.values():
        assert [minor for minor in minors if specifier.contains(f"{minor}.9")] == [line]
        assert [minor for minor in minors if specifier.contains(f"{minor}.0")] == [line]


def test_the_registry_lists_what_the_package_exports():
    """Every operator, sensor, hook and trigger, by a path that can be imported."""
    registry = yaml.safe_load((ROOT / ".airflow-registry.yaml").read_text())
    kinds = ("operators", "sensors", "hooks", "triggers")
    paths = [entry["module"] for kind in kinds for entry in registry[kind]]
    classes = {
        getattr(importlib.import_module(path.rpartition(".")[0]), path.rpartition(".")[2]) for path in paths
    }
    assert all(entry["description"] for kind in kinds for entry in registry[kind])
    exported = {getattr(airflow_eos, name) for name in airflow_eos.__all__}
    assert {
        kind
        for kind in exported
        if isinstance(kind, type) and kind.__name__.endswith(("Operator", "Sensor", "Hook", "Trigger"))
    } == classes
    assert registry["package-name"] == pyproject()["project"]["name"]


def test_no_tracked_file_names_a_registry_or_a_machine():
    """Registries are the user's choice, and a path of one machine is wrong on every other."""
    unwanted = [*_HOSTS, *_PATHS]
    own = [ROOT, *(home for home in [Path.home()] if ROOT.is_relative_to(home))]
    unwanted += [f"{path}/" for path in own if len(path.parts) > 1]
    mentions = [f"{name}: {word}" for name, text in tracked_files() for word in unwanted if word in text]
    assert mentions == []


def test_every_part_of_the_package_is_in_a_layer():
    """A part in no layer could import anything."""
    contracts = pyproject()["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    placed = {name for layer in layers for name in re.findall(r"airflow_eos\.(\w+)", layer)}
    parts = {path.stem for path in (ROOT / "airflow_eos").iterdir() if path.suffix == ".py"}
    parts |= {path.parent.name for path in (ROOT / "airflow_eos").glob("*/__init__.py")}
    assert parts - {"__init__", "__main__"} == placed
