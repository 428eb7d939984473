"""
The long table of a snapshot: every metric of a reply in its order, whichever of the two replies it was.

The order matters, since the Go plugins take the first or the last metric that fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np

from trimaran_client.units import FloatArray, IntArray, freeze
from trimaran_client.wire import MetricColumn, NodeMetrics


class MetricKey(NamedTuple):
    """
    What a metric is: its type (``CPU``), operator (``AVG``), window (``15m``) and unit.

    An instant has no window; without a unit it is percent of capacity, or not said.
    """

    type: str
    operator: str
    window: str = ""
    unit: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class MetricTable:
    """
    Every metric of a reply in its order, shape (metrics,).

    ``rows`` is the node, ``keys`` an index into ``key_names``, ``values`` mostly percent of capacity, ``sources`` an index into
    ``source_names``: which of several metrics sources the value is from, empty where the reply does not say.
    """

    rows: IntArray
    keys: IntArray
    values: FloatArray
    key_names: tuple[MetricKey, ...]
    sources: IntArray
    source_names: tuple[str, ...]

    def __post_init__(self) -> None:
        for column in (self.rows, self.keys, self.values, self.sources):
            freeze(column)


def table_of_nodes(listed: Sequence[NodeMetrics]) -> MetricTable:
    """Take the metrics node by node, as ``GET /watcher`` has them; one without a value is absent."""
    codes: dict[MetricKey, int] = {}
    source_codes: dict[str, int] = {}
    rows: list[int] = []
    keys: list[int] = []
    sources: list[int] = []
    values: list[float] = []
    for row, node in enumerate(listed):
        for metric in node.metrics or ():
            if metric is None or metric.value is None:
                continue
            key = MetricKey(metric.type or "", metric.operator or "", metric.rollup or "", metric.unit or "")
            rows.append(row)
            keys.append(codes.setdefault(key, len(codes)))
            values.append(metric.value)
            sources.append(source_codes.setdefault(metric.source or "", len(source_codes)))
    return MetricTable(_codes(rows), _codes(keys), np.array(values, dtype=np.float64), tuple(codes), _codes(sources), tuple(source_codes))


def table_of_columns(columns: Sequence[MetricColumn]) -> MetricTable:
    """Take columns one after the other, as ``GET /api/v1/snapshot`` has them; of each node the metrics stand in their order."""
    codes: dict[MetricKey, int] = {}
    source_codes: dict[str, int] = {}
    rows, keys, values, sources = [_codes(())], [_codes(())], [np.empty(0)], [_codes(())]
    for column in columns:
        unit = "" if isinstance(column.unit, msgspec.UnsetType) else column.unit
        code = codes.setdefault(MetricKey(column.type, column.statistic, column.window, unit), len(codes))
        offered = np.array(column.values, dtype=np.float64)  # numpy reads None as NaN
        held = np.flatnonzero(~np.isnan(offered))
        names: set[str | None] | list[str | None] = {""}
        if not isinstance(column.sources, msgspec.UnsetType):
            names = [column.sources[row] for row in held.tolist()]
        sources_of_names = [source_codes.setdefault(name or "", len(source_codes)) for name in names]
        rows.append(held)
        keys.append(np.full(len(held), code))
        values.append(offered[held])
        sources.append(np.broadcast_to(_codes(sources_of_names), len(held)))
    return MetricTable(
        rows=np.concatenate(rows),
        keys=np.concatenate(keys),
        values=np.concatenate(values),
        key_names=tuple(codes),
        sources=np.concatenate(sources),
        source_names=tuple(source_codes),
    )


def _codes(numbers: Sequence[int]) -> IntArray:
    return np.array(numbers, dtype=np.int64)
