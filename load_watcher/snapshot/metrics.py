"""The reply of ``GET /watcher`` as the wire model, node by node."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from msgspec import UNSET, UnsetType

from load_watcher.history.aggregate import WindowAggregate
from load_watcher.last_good import LastGood
from load_watcher.samples import Window
from load_watcher.snapshot.choice import Choice
from load_watcher.snapshot.served import DECIMAL_PLACES, find_statuses, list_columns, make_window
from trimaran_client.wire import Data, Metadata, Metric, NodeMetrics, ResourceQuantities, WatcherMetrics

_METADATA: Final = Metadata()
_NO_TAGS: Final[dict[str, object]] = {}  # never written to: one for all
_USUAL_CHOICE: Final = Choice()


def build_metrics(
    good: LastGood,
    *,
    now: float,
    stale_seconds: float,
    window: Window,
    choice: Choice = _USUAL_CHOICE,
    aggregates: Sequence[WindowAggregate] = (),
    withheld: Collection[str] = (),
) -> WatcherMetrics:
    """
    Write the last good values as the wire model; a value that is absent is left out.

    Args:
        good: What is served.
        now: Unix seconds.
        stale_seconds: The age from which a node is marked.
        window: The window that the provider was asked for.
        choice: Which of what the source averaged itself.
        aggregates: What our own history says over windows, one row for each node of *good*.
        withheld: Nodes to leave out.
    """
    metrics: list[list[Metric | None]] = [[] for _ in good.nodes]
    for column in list_columns(good, choice, aggregates):
        origins: Iterable[str | UnsetType] = column.origins or itertools.repeat(UNSET)
        for row, (value, origin) in enumerate(zip(column.values.tolist(), origins, strict=False)):
            if not math.isnan(value):
                unit = column.unit or UNSET
                metrics[row].append(Metric(column.name, column.metric_type, column.operator, column.window, value, unit, origin))
    statuses = find_statuses(good, now=now, stale_seconds=stale_seconds)
    newest_at = good.newest_at
    times = zip(newest_at.tolist(), good.sample_seconds.tolist(), strict=True)
    nodes: dict[str, NodeMetrics | None] = {
        node: NodeMetrics(
            metrics[row],
            _NO_TAGS,
            _METADATA,
            capacity=UNSET if info is None else _known(info.capacity),
            allocatable=UNSET if info is None else _known(info.allocatable),
            sampled_at=int(sampled_at) if metrics[row] else UNSET,
            sample_seconds=UNSET if math.isnan(seconds) else round(seconds, DECIMAL_PLACES),
            status=statuses[row],
        )
        for row, (node, info, (sampled_at, seconds)) in enumerate(zip(good.nodes, good.infos, times, strict=True))
        if node not in withheld
    }
    return WatcherMetrics(int(now), make_window(window, newest_at), good.source, Data(nodes))


def _known(quantities: ResourceQuantities) -> ResourceQuantities | UnsetType:
    return UNSET if quantities.cpu is None and quantities.memory is None else quantities
