"""A history file of one node, written and read in one line."""

from __future__ import annotations

from load_watcher.history.reader import HistoryReader
from load_watcher.history.records import StoredRefresh
from load_watcher.history.store import HistoryStore
from tests.builders import NOW, make_batch


async def append(store: HistoryStore, *values: float, start_at: float = NOW, step_seconds: float = 30, node: str = "n") -> None:
    """Write a refresh for each value."""
    for position, value in enumerate(values):
        at = start_at + step_seconds * position
        await store.append(make_batch({node: value}, sampled_at=at), fetched_at=at + 1)


async def load(reader: HistoryReader, start_at: float = 0, end_at: float | None = None, *, averages: bool = False) -> list[StoredRefresh]:
    """Read refreshes."""
    return [refresh async for refresh in reader.load(start_at, end_at, averages=averages)]


def values_of(refreshes: list[StoredRefresh]) -> list[float]:
    """Answer the CPU of the first node of each."""
    return [float(refresh.batch.latest["CPU"][0]) for refresh in refreshes]
