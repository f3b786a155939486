"""Holds the commits to an SQLite table catalog, so that writers stop just before their commit."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

_POLL = 0.1


class HeldCatalog:
    """Holds the write lock of a catalog's database for the duration of the block; readers are not blocked.

    A held writer has written data files, manifests and the table's new metadata, and has checked for
    concurrent commits. Its connection needs a time-out (``?timeout=120`` in the catalog's ``uri``).

    :param database: database file of the catalog.
    :param metadata: folder of the table's metadata.
    """

    def __init__(self, database: Path, metadata: Path) -> None:
        self._connection = sqlite3.connect(database, isolation_level=None)
        self._metadata = metadata
        self._before = self._written()

    def __enter__(self) -> Self:
        self._connection.execute("begin immediate")
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.execute("rollback")
        self._connection.close()

    @property
    def waiting(self) -> int:
        """Number of commit attempts that are or were held."""
        return len(self._written() - self._before)

    def wait_for(
        self, count: int, *, timeout: float = 240, is_over: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait until this many commits are held.

        :param is_over: returns whether no further commit can come.
        :raises TimeoutError: fewer commits came.
        """
        deadline = time.monotonic() + timeout
        while self.waiting < count:
            if is_over() or time.monotonic() > deadline:
                raise TimeoutError(f"{self.waiting} of {count} commits came to the held catalog")
            time.sleep(_POLL)

    def _written(self) -> set[str]:
        return {file.name for file in self._metadata.glob("*.metadata.json")}
