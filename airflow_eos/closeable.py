"""Objects that their constructor opens, and ``close()`` or the end of a ``with`` block closes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self


class Closeable(ABC):
    """Base of everything that holds connections or processes."""

    @abstractmethod
    def close(self) -> None:
        """Release the resources; idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
