"""
Samples in columns: what the ring and the file hand to the statistics.

Times are whole milliseconds here, the resolution of Prometheus, so that a repeated timestamp is found by equality, also after a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from trimaran_client.units import FloatArray, IntArray, freeze

MILLISECONDS: Final = 1000
# The time of a sample that is absent: before every window.
NEVER: Final = int(np.iinfo(np.int64).min)
# Unix seconds beyond any that a machine reports (the year 5138); keeps the conversion to milliseconds exact.
_MAX_AT: Final = 1e11


@dataclass(frozen=True, slots=True, eq=False)
class SampleColumns:
    """
    The samples of one metric: a column a node, a row a refresh, in no order that matters.

    Args:
        metric_type: For example ``CPU``.
        nodes: The names of the columns.
        at_ms: When each was measured, Unix milliseconds, shape (refreshes, nodes); ``NEVER`` = absent; no time twice in a column.
        values: Shape (refreshes, nodes); NaN where absent.
    """

    metric_type: str
    nodes: tuple[str, ...]
    at_ms: IntArray
    values: FloatArray

    def __post_init__(self) -> None:
        freeze(self.at_ms)
        freeze(self.values)


class Row(NamedTuple):
    """The samples of one refresh, one for each of ``nodes``; shapes (nodes,)."""

    nodes: tuple[str, ...]
    at_ms: IntArray
    values: FloatArray


def to_milliseconds(at: FloatArray) -> IntArray:
    """Write instants in Unix seconds as whole milliseconds; what is no instant becomes ``NEVER``."""
    is_instant = (at >= 0) & (at < _MAX_AT)
    return np.where(is_instant, np.rint(np.where(is_instant, at, 0.0) * MILLISECONDS).astype(np.int64), NEVER)


def to_seconds(at_ms: IntArray) -> FloatArray:
    """Write instants in milliseconds as Unix seconds, ``NEVER`` as NaN; the inverse of :func:`to_milliseconds`."""
    return np.where(at_ms == NEVER, np.nan, at_ms / MILLISECONDS)


def stack_rows(metric_type: str, rows: Sequence[Row]) -> SampleColumns:
    """
    Put refreshes of one metric under each other, whose nodes may differ; of a repeated timestamp the first counts.

    Args:
        metric_type: What the values are.
        rows: At least one, the first taken first.
    """
    nodes = tuple(dict.fromkeys(node for listed in dict.fromkeys(row.nodes for row in rows) for node in listed))
    if all(row.nodes == nodes for row in rows):
        at_ms, values = np.stack([row.at_ms for row in rows]), np.stack([row.values for row in rows])
    else:
        at_ms = np.full((len(rows), len(nodes)), NEVER)
        values = np.full(at_ms.shape, np.nan)
        column_of = {node: column for column, node in enumerate(nodes)}
        for position, row in enumerate(rows):
            columns = [column_of[node] for node in row.nodes]
            at_ms[position, columns], values[position, columns] = row.at_ms, row.values
    at_ms[np.isnan(values)] = NEVER
    _drop_repeats(at_ms)
    values[at_ms == NEVER] = np.nan
    return SampleColumns(metric_type, nodes, at_ms, values)


def _drop_repeats(at_ms: IntArray) -> None:
    order = np.argsort(at_ms, axis=0, kind="stable")
    ordered = np.take_along_axis(at_ms, order, axis=0)
    ordered[1:][ordered[1:] == ordered[:-1]] = NEVER
    np.put_along_axis(at_ms, order, ordered, axis=0)


def cut_columns(samples: SampleColumns, *, start_ms: int, end_ms: int) -> SampleColumns:
    """Leave out the samples that are not in ``(start_ms, end_ms]``."""
    inside = (samples.at_ms > start_ms) & (samples.at_ms <= end_ms)
    return SampleColumns(
        samples.metric_type, samples.nodes, np.where(inside, samples.at_ms, NEVER), np.where(inside, samples.values, np.nan)
    )
