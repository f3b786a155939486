"""Ships this package and kafka-python to executors that lack them: once per session, by Spark.

Compiled packages are not shipped: executors need pyarrow, numpy and google-crc32c, and lz4 for records
compressed with it. The preflight checks this.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import logging
import marshal
import shutil
import sys
import tempfile
import zipfile
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_eos.spark.probe import code_digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)
# Without the Airflow layer: executors have no Airflow.
_OURS = (
    "__init__.py",
    "closeable.py",
    "daemon_thread.py",
    "exceptions.py",
    "printable.py",
    "redaction.py",
    "task_signals.py",
    "wording.py",
    "lazy_exports.py",
    "model",
    "recordbatch",
    "sinks/__init__.py",
    "sinks/columns.py",
    "sinks/delta_features.py",
    "sinks/delta_files.py",
    "sinks/executor_extra.py",
    "sinks/iceberg_files.py",
    "sinks/postgres_columns.py",
    "sinks/postgres_rows.py",
    "sinks/postgres_session.py",
    "sinks/refused_login.py",
    "spark",
    "wire",
)
_DRIVERS = (
    *(entry for entry in _OURS if not entry.startswith("sinks/")),
    "broker",
    "engine",
    "ledger",
    "ports.py",
    "table_ports.py",
    "run",
    "sinks",
)
_UNCHECKED_HASH = (1).to_bytes(4, "little")  # flags of a cached module (PEP 552)


def ship_code(spark: SparkSession) -> None:
    """Add this package and kafka-python to the session's Python files.

    Executors import the shipped code before their own, so driver and executors run the same version.
    """
    path = _archive(f"airflow_eos-{code_digest(our_modules())}", _OURS)
    spark.addArtifacts(str(path), pyfile=True)
    size = path.stat().st_size >> 10
    log.info("shipped this package and kafka-python (%d kB) to the session's executors", size)


def driver_archive() -> Path:
    """Return an archive of this package and kafka-python for a driver, for ``--py-files``.

    It exists as long as this process. The driver still needs confluent-kafka and the compiled packages of
    executors.
    """
    files = [file.read_bytes() for _, file in _our_files(_DRIVERS)]
    digest = hashlib.sha256(b"".join(files)).hexdigest()[:12]
    return _archive(f"airflow_eos-driver-{digest}", _DRIVERS)


@lru_cache(maxsize=2)
def _archive(name: str, entries: tuple[str, ...]) -> Path:
    """Zip the compiled code into a file that exists as long as this process, because new executors fetch it.

    Python does not keep the code that it compiles from a zip, so each worker process would compile
    kafka-python again. Its sources are left out: kafka-python reads a hundred schema files, each through the
    archive's whole table of contents. Our sources are included, for tracebacks.
    """
    folder = Path(tempfile.mkdtemp(prefix="airflow-eos-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # The name identifies the version: Spark refuses different content under a known name.
    path = folder / f"{name}-{sys.implementation.cache_tag}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for entry, file in sorted((*_our_files(entries), *_kafka_files())):
            if file.suffix == ".py":
                _add(archive, f"{entry}c", _compiled(entry, file))
            if file.suffix != ".py" or entry.startswith("airflow_eos/"):
                _add(archive, entry, file.read_bytes())
    return path


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    info.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(info, data)


def _compiled(name: str, path: Path) -> bytes:
    """Return the module's code, as Python caches it, in the unchecked form: never compared with a source."""
    code = SourceFileLoader(f"shipped/{name}", str(path)).get_code(f"shipped/{name}")
    return (
        importlib.util.MAGIC_NUMBER
        + _UNCHECKED_HASH
        + importlib.util.source_hash(path.read_bytes())
        + marshal.dumps(code)
    )


def our_modules() -> list[str]:
    """Return the shipped source files of this package, relative to its folder."""
    return [name.split("/", 1)[1] for name, _ in _our_files()]


def _our_files(entries: tuple[str, ...] = _OURS) -> Iterator[tuple[str, Path]]:
    package = Path(__file__).parent.parent
    for entry in entries:
        path = package / entry
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            yield f"{package.name}/{file.relative_to(package).as_posix()}", file


def _kafka_files() -> Iterator[tuple[str, Path]]:
    spec = importlib.util.find_spec("kafka")
    for folder in (spec.submodule_search_locations if spec is not None else None) or ():
        root = Path(folder)
        for file in sorted(root.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts and file.suffix in (".py", ".json"):
                yield f"kafka/{file.relative_to(root).as_posix()}", file
