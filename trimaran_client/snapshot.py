"""
The load of a cluster at one moment, in frozen columns.

A reply lists metrics node by node, and its order matters (the Go plugins take the first or the last that fits). So the snapshot keeps
one long table in reply order and cuts columns from it: one selector serves every policy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import numpy as np

from trimaran_client.errors import QuantityError, SnapshotDecodeError
from trimaran_client.units import FloatArray, IntArray, Quantity, freeze
from trimaran_client.wire import Data, NodeMetrics, ResourceQuantities, WatcherMetrics, decode_watcher_metrics

Pick = Literal["first", "last"]
# The whole units of a quantity: thousandths for CPU, units for memory.
Unit = Literal["milli", "value"]


@dataclass(frozen=True, slots=True, eq=False)
class CapacityColumns:
    """CPU and memory of each node, shape (nodes,); NaN = unknown."""

    millicores: FloatArray
    bytes: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class MetricTable:
    """
    Every metric of a reply in its order, shape (metrics,).

    ``rows`` is the node, ``keys`` an index into ``key_names`` (type, operator, rollup), ``values`` mostly percent of capacity.
    """

    rows: IntArray
    keys: IntArray
    values: FloatArray
    key_names: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True, eq=False)
class LoadSnapshot:
    """
    Hold what one reply of a load watcher says, one row a node; nothing in it ever changes.

    Args:
        source: The metrics source, as the reply names it.
        made_at: When the reply was made, Unix seconds.
        window_end_at: The newest sample's time, Unix seconds; 0 where the reply has no window.
        nodes: The node names, in reply order.
        sampled_at: When each node was measured, Unix seconds, shape (nodes,); NaN = unknown, or never. A reply of the Go load-watcher
            says it for all nodes at once: the window's end.
        capacity: What each node has; unknown where the reply does not say it.
        allocatable: What each node offers to pods; likewise.
        statuses: What the load watcher says of each node, ``""`` where it says nothing.
        metrics: The long table that :meth:`column` cuts from.
    """

    source: str
    made_at: float
    window_end_at: float
    nodes: tuple[str, ...]
    sampled_at: FloatArray
    capacity: CapacityColumns
    allocatable: CapacityColumns
    statuses: tuple[str, ...]
    metrics: MetricTable
    rows: Mapping[str, int] = field(repr=False)
    _columns: dict[tuple[str, tuple[str, ...], Pick], FloatArray] = field(default_factory=dict, repr=False)

    @classmethod
    def decode(cls, body: bytes | str) -> LoadSnapshot:
        """
        Read the body of ``GET /watcher``.

        Raises:
            SnapshotDecodeError: If it is not such a reply; no part of it is used then.
        """
        try:
            return cls.from_metrics(decode_watcher_metrics(body))
        except OverflowError as error:
            raise SnapshotDecodeError("not a load watcher's reply: a time beyond every calendar; check the address") from error

    @classmethod
    def empty(cls) -> LoadSnapshot:
        """Make the snapshot that knows nothing, for the time before the first reply: each node then has its policy's fallback."""
        return cls.from_metrics(WatcherMetrics(data=Data(node_metrics_map={})))

    @classmethod
    def from_metrics(cls, reply: WatcherMetrics) -> LoadSnapshot:
        """
        Turn a decoded reply into columns; a metric without a value is absent.

        Raises:
            SnapshotDecodeError: If there is no ``data.NodeMetricsMap``: an empty cluster has an empty one, another service has none.
        """
        if reply.data is None or isinstance(reply.data.node_metrics_map, msgspec.UnsetType):
            raise SnapshotDecodeError("not a load watcher's reply: it has no data.NodeMetricsMap; check the address")
        nodes = reply.data.node_metrics_map or {}
        listed = [node or NodeMetrics() for node in nodes.values()]
        has_metrics = [any(metric is not None and metric.value is not None for metric in node.metrics or ()) for node in listed]
        window_end_at = float(math.floor(reply.window.end or 0)) if reply.window else 0.0
        made_at = float(reply.timestamp or 0)
        fallback_at = window_end_at or made_at or math.nan
        return cls(
            source=reply.source or "",
            made_at=made_at,
            window_end_at=window_end_at,
            nodes=tuple(nodes),
            sampled_at=_frozen(
                [
                    float(at) if isinstance(at := node.sampled_at, int | float) else fallback_at if measured else math.nan
                    for node, measured in zip(listed, has_metrics, strict=True)
                ]
            ),
            capacity=_capacity_columns([node.capacity for node in listed]),
            allocatable=_capacity_columns([node.allocatable for node in listed]),
            statuses=tuple(node.status or "" for node in listed),
            metrics=_metric_table(listed),
            rows={name: row for row, name in enumerate(nodes)},
        )

    def column(self, metric_type: str, operators: tuple[str, ...], *, pick: Pick = "last") -> FloatArray:
        """
        Select one value for each node: the first or last metric, in reply order, of a type and any of some operators.

        Args:
            metric_type: For example ``CPU``; upper and lower case differ.
            operators: For example ``("AVG", "Latest")``.
            pick: Which one counts where several fit.

        Returns:
            Values, shape (nodes,), read-only; NaN where no metric fits.
        """
        key = (metric_type, operators, pick)
        cached = self._columns.get(key)
        if cached is None:
            table = self.metrics
            fits = np.array([name[0] == metric_type and name[1] in operators for name in table.key_names], dtype=np.bool_)
            chosen = np.flatnonzero(fits[table.keys]) if len(fits) else np.empty(0, dtype=np.int64)
            order = chosen if pick == "last" else chosen[::-1]
            cached = np.full(len(self.nodes), math.nan)
            cached[table.rows[order]] = table.values[order]  # of repeated rows the last assignment stands
            freeze(cached)
            self._columns[key] = cached
        return cached

    def operators_of(self, metric_type: str) -> tuple[str, ...]:
        """List the operators under which the reply has metrics of a type."""
        return tuple(dict.fromkeys(operator for name, operator, _ in self.metrics.key_names if name == metric_type))

    def millicores_of(self, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        """Gather CPU capacity and allocatable at *rows*; NaN = unknown."""
        return take_rows(self.capacity.millicores, rows), take_rows(self.allocatable.millicores, rows)

    def bytes_of(self, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        """Gather memory capacity and allocatable at *rows*; NaN = unknown."""
        return take_rows(self.capacity.bytes, rows), take_rows(self.allocatable.bytes, rows)

    def rows_of(self, names: Sequence[str]) -> IntArray:
        """Answer the row of each name, shape (names,); -1 where the snapshot does not have it."""
        return np.fromiter((self.rows.get(name, -1) for name in names), dtype=np.int64, count=len(names))


def take_rows(column: FloatArray, rows: IntArray) -> FloatArray:
    """Gather *column* at *rows*; NaN where a row is -1."""
    if not len(column):
        return np.full(len(rows), math.nan)
    return np.where(rows >= 0, column[rows], math.nan)


def _metric_table(listed: list[NodeMetrics]) -> MetricTable:
    codes: dict[tuple[str, str, str], int] = {}
    rows: list[int] = []
    keys: list[int] = []
    values: list[float] = []
    for row, node in enumerate(listed):
        for metric in node.metrics or ():
            if metric is None or metric.value is None:
                continue
            key = (metric.type or "", metric.operator or "", metric.rollup or "")
            code = codes.get(key)
            if code is None:
                code = codes[key] = len(codes)
            rows.append(row)
            keys.append(code)
            values.append(metric.value)
    table = MetricTable(np.array(rows, dtype=np.int64), np.array(keys, dtype=np.int64), np.array(values, dtype=np.float64), tuple(codes))
    for column in (table.rows, table.keys, table.values):
        freeze(column)
    return table


def _capacity_columns(quantities: list[ResourceQuantities | msgspec.UnsetType | None]) -> CapacityColumns:
    known = [None if isinstance(each, msgspec.UnsetType) else each for each in quantities]
    return CapacityColumns(
        millicores=_frozen([_amount(each.cpu, "milli") if each else math.nan for each in known]),
        bytes=_frozen([_amount(each.memory, "value") if each else math.nan for each in known]),
    )


def _amount(text: str | None, unit: Unit) -> float:
    if text is None:
        return math.nan
    try:
        quantity = Quantity.parse(text)
    except QuantityError:  # one node's capacity is unknown then; the rest of the reply is still good
        return math.nan
    return float(quantity.milli if unit == "milli" else quantity.value)


def _frozen(values: list[float]) -> FloatArray:
    column = np.array(values, dtype=np.float64)
    freeze(column)
    return column
