"""Our contender of the burst: the shipped profile, our extender, and our load watcher that replays nodes at 20 %."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml

from tests.e2e.api import JsonObject
from tests.e2e.cluster import Cluster
from tests.e2e.processes import ManagedProcess, choose_free_ports, running_process
from tests.e2e.waiting import NotYet, wait_for

LOAD_PERCENT: Final = 20.0
_SCHEDULER_CONFIG: Final = Path(__file__).parents[2] / "k8s" / "overlays" / "scheduler" / "scheduler-config.yaml"
_READY_SECONDS: Final = 60.0


@asynccontextmanager
async def running_trimaran(
    cluster: Cluster, nodes: Sequence[str], *, settings: Mapping[str, Any] | None = None
) -> AsyncIterator[JsonObject]:
    """Run load watcher and extender; *settings* go into the extender's configuration."""
    folder = cluster.folder
    watcher_port, extender_port = choose_free_ports(2)
    recording = folder / "recording.jsonl"
    recording.write_text("".join(f"{json.dumps(_batch(nodes, time.time() + 30 * turn))}\n" for turn in range(2)))
    config = folder / "extender.yaml"
    document = {
        "bind": f"127.0.0.1:{extender_port}",
        "watcher": f"http://127.0.0.1:{watcher_port}",
        "kubeconfig": str(folder / "admin.kubeconfig"),
        "profiles": [{"schedulerName": "trimaran"}],
        **(settings or {}),
    }
    config.write_text(yaml.safe_dump(document))
    environment = {
        "METRICS_PROVIDER_NAME": "Recorded",
        "METRICS_PROVIDER_ADDRESS": str(recording),
        "LOAD_WATCHER_BIND": f"127.0.0.1:{watcher_port}",
        "LOAD_WATCHER_HISTORY": "off",
    }
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        start = partial(running_process, folder=folder)
        watcher = await stack.enter_async_context(start("load-watcher", [sys.executable, "-m", "load_watcher"], settings=environment))
        await _wait_until_ready(session, watcher, watcher_port)
        command: list[str | Path] = [sys.executable, "-m", "trimaran_client", "extender", "--config", config]
        extender = await stack.enter_async_context(start("extender", command))
        await _wait_until_ready(session, extender, extender_port)
        scheduler: JsonObject = yaml.safe_load(_SCHEDULER_CONFIG.read_text())
        del scheduler["leaderElection"]
        scheduler["extenders"][0]["urlPrefix"] = f"http://127.0.0.1:{extender_port}"
        yield scheduler
        extender.check_running()


def _batch(nodes: Sequence[str], at: float) -> JsonObject:
    capacity = [{"cpu": "8", "memory": "32Gi"}] * len(nodes)
    return {"at": at, "nodes": list(nodes), "latest": {"CPU": [LOAD_PERCENT] * len(nodes)}, "capacity": capacity}


async def _wait_until_ready(session: aiohttp.ClientSession, process: ManagedProcess, port: int) -> None:
    async def probe() -> None:
        process.check_running()
        try:
            async with session.get(f"http://127.0.0.1:{port}/readyz") as response:
                if response.status != 200:
                    raise NotYet(await response.text())
        except aiohttp.ClientConnectionError as error:
            raise NotYet(str(error)) from error

    await wait_for(f"{process.name} ready", probe, timeout_seconds=_READY_SECONDS)
