"""Brings this package, and kafka-python, to executors that have neither: once per session, by Spark's own means.

Executors still need what is compiled: pyarrow, numpy and google-crc32c (lz4 for that codec); the preflight checks it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import tempfile
import threading
import weakref
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
# The Airflow layer stays at home: executors have no Airflow.
_OURS = ("__init__.py", "exceptions.py", "py.typed", "model", "spark", "wire")
_KAFKA_LEFT_OUT = ("kafka.admin", "kafka.cli", "kafka.benchmarks", "kafka.vendor")
_shipped: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def ship_code(spark: SparkSession) -> str:
    """Add this package and kafka-python to the session's Python files; return the content's hash.

    Does nothing when the session has them already. Executors import the shipped code before their own, so driver
    and executors run the same version.
    """
    with _lock:
        if spark in _shipped:
            return _shipped[spark]
        data, digest = _archive()
        path = Path(tempfile.gettempdir()) / f"airflow_eos-{os.getuid()}-{digest}.zip"
        if not path.exists() or path.stat().st_size != len(data):
            # A name of its own first: several processes of one host may do this at once.
            with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
                file.write(data)
            Path(file.name).replace(path)
        spark.addArtifacts(str(path), pyfile=True)
        _shipped[spark] = digest
        _log.debug("shipped %s (%d kB) to the session's executors", path.name, len(data) >> 10)
        return digest


@lru_cache(maxsize=1)
def _archive() -> tuple[bytes, str]:
    """Zip the sources; the same sources give the same bytes."""
    import io

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(_files()):
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, path.read_bytes())
    data = buffer.getvalue()
    return data, hashlib.sha256(data).hexdigest()[:12]


def _files() -> Iterator[tuple[str, Path]]:
    package = Path(__file__).parent.parent
    for entry in _OURS:
        path = package / entry
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            yield f"{package.name}/{file.relative_to(package).as_posix()}", file
    spec = importlib.util.find_spec("kafka")
    for folder in (spec.submodule_search_locations if spec is not None else None) or ():
        root = Path(folder)
        for file in sorted(root.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts and file.suffix in (".py", ".json", ".pyi"):
                yield f"kafka/{file.relative_to(root).as_posix()}", file
