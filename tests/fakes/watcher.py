"""Stand-ins for tests of the service: a clock that the test moves, a provider that answers what the test says, and waiting for a fact."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from load_watcher.samples import SampleBatch, Window
from tests.builders import NOW

Answer = SampleBatch | BaseException | Callable[[], Awaitable[SampleBatch]]


class FakeClock:
    """A clock that stands still until the test moves it."""

    def __init__(self, now: float = NOW) -> None:
        self.now = now
        self.elapsed = 0.0
        self.sleeps: list[float] = []
        self._moved = asyncio.Condition()

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.elapsed

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        due = self.elapsed + seconds
        async with self._moved:
            await self._moved.wait_for(lambda: self.elapsed >= due)

    def move(self, seconds: float) -> None:
        """Let time pass, for those that only read it."""
        self.now += seconds
        self.elapsed += seconds

    async def wake(self, seconds: float) -> None:
        """Let time pass, and wake who waited for it."""
        self.move(seconds)
        async with self._moved:
            self._moved.notify_all()


class ScriptedProvider:
    """Gives its answers one after the other, the last one for ever: a batch, an error, or a coroutine function to wait for."""

    def __init__(self, *answers: Answer, health: BaseException | None = None, name: str = "Scripted") -> None:
        self.answers = list(answers)
        self.health = health
        self.fetches = 0
        self.health_checks = 0
        self.is_open = False
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    async def __aenter__(self) -> Self:
        self.is_open = True
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        self.is_open = False

    async def fetch(self, window: Window) -> SampleBatch:
        self.fetches += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer if isinstance(answer, SampleBatch) else await answer()

    async def check_health(self) -> None:
        self.health_checks += 1
        await asyncio.sleep(0)
        if self.health is not None:
            raise self.health


async def hang() -> SampleBatch:
    """Never answer."""
    await asyncio.Event().wait()
    raise AssertionError


async def eventually(is_true: Callable[[], object], timeout_seconds: float = 10.0) -> None:
    """Wait until the fact holds, and fail if it does not in time."""
    async with asyncio.timeout(timeout_seconds):
        while not is_true():  # noqa: ASYNC110 - most facts of a server have no event
            await asyncio.sleep(0.002)
