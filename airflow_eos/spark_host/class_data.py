"""Class-data archives: a JVM that maps one starts in about half the time and CPU.

Java writes such an archive when a process exits normally (``-XX:ArchiveClassesAtExit``, JEP 350). The JVM
ignores an archive that does not match the Java or the jars, so a wrong guess here costs only time. An archive
that another user could have written is not used: its code is run.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

_KEPT = 4
"""Archives (50 to 150 MB each) kept per name, for environments that share the folder."""
_OTHERS_WRITE = 0o022


def archive_path(folder: Path, name: str, java: Path, classpath: Sequence[Path]) -> Path:
    """Return the path of the archive for this Java and exactly these jars, whether it exists or not.

    :param name: the program that runs on them, with its version.
    """
    identity = hashlib.sha256(str(java.resolve()).encode())
    for jar in classpath:
        # Java compares the path, size and modification time of every jar.
        status = jar.stat()
        identity.update(f"\0{jar}\0{status.st_size}\0{status.st_mtime_ns}".encode())
    return folder / f"{name}-{identity.hexdigest()[:16]}.jsa"


def is_trusted(archive: Path) -> bool:
    """Return whether an archive exists, and only this user and root can have written it."""
    try:
        return is_private(archive) and is_private(archive.parent)
    except OSError:  # another process may remove it meanwhile
        return False


def is_private(path: Path) -> bool:
    """Return whether only this user and root can write to a file or folder."""
    status = path.stat()
    return status.st_uid in (os.getuid(), 0) and not status.st_mode & _OTHERS_WRITE


def use_options(archive: Path) -> list[str]:
    """Return JVM options that map an existing archive, and stay silent if it does not match."""
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def dump_options(target: Path) -> list[str]:
    """Return JVM options that write an archive at a normal exit."""
    return [f"-XX:ArchiveClassesAtExit={target}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def install(dumped: Path, archive: Path) -> None:
    """Move a dumped archive to its final name, atomically, and delete the oldest ones of that name."""
    archive.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    staged = archive.with_name(f".{dumped.parent.name}-{archive.name}")
    shutil.copyfile(dumped, staged)
    staged.chmod(0o644)
    staged.replace(archive)
    name = archive.name.rsplit("-", 1)[0]
    present = sorted(archive.parent.glob(f"{name}-*.jsa"), key=lambda path: path.stat().st_mtime)
    for old in present[:-_KEPT]:
        old.unlink(missing_ok=True)
        old.with_suffix(".log").unlink(missing_ok=True)
