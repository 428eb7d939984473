"""Fetch snapshots from a load watcher over HTTP: an asynchronous client, and a blocking face on it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import math
import random
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
import yarl

from trimaran_client.bodies import read_past
from trimaran_client.errors import SnapshotDecodeError, WatcherError, WatcherNotReadyError, WatcherStatusError, WatcherUnreachableError
from trimaran_client.snapshot import LoadSnapshot

DEFAULT_DEADLINE_SECONDS = 10.0
DEFAULT_ATTEMPT_SECONDS = 5.0
# The first pause between attempts; each next one is twice as long, up to the cap.
FIRST_PAUSE_SECONDS = 0.1
MAX_PAUSE_SECONDS = 2.0
# A reply for 50,000 nodes is about 25 MB; anything far beyond is not a load watcher's, and is not read into memory.
MAX_REPLY_BYTES = 256 * 1024 * 1024
_BODY_START_CHARACTERS = 200
_TRANSIENT_STATUSES = frozenset({429, 500, 502, 503, 504})

_T = TypeVar("_T")


class WatcherClient:
    """
    Fetch the load of a cluster from a load watcher, ours or the Go one.

    Args:
        address: For example ``http://127.0.0.1:2020``; a path prefix and trailing slashes are fine.
        deadline_seconds: The most that one fetch takes, all attempts and pauses included.
        attempt_seconds: The most that one attempt takes.

    Raises:
        WatcherError: If the address is not an http or https address.

    Use it as ``async with WatcherClient(address) as client``: making one opens nothing.
    """

    def __init__(
        self,
        address: str,
        *,
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
        attempt_seconds: float = DEFAULT_ATTEMPT_SECONDS,
    ) -> None:
        self._url = _watcher_url(address)
        # What is told of the address: without user and password.
        self._told = str(self._url.with_user(None).with_query(None))
        if not 0 < deadline_seconds < math.inf or not attempt_seconds > 0:
            raise WatcherError(f"deadline_seconds={deadline_seconds!r}, attempt_seconds={attempt_seconds!r}: give numbers above 0")
        self._deadline_seconds = deadline_seconds
        self._timeout = aiohttp.ClientTimeout(total=attempt_seconds)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=self._timeout)
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def fetch_snapshot(self) -> LoadSnapshot:
        """
        Get the newest snapshot; failures that may pass are tried again until the deadline.

        Raises:
            WatcherUnreachableError: No connection or no whole answer until then.
            WatcherNotReadyError: The load watcher had no snapshot until then.
            WatcherStatusError: It answered with another status than 200.
            SnapshotDecodeError: It answered 200 with something else than a load watcher's reply.
        """
        failure: WatcherError | None = None
        try:
            async with asyncio.timeout(self._deadline_seconds):
                for attempt in itertools.count():
                    try:
                        return LoadSnapshot.decode(await self._get())
                    except WatcherUnreachableError as error:
                        failure = error
                    except WatcherStatusError as error:
                        if error.status not in _TRANSIENT_STATUSES:
                            raise
                        failure = error
                    pause_seconds = min(FIRST_PAUSE_SECONDS * 2 ** min(attempt, 10), MAX_PAUSE_SECONDS)
                    await asyncio.sleep(pause_seconds * random.uniform(0.5, 1.0))  # noqa: S311 spreads clients, hides nothing
        except TimeoutError:
            pass
        if failure is None:
            failure = WatcherUnreachableError(
                f"{self._told}: no answer within {self._deadline_seconds:g} s; check that the load watcher runs there"
            )
        raise failure

    async def _get(self) -> bytes:
        if self._session is None:
            raise RuntimeError("enter the client first: async with WatcherClient(address) as client")
        try:
            async with self._session.get(self._url) as response:
                body = await read_past(response.content.iter_any(), MAX_REPLY_BYTES)
                if len(body) > MAX_REPLY_BYTES:
                    raise SnapshotDecodeError(f"not a load watcher's reply: more than {MAX_REPLY_BYTES} bytes; check the address")
                if response.status == 200:
                    return body
        except (aiohttp.ClientError, TimeoutError, OSError, UnicodeError) as error:
            cause = (str(error) or type(error).__name__).replace(str(self._url), self._told)
            raise WatcherUnreachableError(f"{self._told}: {cause}; check that the load watcher runs there") from error
        body_start = body.decode("utf-8", "replace")[:_BODY_START_CHARACTERS]
        error_type = WatcherNotReadyError if response.status == 503 else WatcherStatusError
        raise error_type(f"{self._told}: status {response.status}: {body_start}", status=response.status, body_start=body_start)


def _watcher_url(address: str) -> yarl.URL:
    try:
        url = yarl.URL(address.strip())
    except ValueError as error:
        raise WatcherError(f"{address!r} is not an address: {error}; write for example http://127.0.0.1:2020") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise WatcherError(f"{address!r} is not an http or https address; write for example http://127.0.0.1:2020")
    path = url.path.rstrip("/")
    return url.with_path(path if path.endswith("/watcher") else f"{path}/watcher")


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
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
        attempt_seconds: float = DEFAULT_ATTEMPT_SECONDS,
    ) -> None:
        self._client = WatcherClient(address, deadline_seconds=deadline_seconds, attempt_seconds=attempt_seconds)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._loop is not None:
            raise RuntimeError("the client is entered already")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="trimaran-watcher-client", daemon=True)
        self._thread.start()
        self._run(self._client.__aenter__)
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        if self._loop is None or self._thread is None:
            return
        loop, thread = self._loop, self._thread
        self._run(lambda: self._client.__aexit__(exc_type, exc, traceback))
        self._loop = self._thread = None
        asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def fetch_snapshot(self) -> LoadSnapshot:
        """Get the newest snapshot; see :meth:`WatcherClient.fetch_snapshot`."""
        return self._run(self._client.fetch_snapshot)

    def _run(self, call: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
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
