"""A refresh as the file holds it: pure conversions from a batch to blobs and back, and the average of several refreshes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
        batch: Source, nodes, infos, times and newest values; averages of the source itself are not kept.
        fetched_at: When it was fetched, Unix seconds.
        span_seconds: 0 for samples as they were fetched; else the values are averages over so many seconds, each with the time of its
            newest sample.
    """

    batch: SampleBatch
    fetched_at: float
    span_seconds: int


@dataclass(frozen=True, slots=True)
class Record:
    """One row of the table of refreshes without its list of nodes, and its rows of the table of samples."""

    span_seconds: int
    fetched_ms: int
    oldest_ms: int
    newest_ms: int
    source: str
    sampled_at: bytes
    columns: Mapping[str, bytes]

    def repeats(self, other: Record) -> bool:
        """Answer whether it says the same as another of the same nodes."""
        return (self.newest_ms, self.sampled_at, self.source, self.columns) == (
            other.newest_ms,
            other.sampled_at,
            other.source,
            other.columns,
        )


def encode_record(refresh: StoredRefresh) -> Record | None:
    """Encode a refresh; ``None`` if it has no sample. Samples are kept bit for bit, averages to seven digits."""
    batch = refresh.batch
    at_ms = to_milliseconds(batch.sampled_at)
    is_dated = at_ms != NEVER
    columns = {
        metric_type: encode_values(np.where(is_dated, values, np.nan), exactly=refresh.span_seconds == 0)
        for metric_type, values in batch.latest.items()
        if (~np.isnan(values) & is_dated).any()
    }
    if not columns:
        return None
    oldest_ms, newest_ms = int(at_ms[is_dated].min()), int(at_ms[is_dated].max())
    return Record(
        span_seconds=refresh.span_seconds,
        fetched_ms=round(refresh.fetched_at * MILLISECONDS),
        oldest_ms=oldest_ms,
        newest_ms=newest_ms,
        source=batch.source,
        sampled_at=encode_times(at_ms, newest_ms),
        columns=columns,
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
        latest={metric_type: decode_values(blob, size) for metric_type, blob in record.columns.items()},
        infos=members.infos,
    )
    return StoredRefresh(batch, record.fetched_ms / MILLISECONDS, record.span_seconds)


def average_refreshes(refreshes: Sequence[StoredRefresh], span_seconds: int) -> StoredRefresh:
    """
    Average the samples of refreshes, none counted twice.

    Args:
        refreshes: At least one, oldest first, each with a sample.
        span_seconds: What to call the span of the averages.

    Returns:
        One refresh of all their nodes, fetched when the last was; the time of a node is that of its newest sample.
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
    average = SampleBatch(
        source=batches[-1].source,
        nodes=nodes,
        sampled_at=to_seconds(np.max([each.at_ms.max(axis=0) for each in samples], axis=0)),
        latest={each.metric_type: compute_means(each.values) for each in samples},
        infos=tuple(infos.get(node) for node in nodes) if infos else (),
    )
    return StoredRefresh(average, refreshes[-1].fetched_at, span_seconds)


def _make_row(batch: SampleBatch, metric_type: str) -> Row:
    values = batch.latest.get(metric_type)
    return Row(batch.nodes, to_milliseconds(batch.sampled_at), np.full(len(batch.nodes), np.nan) if values is None else values)
