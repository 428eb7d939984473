"""An extender with its real application on a real port, a load watcher that serves what a test says, and its decider alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, web

from tests.builders import NOW
from tests.fakes.api_server import FakeApiServer
from tests.fakes.peer import Handler, Peer
from trimaran_client.assigned import AssignedPods
from trimaran_client.extender.app import Extender, running_extender, serving_extender
from trimaran_client.extender.config import parse_config
from trimaran_client.extender.decider import Decider
from trimaran_client.extender.decisions import DecisionLog
from trimaran_client.extender.profiles import Profiles
from trimaran_client.snapshot import LoadSnapshot

Manifest = dict[str, Any]


def make_manifest(
    name: str = "web", *, scheduler: str = "trimaran", cpu: object = "1", namespace: str = "default", **more: Any
) -> Manifest:
    """Make a pending pod of one container as a scheduler sends it; *more* goes into its metadata, ``spec`` into its spec."""
    spec = {"schedulerName": scheduler, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]} | more.pop("spec", {})
    return {"metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}"} | more, "spec": spec, "status": {"phase": "Pending"}}


def make_node_manifest(name: str, cpu: object = "8") -> Manifest:
    return {"metadata": {"name": name}, "status": {"capacity": {"cpu": cpu}, "allocatable": {"cpu": cpu}}}


def make_question(pod: Manifest | None, names: Iterable[str] | None = None, nodes: Iterable[Manifest] | None = None) -> bytes:
    """Write what a scheduler sends, in either of its modes."""
    listed = None if nodes is None else {"metadata": {}, "items": list(nodes)}
    return json.dumps({"Pod": pod, "Nodes": listed, "NodeNames": None if names is None else list(names)}).encode()


def read_scores(body: bytes) -> dict[str, int]:
    """Read an answer as a scheduler does; a node that is listed twice is an error."""
    listed = json.loads(body)
    scores = {each["Host"]: each["Score"] for each in listed}
    assert len(scores) == len(listed)
    assert all(type(score) is int for score in scores.values())
    return scores


def make_load(cpu_percent: Mapping[str, float | None], *, cores: int = 8, sampled_at: float = NOW) -> bytes:
    """Write the reply of ``GET /watcher``: node → average CPU utilization, with capacities."""
    nodes = {
        name: {
            "metrics": [] if value is None else [{"type": "CPU", "operator": "AVG", "rollup": "15m", "value": value}],
            "capacity": {"cpu": str(cores)},
            "allocatable": {"cpu": str(cores)},
        }
        for name, value in cpu_percent.items()
    }
    window = {"duration": "15m", "start": sampled_at - 900, "end": sampled_at}
    return json.dumps({"timestamp": sampled_at, "window": window, "source": "fake", "data": {"NodeMetricsMap": nodes}}).encode()


def always(body: bytes) -> Handler:
    """Answer ``GET /watcher`` with *body*, as a Go load-watcher that knows nothing else."""

    async def handler(request: web.Request) -> web.Response:
        return web.Response(body=body) if request.path == "/watcher" else web.Response(status=404)

    return handler


class Asked:
    """A running extender, and the connection of one scheduler to it."""

    def __init__(self, extender: Extender, address: str, session: ClientSession) -> None:
        self.extender = extender
        self.decider = extender.decider
        self.address = address
        self.session = session

    async def post(self, path: str, body: bytes) -> tuple[int, bytes, Mapping[str, str]]:
        async with self.session.post(self.address + path, data=BytesIO(body), headers={"Content-Type": "application/json"}) as response:
            return response.status, await response.read(), response.headers

    async def prioritize(self, pod: Manifest | None, names: Iterable[str] | None = None, nodes: Iterable[Manifest] | None = None) -> Any:
        """Ask for scores: node → score."""
        status, body, _ = await self.post("/prioritize", make_question(pod, names, nodes))
        assert status == 200
        return read_scores(body)

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.session.get(self.address + path) as response:
            return response.status, await response.json()

    async def decision(self) -> Any:
        """Answer the newest decision."""
        _, body = await self.get("/api/v1/decisions?limit=1")
        return body["decisions"][0]

    async def metrics(self) -> dict[str, float]:
        """Answer the series of ``/metrics`` without their common beginning."""
        async with self.session.get(f"{self.address}/metrics") as response:
            lines = [line.rsplit(" ", 1) for line in (await response.text()).splitlines() if not line.startswith("#")]
        return {name.removeprefix("trimaran_extender_"): float(value) for name, value in lines}

    async def wait_for_metric(self, name: str, value: float) -> None:
        """Wait until a series of ``/metrics`` has a value, and fail if it does not in time."""
        async with asyncio.timeout(10):
            while (await self.metrics()).get(name) != value:
                pass


@asynccontextmanager
async def serving(
    document: Manifest, *, load: Peer | None = None, api: FakeApiServer | None = None, now: float = NOW
) -> AsyncIterator[Asked]:
    """Run an extender with a configuration; without *api* it watches no cluster, and without *load* nobody answers there."""
    watcher = "http://127.0.0.1:1" if load is None else load.address
    config = parse_config({"watcher": watcher, "cluster": api is not None} | document)
    async with (
        running_extender(config, clock=lambda: now) as extender,
        serving_extender(extender, "127.0.0.1", 0, shutdown_seconds=1) as address,
        ClientSession() as session,
    ):
        yield Asked(extender, "http://{}:{}".format(*address), session)


def cluster_config(api: FakeApiServer, folder: Path) -> Manifest:
    """Write access to a fake API server, and answer the part of the configuration that names it."""
    return {"kubeconfig": str(api.write_kubeconfig(folder / "kubeconfig"))}


class Fine:
    """Sources of which nothing is missing."""

    def problem(self) -> str:
        return ""


def make_decider(
    document: Manifest,
    load: LoadSnapshot,
    *,
    pods: AssignedPods | None = None,
    now: float = NOW,
    defer: Callable[[Callable[[], None]], object] = lambda work: work(),
) -> Decider:
    """Make a decider without anything around it; it watches no cluster, and remembers at once."""
    config = parse_config({"cluster": False} | document)
    pods = AssignedPods(assume_seconds=config.assume_seconds) if pods is None else pods
    profiles = Profiles(config.profiles, namespace_entries=lambda _: {})
    log = DecisionLog(config.decisions)
    return Decider(config, load=load, pods=pods, nodes=None, profiles=profiles, sources=Fine(), log=log, clock=lambda: now, defer=defer)
