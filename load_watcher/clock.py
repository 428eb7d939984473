"""The time, as an argument: the loop gets a clock, and tests move it."""

from __future__ import annotations

import asyncio
import time
from typing import Final, Protocol

# NTP slews smaller differences; what is larger is a step.
STEP_SECONDS: Final = 30.0
# As long as the grace of a source whose answers are suspect.
BELIEVED_SECONDS: Final = 180.0


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
        """Answer seconds that never jump, and go on while the machine sleeps."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait; a negative time is no time."""
        await asyncio.sleep(seconds)


class SteadyClock:
    """
    A clock that does not follow a step of the time at once.

    A step of an hour makes every sample look an hour older or still to come; followed at once, it would expire everything that is held, and
    stepping back would not bring it back. So the time goes on as the seconds that never jump, until the step has stood for a while.

    Args:
        clock: What to follow.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = clock.time() - clock.monotonic()
        self._stepped_at: float | None = None

    def time(self) -> float:
        """Answer the instant in Unix seconds, without steps that are new."""
        monotonic = self._clock.monotonic()
        offset = self._clock.time() - monotonic
        if abs(offset - self._offset) <= STEP_SECONDS:
            self._offset, self._stepped_at = offset, None
        elif self._stepped_at is None:
            self._stepped_at = monotonic
        elif monotonic - self._stepped_at >= BELIEVED_SECONDS:
            self._offset, self._stepped_at = offset, None
        return monotonic + self._offset

    def monotonic(self) -> float:
        """Answer seconds that never jump."""
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait; a negative time is no time."""
        await self._clock.sleep(seconds)
