"""
Whatever fails behind the scheduler, pods go on being placed; what was decided without fresh metrics says so, and it passes.

On a cluster of its own. By load one node is the better one, by requests the other, so that where a pod goes tells what it was placed by.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest
import pytest_asyncio

from tests.e2e.api import JsonObject
from tests.e2e.binaries import Binaries
from tests.e2e.cluster import Cluster
from tests.e2e.control_plane import running_cluster
from tests.e2e.extender import Extender, make_scheduler_config, running_extender
from tests.e2e.layouts import POD_REQUEST, Layout, Machine, create_layouts, place, wait_for_layouts
from tests.e2e.processes import choose_free_ports
from tests.e2e.scheduler import Scheduler, running_scheduler
from tests.e2e.service import Service, on_cluster, running_load_watcher
from tests.e2e.waiting import NotYet, wait_for
from tests.e2e.workloads import PODS_PATH, make_pod

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120, func_only=True)]

BY_LOAD, BY_REQUESTS = "calm-but-requested", "busy-but-unrequested"
LAYOUT: Layout = {BY_LOAD: Machine(load_percent=30, requested={"cpu": "5"}), BY_REQUESTS: Machine(load_percent=70)}
# metrics-server measures every 10 s, and its samples are some seconds old when it tells them first.
MAX_AGE_SECONDS = 16
BOUND_SECONDS = 15.0
CHANGE_SECONDS = 60.0
FALLBACK = {"fallback_allocation": len(LAYOUT)}
UNMEASURED = f"{len(LAYOUT)} of {len(LAYOUT)} nodes without usable metrics"
SCORED_NODES = "trimaran_extender_scored_nodes_total"
DEGRADED = "trimaran_extender_degraded"


@dataclass(frozen=True)
class Trimaran:
    """What is deployed: a scheduler and the extender that it asks; the load watcher's port is free at first."""

    cluster: Cluster
    extender: Extender
    scheduler: Scheduler
    watcher_port: int

    async def decide(self) -> JsonObject:
        """Place a pod, which must not take long, and return the decision on it; the pod is gone then."""
        pod, node = await place(self.cluster.api, "layout", bound_seconds=BOUND_SECONDS)
        decision = await self.extender.wait_for_decision(pod)
        await self.cluster.api.delete(f"{PODS_PATH}/{pod}")
        assert decision["boundTo"] == node
        return decision

    async def decide_until(self, what: str, predicate: Callable[[JsonObject], bool]) -> JsonObject:
        """Place one pod after the other, none of which may take long, until *predicate* holds for the decision on one."""

        async def probe() -> JsonObject:
            decision = await self.decide()
            if not predicate(decision):
                raise NotYet(f"decision {decision}")
            return decision

        return await wait_for(f"decision {what}", probe, timeout_seconds=CHANGE_SECONDS)

    async def see_fallback(self, cause: str = "") -> JsonObject:
        """See that pods go on being placed, by requests in the end, and that this shows, with its *cause* where that can be known."""

        def is_told(decision: JsonObject) -> bool:
            return decision["reasons"] == FALLBACK and cause in decision["degraded"]

        before = await self.extender.fetch_metrics()
        decision = await self.decide_until("by requests", is_told)
        assert decision["boundTo"] == BY_REQUESTS
        assert UNMEASURED in decision["degraded"]
        after = await self.extender.fetch_metrics()
        assert after.total(DEGRADED) == bool(cause)
        reason = {"reason": "fallback_allocation"}
        assert after.total(SCORED_NODES, **reason) >= before.total(SCORED_NODES, **reason) + len(LAYOUT)
        return decision

    async def see_recovery(self) -> None:
        """See that pods are placed by load again, and that nothing is missing any more."""
        decision = await self.decide_until("by load", lambda decision: not decision["degraded"])
        assert decision["boundTo"] == BY_LOAD
        assert decision["reasons"] == {"at_or_below_target": 1, "above_target": 1}
        assert (await self.extender.fetch_metrics()).total(DEGRADED) == 0


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def trimaran(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Trimaran]:
    """A scheduler that tells each failure of an extender, which needs log level 5."""
    async with running_cluster(binaries, tmp_path_factory.mktemp("degraded-cluster")) as cluster:
        await create_layouts(cluster, {"layout": LAYOUT})
        (port,) = choose_free_ports(1)
        settings = {"profiles": [{"schedulerName": "trimaran", "args": {"max_age_seconds": MAX_AGE_SECONDS}}]}
        async with (
            running_extender(cluster, f"http://127.0.0.1:{port}", settings) as extender,
            running_scheduler(cluster, binaries, make_scheduler_config(extender.url), verbosity=5) as scheduler,
        ):
            yield Trimaran(cluster, extender, scheduler, port)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def watcher(trimaran: Trimaran) -> AsyncIterator[Service]:
    """The load watcher, once pods are placed by load."""
    cluster = trimaran.cluster
    await wait_for_layouts(cluster, {"layout": LAYOUT})
    settings = on_cluster(cluster.admin_kubeconfig) | {"LOAD_WATCHER_REFRESH_SECONDS": "1", "LOAD_WATCHER_HISTORY": "off"}
    async with running_load_watcher(settings, folder=cluster.folder, port=trimaran.watcher_port) as service:
        await trimaran.see_recovery()
        yield service


