"""The contract between the watcher and a metrics source, and nothing else."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from load_watcher.samples import SampleBatch, Window


class MetricsProvider(Protocol):
    """
    A source of node metrics.

    Constructing one does no I/O; entering it opens what it needs and leaving it closes that. Errors are
    :class:`load_watcher.errors.ProviderError` only; a single bad node or value is a rejection in the batch, never an error. Of calls
    that overlap, each answers for itself. No call blocks the event loop.
    """

    @property
    def name(self) -> str:
        """Answer the name under which the source is chosen and served as ``source``."""
        ...

    async def __aenter__(self) -> Self:
        """Open connections and start watches; a source that is down now is no error."""
        ...

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        """Close everything that was opened, within a few seconds, whatever the source does."""
        ...

    async def fetch(self, window: Window) -> SampleBatch:
        """
        Get the newest samples, and averages over *window* where the source computes them.

        Raises:
            ProviderError: If there is no batch; the caller sets the deadline and tries again where that helps.
        """
        ...

    async def check_health(self) -> None:
        """
        Ask the source whether it could answer now.

        Raises:
            ProviderError: If it could not, with the remedy.
        """
        ...
