"""The reply of ``GET /watcher`` as objects, metric by metric: what the bytes that the service writes from columns are compared with."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Sequence

from msgspec import UNSET, UnsetType

from load_watcher.history.aggregate import WindowAggregate
from load_watcher.last_good import LastGood
from load_watcher.samples import Window
from load_watcher.snapshot import Choice
from load_watcher.snapshot.served import find_statuses, list_columns, make_window
from trimaran_client.wire import Data, Metadata, Metric, NodeMetrics, ResourceQuantities, WatcherMetrics


def build_metrics(
    good: LastGood,
    *,
    now: float,
    stale_seconds: float,
    window: Window,
    choice: Choice,
    aggregates: Sequence[WindowAggregate] = (),
    withheld: Collection[str] = (),
) -> WatcherMetrics:
    """Write the last good values as the wire model; a value that is absent is left out."""
    metrics: list[list[Metric | None]] = [[] for _ in good.nodes]
    for column in list_columns(good, choice, aggregates):
        origins: Iterable[str | UnsetType] = column.origins or itertools.repeat(UNSET)
        for row, (value, origin) in enumerate(zip(column.values.tolist(), origins, strict=False)):
            if not math.isnan(value):
                unit = column.unit or UNSET
                metrics[row].append(Metric(column.name, column.metric_type, column.operator, column.window, value, unit, origin))
    statuses = find_statuses(good, now=now, stale_seconds=stale_seconds)
    times = zip(good.newest_at.tolist(), good.sample_seconds.tolist(), strict=True)
    nodes: dict[str, NodeMetrics | None] = {
        node: NodeMetrics(
            metrics[row],
            {},
            Metadata(),
            capacity=UNSET if info is None else _known(info.capacity),
            allocatable=UNSET if info is None else _known(info.allocatable),
            sampled_at=int(sampled_at) if metrics[row] else UNSET,
            sample_seconds=UNSET if math.isnan(seconds) else round(seconds, 9),
            status=statuses[row],
        )
        for row, (node, info, (sampled_at, seconds)) in enumerate(zip(good.nodes, good.infos, times, strict=True))
        if node not in withheld
    }
    return WatcherMetrics(int(now), make_window(window, good.newest_at), good.source, Data(nodes))


def _known(quantities: ResourceQuantities) -> ResourceQuantities | UnsetType:
    return UNSET if quantities.cpu is None and quantities.memory is None else quantities
