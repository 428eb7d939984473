"""
What the service remembers over a restart: every refresh of a day, then five-minute averages of a month.

A refresh is written in one transaction, one blob a metric. Encoding runs in threads and SQL in the connection's own, so that the event loop
only waits.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from load_watcher.history.columns import MILLISECONDS
from load_watcher.history.encoding import Members, encode_members
from load_watcher.history.reader import AVERAGE_SECONDS, SAMPLES, HistoryReader
from load_watcher.history.records import Record, StoredRefresh, average_refreshes, encode_record
from load_watcher.history.sqlite import HistoryFile, Rows, Transaction
from load_watcher.samples import SampleBatch

_AVERAGE_MS: Final = AVERAGE_SECONDS * MILLISECONDS
# Bounds of one pruning, so that the next refresh waits for a moment only; the next pruning goes on.
_MAX_AVERAGES: Final = 12
_MAX_DELETED: Final = 500
_MAX_VACUUMED_PAGES: Final = 2000


@dataclass(frozen=True, slots=True)
class Retention:
    """
    How long history is kept, and how large the file may be.

    Args:
        sample_seconds: The age at which samples become averages.
        average_seconds: The age at which averages are deleted.
        max_bytes: The size at which the oldest are deleted; the log beside the file takes up to 16 MB more.
    """

    sample_seconds: float = 86400.0
    average_seconds: float = 30 * 86400.0
    max_bytes: int = 2**30


class _Encoded(NamedTuple):
    """A refresh ready to write; its list of nodes is in the file already as ``node_set``, or is written from ``members_blob``."""

    record: Record
    members: Members
    node_set: int | None
    members_blob: bytes


class HistoryStore(HistoryReader):
    """
    Keep refreshes in a file; ``async with`` opens and closes it.

    Args:
        path: The file, made if there is none; its folder must be there.
        retention: How long and how much.
    """

    def __init__(self, path: Path, *, retention: Retention | None = None) -> None:
        super().__init__(path)
        self._file = HistoryFile(path)
        self._retention = retention or Retention()
        self._written: tuple[int, Record] | None = None

    async def is_in_place(self) -> bool:
        """Answer whether the file was neither deleted nor replaced since it was opened."""
        return await self._file.is_in_place()

    async def append(self, batch: SampleBatch, *, fetched_at: float) -> bool:
        """
        Write a refresh, all of it or nothing.

        Returns:
            Whether anything was written: a batch without a sample, or the same as the last, says nothing new.

        Raises:
            HistoryFileError: If it cannot be written.
        """
        encoded = await self._encode(StoredRefresh(batch, fetched_at, SAMPLES))
        if encoded is None:
            return False
        if self._written is not None and self._written[0] == encoded.node_set and encoded.record.repeats(self._written[1]):
            return False
        async with self._file.transaction() as transaction:
            node_set = await _insert(transaction, encoded)
        self._node_sets[node_set] = encoded.members
        self._written = node_set, encoded.record
        return True

    async def prune(self, now: float) -> int:
        """
        Average what is older than samples are kept, delete what is older than averages are, and the oldest if the file is too large.

        One call does a bounded part of it; call it after every refresh. Ages count from the newest sample, so that a clock that ran ahead
        deletes nothing.

        Args:
            now: Unix seconds; for the ages where it is before the newest sample, or there is none.

        Returns:
            How many refreshes were averaged or deleted.

        Raises:
            HistoryFileError: If the file cannot be written, or is damaged.
        """
        [(newest_ms,)] = await self._file.fetch("SELECT max(newest_ms) FROM refreshes WHERE span_seconds = ?", (SAMPLES,))
        now = now if newest_ms is None else min(now, newest_ms / MILLISECONDS)
        kept_from_ms = math.floor((now - self._retention.sample_seconds) / AVERAGE_SECONDS) * _AVERAGE_MS
        pruned = 0
        for _ in range(_MAX_AVERAGES):
            averaged = await self._average_oldest(kept_from_ms)
            pruned += averaged
            if not averaged:
                break
        averages_from_ms = round((now - self._retention.average_seconds) * MILLISECONDS)
        pruned += await self._delete(
            await self._file.fetch(
                "SELECT id FROM refreshes WHERE span_seconds = ? AND newest_ms <= ? ORDER BY newest_ms LIMIT ?",
                (AVERAGE_SECONDS, averages_from_ms, _MAX_DELETED),
            )
        )
        pruned += await self._delete(await self._find_excess())
        if pruned:
            await self._drop_node_sets()
        await self._shrink()
        return pruned

    async def _average_oldest(self, kept_from_ms: int) -> int:
        """Replace the oldest five minutes of samples by their average; answer how many refreshes these were."""
        [(oldest_ms,)] = await self._file.fetch("SELECT min(newest_ms) FROM refreshes WHERE span_seconds = ?", (SAMPLES,))
        if oldest_ms is None or oldest_ms > kept_from_ms:
            return 0
        end_ms = -(-oldest_ms // _AVERAGE_MS) * _AVERAGE_MS
        parts = self._scan(SAMPLES, end_ms - _AVERAGE_MS, end_ms)
        rows = [row async for part in parts for row in part if row.newest_ms <= end_ms]
        refreshes = await self._decode(rows)
        encoded = await self._encode(await asyncio.to_thread(average_refreshes, refreshes, AVERAGE_SECONDS))
        async with self._file.transaction() as transaction:
            if encoded is not None:
                await _insert(transaction, encoded)
            await _delete(transaction, [(row.id,) for row in rows])
        return len(rows)

    async def _find_excess(self) -> Rows:
        """Find the oldest refreshes, as many as the file is too large by, if they were all of the same size."""
        page_bytes, pages, free_pages = await self._count_pages()
        used_bytes = (pages - free_pages) * page_bytes
        excess_ratio = 1 - self._retention.max_bytes / used_bytes
        if excess_ratio <= 0:
            return []
        [(refreshes,)] = await self._file.fetch("SELECT count(*) FROM refreshes")
        wanted = min(_MAX_DELETED, math.ceil(refreshes * excess_ratio))
        return await self._file.fetch("SELECT id FROM refreshes ORDER BY newest_ms LIMIT ?", (wanted,))

    async def _delete(self, ids: Rows) -> int:
        if ids:
            async with self._file.transaction() as transaction:
                await _delete(transaction, ids)
        return len(ids)

    async def _drop_node_sets(self) -> None:
        async with self._file.transaction() as transaction:
            unused = await transaction.fetch(
                "SELECT id FROM node_sets WHERE NOT EXISTS (SELECT 1 FROM refreshes WHERE refreshes.node_set = node_sets.id)"
            )
            await transaction.repeat("DELETE FROM node_sets WHERE id = ?", unused)
        for (node_set,) in unused:
            self._node_sets.pop(node_set, None)

    async def _shrink(self) -> None:
        """Give pages that are free back to the disk, if the file is too large with them; below that, they are for the next refreshes."""
        page_bytes, pages, free_pages = await self._count_pages()
        surplus = min(free_pages, pages - self._retention.max_bytes // page_bytes, _MAX_VACUUMED_PAGES)
        if surplus > 0:
            await self._file.vacuum(surplus)

    async def _encode(self, refresh: StoredRefresh) -> _Encoded | None:
        return await asyncio.to_thread(_encode, refresh, tuple(self._node_sets.items()))


def _encode(refresh: StoredRefresh, known: Sequence[tuple[int, Members]]) -> _Encoded | None:
    record = encode_record(refresh)
    if record is None:
        return None
    members = Members(refresh.batch.nodes, refresh.batch.infos, dict(refresh.batch.units))
    for node_set, others in known:
        if members == others:
            return _Encoded(record, others, node_set, b"")
    return _Encoded(record, members, None, encode_members(members))


async def _insert(transaction: Transaction, encoded: _Encoded) -> int:
    """Write a refresh, and its list of nodes if that is new; answer the number of the list."""
    record, node_set = encoded.record, encoded.node_set
    if node_set is None:
        node_set = await transaction.insert("INSERT INTO node_sets (members) VALUES (?)", (encoded.members_blob,))
    refresh = await transaction.insert(
        "INSERT INTO refreshes (span_seconds, fetched_ms, oldest_ms, newest_ms, source, node_set, sampled_at) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (record.span_seconds, record.fetched_ms, record.oldest_ms, record.newest_ms, record.source, node_set, record.sampled_at),
    )
    await transaction.repeat(
        "INSERT INTO samples (refresh, metric_type, sampled_at, data) VALUES (?, ?, ?, ?)",
        [(refresh, metric_type, blobs.sampled_at, blobs.values) for metric_type, blobs in record.columns.items()],
    )
    return node_set


async def _delete(transaction: Transaction, ids: Rows) -> None:
    await transaction.repeat("DELETE FROM samples WHERE refresh = ?", ids)
    await transaction.repeat("DELETE FROM refreshes WHERE id = ?", ids)
