"""
The load of a cluster at one moment, in frozen columns.

A reply lists metrics node by node, and its order matters (the Go plugins take the first or the last that fits). So the snapshot keeps
one long table in reply order and cuts columns from it: one selector serves every policy.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple, Protocol

import msgspec
import numpy as np

from trimaran_client.errors import QuantityError, SnapshotDecodeError
from trimaran_client.snapshot_table import MetricKey as MetricKey
from trimaran_client.snapshot_table import MetricTable, table_of_columns, table_of_nodes
from trimaran_client.units import FloatArray, IntArray, Quantity, freeze
from trimaran_client.wire import (
    LATEST,
    Data,
    NodeMetrics,
    QuantityColumns,
    ResourceQuantities,
    SnapshotColumns,
    WatcherMetrics,
    decode_nodes,
    decode_quantities,
    decode_snapshot_reply,
    decode_watcher_metrics,
)

Pick = Literal["first", "last"]
# The whole units of a quantity: thousandths for CPU, units for memory.
Unit = Literal["milli", "value"]

_UNEQUAL = "not a load watcher's reply: its columns do not have one entry for each node; check the address"
_BEYOND_CALENDARS = "not a load watcher's reply: a time beyond every calendar; check the address"


@dataclass(frozen=True, slots=True, eq=False)
class CapacityColumns:
    """CPU and memory of each node, shape (nodes,); NaN = unknown."""

    millicores: FloatArray
    bytes: FloatArray


class MetricSelector(NamedTuple):
    """
    Which metric of a node counts: one of a type, of any of some operators, the first or the last of them in reply order.

    With a ``window`` only metrics over exactly that count, and instants (``Latest``), which have none.
    """

    type: str
    operators: tuple[str, ...]
    window: str = ""
    pick: Pick = "last"

    def fits(self, key: MetricKey) -> bool:
        """Tell whether a metric counts."""
        in_window = not self.window or key.window == self.window or key.operator == LATEST
        return key.type == self.type and key.operator in self.operators and in_window


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """
    The metric that counts for each node, shape (nodes,).

    ``values`` are NaN where none fits; ``positions`` say where it stands in the table and ``keys`` what it is, -1 where none fits.
    """

    values: FloatArray
    keys: IntArray
    positions: IntArray


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
        sample_seconds: Over how long each node's newest sample was measured, shape (nodes,); NaN = unknown.
        capacity: What each node has; unknown where the reply does not say it.
        allocatable: What each node offers to pods; likewise.
        statuses: What the load watcher says of each node, ``""`` where it says nothing.
        metrics: The long table that :meth:`column` cuts from.
        id: What names the published snapshot; empty where the reply has none (that of the Go load-watcher, and ``GET /watcher``).
        not_held: Windows that were asked for and that the load watcher does not hold → why.
    """

    source: str
    made_at: float
    window_end_at: float
    nodes: tuple[str, ...]
    sampled_at: FloatArray
    sample_seconds: FloatArray
    capacity: CapacityColumns
    allocatable: CapacityColumns
    statuses: tuple[str, ...]
    metrics: MetricTable
    rows: Mapping[str, int] = field(repr=False)
    id: str = ""
    not_held: Mapping[str, str] = field(default_factory=dict)
    _selections: dict[MetricSelector, Selection] = field(default_factory=dict, repr=False)

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
            raise SnapshotDecodeError(_BEYOND_CALENDARS) from error

    @classmethod
    def decode_columns(cls, body: bytes | str) -> LoadSnapshot:
        """
        Read the body of ``GET /api/v1/snapshot``.

        Raises:
            SnapshotDecodeError: If it is not such an answer; no part of it is used then.
        """
        try:
            reply = decode_snapshot_reply(body)
            capacity, allocatable = _read_capacity(bytes(reply.capacity)), _read_capacity(bytes(reply.allocatable))
            return cls._from_parts(reply, _read_rows(bytes(reply.nodes)), capacity, allocatable)
        except OverflowError as error:
            raise SnapshotDecodeError(_BEYOND_CALENDARS) from error

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
            sample_seconds=_frozen([float(span) if isinstance(span := node.sample_seconds, int | float) else math.nan for node in listed]),
            capacity=_capacity_columns([node.capacity for node in listed]),
            allocatable=_capacity_columns([node.allocatable for node in listed]),
            statuses=tuple(node.status or "" for node in listed),
            metrics=table_of_nodes(listed),
            rows={name: row for row, name in enumerate(nodes)},
        )

    @classmethod
    def from_columns(cls, reply: SnapshotColumns) -> LoadSnapshot:
        """
        Take over the columns of a decoded answer.

        Raises:
            SnapshotDecodeError: If a column has not one entry for each node, or a node stands twice.
        """
        return cls._from_parts(reply, _number(reply.nodes), _parse_columns(reply.capacity), _parse_columns(reply.allocatable))

    @classmethod
    def _from_parts(
        cls, reply: SnapshotColumns, rows: Mapping[str, int], capacity: CapacityColumns, allocatable: CapacityColumns
    ) -> LoadSnapshot:
        if any(len(column) != len(rows) for column in _list_columns(reply, capacity, allocatable)):
            raise SnapshotDecodeError(_UNEQUAL)
        return cls(
            source=reply.source,
            made_at=float(reply.made_at),
            window_end_at=float(reply.window_end_at),
            nodes=tuple(rows),
            sampled_at=_frozen(reply.sampled_at),
            sample_seconds=_frozen(reply.sample_seconds),
            capacity=capacity,
            allocatable=allocatable,
            statuses=tuple(reply.statuses),
            metrics=table_of_columns(reply.columns),
            rows=rows,
            id=reply.id,
            not_held={each.window: each.reason for each in reply.not_held},
        )

    @property
    def snapshot(self) -> LoadSnapshot:
        """Answer itself: a snapshot is a source that never has a newer one."""
        return self

    def age_seconds(self, now: float) -> float:
        """Answer how old the newest sample of all nodes is at *now*, Unix seconds; infinite where the reply names none."""
        return max(0.0, now - self.window_end_at) if self.window_end_at else math.inf

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
        return self.select(MetricSelector(metric_type, operators, pick=pick)).values

    def select(self, selector: MetricSelector) -> Selection:
        """Select one metric for each node."""
        known = self._selections.get(selector)
        if known is None:
            table = self.metrics
            fits = np.array([selector.fits(key) for key in table.key_names], dtype=np.bool_)
            chosen = np.flatnonzero(fits[table.keys]) if len(fits) else np.empty(0, dtype=np.int64)
            order = chosen if selector.pick == "last" else chosen[::-1]
            positions = np.full(len(self.nodes), -1)
            positions[table.rows[order]] = order  # of repeated rows the last assignment stands
            known = Selection(take_rows(table.values, positions), take_codes(table.keys, positions), positions)
            for column in (known.values, known.keys, known.positions):
                freeze(column)
            self._selections[selector] = known
        return known

    def keys_of(self, metric_type: str) -> tuple[MetricKey, ...]:
        """List what the reply has of a type, for any node."""
        return tuple(key for key in self.metrics.key_names if key.type == metric_type)

    def operators_of(self, metric_type: str) -> tuple[str, ...]:
        """List the operators under which the reply has metrics of a type."""
        return tuple(dict.fromkeys(key.operator for key in self.keys_of(metric_type)))

    def capacity_of(self, resource: str) -> tuple[FloatArray | None, FloatArray | None]:
        """Answer capacity and allocatable of ``cpu`` (millicores) or ``memory`` (bytes), shape (nodes,), NaN = unknown; else ``None``."""
        if resource == "cpu":
            return self.capacity.millicores, self.allocatable.millicores
        return (self.capacity.bytes, self.allocatable.bytes) if resource == "memory" else (None, None)

    def rows_of(self, names: Sequence[str]) -> IntArray:
        """Answer the row of each name, shape (names,); -1 where the snapshot does not have it."""
        return np.fromiter((self.rows.get(name, -1) for name in names), dtype=np.int64, count=len(names))