async def test_without_a_load_watcher_pods_are_placed_by_requests(trimaran: Trimaran) -> None:
    decision = await trimaran.see_fallback("no snapshot of the load watcher")
    assert decision["snapshotAgeSeconds"] is None


async def test_load_watcher_is_killed_and_comes_back(trimaran: Trimaran, watcher: Service) -> None:
    await watcher.process.kill()
    await trimaran.see_fallback("the load watcher gives no news")
    await watcher.process.start()
    await trimaran.see_recovery()


async def test_load_watcher_hangs(trimaran: Trimaran, watcher: Service) -> None:
    with watcher.process.hanging():
        await trimaran.see_fallback("the load watcher gives no news")
    await trimaran.see_recovery()


async def test_load_watcher_serves_stale_data(trimaran: Trimaran, watcher: Service) -> None:
    """It answers, and its values say how old they are."""
    assert trimaran.cluster.metrics_server is not None
    with trimaran.cluster.metrics_server.hanging():
        decision = await trimaran.see_fallback()
        nodes = await watcher.fetch_nodes()
    assert all(node["metrics"] for node in nodes.values())
    assert all(node["sampledAt"] < decision["madeAt"] - MAX_AGE_SECONDS for node in nodes.values())
    await trimaran.see_recovery()


async def test_extender_is_killed_and_comes_back(trimaran: Trimaran, watcher: Service) -> None:
    """What was placed without it counts where it is, as soon as it is back."""
    watcher.process.check_running()
    await trimaran.extender.process.kill()
    placed = [await place(trimaran.cluster.api, "layout", bound_seconds=BOUND_SECONDS) for _ in range(3)]
    await trimaran.extender.process.start()
    await trimaran.extender.wait_until_ready()
    pod, node = await place(trimaran.cluster.api, "layout", bound_seconds=BOUND_SECONDS)
    assert (await trimaran.extender.wait_for_decision(pod))["boundTo"] == node
    explained = (await trimaran.extender.explain(pod))["explanation"]["nodes"]
    counted = {(told["pod"].removeprefix("default/"), each["node"]) for each in explained for told in each["inFlight"]}
    assert counted >= set(placed)
    for name in (*(name for name, _ in placed), pod):
        await trimaran.cluster.api.delete(f"{PODS_PATH}/{name}")
    await trimaran.see_recovery()


async def test_extender_hangs(trimaran: Trimaran, watcher: Service) -> None:
    """
    The scheduler asks it, gives up at the time that its configuration says, and places the pod without.

    The extender answers nobody when it goes on, and does not pretend that its scores counted.
    """
    watcher.process.check_running()
    with trimaran.extender.process.hanging():
        placed = [await place(trimaran.cluster.api, "layout", bound_seconds=BOUND_SECONDS) for _ in range(3)]
    lines = [line for line in trimaran.scheduler.process.log.splitlines() if "Client.Timeout exceeded" in line]
    for name, node in placed:
        assert [line for line in lines if f'pod="default/{name}"' in line], lines
        assert (await trimaran.extender.wait_for_decision(name))["boundTo"] == node
        await trimaran.cluster.api.delete(f"{PODS_PATH}/{name}")
    await trimaran.see_recovery()


async def test_api_server_restarts(trimaran: Trimaran, watcher: Service) -> None:
    """While it is down nothing can be bound, but the extender answers from what it knows, and says that this is not kept up to date."""
    watcher.process.check_running()
    cluster, question = trimaran.cluster, make_pod("asked", cpu_request=POD_REQUEST, scheduler_name="trimaran")
    before = await trimaran.extender.prioritize(question, list(LAYOUT))
    await cluster.api_server.stop()
    try:

        async def probe() -> JsonObject:
            scores = await trimaran.extender.prioritize(question, list(LAYOUT))
            decision = await trimaran.extender.fetch_decision("asked")
            assert decision is not None
            assert scores[BY_LOAD] == pytest.approx(before[BY_LOAD], abs=5)
            if "the view of the cluster is not kept up to date" not in decision["degraded"]:
                raise NotYet(f"decision {decision}")
            return decision

        await wait_for("decision that tells of the API server", probe, timeout_seconds=CHANGE_SECONDS)
        assert (await trimaran.extender.fetch_metrics()).total(DEGRADED) == 1
    finally:
        await cluster.api_server.start()
        await cluster.wait_until_ready()
    await trimaran.see_recovery()
