"""The files of a submission besides the author's application: code, and the run's specification."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_eos.closeable import Closeable
from airflow_eos.exceptions import ConfigurationError
from airflow_eos.operators.process_signature import parts_of

if TYPE_CHECKING:
    from airflow_eos.model.spec import RunSpec


_PREFIX = "airflow-eos-submit-"
_YOUNG_SECONDS = 60.0  # a younger folder may not be locked yet


class SubmittedFiles(Closeable):
    """Files of one submission, in a folder that only this user can read.

    The specification contains the Kafka connection with its secrets: it goes by file, because every user of
    the machine can read a command line. Call :meth:`close` after the submission; the next submission of this
    user removes the files of a killed process.

    :param spec: the run.
    :param process_file: the author's file with the function; None for an application.
    """

    def __init__(self, spec: RunSpec, process_file: Path | None) -> None:
        from airflow_eos.model.spec_json import spec_to_json
        from airflow_eos.spark.code_shipping import driver_archive

        text = spec_to_json(spec)
        self.kafka, self.sink = spec.kafka, spec.sink
        self._text = text
        _remove_abandoned()
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))  # mode 0700
        self._lock = os.open(self._folder, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)  # until this process ends, however it does
        self.spec = self._folder / f"airflow-eos-spec-{os.urandom(8).hex()}.json"
        _write_private(self.spec, text.encode("ascii"))
        self.py_files = [driver_archive()]
        if process_file is not None:
            self.py_files.append(process_file)

    def with_specification(self, application: Path) -> Path:
        """Return a copy of an application with the specification, which only the driver gets."""
        from airflow_eos.engine.application import with_specification

        (self._folder / "application").mkdir()  # a script's folder is on sys.path: it holds nothing else
        copy = self._folder / "application" / application.name
        _write_private(copy, with_specification(application.read_bytes(), self.spec.name, self._text))
        return copy

    def close(self) -> None:
        """Remove the specification; idempotent."""
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _write_private(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _remove_abandoned() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, held, or just removed
            if folder.stat().st_uid != os.getuid() or time.time() - folder.stat().st_mtime < _YOUNG_SECONDS:
                continue
            descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def split_process(process: str, relative_to: Path) -> tuple[Path | None, str]:
    """Return the file to ship, None for an importable module, and ``module:function``.

    :raises ConfigurationError: there is no such file, or no function is named.
    """
    place, function = parts_of(process)
    if not place.endswith(".py"):
        return None, process
    path = (relative_to / place).resolve()
    if not path.is_file():
        raise ConfigurationError(f"process {process!r}: there is no file {path}")
    check_shippable(process)
    return path, f"{path.stem}:{function}"


def check_shippable(process: str) -> None:
    """Raise ConfigurationError for a file that Spark's driver cannot import because of its name."""
    place, _ = parts_of(process)
    if place.endswith(".py") and not Path(place).stem.isidentifier():
        raise ConfigurationError(
            f"process {process!r}: {Path(place).name} is not the name of a module; rename the file"
        )


def joined(*parts: str | None) -> str | None:
    """Join comma-separated lists as ``spark-submit`` takes them."""
    return ",".join(part for part in parts if part) or None