class SnapshotSource(Protocol):
    """Whatever holds the newest snapshot: a snapshot itself, a feed that follows a load watcher, or one in this process."""

    @property
    def snapshot(self) -> LoadSnapshot:
        """Answer the last good snapshot, at once; one that knows nothing before the first."""
        ...


def are_all_there(rows: IntArray) -> bool:
    """Tell whether no row is -1."""
    return int(np.minimum.reduce(rows, initial=0)) >= 0


def take_rows(column: FloatArray, rows: IntArray) -> FloatArray:
    """Gather *column* at *rows*; NaN where a row is -1."""
    if not len(column):
        return np.full(len(rows), math.nan)
    if are_all_there(rows):
        return column.take(rows)
    return np.where(rows >= 0, column[rows], math.nan)


def take_codes(column: IntArray, positions: IntArray) -> IntArray:
    """Gather *column* at *positions*; -1 where a position is -1."""
    if not len(column):
        return np.full(len(positions), -1)
    if are_all_there(positions):
        return column.take(positions)
    return np.where(positions >= 0, column[positions], -1)


def _list_columns(reply: SnapshotColumns, *capacities: CapacityColumns) -> list[Sized]:
    columns: list[Sized] = [reply.sampled_at, reply.sample_seconds, reply.statuses]
    columns += [column for capacity in capacities for column in (capacity.millicores, capacity.bytes)]
    columns += [each.values for each in reply.columns]
    columns += [each.sources for each in reply.columns if not isinstance(each.sources, msgspec.UnsetType)]
    return columns


