"""
The rules for one metric of every node: what a sample is, by itself and beside the node's own recent samples.

Each rule is an expression over columns; only the few samples that it hits are looked at one by one, to tell their value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from load_watcher.history.columns import MILLISECONDS, NEVER, SampleColumns, to_milliseconds
from load_watcher.limits import QualityLimits
from load_watcher.quality.report import Verdict
from load_watcher.samples import PERCENT
from trimaran_client.units import BoolArray, FloatArray, IntArray
from trimaran_client.wire import CPU, MEMORY

_PERCENT_TYPES: Final = frozenset({CPU, MEMORY})
_FULL_PERCENT: Final = 100.0


@dataclass(frozen=True, slots=True, eq=False)
class Hit:
    """The samples of a column to which a rule applies, shape (nodes,), and how to tell the value of a row."""

    rule: str
    verdict: Verdict
    rows: BoolArray
    describe: Callable[[int], str]


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """
    One metric of the batch, and what is known of it.

    Args:
        metric_type: For example ``CPU``.
        is_percent: Whether the values are percent of capacity.
        values: Shape (nodes,); NaN = absent.
        sampled_at: Unix seconds, shape (nodes,).
        recent: The nodes' last samples; ``None`` if there are none.
    """

    metric_type: str
    is_percent: bool
    values: FloatArray
    sampled_at: FloatArray
    recent: SampleColumns | None = None

    @property
    def at_ms(self) -> IntArray:
        """Answer when each was measured, Unix milliseconds; ``NEVER`` where that is no time."""
        return to_milliseconds(self.sampled_at)


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """
    What the recent samples of each node say, shapes (nodes,).

    Args:
        newest_ms: The time of the newest, Unix milliseconds; ``NEVER`` without one.
        is_known: Whether there are enough to tell what is usual.
        lowest: The lowest value; NaN without one.
        highest: The highest value; NaN without one.
    """

    newest_ms: IntArray
    is_known: BoolArray
    lowest: FloatArray
    highest: FloatArray


def is_in_percent(metric_type: str, unit: str) -> bool:
    """Answer whether values are percent of capacity, as :class:`SampleBatch` says it."""
    return unit == PERCENT or (not unit and metric_type in _PERCENT_TYPES)


def find_impossible(column: Column, now: float, limits: QualityLimits) -> list[Hit]:
    """
    Find the values that cannot be, and those that no time belongs to.

    ``not_finite``; ``negative``; ``wrapped`` and ``over_capacity`` for percent, ``too_large`` for other units; ``undated``; ``future``.
    """
    values, sampled_at = column.values, column.sampled_at

    def tell_value(row: int) -> str:
        return f"value {values[row]:g}"

    if column.is_percent:
        large = [
            Hit(
                "wrapped",
                Verdict.IMPOSSIBLE,
                values >= limits.wrapped_percent,
                lambda row: f"{tell_value(row)}: a counter that wrapped, or not percent",
            ),
            Hit("over_capacity", Verdict.IMPOSSIBLE, values > limits.max_percent, tell_value),
        ]
    else:
        large = [Hit("too_large", Verdict.IMPOSSIBLE, values > limits.max_value, tell_value)]
    return [
        Hit("not_finite", Verdict.IMPOSSIBLE, np.isinf(values), tell_value),
        Hit("negative", Verdict.IMPOSSIBLE, values < 0, tell_value),
        *large,
        Hit("undated", Verdict.IMPOSSIBLE, ~np.isfinite(sampled_at), lambda _: "a value without the time of its measurement"),
        Hit(
            "future",
            Verdict.IMPOSSIBLE,
            sampled_at > now + limits.ahead_seconds,
            lambda row: f"measured {sampled_at[row] - now:.0f} s after now",
        ),
    ]


def read_history(column: Column, now: float, limits: QualityLimits) -> History:
    """Summarize the recent samples; one dated after now is of a clock that was set back since, and makes no other sample late."""
    recent = column.recent
    if recent is None or not recent.values.shape[0]:
        absent = np.full(len(column.values), np.nan)
        return History(np.full(len(column.values), NEVER), np.zeros(len(column.values), dtype=np.bool_), absent, absent)
    newest_ms = recent.at_ms.max(axis=0)
    limit_ms = (now + limits.ahead_seconds) * MILLISECONDS
    if newest_ms.max(initial=NEVER) > limit_ms:
        newest_ms = np.where(recent.at_ms > limit_ms, NEVER, recent.at_ms).max(axis=0)
    return History(
        newest_ms,
        np.count_nonzero(recent.at_ms != NEVER, axis=0) >= limits.history_samples,
        np.fmin.reduce(recent.values, axis=0),
        np.fmax.reduce(recent.values, axis=0),
    )


def judge_times(column: Column, history: History, now: float, limits: QualityLimits) -> IntArray:
    """Answer for each sample ``ABSENT``, ``REPEATED``, ``LATE`` or ``FRESH``."""
    at_ms = column.at_ms
    is_late = (at_ms < history.newest_ms) | (now - column.sampled_at > limits.late_seconds)
    conditions = [np.isnan(column.values), (at_ms == history.newest_ms) & (at_ms != NEVER), is_late]
    return np.select(conditions, [Verdict.ABSENT, Verdict.REPEATED, Verdict.LATE], Verdict.FRESH).astype(np.int64)


def find_drops(column: Column, history: History, limits: QualityLimits) -> BoolArray:
    """Find the values of which the lowest recent one is many times as large."""
    fall = history.lowest - column.values
    floor = limits.negligible_percent if column.is_percent else 0.0
    return history.is_known & (column.values < history.lowest / limits.drop_factor) & (fall > floor)


def find_rises(column: Column, history: History, limits: QualityLimits) -> BoolArray:
    """Find the values that are several times the recent range above the highest recent one; without a scale, twice it at least."""
    floor = limits.jump_percent if column.is_percent else history.highest
    margin = np.maximum(limits.jump_spreads * (history.highest - history.lowest), floor)
    return history.is_known & (column.values > history.highest + margin)


def find_busy(column: Column, limits: QualityLimits) -> BoolArray:
    """Find the values that ought to move: an idle node rests at 0, a saturated one at 100."""
    if not column.is_percent:
        return column.values > 0
    return (column.values > limits.negligible_percent) & (column.values < _FULL_PERCENT - limits.negligible_percent)


def find_stuck(column: Column, is_new: BoolArray, limits: QualityLimits) -> FloatArray:
    """
    Find the new samples that end a run of equal ones, longer than the node's own resolution explains.

    Of the pairs of neighboring samples before the run, a share *p* were equal, estimated as (equal + 1) / (pairs + 2). A run of *n* then
    has the chance p ** (n - 1). Without enough pairs nothing is known: a node that never moved may be of a source that is coarse. The
    resolution of the source is estimated by the smallest step between two recent values of the node: where the value is only a few steps,
    a node that calms down after some work rests on one of them, however much it moved before.

    Returns:
        When the value was first seen, Unix seconds; NaN where it is not stuck.
    """
    since_at = np.full(len(column.values), np.nan)
    recent = column.recent
    if recent is None:
        return since_at
    is_equal = recent.values == column.values
    rows = np.flatnonzero(is_new & find_busy(column, limits) & (np.count_nonzero(is_equal, axis=0) >= limits.stuck_samples - 1))
    if not rows.size:
        return since_at
    order = np.argsort(recent.at_ms[:, rows], axis=0)
    at_ms = np.take_along_axis(recent.at_ms[:, rows], order, axis=0)
    values = np.take_along_axis(recent.values[:, rows], order, axis=0)
    # Absent samples sort first and equal nothing. The run is what stands after the last sample that differs.
    positions = np.arange(len(values))[:, np.newaxis]
    last_other = np.where(values != column.values[rows], positions, -1).max(axis=0)
    run_samples = len(values) - last_other  # the new sample is one of them
    is_before = positions[1:] <= last_other
    pairs = np.count_nonzero(is_before & ~np.isnan(values[:-1]), axis=0)
    equal = np.count_nonzero(is_before & (values[1:] == values[:-1]), axis=0)
    chance = ((equal + 1) / (pairs + 2)) ** (run_samples - 1)
    steps = np.diff(np.sort(values, axis=0), axis=0)
    resolution = np.where(steps > 0, steps, np.inf).min(axis=0)
    first_at = at_ms[np.minimum(last_other + 1, len(values) - 1), np.arange(len(rows))] / MILLISECONDS
    is_stuck = (run_samples >= limits.stuck_samples) & (column.sampled_at[rows] - first_at >= limits.stuck_seconds)
    is_stuck &= (pairs >= limits.history_samples) & (chance < limits.stuck_chance)
    is_stuck &= column.values[rows] >= limits.stuck_steps * resolution
    since_at[rows[is_stuck]] = first_at[is_stuck]
    return since_at
