"""From settings to a watcher: what the command serves, and what a program that embeds it runs."""

from __future__ import annotations

from pathlib import Path

import load_watcher
from load_watcher.clock import Clock
from load_watcher.history.memory import Memory
from load_watcher.history.store import Retention
from load_watcher.providers.registry import create_provider
from load_watcher.settings import Settings
from load_watcher.telemetry import Telemetry
from load_watcher.timing import Timing
from load_watcher.watcher import Watcher


def make_watcher(settings: Settings, provider_name: str, clock: Clock) -> Watcher:
    """
    Make the watcher of a provider, with the memory and the limits of the settings; it opens nothing yet.

    Raises:
        LoadWatcherError: If the settings of the provider cannot be used.
    """
    timing = Timing(
        refresh_seconds=settings.refresh_seconds,
        fetch_timeout_seconds=settings.fetch_timeout_seconds,
        stale_seconds=settings.stale_seconds,
        expired_seconds=settings.expired_seconds,
    )
    provider = create_provider(provider_name, settings)
    return Watcher(
        provider,
        memory=make_memory(settings, provider.name, clock),
        timing=timing,
        limits=settings.quality_limits,
        clock=clock,
        telemetry=Telemetry(clock, version=load_watcher.__version__),
    )


def make_memory(settings: Settings, source: str, clock: Clock) -> Memory | None:
    """Make what keeps the samples of a source; ``None`` where history is off."""
    if settings.history == "off":
        return None
    path = None if settings.history == "memory" else Path(settings.history).expanduser()
    retention = Retention(
        sample_seconds=settings.history_hours * 3600,
        average_seconds=settings.history_days * 86400,
        max_bytes=int(settings.history_megabytes * 2**20),
    )
    return Memory(source=source, clock=clock, step_seconds=settings.refresh_seconds, path=path, retention=retention)