# One reply names the same nodes with the same capacities as the one before, and to know them again takes a thirtieth of reading them.
# A process follows one load watcher, seldom a few; each has two capacities.
@lru_cache(maxsize=4)
def _read_rows(nodes: bytes) -> Mapping[str, int]:
    return _number(decode_nodes(nodes))


@lru_cache(maxsize=8)
def _read_capacity(quantities: bytes) -> CapacityColumns:
    return _parse_columns(decode_quantities(quantities))


def _number(nodes: Sequence[str]) -> Mapping[str, int]:
    rows = {name: row for row, name in enumerate(nodes)}
    if len(rows) != len(nodes):
        raise SnapshotDecodeError(_UNEQUAL)
    return rows


def _parse_columns(quantities: QuantityColumns) -> CapacityColumns:
    return CapacityColumns(millicores=_parse_amounts(quantities.cpu, "milli"), bytes=_parse_amounts(quantities.memory, "value"))


def _parse_amounts(texts: Sequence[str | None], unit: Unit) -> FloatArray:
    return _frozen([*map(_amount, texts, itertools.repeat(unit))])


def _capacity_columns(quantities: list[ResourceQuantities | msgspec.UnsetType | None]) -> CapacityColumns:
    known = [None if isinstance(each, msgspec.UnsetType) else each for each in quantities]
    return CapacityColumns(
        millicores=_frozen([_amount(each.cpu, "milli") if each else math.nan for each in known]),
        bytes=_frozen([_amount(each.memory, "value") if each else math.nan for each in known]),
    )


@lru_cache(maxsize=16384)  # every reply says the same of the same nodes again, and 5,000 of them fit
def _amount(text: str | None, unit: Unit) -> float:
    if text is None:
        return math.nan
    try:
        quantity = Quantity.parse(text)
    except QuantityError:  # one node's capacity is unknown then; the rest of the reply is still good
        return math.nan
    return float(quantity.milli if unit == "milli" else quantity.value)


def _frozen(values: Sequence[float | None]) -> FloatArray:
    column = np.array(values, dtype=np.float64)  # numpy reads None as NaN
    freeze(column)
    return column
