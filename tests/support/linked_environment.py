"""A virtual environment with links to the packages installed here, which spares pip from unpacking them."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def make_linked_environment(folder: Path, wheel: Path, name: str) -> None:
    """Create an environment with a wheel and its direct and transitive requirements, and nothing else.

    :param folder: folder of the environment.
    :param wheel: wheel file, which pip installs.
    :param name: its distribution.
    :raises importlib.metadata.PackageNotFoundError: a requirement is not installed here.
    """
    _run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    pip = (sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "--quiet", "--no-input")
    _run(*pip, "install", "--no-deps", "--no-index", "--no-compile", str(wheel))
    (site_packages,) = (folder / "lib").glob("python*/site-packages")
    (installed,) = Distribution.discover(name=name, path=[str(site_packages)])
    for required in _required_by(installed):
        _link(required, site_packages)
    # Fails if a version installed here does not meet the wheel's requirements.
    _run(*pip, "check")


def _required_by(root: Distribution) -> list[Distribution]:
    """Return the direct and transitive requirements of a distribution, from this environment."""
    required: dict[str, Distribution] = {}
    waiting = [(root, "")]
    visited = set()
    while waiting:
        owner, extra = waiting.pop()
        for text in owner.requires or ():
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
                continue
            name = canonicalize_name(requirement.name)
            required.setdefault(name, distribution(name))
            for needed in {"", *requirement.extras}:
                if (name, needed) not in visited:
                    visited.add((name, needed))
                    waiting.append((required[name], needed))
    return [*required.values()]


def _link(installed: Distribution, site_packages: Path) -> None:
    """Link modules, byte code and metadata, but no scripts: they would start this environment's Python."""
    for file in installed.files or ():
        if file.parts[0] == "..":
            continue
        link = site_packages / file
        link.parent.mkdir(parents=True, exist_ok=True)
        # Packages that share a folder list the same file.
        if not link.is_symlink():
            link.symlink_to(Path(str(installed.locate_file(file))).resolve())


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
