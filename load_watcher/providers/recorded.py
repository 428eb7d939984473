"""
Replay a recording: for demos, for tests, and to look again at what once happened.

A recording holds one JSON object a line, and each line is one batch in columns. It is indexed once and then read one line at a time, so
that its size costs no memory.
"""

from __future__ import annotations

import asyncio
import os
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

import msgspec
import numpy as np

from load_watcher.errors import ProviderConfigError, ProviderReplyError
from load_watcher.samples import Aggregate, NodeInfo, SampleBatch, Window
from load_watcher.settings import Settings
from trimaran_client.errors import QuantityError
from trimaran_client.units import FloatArray, Quantity
from trimaran_client.wire import ResourceQuantities

NAME: Final = "Recorded"
# Indexing reads the whole file once, about a gigabyte in a few seconds; a longer one would miss the deadline of the first refresh.
MAX_FILE_BYTES: Final = 2**30
# Fifty thousand nodes with six metrics take less.
MAX_LINE_BYTES: Final = 2**26

_NO_INFO: Final = ResourceQuantities()
_Values = list[float | None]


class RecordedAggregate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A column that the source averaged itself; ``window`` as in ``15m``."""

    type: str
    operator: str
    window: str
    values: _Values
    name: str = ""


class RecordedBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    One line of a recording.

    ``at`` is when the batch was fetched, Unix seconds. Every other list has one entry for each of ``nodes``; ``null`` is absent. Without
    ``sampled_at`` every sample was measured at ``at``. ``latest`` maps a metric type to percent of capacity, or
    to the unit that ``units`` names; ``times`` says when its values were measured, where that is not ``sampled_at``.
    """

    at: float
    nodes: list[str]
    sampled_at: _Values | None = None
    latest: dict[str, _Values] = {}
    units: dict[str, str] = {}
    times: dict[str, _Values] = {}
    aggregates: list[RecordedAggregate] = []
    capacity: list[ResourceQuantities | None] | None = None
    allocatable: list[ResourceQuantities | None] | None = None


class _Instant(msgspec.Struct, frozen=True):
    at: float


class _Index(NamedTuple):
    """Where the lines of a file begin and when they were recorded, in the order of the file; ``signature`` tells a changed file."""

    signature: tuple[int, int]
    offsets: array[int]
    numbers: array[int]
    instants: array[float]

    @property
    def period_seconds(self) -> float:
        """Answer how long one round takes: all lines, and after the last one as much time as before it."""
        if len(self.instants) == 1:
            return 1.0
        return 2 * self.instants[-1] - self.instants[0] - self.instants[-2]


_decode_instant = msgspec.json.Decoder(_Instant).decode
_decode_batch = msgspec.json.Decoder(RecordedBatch).decode


