"""
The service as it is, with a clock of ours: ``python -m tests.benchmarks.watched_service REPORT REFRESHES PAUSE_SECONDS [watch]``.

Thirty seconds between two refreshes pass in no time, so that hundreds of refreshes fill history as they would in hours. After each refresh
a line of JSON says what it cost; after the last one the service goes on answering, and each SIGUSR1 lets it make a turn of a few more. With
``watch`` it also says how long the event loop could do nothing else; the watching itself costs CPU.
"""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from unittest import mock

import numpy as np

import load_watcher.cli
import load_watcher.wiring
from load_watcher.clock import SystemClock
from load_watcher.providers.base import MetricsProvider
from load_watcher.providers.registry import create_provider
from load_watcher.samples import SampleBatch, Window
from load_watcher.settings import Settings

TURN_REFRESHES: Final = 3
_WATCH_SECONDS: Final = 0.001
_AGE_SECONDS: Final = 5.0


class FastClock(SystemClock):
    """
    A clock whose pauses are over at once, and which is told of every refresh, since the loop waits after each.

    Args:
        report: Where the lines go.
        refreshes: After how many the pause ends only with a SIGUSR1, for a turn of more.
        pause_seconds: How long a pause really takes.
        is_watching: Whether the event loop is watched.
    """

    def __init__(self, report: Path, *, refreshes: int, pause_seconds: float, is_watching: bool) -> None:
        self.offset_seconds = 0.0
        self._report = report
        self._left = refreshes
        self._turn: asyncio.Event | None = None
        self._pause_seconds = pause_seconds
        self._stall = LoopWatch() if is_watching else None
        self._watching: asyncio.Task[None] | None = None
        self._cpu_seconds = time.process_time()
        self._resumed_at = time.monotonic()

    def time(self) -> float:
        """Answer the instant, ahead by the pauses that were left out."""
        return super().time() + self.offset_seconds

    def monotonic(self) -> float:
        """Answer seconds that never jump back."""
        return super().monotonic() + self.offset_seconds

    async def sleep(self, seconds: float) -> None:
        """Report the refresh, and leave out the pause."""
        if self._turn is None:  # before the first line, after which the signal may come
            self._turn = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._turn.set)
        self._write_line()
        self._left -= 1
        if self._left <= 0:
            await self._turn.wait()
            self._turn.clear()
            self._left = TURN_REFRESHES
        if self._stall is not None and self._watching is None:
            self._watching = asyncio.create_task(self._stall.run())
        await asyncio.sleep(self._pause_seconds)
        self.offset_seconds += max(0.0, seconds - self._pause_seconds)
        self._cpu_seconds, self._resumed_at = time.process_time(), time.monotonic()

    def _write_line(self) -> None:
        line = {
            "cpu_seconds": time.process_time() - self._cpu_seconds,
            "wall_seconds": time.monotonic() - self._resumed_at,
            "rss_bytes": int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize(),
        }
        if self._stall is not None:
            line["stall_seconds"] = self._stall.take()
        with self._report.open("a") as file:
            file.write(json.dumps(line) + "\n")


class LoopWatch:
    """Notes the longest time for which a task that wants to run every millisecond could not."""

    def __init__(self) -> None:
        self._longest_seconds = 0.0

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            started = time.monotonic()
            await asyncio.sleep(_WATCH_SECONDS)
            self._longest_seconds = max(self._longest_seconds, time.monotonic() - started - _WATCH_SECONDS)

    def take(self) -> float:
        """Answer the longest since the last time, in seconds."""
        longest, self._longest_seconds = self._longest_seconds, 0.0
        return longest


class Redated:
    """A provider whose samples are always new for the clock, so that a source may answer the same again."""

    def __init__(self, provider: MetricsProvider, clock: FastClock) -> None:
        self._provider = provider
        self._clock = clock

    @property
    def name(self) -> str:
        """Answer the source's own."""
        return self._provider.name

    async def __aenter__(self) -> Self:
        await self._provider.__aenter__()
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        await self._provider.__aexit__(exc_type, exc, traceback)

    async def fetch(self, window: Window) -> SampleBatch:
        """Get the samples, measured a moment ago."""
        batch, at = await self._provider.fetch(window), self._clock.time() - _AGE_SECONDS
        times = {metric_type: np.where(np.isnan(measured_at), np.nan, at) for metric_type, measured_at in batch.times.items()}
        return replace(batch, sampled_at=np.where(np.isnan(batch.sampled_at), np.nan, at), times=times)

    async def check_health(self) -> None:
        """Ask the source."""
        await self._provider.check_health()


def main() -> int:
    """Serve."""
    report, refreshes, pause_seconds, *watch = sys.argv[1:]
    clock = FastClock(Path(report), refreshes=int(refreshes), pause_seconds=float(pause_seconds), is_watching=bool(watch))

    def create_redated(name: str, settings: Settings) -> Redated:
        return Redated(create_provider(name, settings), clock)

    with (
        mock.patch.object(load_watcher.cli, "SystemClock", return_value=clock),
        mock.patch.object(load_watcher.wiring, "create_provider", create_redated),
    ):
        return load_watcher.cli.main([])


if __name__ == "__main__":
    sys.exit(main())
