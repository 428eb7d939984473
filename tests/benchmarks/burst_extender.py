"""Our contender of the burst: the shipped profile, our extender, and our load watcher that replays nodes at 20 %."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.e2e.api import JsonObject
from tests.e2e.cluster import Cluster
from tests.e2e.extender import make_scheduler_config, read_scheduler_settings, running_extender
from tests.e2e.processes import choose_free_ports, running_process
from tests.e2e.service import running_load_watcher
from tests.e2e.waiting import NotYet, wait_for

LOAD_PERCENT: Final = 20.0


@dataclass(frozen=True)
class SchedulerSetup:
    """
    What a scheduler is started with.

    Attributes:
        config: A KubeSchedulerConfiguration.
        settings: Variables of its environment.
    """

    config: JsonObject = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)


_REFRESH_SECONDS: Final = 30


@asynccontextmanager
async def running_trimaran(
    cluster: Cluster, nodes: Sequence[str], *, settings: Mapping[str, Any] | None = None
) -> AsyncIterator[SchedulerSetup]:
    """Run load watcher and extender; *settings* go into the extender's configuration."""
    recording = cluster.folder / "recording.jsonl"
    recording.write_text("".join(f"{json.dumps(_batch(nodes, time.time() + _REFRESH_SECONDS * turn))}\n" for turn in range(2)))
    replay = {
        "METRICS_PROVIDER_NAME": "Recorded",
        "METRICS_PROVIDER_ADDRESS": str(recording),
        "LOAD_WATCHER_REFRESH_SECONDS": str(_REFRESH_SECONDS),
        "LOAD_WATCHER_HISTORY": "off",
    }
    async with (
        running_load_watcher(replay, folder=cluster.folder) as watcher,
        running_extender(cluster, watcher.url, settings) as extender,
    ):
        await extender.wait_until_ready()
        yield SchedulerSetup(make_scheduler_config(extender.url), read_scheduler_settings())
        extender.process.check_running()


@asynccontextmanager
async def running_constant(cluster: Cluster, nodes: Sequence[str]) -> AsyncIterator[SchedulerSetup]:
    """Run an extender that only answers, with the same profile."""
    (port,) = choose_free_ports(1)
    command = [sys.executable, "-m", "tests.benchmarks.constant_extender", str(port)]
    settings = {"PYTHONPATH": str(Path(__file__).parents[2])}
    async with running_process(f"constant-{port}", command, folder=cluster.folder, settings=settings):
        await wait_for("the extender that only answers", partial(_connect, port), timeout_seconds=30)
        yield SchedulerSetup(make_scheduler_config(f"http://127.0.0.1:{port}"), read_scheduler_settings())


async def _connect(port: int) -> None:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError as error:
        raise NotYet(str(error)) from error
    writer.close()


def _batch(nodes: Sequence[str], at: float) -> JsonObject:
    capacity = [{"cpu": "8", "memory": "32Gi"}] * len(nodes)
    return {"at": at, "nodes": list(nodes), "latest": {"CPU": [LOAD_PERCENT] * len(nodes)}, "capacity": capacity}
