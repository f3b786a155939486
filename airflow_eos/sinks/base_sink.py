"""The base class of table sinks, which translates errors of table libraries into errors of this package."""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

from airflow_eos.closeable import Closeable
from airflow_eos.exceptions import ConfigurationError, EosError, OutcomeUnknown, StagedRowsLost
from airflow_eos.model.sink_table import SinkTable
from airflow_eos.model.table import EarlierRows, TableCommit, TableReceipt
from airflow_eos.redaction import redacted
from airflow_eos.table_ports import TableMoved

log = logging.getLogger(__name__)

_SILENT_SECONDS = 60.0
"""A longer call is logged: object store clients retry for minutes, and a COMMIT may wait forever."""


class BaseSink(Closeable):
    """Base of the implementations of ``airflow_eos.table_ports.TableSink``.

    A subclass reads one kind of table and commits to it in ``_load``, ``_find_earlier_rows`` and ``_commit``,
    which may raise any error of their libraries. The texts of those errors may contain addresses and keys of
    a catalog or storage; messages leave out the values of :meth:`_hidden`.

    :cvar SYSTEM: what serves the table, for messages.
    :cvar CONFLICTS: errors which mean that another commit came first.
    :cvar WAIT_ADVICE: appended to the warning that the system has not answered yet.
    """

    SYSTEM: ClassVar[str]
    CONFLICTS: ClassVar[tuple[type[Exception], ...]]
    WAIT_ADVICE: ClassVar[str] = ""

    _sink: SinkTable
    _was_read = False

    @property
    def name(self) -> str:
        """The table, for messages."""
        return str(self._sink)

    def load(self, *, to_write: bool = True) -> Any:
        """See :class:`~airflow_eos.table_ports.TableSink`; raises OutcomeUnknown if it cannot be read now."""
        try:
            with self._read_errors():
                version = self._load(to_write=to_write)
        except ConfigurationError as error:
            if not self._was_read:
                raise
            raise OutcomeUnknown(
                f"{error.message}. This run has read the table before, so that was changed since. A retry "
                "reads the connection again"
            ) from None
        self._was_read = True
        return version

    def refuse_rewritten(self, version: Any, replaces: Sequence[EarlierRows]) -> None:
        """See :class:`~airflow_eos.table_ports.TableSink`; raises OutcomeUnknown if it cannot be read now."""
        with self._read_errors(version):
            self._find_earlier_rows(version, replaces)

    def commit(self, version: Any, change: TableCommit) -> TableReceipt:
        """See :class:`~airflow_eos.table_ports.TableSink`; raises OutcomeUnknown if the answer is lost."""
        with self._translated_errors("what became of a commit", "the table is read again", version):
            try:
                return self._commit(version, change)
            except self.CONFLICTS as error:
                raise TableMoved(self._reason(error, version)) from None

    @abstractmethod
    def _load(self, *, to_write: bool) -> Any:
        """Return the table as it is now."""

    @abstractmethod
    def _find_earlier_rows(self, version: Any, replaces: Sequence[EarlierRows]) -> object:
        """Find the rows of earlier commits; raises TableRewritten if they are not there as written."""

    @abstractmethod
    def _commit(self, version: Any, change: TableCommit) -> TableReceipt:
        """Send a change to the table."""

    def _hidden(self, version: Any) -> Mapping[str, object]:  # noqa: ARG002
        """Return the properties whose values no message shows."""
        return self._sink.properties or {}

    def _read_errors(self, version: Any = None) -> AbstractContextManager[None]:
        return self._translated_errors("what the table holds", "a retry asks again", version)

    @contextmanager
    def _translated_errors(self, question: str, next_step: str, version: Any) -> Iterator[None]:
        try:
            with self._warning_if_slow():
                yield
        except (EosError, TableMoved):
            raise
        except Exception as error:  # noqa: BLE001 - of any catalog, storage or database
            reason = self._reason(error, version)
            raise OutcomeUnknown(
                f"{self.name}: {self.SYSTEM} did not say {question} ({reason}); {next_step}"
            ) from None

    @contextmanager
    def _warning_if_slow(self) -> Iterator[None]:
        """Log once that the system has not answered: a silent minute looks like a hang."""
        text = f"%s: {self.SYSTEM} has not answered for %.0f s{self.WAIT_ADVICE}"
        timer = threading.Timer(_SILENT_SECONDS, log.warning, (text, self.name, _SILENT_SECONDS))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _refuse_missing_files(self, paths: Sequence[str], present: Sequence[bool]) -> None:
        """Raise StagedRowsLost for data files that the driver does not see: readers would fail on them."""
        missing = [path for path, is_there in zip(paths, present, strict=True) if not is_there]
        if missing:
            raise StagedRowsLost(
                f"{self.name}: {len(missing)} of {len(paths)} data files that tasks wrote are not there, as "
                f"{min(missing)}: executors and driver do not share the folder, or maintenance removed what "
                "no commit names yet (VACUUM, remove_orphan_files). Nothing was published; the next try "
                "writes them again"
            )

    def _reason(self, error: Exception, version: Any = None) -> str:
        return redacted(f"{type(error).__name__}: {error}", self._hidden(version))
