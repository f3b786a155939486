"""Reports the importable modules of a Python process without importing this package.

Executors may not have the package yet: this module travels by value, so its functions import all they need
and use no other module of this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

MISSING = "missing"


def versions(modules: Sequence[str]) -> dict[str, str]:
    """Return the versions that driver and executors must share; ``missing`` for a missing module.

    :param modules: source files of this package, whose content is its version.
    """
    import platform
    from importlib import import_module, metadata
    from importlib.util import find_spec

    versions_here = {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "airflow_eos": code_digest(modules),
    }
    for module, distribution in (
        ("pyarrow", "pyarrow"),
        ("numpy", "numpy"),
        ("kafka", "kafka-python"),
        ("google_crc32c", "google-crc32c"),
        ("lz4", "lz4"),
    ):
        if find_spec(module) is None:
            versions_here[module] = MISSING
            continue
        try:
            versions_here[module] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            # Shipped in an archive, or copied: the module may have the version itself.
            versions_here[module] = str(getattr(import_module(module), "__version__", "unknown"))
    return versions_here


def code_digest(modules: Sequence[str]) -> str:
    """Return a hash of this package's sources as this process would import them."""
    import hashlib
    import os
    from importlib.util import find_spec

    spec = find_spec("airflow_eos")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    read = getattr(spec.loader, "get_data", None) if spec is not None else None
    if not folders or read is None:
        return MISSING
    digest = hashlib.sha256()
    try:
        for name in sorted(modules):
            # No pathlib: this may be a path inside an archive.
            digest.update(read(os.path.join(folders[0], *name.split("/"))))  # noqa: PTH118
    except OSError:
        return f"lacks {name}"
    return digest.hexdigest()[:12]


def report(batches: Iterable[pa.RecordBatch], modules: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield a row with this process's versions as JSON; runs in a task."""
    import json
    import os
    import socket

    import pyarrow as pa

    for _ in batches:
        pass
    # Python workers of one executor are children of one daemon.
    executor = f"{socket.gethostname()}/{os.getppid()}"
    answer = json.dumps({**versions(modules), "executor": executor})
    yield pa.RecordBatch.from_pydict({"report": [answer]})
