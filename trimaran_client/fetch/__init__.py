"""Get and follow the snapshots of a load watcher over HTTP: asynchronous clients, and blocking faces on them."""

from __future__ import annotations

from trimaran_client.fetch.blocking import BlockingSnapshotFeed, BlockingWatcherClient
from trimaran_client.fetch.client import WatcherClient
from trimaran_client.fetch.feed import SnapshotFeed

__all__ = ["BlockingSnapshotFeed", "BlockingWatcherClient", "SnapshotFeed", "WatcherClient"]
