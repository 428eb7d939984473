"""A refresh as the file holds it: pure conversions from a batch to blobs and back, and the average of several refreshes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from load_watcher.history.aggregate import compute_means
from load_watcher.history.columns import MILLISECONDS, NEVER, Row, stack_rows, to_milliseconds, to_seconds
from load_watcher.history.encoding import Members, decode_times, decode_values, encode_times, encode_values
from load_watcher.samples import NodeInfo, SampleBatch


@dataclass(frozen=True, slots=True, eq=False)
class StoredRefresh:
    """
    A refresh, read from the file.

    Args:
        batch: Source, nodes, infos, times, newest values and their units; what the source averaged itself and the origins of values of
            several sources are not kept.
        fetched_at: When it was fetched, Unix seconds.
        span_seconds: 0 for samples as they were fetched; else the values are averages over so many seconds, each with the time of its
            newest sample.
    """

    batch: SampleBatch
    fetched_at: float
    span_seconds: int


class Blobs(NamedTuple):
    """The values of a metric, and their times where they are not those of the refresh."""

    values: bytes
    sampled_at: bytes | None


@dataclass(frozen=True, slots=True)
class Record:
    """One row of the table of refreshes without its list of nodes, and its rows of the table of samples."""

    span_seconds: int
    fetched_ms: int
    oldest_ms: int
    newest_ms: int
    source: str
    sampled_at: bytes
    columns: Mapping[str, Blobs]

    def repeats(self, other: Record) -> bool:
        """Answer whether it says the same as another of the same nodes, fetched at another time."""
        return replace(self, fetched_ms=other.fetched_ms) == other


def encode_record(refresh: StoredRefresh) -> Record | None:
    """Encode a refresh; ``None`` if it has no sample. Samples are kept bit for bit, averages to seven digits."""
    batch = refresh.batch
    shared_ms = to_milliseconds(batch.sampled_at)
    own_ms = {metric_type: to_milliseconds(times) for metric_type, times in batch.times.items()}
    is_there = {
        metric_type: ~np.isnan(values) & (own_ms.get(metric_type, shared_ms) != NEVER) for metric_type, values in batch.latest.items()
    }
    kept = [metric_type for metric_type, there in is_there.items() if there.any()]
    if not kept:
        return None
    at_ms = np.concatenate([own_ms.get(metric_type, shared_ms)[is_there[metric_type]] for metric_type in kept])
    oldest_ms, newest_ms = int(at_ms.min()), int(at_ms.max())
    return Record(
        span_seconds=refresh.span_seconds,
        fetched_ms=round(refresh.fetched_at * MILLISECONDS),
        oldest_ms=oldest_ms,
        newest_ms=newest_ms,
        source=batch.source,
        sampled_at=encode_times(shared_ms, newest_ms),
        columns={
            metric_type: Blobs(
                values=encode_values(np.where(is_there[metric_type], batch.latest[metric_type], np.nan), exactly=refresh.span_seconds == 0),
                sampled_at=encode_times(own_ms[metric_type], newest_ms) if metric_type in own_ms else None,
            )
            for metric_type in kept
        },
    )


def decode_record(record: Record, members: Members) -> StoredRefresh:
    """
    Decode a refresh.

    Raises:
        HistoryCorruptError: If a blob is damaged.
    """
    size = len(members.nodes)
    batch = SampleBatch(
        source=record.source,
        nodes=members.nodes,
        sampled_at=to_seconds(decode_times(record.sampled_at, size, record.newest_ms)),
        latest={metric_type: decode_values(blobs.values, size) for metric_type, blobs in record.columns.items()},
        infos=members.infos,
        units=members.units,
        times={
            metric_type: to_seconds(decode_times(blobs.sampled_at, size, record.newest_ms))
            for metric_type, blobs in record.columns.items()
            if blobs.sampled_at is not None
        },
    )
    return StoredRefresh(batch, record.fetched_ms / MILLISECONDS, record.span_seconds)


def average_refreshes(refreshes: Sequence[StoredRefresh], span_seconds: int) -> StoredRefresh:
    """
    Average the samples of refreshes, none counted twice.

    Args:
        refreshes: At least one, oldest first, each with a sample.
        span_seconds: What to call the span of the averages.

    Returns:
        One refresh of all their nodes, fetched when the last was; each value has the time of its newest sample.
    """
    batches = [refresh.batch for refresh in refreshes]
    infos: dict[str, NodeInfo | None] = {}
    for batch in batches:
        infos.update(zip(batch.nodes, batch.infos, strict=False))
    samples = [
        stack_rows(metric_type, [_make_row(batch, metric_type) for batch in batches])
        for metric_type in dict.fromkeys(metric_type for batch in batches for metric_type in batch.latest)
    ]
    nodes = samples[0].nodes
    newest_ms = {each.metric_type: each.at_ms.max(axis=0) for each in samples}
    own = {metric_type for batch in batches for metric_type in batch.times}
    average = SampleBatch(
        source=batches[-1].source,
        nodes=nodes,
        sampled_at=to_seconds(np.max([newest_ms[each] for each in newest_ms.keys() - own] or list(newest_ms.values()), axis=0)),
        latest={each.metric_type: compute_means(each.values) for each in samples},
        infos=tuple(infos.get(node) for node in nodes) if infos else (),
        units={metric_type: unit for batch in batches for metric_type, unit in batch.units.items()},
        times={each: to_seconds(newest_ms[each]) for each in newest_ms.keys() & own},
    )
    return StoredRefresh(average, refreshes[-1].fetched_at, span_seconds)


def _make_row(batch: SampleBatch, metric_type: str) -> Row:
    values = batch.latest.get(metric_type)
    return Row(batch.nodes, to_milliseconds(batch.times_of(metric_type)), np.full(len(batch.nodes), np.nan) if values is None else values)
