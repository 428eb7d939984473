"""
The samples of the last hour in memory: a ring of refreshes, a column a node.

A refresh overwrites one row of every array and copies nothing else. One row is one refresh that brought a new sample, so that a source that
repeats itself wastes none. Metrics share their times, but for those that the source dates by themselves. Memory is ``rows * columns * 8 *
(metrics + 1 + metrics with times of their own)`` bytes; there are never more columns than twice the nodes of the largest refresh that is
held, and an eighth.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from load_watcher.history.aggregate import FALLBACK, WindowAggregate, compute_aggregates, require_window
from load_watcher.history.columns import MILLISECONDS, NEVER, SampleColumns, to_milliseconds
from load_watcher.history.errors import WindowNotHeldError
from load_watcher.samples import SampleBatch, Window
from trimaran_client.units import BoolArray, FloatArray, IntArray

# Fewer are not worth the copying.
_MIN_COLUMNS: Final = 64
_SHRINK_FACTOR: Final = 4
_GROWTH_PARTS: Final = 8
# Room for nodes that left beside those that are there.
_MAX_COLUMNS_PER_NODE: Final = 2
_UNUSED: Final = int(np.iinfo(np.int64).max)
# No metric has this name.
_SHARED: Final = ""

_Number = TypeVar("_Number", np.int64, np.float64)


class _Part(NamedTuple):
    """The metrics of a batch that are dated together; ``key`` is a metric type, or says that the times are the batch's own."""

    key: str
    at_ms: IntArray
    is_there: BoolArray
    latest: dict[str, FloatArray]

    def select(self, rows: IntArray) -> _Part:
        return _Part(self.key, self.at_ms[rows], self.is_there[rows], {each: values[rows] for each, values in self.latest.items()})


