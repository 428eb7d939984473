"""The machine itself as one node, from psutil: the default where there is no cluster."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, NamedTuple, Self

import numpy as np
import psutil

from load_watcher.errors import ProviderUnavailableError
from load_watcher.samples import NodeInfo, SampleBatch, Window
from load_watcher.settings import Settings
from trimaran_client.wire import CPU, MEMORY, ResourceQuantities

NAME: Final = "Local"
# The kernel counts in hundredths of a second: half a second tells a percentage to two points on one core, and fits into every refresh.
MIN_SPAN_SECONDS: Final = 0.5
# Waiting for a disk is idle, and guest time is in user time already (psutil and top count the same way).
_NOT_BUSY: Final = frozenset({"idle", "iowait", "guest", "guest_nice"})


class Reading(NamedTuple):
    """
    What the machine's counters say at one moment.

    ``busy_seconds`` and ``total_seconds`` are sums over all logical cores since the machine started.
    """

    busy_seconds: float
    total_seconds: float
    logical_cores: int
    memory_total_bytes: int
    memory_available_bytes: int


def read_machine() -> Reading:
    """Read the counters; a few small files, which a loaded machine can take its time for."""
    times = psutil.cpu_times()
    # A sum of what is busy, not the total less what is not: rounding would make an idle span a little less than 0.
    busy_seconds = sum(seconds for state, seconds in zip(times._fields, times, strict=True) if state not in _NOT_BUSY)
    memory = psutil.virtual_memory()
    return Reading(
        busy_seconds=busy_seconds,
        total_seconds=busy_seconds + times.idle + getattr(times, "iowait", 0.0),
        logical_cores=psutil.cpu_count() or 1,
        memory_total_bytes=memory.total,
        memory_available_bytes=memory.available,
    )


class LocalProvider:
    """
    Measure this machine.

    CPU is the share of busy time since the previous fetch, over at least half a second, so that the first fetch takes that long.
    Memory is total less available, of total.

    Args:
        read: Reads the counters; runs in a thread.
        clock: Answers Unix seconds.
        sleep: Waits between two readings.
        node: The name of the node; by default the host name.
    """

    def __init__(
        self,
        *,
        read: Callable[[], Reading] = read_machine,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        node: str | None = None,
    ) -> None:
        self._read = read
        self._clock = clock
        self._sleep = sleep
        self._node = node
        self._previous: Reading | None = None

    @property
    def name(self) -> str:
        """Answer the name under which it is chosen."""
        return NAME

    async def __aenter__(self) -> Self:
        """Open nothing."""
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        """Close nothing."""

    async def fetch(self, window: Window) -> SampleBatch:  # noqa: ARG002 - part of the contract; the machine keeps no averages
        """
        Measure the utilization since the previous fetch.

        Raises:
            ProviderUnavailableError: If the counters cannot be read.
        """
        previous = self._previous
        reading = await self._try_read()
        # Counters that fell are those of another machine, after a restore or a migration.
        if previous is None or _span_seconds(previous, reading) < 0:
            # Kept at once: a fetch that is cut short has its span at the next.
            previous = self._previous = reading
        missing_seconds = MIN_SPAN_SECONDS - _span_seconds(previous, reading)
        if missing_seconds > 0:
            await self._sleep(missing_seconds)
            reading = await self._try_read()
        self._previous = reading
        return self._make_batch(previous, reading)

    async def check_health(self) -> None:
        """
        Read the counters once.

        Raises:
            ProviderUnavailableError: If they cannot be read.
        """
        await self._try_read()

    async def _try_read(self) -> Reading:
        try:
            return await asyncio.to_thread(self._read)
        except (psutil.Error, OSError) as error:
            raise ProviderUnavailableError(f"{NAME}: the counters of this machine cannot be read: {error}; is /proc mounted?") from error

    def _make_batch(self, previous: Reading, reading: Reading) -> SampleBatch:
        total_seconds = reading.total_seconds - previous.total_seconds
        busy_seconds = reading.busy_seconds - previous.busy_seconds
        used_bytes = reading.memory_total_bytes - reading.memory_available_bytes
        cpu_percent = 100 * busy_seconds / total_seconds if total_seconds > 0 else np.nan
        memory_percent = 100 * used_bytes / reading.memory_total_bytes if reading.memory_total_bytes else np.nan
        has = ResourceQuantities(cpu=str(reading.logical_cores), memory=str(reading.memory_total_bytes))
        return SampleBatch(
            source=NAME,
            nodes=(self._node or socket.gethostname(),),
            sampled_at=np.array([self._clock()]),
            latest={CPU: np.array([cpu_percent]), MEMORY: np.array([memory_percent])},
            infos=(NodeInfo(capacity=has, allocatable=has),),
        )


def _span_seconds(previous: Reading, reading: Reading) -> float:
    return (reading.total_seconds - previous.total_seconds) / reading.logical_cores


def create_provider(settings: Settings) -> LocalProvider:  # noqa: ARG001 - every factory takes the settings
    """Make the provider; it needs no setting."""
    return LocalProvider()
