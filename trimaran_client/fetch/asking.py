"""
Which of a load watcher's endpoints is asked, and what its answers become.

``GET /api/v1/snapshot`` is ours: columns, any windows, and held until there is a newer one. A Go load-watcher has only ``GET /watcher``;
that it lacks the other is remembered while it answers, and asked again now and then, since it may be replaced.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from trimaran_client.errors import SnapshotDecodeError, WatcherError, WatcherStatusError
from trimaran_client.fetch.connection import Connection, Reply
from trimaran_client.snapshot import LoadSnapshot

COLUMNS_PATH: Final = "/api/v1/snapshot"
METRICS_PATH: Final = "/watcher"
# How long a load watcher without columns is not asked for them.
COLUMNS_LACKING_SECONDS: Final = 300.0
# Decoding that takes more than a millisecond or two is done beside the event loop.
_THREAD_BYTES: Final = 128 * 1024
_LACKING_STATUSES: Final = frozenset({404, 405})


class Held(NamedTuple):
    """A snapshot, and what is needed to ask for a newer one: the path that gave it, and the tag, empty without one."""

    snapshot: LoadSnapshot
    path: str
    tag: str

    @property
    def can_wait(self) -> bool:
        """Tell whether the load watcher can hold an answer until there is a newer one."""
        return self.path == COLUMNS_PATH and bool(self.tag)


class Asker:
    """
    Ask a load watcher for snapshots.

    Args:
        connection: Where.
        query: Windows and statistics, for the endpoint that takes them.
    """

    def __init__(self, connection: Connection, query: Mapping[str, str]) -> None:
        self._connection = connection
        self._query = query
        self._lacking_until = -math.inf

    async def ask(self, held: Held | None = None, *, wait_seconds: float = 0.0) -> Held:
        """
        Get the newest snapshot; *held* again where there is nothing newer.

        Args:
            held: What is known already.
            wait_seconds: For how long the answer may be held until there is something newer.

        Raises:
            WatcherError: If there is no answer, or not one with a snapshot.
            SnapshotDecodeError: If the answer is not a load watcher's.
        """
        if time.monotonic() >= self._lacking_until:
            try:
                return await self._ask_columns(held, wait_seconds)
            except WatcherStatusError as error:
                if error.status not in _LACKING_STATUSES:
                    raise
            except SnapshotDecodeError:  # another program's page: what `/watcher` says then decides
                pass
            self._lacking_until = time.monotonic() + COLUMNS_LACKING_SECONDS
        try:
            return await self._ask(METRICS_PATH, {}, held, 0.0, LoadSnapshot.decode)
        except (WatcherError, SnapshotDecodeError):
            self._lacking_until = -math.inf
            raise

    async def _ask_columns(self, held: Held | None, wait_seconds: float) -> Held:
        can_wait = held is not None and held.can_wait and wait_seconds > 0
        wait = {"wait": f"{wait_seconds:g}"} if can_wait else {}
        return await self._ask(COLUMNS_PATH, {**self._query, **wait}, held, wait_seconds if can_wait else 0.0, LoadSnapshot.decode_columns)

    async def _ask(
        self, path: str, query: Mapping[str, str], held: Held | None, held_seconds: float, decode: Callable[[bytes], LoadSnapshot]
    ) -> Held:
        tag = held.tag if held is not None and held.path == path else ""
        reply = await self._connection.get(path, query, tag=tag, held_seconds=held_seconds)
        if held is not None and (reply.body is None or (tag and reply.tag == tag)):
            return held
        return Held(await _decode(reply, decode), path, reply.tag)


async def _decode(reply: Reply, decode: Callable[[bytes], LoadSnapshot]) -> LoadSnapshot:
    body = reply.body or b""
    return decode(body) if len(body) < _THREAD_BYTES else await asyncio.to_thread(decode, body)
