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
from tests.e2e.extender import make_scheduler_config, read_scheduler_settings, read_shipped_containers, running_extender
from tests.e2e.processes import ManagedProcess, choose_free_ports, running_process
from tests.e2e.service import running_load_watcher
from tests.e2e.waiting import NotYet, wait_for
from trimaran_client.units import Quantity

LOAD_PERCENT: Final = 20.0


@dataclass(frozen=True)
class SchedulerSetup:
    """
    What a scheduler is started with.

    Attributes:
        config: A KubeSchedulerConfiguration.
        settings: Variables of its environment.
        requests_millicores: The containers of its pod and what CPU they request; without others what kubeadm writes for kube-scheduler.
        processes: Those of the containers that run beside it.
    """

    config: JsonObject = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    requests_millicores: Mapping[str, int] = field(default_factory=lambda: {"kube-scheduler": 100})
    processes: Mapping[str, ManagedProcess] = field(default_factory=dict)


def make_shipped_setup(config: JsonObject, processes: Mapping[str, ManagedProcess] | None = None) -> SchedulerSetup:
    """Set a scheduler up in the pod and the environment that we ship."""
    return SchedulerSetup(config, read_scheduler_settings(), read_cpu_requests(), processes or {})


def read_cpu_requests() -> dict[str, int]:
    """Read what the containers of the pod that we ship request: name → millicores."""
    return {each["name"]: Quantity.parse(each["resources"]["requests"]["cpu"]).milli for each in read_shipped_containers()}


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
        processes = {"load-watcher": watcher.process, "extender": extender.process}
        yield make_shipped_setup(make_scheduler_config(extender.url), processes)
        extender.process.check_running()


@asynccontextmanager
async def running_constant(cluster: Cluster, nodes: Sequence[str]) -> AsyncIterator[SchedulerSetup]:
    """Run an extender that only answers, with the same profile."""
    (port,) = choose_free_ports(1)
    command = [sys.executable, "-m", "tests.benchmarks.constant_extender", str(port)]
    settings = {"PYTHONPATH": str(Path(__file__).parents[2])}
    async with running_process(f"constant-{port}", command, folder=cluster.folder, settings=settings) as process:
        await wait_for("the extender that only answers", partial(_connect, port), timeout_seconds=30)
        yield make_shipped_setup(make_scheduler_config(f"http://127.0.0.1:{port}"), {"extender": process})


async def _connect(port: int) -> None:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError as error:
        raise NotYet(str(error)) from error
    writer.close()


def _batch(nodes: Sequence[str], at: float) -> JsonObject:
    capacity = [{"cpu": "8", "memory": "32Gi"}] * len(nodes)
    return {"at": at, "nodes": list(nodes), "latest": {"CPU": [LOAD_PERCENT] * len(nodes)}, "capacity": capacity}