class RecordedProvider:
    """
    Give the batches of a file at the pace in which they were recorded, the first at the first fetch.

    Args:
        path: The recording.
        keep_times: ``False`` moves all times so that the first batch is now, and starts over after the last; ``True`` leaves them as they
            were recorded, and stays at the last.
        clock: Answers Unix seconds.
    """

    def __init__(self, path: Path, *, keep_times: bool = False, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._keep_times = keep_times
        self._clock = clock
        self._index: _Index | None = None
        self._started_at: float | None = None

    @property
    def name(self) -> str:
        """Answer the name under which it is chosen."""
        return NAME

    async def __aenter__(self) -> Self:
        """Open nothing: the file is read at the first fetch, and again from its start after entering again."""
        self._started_at = None
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        """Close nothing: the file is open only while a line is read."""

    async def fetch(self, window: Window) -> SampleBatch:  # noqa: ARG002 - part of the contract; the recording says its windows
        """
        Read the batch whose time has come.

        Raises:
            ProviderConfigError: If the file cannot be read.
            ProviderReplyError: If it is not a recording; names the line and the cause.
        """
        index = await asyncio.to_thread(self._open)
        now = self._clock()
        if self._started_at is None:
            self._started_at = now
        # A clock that was set back must not give a batch from before the first.
        elapsed_seconds = max(0.0, now - self._started_at)
        round_start = 0.0
        if not self._keep_times:
            round_start = elapsed_seconds // index.period_seconds * index.period_seconds
        recorded_at = index.instants[0] + elapsed_seconds - round_start
        position = bisect_right(index.instants, recorded_at) - 1
        shift_seconds = 0.0 if self._keep_times else self._started_at + round_start - index.instants[0]
        return await asyncio.to_thread(self._read_batch, index, position, shift_seconds)

    async def check_health(self) -> None:
        """
        Look whether the file is a recording.

        Raises:
            ProviderConfigError: If it cannot be read.
            ProviderReplyError: If it is not one.
        """
        await asyncio.to_thread(self._open)

    def _open(self) -> _Index:
        try:
            status = self._path.stat()
            signature = (status.st_mtime_ns, status.st_size)
            if self._index is None or self._index.signature != signature:
                self._index = self._make_index(signature)
        except OSError as error:
            raise ProviderConfigError(
                f"{NAME}: {self._path}: {error.strerror}; set METRICS_PROVIDER_ADDRESS to a file that this user can read"
            ) from error
        return self._index

    def _make_index(self, signature: tuple[int, int]) -> _Index:
        if signature[1] > MAX_FILE_BYTES:
            raise ProviderConfigError(f"{NAME}: {self._path} has {signature[1]:,} bytes, more than {MAX_FILE_BYTES:,}; split it")
        index = _Index(signature, array("q"), array("q"), array("d"))
        with self._path.open("rb") as file:
            offset = 0
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), start=1):
                if not line.isspace():
                    self._add_line(index, offset, number, line)
                offset += len(line)
        if not index.instants:
            raise ProviderReplyError(f"{NAME}: {self._path} holds no batch; write one JSON object a line (docs/providers.md)")
        return index

    def _add_line(self, index: _Index, offset: int, number: int, line: bytes) -> None:
        if len(line) == MAX_LINE_BYTES:
            raise self._bad_line(number, f"it is longer than {MAX_LINE_BYTES:,} bytes; split the batch")
        try:
            instant = _decode_instant(line).at
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._bad_line(number, str(error)) from error
        if index.instants and instant <= index.instants[-1]:
            raise self._bad_line(number, f"its time {instant:.15g} is not after {index.instants[-1]:.15g}, the one before; sort the file")
        index.offsets.append(offset)
        index.numbers.append(number)
        index.instants.append(instant)

    def _read_batch(self, index: _Index, position: int, shift_seconds: float) -> SampleBatch:
        number = index.numbers[position]
        try:
            with self._path.open("rb") as file:
                file.seek(index.offsets[position], os.SEEK_SET)
                recorded = _decode_batch(file.readline(MAX_LINE_BYTES))
            return _make_batch(recorded, shift_seconds)
        except OSError as error:
            raise ProviderConfigError(f"{NAME}: {self._path}: {error.strerror}; is the file still there?") from error
        except (msgspec.DecodeError, UnicodeDecodeError, QuantityError, ValueError) as error:
            raise self._bad_line(number, str(error)) from error

    def _bad_line(self, number: int, cause: str) -> ProviderReplyError:
        return ProviderReplyError(f"{NAME}: {self._path}, line {number}: {cause}")


def _make_batch(recorded: RecordedBatch, shift_seconds: float) -> SampleBatch:
    count = len(recorded.nodes)
    latest = {metric_type: _make_column(metric_type, values, count) for metric_type, values in recorded.latest.items()}
    aggregates = tuple(
        Aggregate(item.name, item.type, item.operator, Window.parse(item.window), _make_column(item.type, item.values, count))
        for item in recorded.aggregates
    )
    times = np.full(count, recorded.at) if recorded.sampled_at is None else _make_column("sampled_at", recorded.sampled_at, count)
    has_sample = np.zeros(count, dtype=np.bool_)
    for values in (*latest.values(), *(item.values for item in aggregates)):
        has_sample |= ~np.isnan(values)
    return SampleBatch(
        source=NAME,
        nodes=tuple(recorded.nodes),
        sampled_at=np.where(has_sample, times + shift_seconds, np.nan),
        latest=latest,
        aggregates=aggregates,
        infos=_make_infos(recorded, count),
        units=recorded.units,
        times={metric_type: _make_column("times", at, count) + shift_seconds for metric_type, at in recorded.times.items()},
    )


def _make_column(what: str, values: _Values, count: int) -> FloatArray:
    if len(values) != count:
        raise ValueError(f"{what} has {len(values)} values for {count} nodes")
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _make_infos(recorded: RecordedBatch, count: int) -> tuple[NodeInfo | None, ...]:
    if recorded.capacity is None and recorded.allocatable is None:
        return ()
    columns = []
    for what, quantities in (("capacity", recorded.capacity), ("allocatable", recorded.allocatable)):
        column = [None] * count if quantities is None else quantities
        if len(column) != count:
            raise ValueError(f"{what} has {len(column)} values for {count} nodes")
        for quantity in column:
            if quantity is not None:
                Quantity.parse(quantity.cpu)
                Quantity.parse(quantity.memory)
        columns.append(column)
    return tuple(
        None if capacity is None and allocatable is None else NodeInfo(capacity or _NO_INFO, allocatable or _NO_INFO)
        for capacity, allocatable in zip(*columns, strict=True)
    )


def create_provider(settings: Settings) -> RecordedProvider:
    """
    Make the provider for the file that the settings name.

    Raises:
        ProviderConfigError: If they name none.
    """
    if settings.provider_address is None:
        raise ProviderConfigError(f"{NAME}: no file; set METRICS_PROVIDER_ADDRESS to the path of a recording")
    return RecordedProvider(Path(settings.provider_address), keep_times=settings.recorded_times == "keep")
