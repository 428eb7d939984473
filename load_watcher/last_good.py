"""
The last good value of every node and metric, with its age.

A failed refresh, a rejected sample or a node that is missing from one reply must not lose what was measured before; nor may what was
measured before look new. Pure: the time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from load_watcher.quality import MAX_AHEAD_SECONDS, QualityReport
from load_watcher.samples import NodeInfo, Origins, SampleBatch, Window
from trimaran_client.units import BoolArray, FloatArray, IntArray, freeze
from trimaran_client.wire import LATEST

# How long a node stays known, as expired, that its source no longer names and of which nobody says that it is gone: two and a half hours
# by default, long enough to be seen by whoever looks for it.
FORGOTTEN_AFTER_EXPIRIES: Final = 10

_ABSENT: Final = -1


class ColumnKey(NamedTuple):
    """What a column holds; ``window`` is ``None`` for the newest values, ``unit`` as in :class:`SampleBatch`."""

    metric_type: str
    operator: str
    window: Window | None
    name: str
    unit: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """
    One metric of every node, one row a node.

    Args:
        values: Percent of capacity; NaN = absent.
        sampled_at: When each was measured, Unix seconds; NaN where absent.
        is_new: Whether the newest refresh brought it.
        origins: Which of several sources each is from; empty where there is one source.
    """

    values: FloatArray
    sampled_at: FloatArray
    is_new: BoolArray
    origins: Origins = ()

    def __post_init__(self) -> None:
        for array in (self.values, self.sampled_at, self.is_new):
            freeze(array)


@dataclass(frozen=True, slots=True, eq=False)
class LastGood:
    """
    The values that are served: for each node and column the newest good one that has not expired.

    ``seen_at`` is when each node was last measured at all, Unix seconds, also where that has expired by now; NaN = never.
    ``sample_seconds`` is how long the newest of its values measured; NaN = unknown.
    """

    source: str
    nodes: tuple[str, ...]
    columns: Mapping[ColumnKey, Column]
    infos: tuple[NodeInfo | None, ...]
    members_known: bool
    seen_at: FloatArray
    sample_seconds: FloatArray

    @property
    def newest_at(self) -> FloatArray:
        """Answer when the newest value of each node was measured, Unix seconds, shape (nodes,); NaN without any."""
        return _find_newest(self.columns.values(), len(self.nodes))


def merge(previous: LastGood | None, report: QualityReport, *, now: float, expired_seconds: float) -> LastGood:
    """
    Put a new batch over the last good values.

    A value of the batch replaces the held one unless it was measured earlier. A node whose value is absent or rejected keeps the held one
    until that expires. A node that the batch lacks is gone at once if the batch knows the members of the cluster, else it stays, without
    values once they have expired, for ten times as long.

    Args:
        previous: What was served so far; ``None`` at first.
        report: The new batch, judged.
        now: Unix seconds.
        expired_seconds: The age from which a value no longer counts.
    """
    batch = report.batch
    held = previous or LastGood(batch.source, (), {}, (), batch.members_known, np.empty(0), np.empty(0))
    nodes = batch.nodes
    if not batch.members_known:
        listed = set(nodes)
        nodes += tuple(node for node in held.nodes if node not in listed)
    incoming = _columns_of(batch)
    new_rows, held_rows = _find_rows(nodes, batch.nodes), _find_rows(nodes, held.nodes)
    columns = {
        key: _merge_origins(
            _merge_column(_take(incoming.get(key), new_rows), _take(held.columns.get(key), held_rows), now, expired_seconds),
            _take_origins(incoming.get(key), new_rows),
            _take_origins(held.columns.get(key), held_rows),
        )
        for key in {**incoming, **held.columns}
    }
    infos = tuple(
        _pick(batch.infos, new_row) or _pick(held.infos, held_row)
        for new_row, held_row in zip(new_rows.tolist(), held_rows.tolist(), strict=True)
    )
    seen_at = _take_floats(held.seen_at, held_rows)
    for column in incoming.values():
        values, sampled_at = _take(column, new_rows)
        seen_at = np.fmax(seen_at, np.where(np.isnan(values), np.nan, sampled_at))
    newest_at = _find_newest(columns.values(), len(nodes))
    sample_seconds = np.where(
        _take_floats(_find_newest(incoming.values(), len(batch.nodes)), new_rows) == newest_at,
        _take_floats(batch.sample_seconds, new_rows),
        np.where(_take_floats(held.newest_at, held_rows) == newest_at, _take_floats(held.sample_seconds, held_rows), np.nan),
    )
    merged = LastGood(batch.source, nodes, columns, infos, batch.members_known, seen_at, sample_seconds)
    return _drop_unlisted(merged, len(batch.nodes), now - FORGOTTEN_AFTER_EXPIRIES * expired_seconds)


def carry_over(previous: LastGood, *, now: float, expired_seconds: float) -> LastGood:
    """Answer what is still good after a refresh that brought nothing: every value is held, and expires by its own age."""
    columns = {}
    for key, column in previous.columns.items():
        values, sampled_at = _expire(column.values, column.sampled_at, now, expired_seconds)
        columns[key] = Column(values, sampled_at, np.zeros(len(previous.nodes), dtype=np.bool_), column.origins)
    newest_at = _find_newest(columns.values(), len(previous.nodes))
    sample_seconds = np.where(np.isnan(newest_at), np.nan, previous.sample_seconds)
    held = replace(previous, columns=columns, sample_seconds=sample_seconds)
    return _drop_unlisted(held, 0, now - FORGOTTEN_AFTER_EXPIRIES * expired_seconds)


def _columns_of(batch: SampleBatch) -> dict[ColumnKey, Column]:
    keyed = [
        (ColumnKey(metric_type, LATEST, None, "", batch.units.get(metric_type, "")), values, batch.origins.get(metric_type, ()))
        for metric_type, values in batch.latest.items()
    ]
    keyed += [
        (ColumnKey(item.metric_type, item.operator, item.window, item.name, item.unit), item.values, item.origins)
        for item in batch.aggregates
    ]
    everywhere = np.ones(len(batch.nodes), dtype=np.bool_)
    return {key: Column(values, batch.times_of(key.metric_type), everywhere, origins) for key, values, origins in keyed}


def _find_rows(nodes: tuple[str, ...], listed: tuple[str, ...]) -> IntArray:
    if nodes == listed:
        return np.arange(len(nodes), dtype=np.int64)
    row_of = {node: row for row, node in enumerate(listed)}
    return np.array([row_of.get(node, _ABSENT) for node in nodes], dtype=np.int64)


def _pick(infos: tuple[NodeInfo | None, ...], row: int) -> NodeInfo | None:
    return infos[row] if infos and row != _ABSENT else None


def _take(column: Column | None, rows: IntArray) -> tuple[FloatArray, FloatArray]:
    if column is None or not column.values.size:
        absent = np.full(len(rows), np.nan)
        return absent, absent
    found = rows != _ABSENT
    return np.where(found, column.values[rows], np.nan), np.where(found, column.sampled_at[rows], np.nan)


def _take_floats(column: FloatArray, rows: IntArray) -> FloatArray:
    return np.where(rows != _ABSENT, column[rows], np.nan) if column.size else np.full(len(rows), np.nan)


def _find_newest(columns: Iterable[Column], size: int) -> FloatArray:
    newest_at: FloatArray = np.fmax.reduce(
        [np.full(size, np.nan), *(np.where(np.isnan(each.values), np.nan, each.sampled_at) for each in columns)]
    )
    return newest_at


def _merge_column(new: tuple[FloatArray, FloatArray], held: tuple[FloatArray, FloatArray], now: float, expired_seconds: float) -> Column:
    (new_values, new_at), (held_values, held_at) = new, held
    # A held time in the future means that our own clock was set back: then the new sample counts, whatever its time.
    is_older = (held_at > new_at) & (held_at <= now + MAX_AHEAD_SECONDS)
    is_new = ~np.isnan(new_values) & ~is_older
    values, sampled_at = _expire(np.where(is_new, new_values, held_values), np.where(is_new, new_at, held_at), now, expired_seconds)
    return Column(values, sampled_at, is_new)


def _take_origins(column: Column | None, rows: IntArray) -> Origins:
    if column is None or not column.origins:
        return ()
    return tuple(column.origins[row] if row != _ABSENT else "" for row in rows.tolist())


def _merge_origins(column: Column, new: Origins, held: Origins) -> Column:
    if not new and not held:
        return column
    nothing = ("",) * len(column.values)
    origins = zip(column.is_new.tolist(), new or nothing, held or nothing, strict=True)
    return replace(column, origins=tuple(fresh if is_new else old for is_new, fresh, old in origins))


def _expire(values: FloatArray, sampled_at: FloatArray, now: float, expired_seconds: float) -> tuple[FloatArray, FloatArray]:
    is_good = (now - sampled_at <= expired_seconds) & ~np.isnan(values)
    return np.where(is_good, values, np.nan), np.where(is_good, sampled_at, np.nan)


def _drop_unlisted(good: LastGood, listed: int, forgotten_at: float) -> LastGood:
    """Drop columns without a value, and nodes that nobody vouches for: beyond the first *listed*, not measured since *forgotten_at*."""
    columns = {key: column for key, column in good.columns.items() if not np.isnan(column.values).all()}
    keep = np.ones(len(good.nodes), dtype=np.bool_)
    if not good.members_known:
        keep[listed:] = good.seen_at[listed:] >= forgotten_at
    if keep.all():
        return replace(good, columns=columns)
    rows = np.flatnonzero(keep)
    return LastGood(
        good.source,
        tuple(good.nodes[row] for row in rows.tolist()),
        {
            key: Column(column.values[rows], column.sampled_at[rows], column.is_new[rows], _take_origins(column, rows))
            for key, column in columns.items()
        },
        tuple(good.infos[row] for row in rows.tolist()),
        good.members_known,
        good.seen_at[rows],
        good.sample_seconds[rows],
    )
