"""Our contender of the burst: the shipped profile, our extender, and our load watcher that replays nodes at 20 %."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from tests.e2e.api import JsonObject
from tests.e2e.cluster import Cluster
from tests.e2e.extender import make_scheduler_config, running_extender
from tests.e2e.service import running_load_watcher

LOAD_PERCENT: Final = 20.0
_REFRESH_SECONDS: Final = 30


@asynccontextmanager
async def running_trimaran(
    cluster: Cluster, nodes: Sequence[str], *, settings: Mapping[str, Any] | None = None
) -> AsyncIterator[JsonObject]:
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
        yield make_scheduler_config(extender.url)
        extender.process.check_running()


def _batch(nodes: Sequence[str], at: float) -> JsonObject:
    capacity = [{"cpu": "8", "memory": "32Gi"}] * len(nodes)
    return {"at": at, "nodes": list(nodes), "latest": {"CPU": [LOAD_PERCENT] * len(nodes)}, "capacity": capacity}
