"""The answer of ``GET /api/v1/snapshot`` as the wire model: the same values as ``GET /watcher`` has, metric by metric."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import numpy as np
from msgspec import UNSET

from load_watcher.history.aggregate import WindowAggregate
from load_watcher.last_good import LastGood
from load_watcher.samples import NodeInfo
from load_watcher.snapshot.choice import Choice
from load_watcher.snapshot.served import DECIMAL_PLACES, ServedColumn, find_end, find_statuses, list_columns, list_served
from trimaran_client.units import FloatArray, IntArray
from trimaran_client.wire import MetricColumn, NotHeld, QuantityColumns, ResourceQuantities, SnapshotColumns


def build_columns(
    good: LastGood,
    choice: Choice,
    *,
    snapshot_id: str,
    now: float,
    stale_seconds: float,
    aggregates: Sequence[WindowAggregate] = (),
    not_held: Sequence[NotHeld] = (),
    withheld: Collection[str] = (),
) -> SnapshotColumns:
    """
    Write the last good values in columns; one without any value is left out.

    Args:
        good: What is served.
        choice: Which of what the source averaged itself.
        snapshot_id: The id of the published snapshot.
        now: When that was made, Unix seconds.
        stale_seconds: The age from which a node is marked.
        aggregates: What our own history says over windows that are asked for, one row for each node of *good*.
        not_held: The windows that it does not hold.
        withheld: Nodes to leave out.
    """
    rows = list_served(good, withheld)
    statuses = find_statuses(good, now=now, stale_seconds=stale_seconds)
    infos = [good.infos[row] for row in rows.tolist()]
    newest_at = good.newest_at
    return SnapshotColumns(
        id=snapshot_id,
        made_at=int(now),
        source=good.source,
        window_end_at=find_end(newest_at),
        nodes=[good.nodes[row] for row in rows.tolist()],
        sampled_at=_list_values(np.floor(newest_at[rows])),
        sample_seconds=_list_values(np.round(good.sample_seconds[rows], DECIMAL_PLACES)),
        statuses=[statuses[row] for row in rows.tolist()],
        capacity=_write_quantities(infos, lambda info: info.capacity),
        allocatable=_write_quantities(infos, lambda info: info.allocatable),
        columns=[_write(column, rows) for column in list_columns(good, choice, aggregates) if not np.isnan(column.values[rows]).all()],
        not_held=list(not_held),
    )


def _write(column: ServedColumn, rows: IntArray) -> MetricColumn:
    return MetricColumn(
        column.metric_type,
        column.operator,
        column.window,
        column.name,
        _list_values(column.values[rows]),
        unit=column.unit or UNSET,
        sources=[column.origins[row] or None for row in rows.tolist()] if column.origins else UNSET,
    )


def _list_values(column: FloatArray) -> list[float | None]:
    return [None if math.isnan(value) else value for value in column.tolist()]


def _write_quantities(infos: Sequence[NodeInfo | None], pick: Callable[[NodeInfo], ResourceQuantities]) -> QuantityColumns:
    known = [ResourceQuantities() if info is None else pick(info) for info in infos]
    return QuantityColumns([each.cpu for each in known], [each.memory for each in known])
