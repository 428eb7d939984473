"""
The reply of ``GET /watcher``, node by node, written straight from columns.

The shape of an entry and of a metric is that of the wire model, but no object is made of each metric: 50,000 nodes have 300,000.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np
from msgspec import UNSET, UnsetType

from load_watcher.history.aggregate import WindowAggregate
from load_watcher.last_good import LastGood
from load_watcher.samples import Window
from load_watcher.snapshot.choice import Choice
from load_watcher.snapshot.encoding import END, Snapshot, encode
from load_watcher.snapshot.served import (
    DECIMAL_PLACES,
    STATUSES,
    ServedColumn,
    Withheld,
    find_statuses,
    list_columns,
    list_served,
    make_window,
)
from trimaran_client.units import FloatArray, IntArray
from trimaran_client.wire import Data, Metadata, Metric, NodeMetrics, ResourceQuantities, WatcherMetrics, encode_json

_METADATA: Final = Metadata()
_NO_TAGS: Final[dict[str, object]] = {}  # never written to: one for all
_USUAL_CHOICE: Final = Choice()
# What is written of these stays in the processor's caches until it is joined, and takes a megabyte.
_NODES_AT_ONCE: Final = 1000
_METRICS: Final = b'{"metrics":['
_NO_VALUE: Final = b'"value":null'


def encode_snapshot(
    good: LastGood,
    *,
    now: float,
    stale_seconds: float,
    window: Window,
    choice: Choice = _USUAL_CHOICE,
    aggregates: Sequence[WindowAggregate] = (),
    withheld: Mapping[str, Withheld] = MappingProxyType({}),
) -> Snapshot:
    """
    Encode the last good values, each node once, and compress the whole once; a value that is absent is left out.

    Work for a thread: tens of milliseconds with thousands of nodes.

    Args:
        good: What is served.
        now: Unix seconds.
        stale_seconds: The age from which a node is marked.
        window: The window that the provider was asked for.
        choice: Which of what the source averaged itself.
        aggregates: What our own history says over windows, one row for each node of *good*.
        withheld: Nodes to leave out, and why.
    """
    newest_at = good.newest_at
    rows = list_served(good, withheld)
    columns = list_columns(good, choice, aggregates)
    statuses = find_statuses(good, now=now, stale_seconds=stale_seconds)
    head = encode_json(WatcherMetrics(int(now), make_window(window, newest_at), good.source, Data({}))).removesuffix(END)
    parts, sizes = [head], [len(head)]
    for start in range(0, len(rows), _NODES_AT_ONCE):
        entries = [*_encode_nodes(good, newest_at, columns, statuses, rows[start : start + _NODES_AT_ONCE])]
        sizes += [len(entry) + 1 for entry in entries]
        parts += [b"," if start else b"", b",".join(entries)]
    encoded = encode(b"".join((*parts, END)))
    served = [statuses[row] for row in rows.tolist()]
    has_metric = np.logical_or.reduce([np.zeros(len(rows), dtype=np.bool_), *(~np.isnan(column.values[rows]) for column in columns)])
    counts = Counter(served) + Counter(each.status for each in withheld.values())
    return Snapshot(
        identity=encoded.identity,
        compressed=encoded.compressed,
        made_at=now,
        newest_sampled_at=max(map(int, newest_at[rows][has_metric].tolist()), default=None),
        status_counts={status: counts[status] for status in STATUSES},
        head=head,
        rows={good.nodes[row]: place for place, row in enumerate(rows.tolist())},
        starts=np.cumsum(sizes),
        statuses=served,
        withheld=withheld,
    )


def _encode_nodes(
    good: LastGood, newest_at: FloatArray, columns: Sequence[ServedColumn], statuses: Sequence[str], rows: IntArray
) -> Iterator[bytes]:
    """Write the entry of each node: its name, what there is of its metrics, and the rest."""
    encoded = [_encode_column(column, rows) for column in columns]
    metrics = zip(*encoded, strict=True) if encoded else itertools.repeat(())
    times = zip(newest_at[rows].tolist(), good.sample_seconds[rows].tolist(), strict=True)
    for row, (sampled_at, seconds), each in zip(rows.tolist(), times, metrics, strict=False):
        info, written = good.infos[row], b",".join(filter(None, each))
        rest = NodeMetrics(
            [],
            _NO_TAGS,
            _METADATA,
            capacity=UNSET if info is None else _known(info.capacity),
            allocatable=UNSET if info is None else _known(info.allocatable),
            sampled_at=int(sampled_at) if written else UNSET,
            sample_seconds=UNSET if math.isnan(seconds) else round(seconds, DECIMAL_PLACES),
            status=statuses[row],
        )
        yield b"".join((encode_json(good.nodes[row]), b":", _METRICS, written, encode_json(rest).removeprefix(_METRICS)))


def _encode_column(column: ServedColumn, rows: IntArray) -> list[bytes]:
    """Write a metric of every node, nothing where there is no value: all of them at once, since only the values differ."""
    values = column.values[rows]
    metric = encode_json(Metric(column.name, column.metric_type, column.operator, column.window, None, column.unit or UNSET))
    before, _, after = metric.partition(_NO_VALUE)
    before += b'"value":'
    # There is no line break in what is written, as strings have theirs escaped.
    texts = encode_json(values.tolist())[1:-1].replace(b",", after + b"\n" + before)
    metrics = (before + texts + after).split(b"\n")
    if column.origins:
        origins = [column.origins[row] for row in rows.tolist()]
        metrics = [b'%b,"source":%b}' % (each[:-1], encode_json(origin)) for each, origin in zip(metrics, origins, strict=True)]
    for row in np.flatnonzero(np.isnan(values)).tolist():
        metrics[row] = b""
    return metrics


def _known(quantities: ResourceQuantities) -> ResourceQuantities | UnsetType:
    return UNSET if quantities.cpu is None and quantities.memory is None else quantities
