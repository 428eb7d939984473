"""
What the refresh loop publishes, and where others wait for it.

One reference is swapped, so that whoever reads sees one refresh and no mixture of two. Waiting costs nothing until the next one comes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from load_watcher.history.aggregate import WindowAggregate
from load_watcher.last_good import LastGood
from load_watcher.snapshot import Snapshot


@dataclass(frozen=True, slots=True, eq=False)
class Publication:
    """
    Everything that one refresh made.

    Args:
        snapshot: The reply of ``GET /watcher``.
        good: The values in it.
        aggregates: The averages of our own history in it, one row for each node of *good*.
        windows_end_at: Where windows over our own history end, Unix seconds; ``None`` without a sample.
    """

    snapshot: Snapshot
    good: LastGood
    aggregates: tuple[WindowAggregate, ...]
    windows_end_at: float | None


class Publisher:
    """Hold the newest publication, and tell those that wait for the next."""

    def __init__(self) -> None:
        self._newest: Publication | None = None
        self._changed = asyncio.Event()
        self._is_open = True

    @property
    def newest(self) -> Publication | None:
        """Answer the newest publication; ``None`` before the first."""
        return self._newest

    def open(self) -> None:
        """Let others wait, in the event loop that runs now; what was published stays."""
        self._changed = asyncio.Event()
        self._is_open = True

    def close(self) -> None:
        """End every wait, now and from here on."""
        self._is_open = False
        self._changed.set()

    def publish(self, publication: Publication) -> None:
        """Put a publication in place of the newest, and wake who waits for it."""
        self._newest = publication
        changed, self._changed = self._changed, asyncio.Event()
        if not self._is_open:
            self._changed.set()
        changed.set()

    async def wait_newer(self, than: Publication | None) -> Publication | None:
        """Answer the newest publication once it is another than *than*; that one again if the wait is ended."""
        while self._newest is than and self._is_open:
            await self._changed.wait()
        return self._newest
