"""
The one writer: keeps the file behind the ring, and lets the service go on without it.

The refresh loop hands a batch over and goes on at once, whatever the disk does. A failure is logged when it begins and when it ends; what
could not be written waits, a few refreshes long, and is tried again with the next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import structlog

from load_watcher.clock import Clock
from load_watcher.history.errors import HistoryCorruptError, HistoryFileError, HistoryFullError
from load_watcher.history.sqlite import set_aside
from load_watcher.history.store import HistoryStore, Retention
from load_watcher.history.window import SampleRing
from load_watcher.samples import SampleBatch

# Ten refreshes are five minutes at the default interval, and a few megabytes with thousands of nodes.
_MAX_WAITING: Final = 10
# An hour of 5,000 nodes and six metrics is read in half a second; a disk that takes longer must not keep the service from starting.
_FILL_SECONDS: Final = 10.0
# Kubernetes gives a pod 30 seconds to end.
_FLUSH_SECONDS: Final = 5.0
# A disk that damages every file must not be filled with them.
_SET_ASIDE_SECONDS: Final = 3600.0

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class HistoryStatus:
    """
    How the file does.

    Args:
        path: The file.
        failure: What is wrong with it now; ``None`` if nothing is.
        set_aside: Where a damaged file was put, the last one.
        filled_refreshes: How many were read at the start.
        written_refreshes: How many were written since the start; one that repeats the last is not.
        waiting_refreshes: How many are not written yet.
        lost_refreshes: How many never will be.
        written_at: Up to when all that was fetched is in the file, Unix seconds.
    """

    path: Path
    failure: HistoryFileError | None = None
    set_aside: Path | None = None
    filled_refreshes: int = 0
    written_refreshes: int = 0
    waiting_refreshes: int = 0
    lost_refreshes: int = 0
    written_at: float | None = None


class _Waiting(NamedTuple):
    batch: SampleBatch
    fetched_at: float


class HistoryWriter:
    """
    Fill a ring from a file, then write to the file what is submitted.

    ``async with`` opens the file and fills the ring, waiting at most ten seconds for it; leaving writes what waits, at most for five. A
    file that cannot be used raises nothing: ``status`` says so, and each refresh tries again. A damaged one is set aside, and a new one
    begun.

    Args:
        path: The file, made if there is none; its folder must be there.
        ring: What to fill.
        source: The name of the provider; refreshes of another one do not fill the ring.
        clock: For the age of what is filled in and pruned.
        retention: How long and how much is kept.
    """

    def __init__(self, path: Path, ring: SampleRing, *, source: str, clock: Clock, retention: Retention | None = None) -> None:
        self._ring = ring
        self._source = source
        self._clock = clock
        self._retention = retention
        self._status = HistoryStatus(path)
        self._store: HistoryStore | None = None
        self._is_filled = False
        self._set_aside_at: float | None = None
        self._waiting: deque[_Waiting] = deque(maxlen=_MAX_WAITING)
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def status(self) -> HistoryStatus:
        """Answer how the file does."""
        return replace(self._status, waiting_refreshes=len(self._waiting))

    @property
    def store(self) -> HistoryStore | None:
        """Answer the file to read from; ``None`` while it cannot be used."""
        return self._store

    async def __aenter__(self) -> Self:
        """Open the file and fill the ring; a file that takes too long is filled in later."""
        self._work.set()
        self._task = asyncio.create_task(self._run(), name=f"history {self._status.path}")
        self._task.add_done_callback(_log_crash)
        if not await self.flush(_FILL_SECONDS):
            _log.warning("history is slow to open", path=str(self._status.path), seconds=_FILL_SECONDS)
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        """Write what waits, and close the file; a disk that does not answer is left behind."""
        await self.flush(_FLUSH_SECONDS)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_FLUSH_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_SECONDS):
                await self._close()

    def submit(self, batch: SampleBatch, *, fetched_at: float) -> None:
        """Take a refresh to write; never waits. Where the disk does not keep up, the oldest that waits is lost, and counted."""
        if len(self._waiting) == _MAX_WAITING:
            self._count(lost_refreshes=self._status.lost_refreshes + 1)
        self._waiting.append(_Waiting(batch, fetched_at))
        self._idle.clear()
        self._work.set()

    async def flush(self, timeout_seconds: float) -> bool:
        """Wait until all that was submitted is written, or could not be; answer whether that came in time."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def _run(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            try:
                await self._write()
            except HistoryFileError as error:
                await self._note_failure(error)
            else:
                self._note_success()
            if not self._work.is_set():
                self._idle.set()

    async def _write(self) -> None:
        try:
            await self._write_waiting(await self._open())
        except HistoryCorruptError as error:
            now = self._clock.time()
            if self._set_aside_at is not None and 0 <= now - self._set_aside_at < _SET_ASIDE_SECONDS:
                raise
            await self._close()
            target = await asyncio.to_thread(set_aside, self._status.path, now)
            self._set_aside_at = now
            self._count(set_aside=target)
            _log.warning("history file set aside, a new one begins", error=str(error), set_aside=str(target))
            await self._write_waiting(await self._open())

    async def _open(self) -> HistoryStore:
        if self._store is not None and not await self._store.is_in_place():
            _log.warning("history file was deleted or replaced, opening what is there", path=str(self._status.path))
            await self._close()
        if self._store is None:
            store = HistoryStore(self._status.path, retention=self._retention)
            await store.__aenter__()
            self._store = store
        if not self._is_filled:
            async for refresh in self._store.load(self._clock.time() - self._ring.span_seconds, step_seconds=self._ring.step_seconds):
                if refresh.batch.source == self._source:
                    await asyncio.to_thread(self._ring.append, refresh.batch)
                    self._count(filled_refreshes=self._status.filled_refreshes + 1)
            self._is_filled = True
        return self._store

    async def _write_waiting(self, store: HistoryStore) -> None:
        while self._waiting:
            waiting = self._waiting[0]
            is_new = await store.append(waiting.batch, fetched_at=waiting.fetched_at)
            if self._waiting[0] is waiting:
                self._waiting.popleft()
            self._count(written_refreshes=self._status.written_refreshes + is_new, written_at=waiting.fetched_at)
            await store.prune(self._clock.time())

    async def _close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            # What could not be written has been told.
            with suppress(HistoryFileError):
                await store.__aexit__(None, None, None)

    async def _note_failure(self, error: HistoryFileError) -> None:
        before = self._status.failure
        self._count(failure=error)
        if before is None or before.cause != error.cause:
            _log.warning("history is not written, the service goes on from memory", cause=error.cause, error=str(error))
        # A lock or a mount that has come back is found by opening; to open on a full disk would need space.
        if not isinstance(error, HistoryFullError):
            await self._close()

    def _note_success(self) -> None:
        if self._status.failure is not None:
            _log.info("history is written again", path=str(self._status.path), lost_refreshes=self._status.lost_refreshes)
        self._count(failure=None)

    def _count(self, **changes: Any) -> None:  # noqa: ANN401 - as dataclasses.replace
        self._status = replace(self._status, **changes)


def _log_crash(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.critical("the history writer ended; restart the service and report this", exc_info=error)
