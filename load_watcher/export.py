"""The command ``load-watcher export``: a range of history as a recording that the provider ``Recorded`` plays, as CSV, or as Parquet."""

from __future__ import annotations

import csv
import math
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import msgspec
import numpy as np

from load_watcher.errors import LoadWatcherError
from load_watcher.history.reader import HistoryReader
from load_watcher.history.records import StoredRefresh
from load_watcher.samples import NodeInfo, SampleBatch
from trimaran_client.wire import encode_json

FORMATS: Final = ("jsonl", "csv", "parquet")
_CSV_HEADER: Final = ("fetched_at", "node", "sampled_at", "metric", "value")
# Rows of one row group: a few megabytes of memory whatever the range.
_PARQUET_ROWS: Final = 100_000


class ExportError(LoadWatcherError):
    """The range cannot be exported."""


class Row(NamedTuple):
    """One sample; instants in Unix seconds."""

    fetched_at: float
    node: str
    sampled_at: float
    metric: str
    value: float


async def export_history(path: Path, *, start_at: float, end_at: float | None, file_format: str, target: IO[bytes]) -> int:
    """
    Write the refreshes with samples in a range, first the averages of what is no longer kept; a running service may go on writing the file.

    Args:
        path: The history file.
        start_at: Samples after it, Unix seconds.
        end_at: Samples not after it; to the end if ``None``.
        file_format: One of ``FORMATS``.
        target: Where to write.

    Returns:
        How many refreshes were written.

    Raises:
        HistoryFileError: If the file cannot be read.
        ExportError: If the format needs something that is not installed.
    """
    write = {"jsonl": _write_recording, "csv": _write_csv, "parquet": _write_parquet}[file_format]
    async with HistoryReader(path) as reader:
        return await write(reader.load(start_at, end_at, averages=True), target)


async def _write_recording(refreshes: AsyncIterator[StoredRefresh], target: IO[bytes]) -> int:
    count = 0
    async for refresh in refreshes:
        target.write(encode_json(make_recorded_line(refresh.batch, refresh.fetched_at)) + b"\n")
        count += 1
    return count


def make_recorded_line(batch: SampleBatch, fetched_at: float) -> dict[str, Any]:
    """Write a batch as one line of the provider ``Recorded``; docs/providers.md says what stands where."""
    line: dict[str, Any] = {
        "at": fetched_at,
        "nodes": list(batch.nodes),
        "sampled_at": _nullable(batch.sampled_at.tolist()),
        "latest": {metric_type: _nullable(values.tolist()) for metric_type, values in batch.latest.items()},
    }
    if batch.units:
        line["units"] = dict(batch.units)
    if batch.times:
        line["times"] = {metric_type: _nullable(at.tolist()) for metric_type, at in batch.times.items()}
    if batch.infos:
        line["capacity"] = [_quantities(info, "capacity") for info in batch.infos]
        line["allocatable"] = [_quantities(info, "allocatable") for info in batch.infos]
    return line


def _nullable(values: list[float]) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values]


def _quantities(info: NodeInfo | None, which: str) -> dict[str, str] | None:
    return None if info is None else msgspec.to_builtins(getattr(info, which))


async def _write_csv(refreshes: AsyncIterator[StoredRefresh], target: IO[bytes]) -> int:
    lines = csv.writer(_TextTarget(target.write), lineterminator="\n")
    lines.writerow(_CSV_HEADER)
    count = 0
    async for refresh in refreshes:
        lines.writerows(_rows(refresh))
        count += 1
    return count


class _TextTarget:
    """What the csv module writes text to, for a file of bytes."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write

    def write(self, text: str) -> None:
        """Encode and pass on."""
        self._write(text.encode())


async def _write_parquet(refreshes: AsyncIterator[StoredRefresh], target: IO[bytes]) -> int:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ExportError("Parquet needs another package: pip install 'trimaran[parquet]'") from error
    schema = pa.schema(
        [
            ("fetched_at", pa.float64()),
            ("node", pa.string()),
            ("sampled_at", pa.float64()),
            ("metric", pa.string()),
            ("value", pa.float64()),
        ]
    )
    count, rows = 0, list[Row]()
    with pq.ParquetWriter(target, schema) as writer:
        async for refresh in refreshes:
            rows += _rows(refresh)
            count += 1
            if len(rows) >= _PARQUET_ROWS:
                writer.write_table(pa.Table.from_pylist([row._asdict() for row in rows], schema))
                rows.clear()
        if rows:
            writer.write_table(pa.Table.from_pylist([row._asdict() for row in rows], schema))
    return count


def _rows(refresh: StoredRefresh) -> Iterator[Row]:
    batch = refresh.batch
    for metric_type, values in batch.latest.items():
        for row in np.flatnonzero(~np.isnan(values)).tolist():
            yield Row(refresh.fetched_at, batch.nodes[row], float(batch.times_of(metric_type)[row]), metric_type, float(values[row]))
