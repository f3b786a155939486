#!/usr/bin/env python3
"""Check what a release would publish: ``python tools/check_dist.py dist``. ``make dist`` calls it.

A source archive holds tracked files of its package and what describes it; a description has no relative
links, which an index would resolve against itself. Problems are printed, one a line; the exit code is then 1.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Collection, Iterator
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"airflow_eos": "", "airflow_eos_testing": "testing/"}
"""Folder of the checkout in which each distribution begins."""
_BESIDE = {
    "airflow_eos": {"CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml"},
    "airflow_eos_testing": {"LICENSE", "README.md", "pyproject.toml", "same_version.py"},
}
_MADE = {"PKG-INFO", ".gitignore"}  # by the builder
_LINK = re.compile(r"\]\((?!https?://|#)([^)\s]+)\)")


def source_archive_problems(archive: Path, tracked: Collection[str]) -> Iterator[str]:
    """Yield what a source archive has too much, and what it lacks.

    :param tracked: the files of the repository, relative to its root.
    """
    package = archive.name.rpartition("-")[0]
    folder = PACKAGES[package]
    with tarfile.open(archive) as opened:
        names = {member.name.partition("/")[2] for member in opened if member.isfile()}
    inside = {name.removeprefix(folder) for name in tracked if name.startswith(f"{folder}{package}/")}
    wanted = inside | _BESIDE[package]
    for name in sorted(names - wanted - _MADE):
        yield f"{archive.name}: stray file {name}"
    for name in sorted(wanted - names):
        yield f"{archive.name}: lacks {name}"


def wheel_problems(wheel: Path) -> Iterator[str]:
    """Yield what is wrong with a wheel's metadata and folders."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (name,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(name).decode())
    package = wheel.name.partition("-")[0]
    for name in names:
        if not re.match(rf"{package}(-[^/]+\.dist-info)?/", name):
            yield f"{wheel.name}: stray file {name}"
    for field in ("Author", "Summary", "License-Expression", "Requires-Python", "Project-URL"):
        if not metadata[field]:
            yield f"{wheel.name}: no {field} in the metadata"
    for link in _LINK.findall(str(metadata.get_payload())):
        yield f"{wheel.name}: relative link in the description: {link}"


def problems(folder: Path, tracked: Collection[str]) -> list[str]:
    """Return the problems of the archives in a folder; one of each kind for each package must be there."""
    listed: list[str] = []
    for package in PACKAGES:
        archives = sorted(folder.glob(f"{package}-*.tar.gz"))
        wheels = sorted(folder.glob(f"{package}-*.whl"))
        if (len(archives), len(wheels)) != (1, 1):
            listed.append(f"{package}: {len(archives)} source archives and {len(wheels)} wheels in {folder}")
        listed += [problem for archive in archives for problem in source_archive_problems(archive, tracked)]
        listed += [problem for wheel in wheels for problem in wheel_problems(wheel)]
    return listed


def tracked_files() -> set[str]:
    """Return the files that Git knows, relative to the root."""
    command = ["git", "ls-files", "-z"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return {name for name in listing.split("\0") if name and (ROOT / name).is_file()}


def main() -> int:
    """Print the problems of the folder that is named."""
    listed = problems(Path(sys.argv[1]), tracked_files())
    print("\n".join(listed), end="\n" if listed else "")
    return 1 if listed else 0


if __name__ == "__main__":
    sys.exit(main())
