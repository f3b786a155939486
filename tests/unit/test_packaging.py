"""What is shipped, and what may never be in it."""

from __future__ import annotations

import configparser
import importlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
_PIN = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9-]*)==(?P<version>[A-Za-z0-9.+!]+)(?: ; (?P<marker>python_version .+))?"
)

# Put together, so that this file does not hold what it looks for.
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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel, without build isolation: no network."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("airflow_eos-*-py3-none-any.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def tracked_files():
    """List the files git knows, with their text; binary ones are left out."""
    command = ["git", "ls-files", "-z"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    for name in filter(None, listing.split("\0")):
        path = ROOT / name
        if path.is_file():  # not one that is deleted and not committed yet
            try:
                yield name, path.read_text()
            except UnicodeDecodeError:
                continue


def project():
    """Return the ``[project]`` table."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins():
    """Return the pins as (name, version, marker or None)."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = [_PIN.fullmatch(line) for line in lines]
    wrong = [line for line, match in zip(lines, found, strict=True) if match is None]
    assert wrong == []
    return [(m["name"], m["version"], Marker(m["marker"]) if m["marker"] else None) for m in found if m]


def pins_for(python):
    """Return {name: version} as pip reads the constraints on one Python; two pins of a package are wrong."""
    found = [
        (name, version)
        for name, version, marker in pins()
        if marker is None or marker.evaluate({"python_version": python})
    ]
    assert len(found) == len(dict(found)), f"a package is pinned twice on Python {python}"
    return dict(found)


def test_the_wheel_is_typed_and_licensed_and_holds_only_the_package(wheel):
    """Type checkers find ``py.typed``; tests, demo and Dags stay at home."""
    names = wheel.namelist()
    assert "airflow_eos/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    folders = {name.partition("/")[0] for name in names}
    assert folders == {"airflow_eos", next(f for f in folders if f.endswith(".dist-info"))}
    assert [name for name in names if "/tests/" in name or name.rpartition("/")[2].startswith("test_")] == []


def test_the_wheel_holds_every_module_that_is_tracked(wheel):
    """A module that the build leaves out would be missing for users only."""
    modules = {name for name, _ in tracked_files() if re.fullmatch(r"airflow_eos/.+\.py", name)}
    assert modules
    assert modules - set(wheel.namelist()) == set()


def test_the_wheel_registers_the_provider_and_the_pytest_plugin(wheel):
    """Airflow and pytest find us by entry points, and what they name can be imported."""
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt")]
    parser = configparser.ConfigParser()
    parser.read_string(wheel.read(name).decode())
    provider = parser["apache_airflow_provider"]["provider_info"]
    module, _, function = provider.partition(":")
    assert callable(getattr(importlib.import_module(module), function))
    assert importlib.util.find_spec(parser["pytest11"]["airflow_eos"]) is not None


def test_constraints_are_exact_pins_in_order():
    """``name==version`` lines only, so that pip takes them as constraints and a diff shows what changed."""
    names = [name for name, _, _ in pins()]
    assert names == sorted(names)
    assert all(name == canonicalize_name(name) for name in names)


@pytest.mark.parametrize("python", PYTHONS)
def test_every_direct_dependency_has_a_pin_that_it_allows(python):
    """A fresh set-up never resolves a direct dependency freely."""
    declared = project()["dependencies"] + project()["optional-dependencies"]["dev"]
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


def test_no_tracked_file_names_a_registry_or_a_machine():
    """Registries are the user's choice, and a path of one machine is wrong on every other."""
    unwanted = [*_HOSTS, *_PATHS]
    home = str(Path.home())
    unwanted += [path for path in (f"{ROOT}/", f"{home}/") if path.count("/") > 1]
    found = [f"{name}: {word}" for name, text in tracked_files() for word in unwanted if word in text]
    assert found == []
