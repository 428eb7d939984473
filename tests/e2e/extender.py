"""Our extender as a process, the profile that we ship for the scheduler that asks it, and what it says of its decisions."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml

from tests.e2e.api import JsonObject
from tests.e2e.cluster import Cluster
from tests.e2e.metrics import Metrics
from tests.e2e.processes import ManagedProcess, choose_free_ports, running_process
from tests.e2e.waiting import NotYet, wait_for

SCHEDULER_NAME: Final = "trimaran"
DECISION_SECONDS = 30.0
READY_SECONDS = 60.0
REQUEST_SECONDS = 5.0
_OVERLAY: Final = Path(__file__).parents[2] / "k8s" / "overlays" / "scheduler"


class Extender:
    """
    A running extender.

    Attributes:
        url: Its address, without a path.
        process: The process itself.
    """

    def __init__(self, url: str, process: ManagedProcess, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.process = process
        self._session = session

    async def fetch_decision(self, pod: str) -> JsonObject | None:
        """Return the newest decision on a pod of the default namespace with all its candidates; ``None`` where there is none."""
        decisions = (await self._fetch("/api/v1/decisions", pod=f"default/{pod}", nodes="1000"))["decisions"]
        return decisions[0] if decisions else None

    async def wait_for_decision(self, pod: str) -> JsonObject:
        """Wait until it has decided on *pod* and has seen where the pod was bound then, and return the decision."""

        async def probe() -> JsonObject:
            self.process.check_running()
            decision = await self.fetch_decision(pod)
            if decision is None or not decision["boundTo"]:
                raise NotYet(f"decision {decision}")
            return decision

        return await wait_for(f"decision on pod {pod} with its binding", probe, timeout_seconds=DECISION_SECONDS)

    async def explain(self, pod: str) -> JsonObject:
        """Return the answer of ``GET /api/v1/explain`` on a pod of the default namespace."""
        return await self._fetch("/api/v1/explain", pod=f"default/{pod}")

    async def prioritize(self, pod: JsonObject, names: Sequence[str]) -> dict[str, int]:
        """Ask as a scheduler does that sends names only: node → score."""
        question = {"Pod": pod, "Nodes": None, "NodeNames": list(names)}
        async with self._session.post("/prioritize", json=question, raise_for_status=True) as response:
            return {each["Host"]: each["Score"] for each in await response.json()}

    async def fetch_metrics(self) -> Metrics:
        """Return its metrics as they are now."""
        async with self._session.get("/metrics", raise_for_status=True) as response:
            return Metrics.parse(await response.text())

    async def wait_until_ready(self) -> None:
        """Wait until nothing is missing for good answers."""

        async def probe() -> None:
            self.process.check_running()
            try:
                async with self._session.get("/readyz") as response:
                    if response.status != 200:
                        raise NotYet(await response.text())
            except aiohttp.ClientConnectionError as error:
                raise NotYet(str(error)) from error

        await wait_for(f"{self.process.name} ready", probe, timeout_seconds=READY_SECONDS)

    async def wait_until_alive(self) -> None:
        """Wait until it answers, whatever it knows."""

        async def probe() -> None:
            self.process.check_running()
            try:
                await self.fetch_metrics()
            except aiohttp.ClientConnectionError as error:
                raise NotYet(str(error)) from error

        await wait_for(f"{self.process.name} alive", probe, timeout_seconds=READY_SECONDS)

    async def _fetch(self, path: str, **query: str) -> JsonObject:
        async with self._session.get(path, params=query, raise_for_status=True) as response:
            answer: JsonObject = await response.json()
            return answer


@asynccontextmanager
async def running_extender(
    cluster: Cluster, watcher_url: str, settings: Mapping[str, Any] | None = None, *, kubeconfig: Path | None = None
) -> AsyncIterator[Extender]:
    """
    Run the extender with the configuration that we ship, from the time when it answers.

    Args:
        cluster: Whose nodes and pods it watches.
        watcher_url: The address of its load watcher, which need not answer yet.
        settings: What goes into its configuration beside, or in place of, what is there.
        kubeconfig: Its identity (default: the administrator).
    """
    (port,) = choose_free_ports(1)
    name, url = f"extender-{port}", f"http://127.0.0.1:{port}"
    shipped = yaml.safe_load((_OVERLAY / "extender.yaml").read_text())
    own = {"bind": f"127.0.0.1:{port}", "watcher": watcher_url, "kubeconfig": str(kubeconfig or cluster.admin_kubeconfig)}
    path = cluster.folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**shipped, **own, **(settings or {})}))
    command: list[str | Path] = [sys.executable, "-m", "trimaran_client", "extender", "--config", path]
    async with (
        running_process(name, command, folder=cluster.folder) as process,
        aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS)) as session,
    ):
        extender = Extender(url, process, session)
        await extender.wait_until_alive()
        yield extender


def make_scheduler_config(extender_url: str) -> JsonObject:
    """Make the scheduler's configuration that we ship, but for the leader election and with the address of an extender."""
    config: JsonObject = yaml.safe_load((_OVERLAY / "scheduler-config.yaml").read_text())
    del config["leaderElection"]
    config["extenders"][0]["urlPrefix"] = extender_url
    return config


def read_shipped_containers() -> list[JsonObject]:
    """Read the containers of the scheduler's pod that we ship."""
    (deployment,) = (each for each in yaml.safe_load_all((_OVERLAY / "deployment.yaml").read_text()) if each["kind"] == "Deployment")
    containers: list[JsonObject] = deployment["spec"]["template"]["spec"]["containers"]
    return containers


def read_scheduler_settings() -> dict[str, str]:
    """Read the variables of the scheduler's environment that we ship."""
    (container,) = (each for each in read_shipped_containers() if each["name"] == "kube-scheduler")
    return {each["name"]: each["value"] for each in container["env"]}
