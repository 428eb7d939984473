"""Sound set-ups of the hosted sources: a server with two nodes, a provider that reads it, and what a batch says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from load_watcher.errors import ProviderError
from load_watcher.providers.base import MetricsProvider
from load_watcher.providers.datadog import DatadogProvider
from load_watcher.providers.signalfx import SignalFxProvider
from load_watcher.samples import FIFTEEN_MINUTES, SampleBatch, Window
from tests.builders import NOW
from tests.fakes.datadog_server import FakeDatadog
from tests.fakes.signalfx_server import FakeSignalFx
from tests.fakes.watcher import FakeClock

TOKEN, APP_KEY = "s3cret-token", "s3cret-app-key"
SUFFIX = ".example.org"
CLUSTER = "blue"
# The timeouts of a provider: long enough to answer on a busy machine, where an answer is expected; short where none will come.
PATIENT_SECONDS, SHORT_SECONDS = 30.0, 0.3
# The deadlines of tests.
DEADLINE_SECONDS = 20
LAST_POINT_AT = NOW // 60 * 60
# Node → CPU and memory; CPU goes up and down by 10, memory stays.
LOADS = {"n1": (20.0, 40.0), "n2": (85.0, 60.0)}


def make_points(mean: float) -> list[float]:
    """Fifteen points: seven pairs at ±10 and one at the mean, the newest."""
    return [mean - 10, mean + 10] * 7 + [mean]


@asynccontextmanager
async def serve_signalfx() -> AsyncIterator[FakeSignalFx]:
    async with FakeSignalFx(token=TOKEN) as server:
        for node, (cpu, memory) in LOADS.items():
            server.put(node + SUFFIX, "cpu.utilization", make_points(cpu), end_at=NOW, cluster=CLUSTER)
            server.put(node + SUFFIX, "memory.utilization", [memory] * 15, end_at=NOW, cluster=CLUSTER)
        yield server


def make_signalfx(server: FakeSignalFx, folder: Path, **arguments: Any) -> SignalFxProvider:
    defaults: dict[str, Any] = {
        "token": TOKEN,
        "host_suffix": SUFFIX,
        "ca_file": server.write_ca_file(folder),
        "timeout_seconds": PATIENT_SECONDS,
        "clock": FakeClock(),
    }
    return SignalFxProvider(server.address, **defaults | arguments)


@asynccontextmanager
async def serve_datadog() -> AsyncIterator[FakeDatadog]:
    async with FakeDatadog(api_key=TOKEN, app_key=APP_KEY) as server:
        for node, (cpu, memory) in LOADS.items():
            server.put(node + SUFFIX, "cpu.utilization", make_points(cpu), end_at=NOW, cluster=CLUSTER)
            server.put(node + SUFFIX, "memory.utilization", [memory] * 15, end_at=NOW, cluster=CLUSTER)
        yield server


def make_datadog(server: FakeDatadog, folder: Path, **arguments: Any) -> DatadogProvider:
    defaults: dict[str, Any] = {
        "api_key": TOKEN,
        "app_key": APP_KEY,
        "host_suffix": SUFFIX,
        "ca_file": server.write_ca_file(folder),
        "timeout_seconds": PATIENT_SECONDS,
        "clock": FakeClock(),
    }
    return DatadogProvider(server.address, **defaults | arguments)


async def fetch_once(provider: MetricsProvider, window: Window = FIFTEEN_MINUTES) -> SampleBatch:
    async with asyncio.timeout(DEADLINE_SECONDS), provider:
        return await provider.fetch(window)


async def fail_once(provider: MetricsProvider) -> ProviderError:
    with pytest.raises(ProviderError, match=f"^{provider.name}: ") as caught:
        await fetch_once(provider)
    return caught.value


def served(batch: SampleBatch, metric_type: str, operator: str, window: Window) -> dict[str, float]:
    """Answer node → what the source averaged."""
    [aggregate] = [a for a in batch.aggregates if (a.metric_type, a.operator, a.window) == (metric_type, operator, window)]
    return dict(zip(batch.nodes, aggregate.values.tolist(), strict=True))


def latest(batch: SampleBatch, metric_type: str) -> dict[str, float]:
    """Answer node → newest value."""
    return dict(zip(batch.nodes, batch.latest[metric_type].tolist(), strict=True))


def signalfx_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "load-watcher SignalFx"]
