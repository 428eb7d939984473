"""The asynchronous client."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from trimaran_client.errors import WatcherError, WatcherStatusError, WatcherUnreachableError
from trimaran_client.fetch.asking import Asker
from trimaran_client.fetch.connection import Connection
from trimaran_client.fetch.feed import DEFAULT_POLL_SECONDS, DEFAULT_WAIT_SECONDS, SnapshotFeed, find_pause
from trimaran_client.snapshot import LoadSnapshot

DEFAULT_DEADLINE_SECONDS = 10.0
DEFAULT_ATTEMPT_SECONDS = 5.0
_TRANSIENT_STATUSES = frozenset({429, 500, 502, 503, 504})


class WatcherClient:
    """
    Get the load of a cluster from a load watcher, ours or the Go one: once, or as it changes.

    Args:
        address: For example ``http://127.0.0.1:2020``; a path prefix and trailing slashes are fine.
        windows: Which windows to ask for, for example ``("5m", "15m")``; none: the longest of 15m, 10m and 5m that each node holds.
        statistics: Which statistics, for example ``("AVG", "P90")``; none: ``AVG`` and ``STD``. A Go load-watcher takes neither.
        deadline_seconds: The most that one fetch takes, all attempts and pauses included.
        attempt_seconds: The most that one attempt takes.

    Raises:
        WatcherError: If the address is not an http or https address, or a time is none.

    Use it as ``async with WatcherClient(address) as client``: making one opens nothing.
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
        if not 0 < deadline_seconds < math.inf:
            raise WatcherError(f"deadline_seconds={deadline_seconds!r}: give a number above 0")
        self._connection = Connection(address, attempt_seconds=attempt_seconds)
        asked = {"windows": _join(windows), "statistics": _join(statistics)}
        self._asker = Asker(self._connection, {name: text for name, text in asked.items() if text})
        self._deadline_seconds = deadline_seconds

    async def __aenter__(self) -> Self:
        await self._connection.__aenter__()
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        await self._connection.__aexit__(exc_type, exc, traceback)

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
                        return (await self._asker.ask()).snapshot
                    except WatcherUnreachableError as error:
                        failure = error
                    except WatcherStatusError as error:
                        if error.status not in _TRANSIENT_STATUSES:
                            raise
                        failure = error
                    await asyncio.sleep(find_pause(attempt))
        except TimeoutError:
            pass
        if failure is None:
            failure = WatcherUnreachableError(
                f"{self._connection.told}: no answer within {self._deadline_seconds:g} s; check that the load watcher runs there"
            )
        raise failure

    def follow(self, *, poll_seconds: float = DEFAULT_POLL_SECONDS, wait_seconds: float = DEFAULT_WAIT_SECONDS) -> SnapshotFeed:
        """
        Follow the load watcher: ``async with client.follow() as feed``, and ``feed.snapshot`` is the last good snapshot at any time.

        Args:
            poll_seconds: How often a load watcher is asked that cannot hold an answer; three times as long where it has no tags either.
            wait_seconds: For how long it holds an answer until there is a newer snapshot, at most 60.

        Raises:
            WatcherError: If a time is none.
        """
        return SnapshotFeed(self._connection, self._asker, poll_seconds=poll_seconds, wait_seconds=wait_seconds)


def _join(names: Iterable[str]) -> str:
    return names if isinstance(names, str) else ",".join(names)
