"""
Statistics over a window, for all nodes at once.

Pure functions over columns. A window is left-open and right-closed, ``(end - window, end]``, as the range selectors of Prometheus 3
(migration guide, "Range selectors and lookback exclude samples coinciding with the left boundary"); AVG and STD are those of its
``avg_over_time`` and ``stddev_over_time``, percentiles those of ``quantile_over_time``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from load_watcher.history.columns import MILLISECONDS, NEVER, SampleColumns, to_seconds
from load_watcher.history.errors import WindowNotHeldError
from load_watcher.samples import FIFTEEN_MINUTES, FIVE_MINUTES, TEN_MINUTES, Window
from trimaran_client.units import BoolArray, FloatArray, IntArray, freeze
from trimaran_client.wire import AVERAGE, LATEST, STANDARD_DEVIATION

MAXIMUM: Final = "MAX"
PERCENTILES: Final[Mapping[str, float]] = {"P50": 0.5, "P90": 0.9, "P95": 0.95, "P99": 0.99}
OPERATORS: Final = (LATEST, AVERAGE, STANDARD_DEVIATION, *PERCENTILES, MAXIMUM)

# The order in which the Go load-watcher promises to fall back; after them, only the newest sample is left.
FALLBACK: Final = (FIFTEEN_MINUTES, TEN_MINUTES, FIVE_MINUTES)
# What an error offers in place of a window that is not held.
_OFFERED: Final = (FIVE_MINUTES, TEN_MINUTES, FIFTEEN_MINUTES, Window(1800), Window(3600))

_LAST: Final = int(np.iinfo(np.int64).max)
_EVERY: Final = slice(None)


@dataclass(frozen=True, slots=True, eq=False)
class WindowAggregate:
    """
    One statistic of one metric for every node.

    Args:
        metric_type: For example ``CPU``.
        operator: One of ``OPERATORS``.
        nodes: The names of the rows.
        values: Shape (nodes,); NaN where no window is held, or there is no sample at all.
        window_seconds: The window that each value really covers, shape (nodes,): ``rollup`` of the reply; 0 for the newest sample
            alone, and where no window is held.
        sampled_at: The time of the newest sample that counts, Unix seconds, shape (nodes,); NaN where the value is.
    """

    metric_type: str
    operator: str
    nodes: tuple[str, ...]
    values: FloatArray
    window_seconds: IntArray
    sampled_at: FloatArray

    def __post_init__(self) -> None:
        for array in (self.values, self.window_seconds, self.sampled_at):
            freeze(array)


def compute_aggregates(
    samples: SampleColumns, *, operators: Sequence[str], windows: Sequence[Window] = FALLBACK, end_at: float
) -> tuple[WindowAggregate, ...]:
    """
    Compute statistics of one metric, each node over the first window that is held for it.

    A window is held for a node when its samples span at least half of it; five minutes also with two samples. ``Latest`` is the newest
    sample, and needs no window.

    Args:
        samples: No time twice in a column; samples after *end_at* do not count.
        operators: Of ``OPERATORS``.
        windows: The one that is wanted, then those to fall back to.
        end_at: Where the windows end, Unix seconds.

    Returns:
        One for each operator, in their order.
    """
    end_ms = round(end_at * MILLISECONDS)
    newest_ms = np.max(np.where(samples.at_ms <= end_ms, samples.at_ms, NEVER), axis=0, initial=NEVER)
    window_seconds = np.zeros(len(samples.nodes), dtype=np.int64)
    windowed = [operator for operator in operators if operator != LATEST]
    values = {operator: np.full(len(samples.nodes), np.nan) for operator in operators}
    if LATEST in values:
        is_newest = (samples.at_ms == newest_ms) & (newest_ms != NEVER)
        values[LATEST] = np.fmax.reduce(np.where(is_newest, samples.values, np.nan), axis=0, initial=np.nan)
    for window in windows if windowed else ():
        pending = np.flatnonzero(window_seconds == 0)
        columns = _EVERY if len(pending) == len(samples.nodes) else pending
        inside = _find_inside(samples.at_ms[:, columns], window, end_ms)
        is_held = _find_held(samples.at_ms[:, columns], inside, window)
        if not is_held.any():
            continue
        held = pending[is_held]
        columns = _EVERY if len(held) == len(samples.nodes) else held
        masked = np.where(inside[:, is_held], samples.values[:, columns], np.nan)
        for operator in windowed:
            values[operator][held] = _STATISTICS[operator](masked)
        window_seconds[held] = window.duration_seconds
    newest_at = to_seconds(newest_ms)
    return tuple(
        WindowAggregate(
            metric_type=samples.metric_type,
            operator=operator,
            nodes=samples.nodes,
            values=values[operator],
            window_seconds=np.zeros_like(window_seconds) if operator == LATEST else window_seconds,
            sampled_at=np.where(np.isnan(values[operator]), np.nan, newest_at),
        )
        for operator in operators
    )


def require_window(metrics: Iterable[SampleColumns], window: Window, *, end_at: float) -> None:
    """
    Check that a window is held for some node and metric.

    Raises:
        WindowNotHeldError: If it is not; names the windows that are.
    """
    end_ms = round(end_at * MILLISECONDS)
    metrics = tuple(metrics)

    def is_held(candidate: Window) -> bool:
        return any(_find_held(each.at_ms, _find_inside(each.at_ms, candidate, end_ms), candidate).any() for each in metrics)

    if not is_held(window):
        held = ", ".join(str(offered) for offered in _OFFERED if is_held(offered)) or "none yet, only the newest samples"
        raise WindowNotHeldError(f"window {window}: the samples span less than half of it for every node; held: {held}")


def compute_steps(at_ms: IntArray, values: FloatArray, *, step_seconds: int) -> tuple[FloatArray, FloatArray]:
    """
    Average the samples of one node over equal steps.

    Steps end at whole multiples of their length and are left-open, right-closed; one without a sample is left out.

    Args:
        at_ms: Unix milliseconds in any order; of a repeated time the first counts.
        values: The same shape, no NaN.
        step_seconds: At least 1.

    Returns:
        Where the steps end, Unix seconds, ascending; and the averages.
    """
    distinct_ms, first = np.unique(at_ms, return_index=True)
    if not distinct_ms.size:
        return np.empty(0), np.empty(0)
    step_ms = step_seconds * MILLISECONDS
    ends_ms = -(-distinct_ms // step_ms) * step_ms
    starts = np.flatnonzero(np.diff(ends_ms, prepend=NEVER))
    counts = np.diff(starts, append=len(ends_ms))
    ordered = values[first]
    smallest = np.minimum.reduceat(ordered, starts)
    excess = np.add.reduceat(ordered - np.repeat(smallest, counts), starts)
    return to_seconds(ends_ms[starts]), smallest + excess / counts


def compute_means(values: FloatArray) -> FloatArray:
    """Average each column over what is not NaN; NaN where nothing is."""
    means = np.full(values.shape[1], np.nan)
    some = np.flatnonzero(~np.isnan(values).all(axis=0))
    means[some] = _average(values[:, some])
    return means


def _find_inside(at_ms: IntArray, window: Window, end_ms: int) -> BoolArray:
    return (at_ms > end_ms - window.duration_seconds * MILLISECONDS) & (at_ms <= end_ms)


def _find_held(at_ms: IntArray, inside: BoolArray, window: Window) -> BoolArray:
    newest = np.max(np.where(inside, at_ms, NEVER), axis=0, initial=NEVER)
    oldest = np.min(np.where(inside, at_ms, _LAST), axis=0, initial=_LAST)
    some = newest != NEVER
    span_ms = np.where(some, newest, 0) - np.where(some, oldest, 0)
    is_held: BoolArray = some & (2 * span_ms >= window.duration_seconds * MILLISECONDS)
    return is_held | (inside.sum(axis=0) >= 2) if window == FIVE_MINUTES else is_held


def _deviations(values: FloatArray) -> tuple[FloatArray, FloatArray, IntArray]:
    """Answer of each column the smallest value, the excess of every value over it (0 for equal ones; NaN stays), and how many they are."""
    smallest: FloatArray = np.fmin.reduce(values, axis=0)
    return smallest, values - smallest, np.count_nonzero(~np.isnan(values), axis=0)


def _sum(values: FloatArray) -> FloatArray:
    total: FloatArray = np.where(np.isnan(values), 0.0, values).sum(axis=0)
    return total


def _average(values: FloatArray) -> FloatArray:
    smallest, excess, counts = _deviations(values)
    return smallest + _sum(excess) / counts


def _standard_deviation(values: FloatArray) -> FloatArray:
    _, excess, counts = _deviations(values)
    # In two passes, from values near zero: nothing cancels, and a constant column gives exactly 0.
    deviation: FloatArray = np.sqrt(_sum((excess - _sum(excess) / counts) ** 2) / counts)
    return deviation


def _percentile(quantile: float) -> Callable[[FloatArray], FloatArray]:
    def compute(values: FloatArray) -> FloatArray:
        ordered = np.sort(np.ascontiguousarray(values.T), axis=1)  # NaN goes last
        last = np.count_nonzero(~np.isnan(ordered), axis=1) - 1
        rank = quantile * last
        below = np.floor(rank).astype(np.int64)
        nodes = np.arange(len(ordered))
        lower, upper = ordered[nodes, below], ordered[nodes, np.minimum(below + 1, last)]
        interpolated: FloatArray = lower + (upper - lower) * (rank - below)
        return interpolated

    return compute


def _maximum(values: FloatArray) -> FloatArray:
    largest: FloatArray = np.fmax.reduce(values, axis=0)
    return largest


_STATISTICS: Final[Mapping[str, Callable[[FloatArray], FloatArray]]] = {
    AVERAGE: _average,
    STANDARD_DEVIATION: _standard_deviation,
    **{operator: _percentile(quantile) for operator, quantile in PERCENTILES.items()},
    MAXIMUM: _maximum,
}
