"""
What the service remembers: the ring in memory and, where there is one, the file behind it, behind one face.

The watcher hands each refresh over and asks for windows; requests ask for other windows and for the past of one node. What memory does not
hold any more is read from the file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np

from load_watcher.clock import Clock
from load_watcher.history.aggregate import FALLBACK, WindowAggregate, compute_aggregates, compute_steps, require_window
from load_watcher.history.columns import MILLISECONDS, NEVER, SampleColumns
from load_watcher.history.errors import WindowNotHeldError
from load_watcher.history.reader import HistoryPage
from load_watcher.history.store import Retention
from load_watcher.history.window import SampleRing
from load_watcher.history.writer import HistoryStatus, HistoryWriter
from load_watcher.limits import MAX_AHEAD_SECONDS
from load_watcher.samples import SampleBatch, Window
from trimaran_client.wire import AVERAGE, STANDARD_DEVIATION

_SPAN_SECONDS: Final = 3600.0
_MIN_REFRESHES: Final = 60


class Memory:
    """
    Hold samples, and answer windows of them; ``async with`` opens the file and fills the ring from it.

    Args:
        source: The provider's name.
        clock: The time.
        step_seconds: From one refresh to the next.
        path: The file; ``None`` keeps samples in memory only.
        retention: How long and how much the file keeps.
    """

    def __init__(
        self, *, source: str, clock: Clock, step_seconds: float, path: Path | None = None, retention: Retention | None = None
    ) -> None:
        # An hour, and with slow refreshes as many as the rules of quality look at.
        self.ring = SampleRing(span_seconds=max(_SPAN_SECONDS, _MIN_REFRESHES * step_seconds), step_seconds=step_seconds)
        self._writer = None if path is None else HistoryWriter(path, self.ring, source=source, clock=clock, retention=retention)
        self._clock = clock
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Open the file, if there is one; a file that cannot be used is no error."""
        if self._writer is not None:
            await self._stack.enter_async_context(self._writer)
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        """Write what waits, and close the file."""
        await self._stack.aclose()

    @property
    def file_status(self) -> HistoryStatus | None:
        """Answer how the file does; ``None`` where there is none."""
        return None if self._writer is None else self._writer.status

    def submit(self, batch: SampleBatch, *, fetched_at: float) -> None:
        """Hand a refresh to the file; never waits. The ring takes it by itself, where the batch is digested."""
        if self._writer is not None:
            self._writer.submit(batch, fetched_at=fetched_at)

    def compute_averages(self, nodes: tuple[str, ...], *, end_at: float) -> tuple[WindowAggregate, ...]:
        """Compute average and deviation of every metric, each node over 15 minutes, else 10, else 5, before *end_at*."""
        return self.ring.aggregate((AVERAGE, STANDARD_DEVIATION), end_at=end_at, nodes=nodes)

    def find_end(self) -> float | None:
        """
        Answer where windows end now, Unix seconds; ``None`` without a sample.

        That is at the newest sample, but not after now, where a clock that ran ahead may have left one.
        """
        newest_at = self.ring.newest_at
        return None if newest_at is None else min(newest_at, self._clock.time() + MAX_AHEAD_SECONDS)

    async def compute_window(
        self, window: Window | None, operators: Sequence[str], nodes: tuple[str, ...], *, end_at: float
    ) -> tuple[WindowAggregate, ...]:
        """
        Compute statistics of every metric over a window that somebody asked for.

        Args:
            window: Exactly this one; ``None`` for the usual fallback of each node.
            operators: Of ``aggregate.OPERATORS``.
            nodes: The rows of the answer.
            end_at: Where it ends, Unix seconds.

        Raises:
            WindowNotHeldError: If it is not held; names those that are.
            HistoryError: If the file that would hold it cannot be read, or the answer would be too large.
        """
        if window is None:
            return await asyncio.to_thread(self.ring.aggregate, operators, FALLBACK, end_at=end_at, nodes=nodes)
        if window.duration_seconds <= self.ring.span_seconds:
            await asyncio.to_thread(self.ring.check_window, window, end_at=end_at)
            return await asyncio.to_thread(self.ring.aggregate, operators, (window,), end_at=end_at, nodes=nodes)
        metrics = [_take_nodes(each, nodes) for each in await self._collect(window, end_at)]
        await asyncio.to_thread(require_window, metrics, window, end_at=end_at)
        return tuple(
            [
                each
                for samples in metrics
                for each in await asyncio.to_thread(compute_aggregates, samples, operators=operators, windows=(window,), end_at=end_at)
            ]
        )

    async def _collect(self, window: Window, end_at: float) -> list[SampleColumns]:
        store = None if self._writer is None else self._writer.store
        if store is None:
            held = Window(int(self.ring.span_seconds))
            raise WindowNotHeldError(
                f"window {window}: memory holds the samples of {held}; ask for at most that, or set LOAD_WATCHER_HISTORY to a file"
            )
        start_at = end_at - window.duration_seconds
        return [await store.collect(each, start_at=start_at, end_at=end_at) for each in self.ring.metric_types]

    async def read(self, node: str, metric_type: str, *, start_at: float, end_at: float, step_seconds: int, limit: int) -> HistoryPage:
        """
        Read one metric of one node as averages of equal steps, from the file, else from memory.

        Args:
            node: Its name.
            metric_type: For example ``CPU``.
            start_at: Samples after it, Unix seconds.
            end_at: Samples not after it.
            step_seconds: At least 1.
            limit: Steps in one page.

        Raises:
            HistoryError: If the file cannot be read.
        """
        store = None if self._writer is None else self._writer.store
        if store is not None:
            return await store.read(node, metric_type, start_at=start_at, end_at=end_at, step_seconds=step_seconds, limit=limit)
        samples = await asyncio.to_thread(self.ring.columns, metric_type, start_at=start_at, end_at=end_at, nodes=(node,))
        is_there = samples.at_ms[:, 0] > round(start_at * MILLISECONDS)
        ends_at, values = compute_steps(samples.at_ms[is_there, 0], samples.values[is_there, 0], step_seconds=step_seconds)
        more = len(ends_at) > limit
        return HistoryPage(ends_at[:limit], values[:limit], float(ends_at[limit - 1]) if more else None)


def _take_nodes(samples: SampleColumns, nodes: tuple[str, ...]) -> SampleColumns:
    """Put the columns in the order of *nodes*; one that the file does not know is empty."""
    column_of = {node: column for column, node in enumerate(samples.nodes)}
    columns = np.array([column_of.get(node, -1) for node in nodes], dtype=np.int64)
    is_known = columns >= 0
    at_ms = np.full((len(samples.at_ms), len(nodes)), NEVER)
    values = np.full(at_ms.shape, np.nan)
    at_ms[:, is_known] = samples.at_ms[:, columns[is_known]]
    values[:, is_known] = samples.values[:, columns[is_known]]
    return SampleColumns(samples.metric_type, nodes, at_ms, values)
