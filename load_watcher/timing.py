"""How often the watcher refreshes, how long it waits, and when a value is too old."""

from __future__ import annotations

from dataclasses import dataclass

from load_watcher.samples import FIFTEEN_MINUTES, Window


@dataclass(frozen=True, slots=True)
class Timing:
    """
    How often to refresh, how long to wait for it, and when a value is too old.

    Args:
        refresh_seconds: From the start of a refresh to the start of the next.
        fetch_timeout_seconds: The deadline of one refresh, all tries included.
        stale_seconds: The age from which a node is marked, and the service not ready.
        expired_seconds: The age from which a value is no longer served.
        window: The window that the provider is asked for.
    """

    refresh_seconds: float = 30.0
    fetch_timeout_seconds: float = 10.0
    stale_seconds: float = 300.0
    expired_seconds: float = 900.0
    window: Window = FIFTEEN_MINUTES