class SampleRing:
    """
    Hold the samples of every node and metric for a span of time.

    A sample counts once: of a repeated timestamp of a node the first value of each metric stays. A sample that comes out of order is taken
    where its own time puts it, since windows go by the time of a sample and not by its arrival. A gap stays a gap. A node that left keeps
    its samples until they are overwritten, or until its column is needed. May be used from several threads.

    Args:
        span_seconds: How long samples are held, at least.
        step_seconds: From one refresh to the next; with faster refreshes the span is shorter.
    """

    def __init__(self, *, span_seconds: float = 3600.0, step_seconds: float = 30.0) -> None:
        self.span_seconds = span_seconds
        self.step_seconds = step_seconds
        self._rows = math.ceil(span_seconds / step_seconds) + 1
        self._lock = threading.Lock()
        self._appended = 0
        self._times: dict[str, IntArray] = {_SHARED: np.full((self._rows, 0), NEVER)}
        self._values: dict[str, FloatArray] = {}
        self._column_of: dict[str, int] = {}
        self._free: list[int] = []
        # The append that last wrote a column; and of each row how many nodes it holds, and the range of their times.
        self._column_written: IntArray = np.empty(0, dtype=np.int64)
        self._row_nodes = np.zeros(self._rows, dtype=np.int64)
        self._row_oldest = np.full(self._rows, NEVER)
        self._row_newest = np.full(self._rows, NEVER)

    @property
    def row_count(self) -> int:
        """Answer how many refreshes it holds at most."""
        return self._rows

    @property
    def memory_bytes(self) -> int:
        """Answer what the arrays take."""
        with self._lock:
            return sum(array.nbytes for array in (*self._times.values(), *self._values.values()))

    @property
    def metric_types(self) -> tuple[str, ...]:
        """Answer which metrics are held, sorted."""
        with self._lock:
            return tuple(sorted(self._values))

    @property
    def newest_at(self) -> float | None:
        """Answer the time of the newest sample, Unix seconds; ``None`` without any."""
        with self._lock:
            newest_ms = int(self._row_newest.max())
        return None if newest_ms == NEVER else newest_ms / MILLISECONDS

    def append(self, batch: SampleBatch) -> int:
        """
        Take the samples of a refresh.

        Returns:
            How many were new; without any the ring does not move on.
        """
        with self._lock:
            parts = self._split(batch)
            rows = np.flatnonzero(np.any([part.is_there for part in parts], axis=0)) if parts else np.empty(0, dtype=np.int64)
            if not rows.size:
                return 0
            columns = self._claim_columns([batch.nodes[row] for row in rows.tolist()])
            return self._take(columns, [part.select(rows) for part in parts])

    def columns(self, metric_type: str, *, start_at: float, end_at: float, nodes: tuple[str, ...] | None = None) -> SampleColumns:
        """
        Copy the samples of one metric in ``(start_at, end_at]``.

        Args:
            metric_type: For example ``CPU``.
            start_at: Unix seconds.
            end_at: Unix seconds.
            nodes: Which, in this order; all that are held if not given. A node that is not known has no samples.
        """
        start_ms, end_ms = round(start_at * MILLISECONDS), round(end_at * MILLISECONDS)
        with self._lock:
            names = tuple(self._column_of) if nodes is None else nodes
            columns = np.array([self._column_of.get(node, -1) for node in names], dtype=np.int64)
            held = self._values.get(metric_type)
            rows = np.flatnonzero((self._row_newest > start_ms) & (self._row_oldest <= end_ms))
            if held is None or not self._column_of:
                rows = rows[:0]
            at_ms = self._times_of(metric_type)[np.ix_(rows, columns)]
            values = np.full(at_ms.shape, np.nan) if held is None else held[np.ix_(rows, columns)]
        is_absent = (at_ms <= start_ms) | (at_ms > end_ms) | np.isnan(values) | (columns < 0)
        at_ms[is_absent] = NEVER
        values[is_absent] = np.nan
        return SampleColumns(metric_type, names, at_ms, values)

    def aggregate(
        self, operators: Sequence[str], windows: Sequence[Window] = FALLBACK, *, end_at: float, nodes: tuple[str, ...] | None = None
    ) -> tuple[WindowAggregate, ...]:
        """
        Compute statistics of every metric, each node over the first window that is held for it.

        Args:
            operators: Of ``aggregate.OPERATORS``; ``Latest`` is the newest sample in the longest window.
            windows: The one that is wanted, then those to fall back to.
            end_at: Where the windows end, Unix seconds.
            nodes: As in :meth:`columns`.

        Raises:
            WindowNotHeldError: If a window is longer than the span of the ring.
        """
        longest = max(windows)
        self._check_span(longest)
        aggregates: list[WindowAggregate] = []
        for metric_type in self.metric_types:
            samples = self.columns(metric_type, start_at=end_at - longest.duration_seconds, end_at=end_at, nodes=nodes)
            aggregates += compute_aggregates(samples, operators=operators, windows=windows, end_at=end_at)
        return tuple(aggregates)

    def check_window(self, window: Window, *, end_at: float) -> None:
        """
        Check that a window is held for some node and metric.

        Raises:
            WindowNotHeldError: If it is not; names the windows that are.
        """
        self._check_span(window)
        metrics = [self.columns(each, start_at=end_at - self.span_seconds, end_at=end_at) for each in self.metric_types]
        require_window(metrics, window, end_at=end_at)

    def _check_span(self, window: Window) -> None:
        if window.duration_seconds > self.span_seconds:
            raise WindowNotHeldError(f"window {window}: memory holds the samples of {Window(int(self.span_seconds))}; ask for at most that")

    def _times_of(self, metric_type: str) -> IntArray:
        return self._times.get(metric_type, self._times[_SHARED])

    def _split(self, batch: SampleBatch) -> list[_Part]:
        """Part the metrics by what dates them; one that once had times of its own keeps them."""
        metric_types: dict[str, list[str]] = {}
        for metric_type in batch.latest:
            is_own = metric_type in batch.times or metric_type in self._times
            metric_types.setdefault(metric_type if is_own else _SHARED, []).append(metric_type)
        parts = []
        for key, listed in metric_types.items():
            at_ms = to_milliseconds(batch.times_of(key))
            latest = {each: batch.latest[each] for each in listed}
            is_there = (at_ms != NEVER) & np.any([~np.isnan(values) for values in latest.values()], axis=0)
            parts.append(_Part(key, at_ms, is_there, latest))
        return parts

    def _take(self, columns: IntArray, parts: list[_Part]) -> int:
        for part in parts:
            if part.key not in self._times:
                self._times[part.key] = self._times[_SHARED].copy()
            for metric_type in part.latest:
                if metric_type not in self._values:
                    self._values[metric_type] = np.full(self._times[_SHARED].shape, np.nan)
        taken = 0
        firsts = []
        for part in parts:
            is_repeated, found_rows = self._find_repeats(part, columns)
            taken += self._fill_in(part, np.flatnonzero(is_repeated), found_rows, columns)
            firsts.append(np.flatnonzero(part.is_there & ~is_repeated))
        if any(first.size for first in firsts):
            row = self._begin_row(np.concatenate([part.at_ms[first] for part, first in zip(parts, firsts, strict=True)]))
            for part, first in zip(parts, firsts, strict=True):
                self._times[part.key][row, columns[first]] = part.at_ms[first]
                self._column_written[columns[first]] = self._appended
                self._row_nodes[row] = max(self._row_nodes[row], first.size)
                for metric_type, values in part.latest.items():
                    self._values[metric_type][row, columns[first]] = values[first]
                    taken += int(np.count_nonzero(~np.isnan(values[first])))
            self._forget_metrics({metric_type for part in parts for metric_type in part.latest})
        return taken

    def _find_repeats(self, part: _Part, columns: IntArray) -> tuple[BoolArray, IntArray]:
        """Answer which samples have a time that their node already holds, and in which row."""
        rows = np.flatnonzero(self._row_newest >= part.at_ms.min(initial=_UNUSED, where=part.is_there))
        if not rows.size:
            return np.zeros(len(columns), dtype=np.bool_), np.zeros(len(columns), dtype=np.int64)
        is_same = self._times[part.key][np.ix_(rows, columns)] == part.at_ms
        return is_same.any(axis=0) & part.is_there, rows[is_same.argmax(axis=0)]

    def _fill_in(self, part: _Part, repeated: IntArray, found_rows: IntArray, columns: IntArray) -> int:
        """Put values of a repeated time where that metric is still absent."""
        taken = 0
        for metric_type, values in part.latest.items():
            held = self._values[metric_type]
            missing = repeated[np.isnan(held[found_rows[repeated], columns[repeated]]) & ~np.isnan(values[repeated])]
            held[found_rows[missing], columns[missing]] = values[missing]
            taken += len(missing)
        return taken

    def _begin_row(self, at_ms: IntArray) -> int:
        row = self._appended % self._rows
        self._appended += 1
        for times in self._times.values():
            times[row] = NEVER
        for values in self._values.values():
            values[row] = np.nan
        self._row_nodes[row], self._row_oldest[row], self._row_newest[row] = 0, at_ms.min(), at_ms.max()
        return row

    def _forget_metrics(self, listed: set[str]) -> None:
        for metric_type in self._values.keys() - listed:
            if np.isnan(self._values[metric_type]).all():
                del self._values[metric_type]
                self._times.pop(metric_type, None)

    def _claim_columns(self, nodes: list[str]) -> IntArray:
        self._release(self._find_overwritten())
        unknown = [node for node in nodes if node not in self._column_of]
        needed = len(self._column_of) + len(unknown)
        limit = max(_MIN_COLUMNS, _MAX_COLUMNS_PER_NODE * max(len(nodes), int(self._row_nodes.max())))
        if unknown and needed > limit:
            self._release(self._find_departed(nodes, needed - limit))
            needed = limit
        if needed > self._times[_SHARED].shape[1] or _MIN_COLUMNS <= needed < self._times[_SHARED].shape[1] // _SHRINK_FACTOR:
            self._resize(needed + needed // _GROWTH_PARTS)
        self._column_of.update(zip(unknown, self._free, strict=False))
        del self._free[: len(unknown)]
        return np.array([self._column_of[node] for node in nodes], dtype=np.int64)

    def _find_overwritten(self) -> list[str]:
        is_empty = self._column_written <= self._appended - self._rows
        return [node for node, column in self._column_of.items() if is_empty[column]] if is_empty.any() else []

    def _find_departed(self, nodes: list[str], count: int) -> list[str]:
        departed = self._column_of.keys() - set(nodes)
        return sorted(departed, key=lambda node: int(self._column_written[self._column_of[node]]))[:count]

    def _release(self, nodes: list[str]) -> None:
        columns = [self._column_of.pop(node) for node in nodes]
        for times in self._times.values():
            times[:, columns] = NEVER
        for values in self._values.values():
            values[:, columns] = np.nan
        self._column_written[columns] = _UNUSED
        self._free += columns

    def _resize(self, columns: int) -> None:
        """Copy what is held into arrays of another width: rare, since they grow by an eighth and shrink to a quarter."""
        kept = list(self._column_of.values())

        def copy(old: npt.NDArray[_Number], fill: float) -> npt.NDArray[_Number]:
            new = np.full((*old.shape[:-1], columns), fill, dtype=old.dtype)
            new[..., : len(kept)] = old[..., kept]
            return new

        self._times = {key: copy(times, NEVER) for key, times in self._times.items()}
        self._values = {metric_type: copy(values, np.nan) for metric_type, values in self._values.items()}
        self._column_written = copy(self._column_written, _UNUSED)
        self._column_of = {node: column for column, node in enumerate(self._column_of)}
        self._free = list(range(len(kept), columns))
