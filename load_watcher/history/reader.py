"""
Reading a history file: refreshes in order, one node's past in steps, a window of every node.

Reads go in small parts, each a short transaction of its own, so that a writer on the same connection gets its turn and a service whose file
is exported can go on. Decoding runs in threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

import numpy as np
from cachetools import LRUCache

from load_watcher.history.aggregate import compute_steps
from load_watcher.history.columns import MILLISECONDS, Row, SampleColumns, cut_columns, stack_rows
from load_watcher.history.encoding import Members, decode_members, decode_times, decode_values
from load_watcher.history.errors import WindowTooLargeError
from load_watcher.history.records import Blobs, Record, StoredRefresh, decode_record
from load_watcher.history.sqlite import HistoryFile
from trimaran_client.units import FloatArray, IntArray

# Values of span_seconds: samples as they were fetched, and what they become when they are no longer kept.
SAMPLES: Final = 0
AVERAGE_SECONDS: Final = 300

# Refreshes in one read: megabytes with thousands of nodes and six metrics.
_CHUNK: Final = 32
# The same of one metric.
_METRIC_CHUNK: Final = 128
# Samples in one window read from the file: 32 MB, three times that while it is aggregated. 5,000 nodes at 30 s: three and a half hours.
_MAX_COLLECTED: Final = 2**21
_CACHED_NODE_SETS: Final = 16
_END_OF_TIME_MS: Final = 2**62


class HistoryPage(NamedTuple):
    """Part of an answer: averages of steps that end at ``at`` (Unix seconds, ascending); where to go on, ``None`` at the end."""

    at: FloatArray
    values: FloatArray
    next_start_at: float | None


class StoreSize(NamedTuple):
    """What the file takes, and holds; instants are Unix seconds, ``None`` in an empty one."""

    file_bytes: int
    used_bytes: int
    refreshes: int
    oldest_at: float | None
    newest_at: float | None


class StoredRow(NamedTuple):
    """A row of the table of refreshes."""

    id: int
    span_seconds: int
    fetched_ms: int
    oldest_ms: int
    newest_ms: int
    source: str
    node_set: int
    sampled_at: bytes


class HistoryReader:
    """
    Read a history file; ``async with`` opens and closes it.

    Args:
        path: The file, of a service that may be running.
    """

    def __init__(self, path: Path) -> None:
        self._file = HistoryFile(path, read_only=True)
        self._node_sets: LRUCache[int, Members] = LRUCache(_CACHED_NODE_SETS)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """
        Open the file.

        Raises:
            HistoryFileError: If it cannot be used; the kind says why.
        """
        await self._stack.enter_async_context(self._file)
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        """Close it."""
        await self._stack.aclose()

    async def load(
        self, start_at: float, end_at: float | None = None, *, averages: bool = False, step_seconds: float = 0.0
    ) -> AsyncIterator[StoredRefresh]:
        """
        Read refreshes in the order of their newest samples.

        Args:
            start_at: Those with a sample after it, Unix seconds.
            end_at: Those with a sample not after it; to the end if not given.
            averages: Whether to begin with the averages of what is no longer kept.
            step_seconds: Of refreshes fetched within half of it only the first is read: for a ring of a coarser step.

        Raises:
            HistoryFileError: If the file cannot be read, or is damaged.
        """
        end_ms = _END_OF_TIME_MS if end_at is None else _to_ms(end_at)
        last_ms = -_END_OF_TIME_MS
        for span_seconds in (AVERAGE_SECONDS, SAMPLES) if averages else (SAMPLES,):
            async for rows in self._scan(span_seconds, _to_ms(start_at), end_ms):
                wanted = []
                for row in rows:
                    # A clock that was set back makes an earlier time, not a near one.
                    if not 0 <= row.fetched_ms - last_ms < _to_ms(step_seconds) // 2:
                        wanted.append(row)
                        last_ms = row.fetched_ms
                for refresh in await self._decode(wanted):
                    yield refresh

    async def read(
        self, node: str, metric_type: str, *, start_at: float, end_at: float, step_seconds: int, limit: int = 1000
    ) -> HistoryPage:
        """
        Read one metric of one node as averages of equal steps; a step without a sample is left out.

        Args:
            node: Its name.
            metric_type: For example ``CPU``.
            start_at: Samples after it, Unix seconds.
            end_at: Samples not after it.
            step_seconds: At least 1.
            limit: Steps in one page, at least 1; a page covers so many, also where they are empty.

        Raises:
            HistoryFileError: If the file cannot be read, or is damaged.
        """
        start_ms, end_ms, step_ms = _to_ms(start_at), _to_ms(end_at), step_seconds * MILLISECONDS
        until_ms = min(end_ms, (start_ms // step_ms + limit) * step_ms)
        at_ms, values = [np.empty(0, dtype=np.int64)], [np.empty(0)]
        for span_seconds in (AVERAGE_SECONDS, SAMPLES):
            async for rows in self._scan_metric(metric_type, span_seconds, start_ms, until_ms):
                part = await asyncio.to_thread(_pick, rows, node, start_ms, until_ms)
                at_ms.append(part[0])
                values.append(part[1])
        ends_at, averages = compute_steps(np.concatenate(at_ms), np.concatenate(values), step_seconds=step_seconds)
        [(more,)] = await self._file.fetch(
            "SELECT EXISTS (SELECT 1 FROM refreshes WHERE span_seconds IN (?, ?) AND newest_ms > ? AND oldest_ms <= ?)",
            (AVERAGE_SECONDS, SAMPLES, until_ms, end_ms),
        )
        return HistoryPage(ends_at, averages, until_ms / MILLISECONDS if more and until_ms < end_ms else None)

    async def collect(self, metric_type: str, *, start_at: float, end_at: float) -> SampleColumns:
        """
        Read the samples of every node in ``(start_at, end_at]``, for a window longer than memory holds.

        Raises:
            WindowTooLargeError: If they are too many.
            HistoryFileError: If the file cannot be read, or is damaged.
        """
        start_ms, end_ms = _to_ms(start_at), _to_ms(end_at)
        collected: list[Row] = []
        samples = 0
        async for rows in self._scan_metric(metric_type, SAMPLES, start_ms, end_ms):
            collected += rows
            samples += sum(len(row.nodes) for row in rows)
            if samples > _MAX_COLLECTED:
                raise WindowTooLargeError(
                    f"{metric_type}: {end_at - start_at:.0f} s of {len(rows[-1].nodes)} nodes are more than {_MAX_COLLECTED} samples; "
                    "ask for a shorter window, or for the history of one node"
                )
        return await asyncio.to_thread(lambda: cut_columns(stack_rows(metric_type, collected), start_ms=start_ms, end_ms=end_ms))

    async def measure(self) -> StoreSize:
        """
        Answer what the file takes, and holds.

        Raises:
            HistoryFileError: If it cannot be read.
        """
        page_bytes, pages, free_pages = await self._count_pages()
        [(refreshes, oldest_ms, newest_ms)] = await self._file.fetch("SELECT count(*), min(newest_ms), max(newest_ms) FROM refreshes")
        oldest_at, newest_at = (None if each is None else each / MILLISECONDS for each in (oldest_ms, newest_ms))
        return StoreSize(pages * page_bytes, (pages - free_pages) * page_bytes, refreshes, oldest_at, newest_at)

    async def _count_pages(self) -> tuple[int, int, int]:
        [(page_bytes, pages, free_pages)] = await self._file.fetch(
            "SELECT page_size, page_count, freelist_count FROM pragma_page_size, pragma_page_count, pragma_freelist_count"
        )
        return page_bytes, pages, free_pages

    async def _scan(self, span_seconds: int, start_ms: int, end_ms: int, *, chunk: int = _CHUNK) -> AsyncIterator[list[StoredRow]]:
        """Read the rows of refreshes that have samples in ``(start_ms, end_ms]``, by the time of the newest."""
        newest_ms, last_id = start_ms, _END_OF_TIME_MS
        while True:
            found = await self._file.fetch(
                "SELECT id, span_seconds, fetched_ms, oldest_ms, newest_ms, source, node_set, sampled_at FROM refreshes"
                " WHERE span_seconds = ? AND (newest_ms, id) > (?, ?) AND oldest_ms <= ? ORDER BY newest_ms, id LIMIT ?",
                (span_seconds, newest_ms, last_id, end_ms, chunk),
            )
            rows = [StoredRow(*row) for row in found]
            if rows:
                yield rows
            if len(rows) < chunk:
                return
            newest_ms, last_id = rows[-1].newest_ms, rows[-1].id

    async def _scan_metric(self, metric_type: str, span_seconds: int, start_ms: int, end_ms: int) -> AsyncIterator[list[Row]]:
        async for rows in self._scan(span_seconds, start_ms, end_ms, chunk=_METRIC_CHUNK):
            blobs = {refresh: found for refresh, _, found in await self._fetch_samples(rows, metric_type)}
            members = [await self._fetch_members(row.node_set) for row in rows]
            yield await asyncio.to_thread(_decode_rows, rows, members, blobs)

    async def _decode(self, rows: Sequence[StoredRow]) -> list[StoredRefresh]:
        columns: dict[int, dict[str, Blobs]] = {row.id: {} for row in rows}
        for refresh, metric_type, blobs in await self._fetch_samples(rows):
            columns[refresh][metric_type] = blobs
        members = [await self._fetch_members(row.node_set) for row in rows]
        return await asyncio.to_thread(_decode_refreshes, rows, members, columns)

    async def _fetch_samples(self, rows: Sequence[StoredRow], metric_type: str | None = None) -> list[tuple[int, str, Blobs]]:
        listed = ", ".join("?" * len(rows))
        wanted, parameters = ("", ()) if metric_type is None else (" AND metric_type = ?", (metric_type,))
        found = await self._file.fetch(
            f"SELECT refresh, metric_type, data, sampled_at FROM samples WHERE refresh IN ({listed}){wanted} ORDER BY id",  # noqa: S608 - question marks
            (*(row.id for row in rows), *parameters),
        )
        return [(refresh, each, Blobs(values, sampled_at)) for refresh, each, values, sampled_at in found]

    async def _fetch_members(self, node_set: int) -> Members:
        if node_set not in self._node_sets:
            [(members,)] = await self._file.fetch("SELECT members FROM node_sets WHERE id = ?", (node_set,))
            self._node_sets[node_set] = await asyncio.to_thread(decode_members, members)
        return self._node_sets[node_set]


def _to_ms(seconds: float) -> int:
    return round(seconds * MILLISECONDS)


def _decode_refreshes(rows: Sequence[StoredRow], members: Sequence[Members], columns: dict[int, dict[str, Blobs]]) -> list[StoredRefresh]:
    return [
        decode_record(
            Record(row.span_seconds, row.fetched_ms, row.oldest_ms, row.newest_ms, row.source, row.sampled_at, columns[row.id]), of
        )
        for row, of in zip(rows, members, strict=True)
    ]


def _decode_rows(rows: Sequence[StoredRow], members: Sequence[Members], blobs: dict[int, Blobs]) -> list[Row]:
    decoded = []
    for row, of in zip(rows, members, strict=True):
        found = blobs.get(row.id)
        if found is not None:
            size = len(of.nodes)
            at_ms = decode_times(found.sampled_at or row.sampled_at, size, row.newest_ms)
            decoded.append(Row(of.nodes, at_ms, decode_values(found.values, size)))
    return decoded


def _pick(rows: Sequence[Row], node: str, start_ms: int, end_ms: int) -> tuple[IntArray, FloatArray]:
    """Pick the samples of one node in ``(start_ms, end_ms]``."""
    nodes: tuple[str, ...] = ()
    column = None
    picked = []
    for row in rows:
        if row.nodes is not nodes:
            nodes, column = row.nodes, next((index for index, each in enumerate(row.nodes) if each == node), None)
        if column is not None and start_ms < row.at_ms[column] <= end_ms and not np.isnan(row.values[column]):
            picked.append((row.at_ms[column], row.values[column]))
    return np.array([at_ms for at_ms, _ in picked], dtype=np.int64), np.array([value for _, value in picked], dtype=np.float64)
