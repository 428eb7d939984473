"""The time, as an argument: the loop gets a clock, and tests move it."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Where the watcher reads the time and waits."""

    def time(self) -> float:
        """Answer the instant in Unix seconds: for the ages of samples."""
        ...

    def monotonic(self) -> float:
        """Answer seconds that never jump: for schedules and durations."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait; a negative time is no time."""
        ...


class SystemClock:
    """The clock of this machine."""

    def time(self) -> float:
        """Answer the instant in Unix seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Answer seconds that never jump."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait; a negative time is no time."""
        await asyncio.sleep(seconds)
