"""What is served of every metric: the last good values and the averages of our own history as columns, in the order of the wire."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from load_watcher.history.aggregate import WindowAggregate
from load_watcher.last_good import LastGood
from load_watcher.samples import PERCENT, Origins, Window
from load_watcher.snapshot.choice import Choice
from trimaran_client.units import BoolArray, FloatArray, IntArray
from trimaran_client.wire import AVERAGE, CPU, LATE, LATEST, MEMORY, NO_METRICS, OK, STALE, STANDARD_DEVIATION, WireWindow

# Of nodes that are left out of the reply.
EXPIRED: Final = "expired"
QUARANTINED: Final = "quarantined"
STATUSES: Final = (OK, LATE, STALE, NO_METRICS, EXPIRED, QUARANTINED)

# Finer digits than 1e-9 % mean nothing, and residues such as 1e-20 make the Go client refuse the whole reply.
DECIMAL_PLACES: Final = 9

_TYPE_ORDER: Final = {CPU: 0, MEMORY: 1}
_OPERATOR_ORDER: Final = {LATEST: 0, AVERAGE: 1, STANDARD_DEVIATION: 2}


class Withheld(NamedTuple):
    """Why a node that is known is left out of the reply: ``expired`` or ``quarantined``, and a sentence that says more."""

    status: str
    reason: str


def find_withheld(good: LastGood, *, now: float, expired_seconds: float, quarantined: Mapping[str, str]) -> dict[str, Withheld]:
    """
    Find the nodes that are known but not to be served, by name.

    Args:
        good: The last good values.
        now: Unix seconds.
        expired_seconds: The age from which a value no longer counts.
        quarantined: Node → why its data is not trusted.
    """
    expired = np.flatnonzero(np.isnan(good.newest_at) & ~np.isnan(good.seen_at))
    withheld = {
        good.nodes[row]: Withheld(
            EXPIRED,
            f"its newest sample is {now - good.seen_at[row]:.0f} s old, more than the {expired_seconds:g} s allowed; "
            "see whether its agent still reports",
        )
        for row in expired.tolist()
    }
    known = set(good.nodes)
    return withheld | {node: Withheld(QUARANTINED, reason) for node, reason in quarantined.items() if node in known}


class ServedColumn(NamedTuple):
    """
    A column as it goes on the wire, one row a node of the last good values; NaN = absent.

    ``window`` is empty for the newest values, ``unit`` for percent and what is not known; ``origins`` as in :class:`SampleBatch`.
    """

    metric_type: str
    operator: str
    window: str
    name: str
    unit: str
    values: FloatArray
    origins: Origins = ()


def list_columns(good: LastGood, choice: Choice, aggregates: Sequence[WindowAggregate] = ()) -> list[ServedColumn]:
    """
    List the columns to serve: by type (CPU, Memory, then others by name), of a type ``Latest``, ``AVG``, ``STD``, others, then by window.

    The Go TargetLoadPacking takes the last of ``Latest`` and ``AVG``, Peaks the first.

    Args:
        good: The last good values.
        choice: Which of what the source averaged itself.
        aggregates: What our own history says over windows, one row for each node of *good*. Each window makes a column; a node that has no
            value of a metric any more has no average of it either.
    """
    return sorted([*_list_good(good, choice), *_list_aggregates(good, aggregates)], key=_order)


def _list_good(good: LastGood, choice: Choice) -> Iterator[ServedColumn]:
    for key, values in choice.take(good).items():
        window = "" if key.window is None else str(key.window)
        unit = "" if key.unit == PERCENT else key.unit
        yield ServedColumn(key.metric_type, key.operator, window, key.name, unit, _round(values), good.columns[key].origins)


def _list_aggregates(good: LastGood, aggregates: Sequence[WindowAggregate]) -> Iterator[ServedColumn]:
    units = {key.metric_type: key.unit for key in good.columns if key.window is None}
    has_value = {metric_type: _has_value(good, metric_type) for metric_type in units}
    for each in aggregates:
        if each.metric_type not in units:
            continue
        unit = "" if units[each.metric_type] == PERCENT else units[each.metric_type]
        is_served = has_value[each.metric_type] & ~np.isnan(each.values)
        for seconds in np.unique(each.window_seconds[is_served]).tolist():
            values = np.where(is_served & (each.window_seconds == seconds), each.values, np.nan)
            window = str(Window(seconds)) if seconds else ""
            yield ServedColumn(each.metric_type, each.operator, window, "", unit, _round(values))


def _has_value(good: LastGood, metric_type: str) -> BoolArray:
    held: BoolArray = np.logical_or.reduce(
        [~np.isnan(column.values) for key, column in good.columns.items() if key.metric_type == metric_type]
    )
    return held


def _round(values: FloatArray) -> FloatArray:
    rounded: FloatArray = np.round(values, DECIMAL_PLACES) + 0.0  # adding zero makes a negative zero positive
    return rounded


def _order(column: ServedColumn) -> tuple[int, str, int, str, int, str]:
    window_seconds = Window.parse(column.window).duration_seconds if column.window else 0
    type_rank, operator_rank = _TYPE_ORDER.get(column.metric_type, 2), _OPERATOR_ORDER.get(column.operator, 3)
    return type_rank, column.metric_type, operator_rank, column.operator, window_seconds, column.name


def find_statuses(good: LastGood, *, now: float, stale_seconds: float) -> list[str]:
    """
    Find the status of each node.

    ``no_metrics`` without any value, ``stale`` when its newest is older than *stale_seconds*, ``late`` when the newest refresh did not
    bring all of them, else ``ok``.
    """
    newest_at = good.newest_at
    is_late = np.zeros(len(good.nodes), dtype=np.bool_)
    for column in good.columns.values():
        is_late |= ~np.isnan(column.values) & ~column.is_new
    conditions = [np.isnan(newest_at), now - newest_at > stale_seconds, is_late]
    names = (NO_METRICS, STALE, LATE, OK)  # by number, so that all nodes share four strings
    return [names[number] for number in np.select(conditions, [0, 1, 2], 3).tolist()]


def list_served(good: LastGood, withheld: Collection[str]) -> IntArray:
    """List the rows of the nodes that are not withheld."""
    return np.array([row for row, node in enumerate(good.nodes) if node not in withheld], dtype=np.int64)


def make_window(window: Window, newest_at: FloatArray) -> WireWindow:
    """Write the window asked for; it ends with the newest sample of all nodes, and at 0 without any."""
    end = find_end(newest_at)
    return WireWindow(str(window), end - window.duration_seconds if end else 0, end)


def find_end(newest_at: FloatArray) -> int:
    """Find the time of the newest sample of all nodes, Unix seconds; 0 without any."""
    times = newest_at[~np.isnan(newest_at)]
    return int(times.max()) if times.size else 0
