"""Resolve pyproject.toml for several Python versions and print the result as ``constraints.txt``.

::

    python tools/lock.py --also pyspark==4.2.0 python3.10 python3.11 python3.12 python3.13 > constraints.txt

A package that resolves equally everywhere gets one line; else each version gets a ``python_version`` marker.
``--also`` adds a requirement that pyproject.toml cannot express: pyspark and pyspark-client, which the Spark
provider installs into the same folder, must have the same version.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OWN_NAMES = ("airflow-eos", "airflow-eos-testing")


def resolve(python: str, also: list[str]) -> tuple[str, dict[str, str]]:
    """Return ``("3.11", {"name": "version"})``: the content of a fresh environment of this Python."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    version = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        # In an environment of its own: the caller's pip may be too old, or missing.
        subprocess.run([python, "-m", "venv", f"{scratch}/venv"], check=True)
        pip = [f"{scratch}/venv/bin/python", "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "pip>=25.1"], check=True, stdout=sys.stderr)  # for dependency groups
        command = [*pip, "--dry-run", "--ignore-installed", "--report", str(report), *also]
        for group in ("dev", "docs", "release"):
            command += ["--group", f"{ROOT}/pyproject.toml:{group}"]
        command += [f"{ROOT}[pyspark42,iceberg,delta,postgres]", f"{ROOT}/testing[platform]"]
        subprocess.run(command, check=True, stdout=sys.stderr)
        installed = json.loads(report.read_text())["install"]
    names = {canonical(item["metadata"]["name"]): item["metadata"]["version"] for item in installed}
    for own in OWN_NAMES:
        names.pop(own)
    return version, names


def canonical(name: str) -> str:
    """Return a project name in the form of PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def merge(resolved: dict[str, dict[str, str]]) -> list[str]:
    """Return lines ``name==version``, with a marker if the Pythons differ.

    :param resolved: packages by Python version, as :func:`resolve` returns them.
    """
    pythons = sorted(resolved, key=lambda version: int(version.partition(".")[2]))
    lines = []
    for name in sorted({name for packages in resolved.values() for name in packages}):
        users: defaultdict[str, list[str]] = defaultdict(list)
        for python in pythons:
            if name in resolved[python]:
                users[resolved[python][name]].append(python)
        for version, members in users.items():
            marker = "" if members == pythons else f" ; {_marker(members, pythons)}"
            lines.append(f"{name}=={version}{marker}")
    return lines


def _marker(members: list[str], pythons: list[str]) -> str:
    """Return a marker; bounds for consecutive versions, so that a later Python gets the newest pins."""
    first, last = pythons.index(members[0]), pythons.index(members[-1])
    if members != pythons[first : last + 1]:
        return " or ".join(f"python_version == '{member}'" for member in members)
    bounds = []
    if first > 0:
        bounds.append(f"python_version >= '{members[0]}'")
    if last < len(pythons) - 1:
        bounds.append(f"python_version < '{pythons[last + 1]}'")
    return " and ".join(bounds)


def main() -> None:
    """Print the constraints of the given interpreters."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--also", action="append", default=[], metavar="REQUIREMENT")
    parser.add_argument("python", nargs="+", help="interpreters to resolve for")
    options = parser.parse_args()
    print("\n".join(merge(dict(resolve(python, options.also) for python in options.python))))


if __name__ == "__main__":
    main()
