"""The same clients for code without an event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from trimaran_client.errors import SnapshotDecodeError, WatcherError, WatcherUnreachableError
from trimaran_client.fetch.client import DEFAULT_ATTEMPT_SECONDS, DEFAULT_DEADLINE_SECONDS, WatcherClient
from trimaran_client.fetch.feed import DEFAULT_POLL_SECONDS, DEFAULT_WAIT_SECONDS, SnapshotFeed
from trimaran_client.snapshot import LoadSnapshot

_T = TypeVar("_T")


class _LoopThread:
    """An event loop in a thread of its own, for calls from other threads."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        return self._loop is not None

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="trimaran-watcher-client", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        self._loop = self._thread = None
        asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def run(self, call: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        if self._loop is None:
            raise RuntimeError("enter the client first: with BlockingWatcherClient(address) as client")
        try:
            return asyncio.run_coroutine_threadsafe(call(), self._loop).result()
        except concurrent.futures.CancelledError as error:
            raise WatcherUnreachableError("the client was left by another thread before the answer") from error


async def _cancel_others() -> None:
    """End what other threads wait for, so that they are told instead of waiting for ever."""
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class BlockingSnapshotFeed:
    """
    Use :class:`SnapshotFeed` from code without an event loop; it is a :class:`SnapshotSource` as well.

    Made by :meth:`BlockingWatcherClient.follow` and used as ``with client.follow() as feed``, from any thread.
    """

    def __init__(self, feed: SnapshotFeed, thread: _LoopThread) -> None:
        self._feed = feed
        self._thread = thread

    def __enter__(self) -> Self:
        self._thread.run(self._feed.__aenter__)
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        if self._thread.is_running:  # else the client was left first, which ended the feed
            self._thread.run(lambda: self._feed.__aexit__(exc_type, exc, traceback))

    @property
    def snapshot(self) -> LoadSnapshot:
        """Answer the last good snapshot; one that knows nothing before the first."""
        return self._feed.snapshot

    @property
    def failure(self) -> WatcherError | SnapshotDecodeError | None:
        """Answer why the last question brought nothing; ``None`` if it was answered."""
        return self._feed.failure

    @property
    def failures(self) -> Mapping[str, int]:
        """Answer how many questions failed, by cause; see :attr:`SnapshotFeed.failures`."""
        return self._feed.failures

    def age_seconds(self, now: float) -> float:
        """Answer how old the newest sample is at *now*, Unix seconds; infinite where there is none."""
        return self._feed.age_seconds(now)

    def wait_newer(self, than: LoadSnapshot, *, timeout_seconds: float | None = None) -> LoadSnapshot:
        """
        Answer the last good snapshot as soon as it is another than *than*.

        Raises:
            TimeoutError: If none comes within *timeout_seconds*.
            WatcherUnreachableError: If the feed or the client is left before that.
        """

        async def wait() -> LoadSnapshot:
            async with asyncio.timeout(timeout_seconds):
                return await self._feed.wait_newer(than)

        return self._thread.run(wait)


class BlockingWatcherClient:
    """
    Use :class:`WatcherClient` from code without an event loop: it runs in a thread of its own.

    ``with BlockingWatcherClient(address) as client: snapshot = client.fetch_snapshot()``; arguments and errors are the same. Calls from
    several threads are fine.
    """

    def __init__(
        self,
        address: str,
        *,
        windows: Iterable[str] = (),
        statistics: Iterable[str] = (),
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
        attempt_seconds: float = DEFAULT_ATTEMPT_SECONDS,
    ) -> None:
        self._client = WatcherClient(
            address, windows=windows, statistics=statistics, deadline_seconds=deadline_seconds, attempt_seconds=attempt_seconds
        )
        self._thread = _LoopThread()

    def __enter__(self) -> Self:
        if self._thread.is_running:
            raise RuntimeError("the client is entered already")
        self._thread.start()
        self._thread.run(self._client.__aenter__)
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        if self._thread.is_running:
            self._thread.run(lambda: self._client.__aexit__(exc_type, exc, traceback))
            self._thread.stop()

    def fetch_snapshot(self) -> LoadSnapshot:
        """Get the newest snapshot; see :meth:`WatcherClient.fetch_snapshot`."""
        return self._thread.run(self._client.fetch_snapshot)

    def follow(self, *, poll_seconds: float = DEFAULT_POLL_SECONDS, wait_seconds: float = DEFAULT_WAIT_SECONDS) -> BlockingSnapshotFeed:
        """Follow the load watcher; see :meth:`WatcherClient.follow`."""
        return BlockingSnapshotFeed(self._client.follow(poll_seconds=poll_seconds, wait_seconds=wait_seconds), self._thread)
