"""
Pods in flight on the real control plane: counted when they are bound, gone when they are measured or end, right after every break.

What must have been told by now is told by order, not by time: a watch hands out changes in the order of their making, so that once it tells
of a marker made last, it has told of everything before.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from tests.builders import make_snapshot
from tests.e2e.api import ApiClient, JsonObject
from tests.e2e.binaries import Binaries
from tests.e2e.cluster import METRICS_RESOLUTION_SECONDS, Cluster
from tests.e2e.scheduler import running_scheduler
from tests.e2e.service import START_SECONDS, Service
from tests.e2e.waiting import NotYet, wait_for
from tests.e2e.workloads import NODES_PATH, PODS_PATH, create_nodes, create_pods, delete_pods, make_node, make_pod, wait_until_bound
from trimaran_client import Pod, Scorer, TargetLoadPacking, TargetLoadPackingArgs
from trimaran_client.assigned import DEFAULT_BOUND_SECONDS, DEFAULT_HOLD_SECONDS, AssignedPods
from trimaran_client.capacities import NodeCapacities
from trimaran_client.cluster import ClusterFeed, fetch_cluster, fetch_pod
from trimaran_client.fetch import WatcherClient
from trimaran_client.kube import KubeClient, WatchTimes
from trimaran_client.policies.arguments import MetricChoice

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180, func_only=True)]

NODES = [f"flight-{i}" for i in range(3)]
BURST = 30
TOLD_SECONDS = 20.0
# So that a hung API server is noticed within the test.
IMPATIENT = WatchTimes(request_timeout_seconds=2, silence_seconds=2, first_pause_seconds=0.1, max_pause_seconds=0.5)
# A watch that hears nothing is replaced all the time with the above.
PATIENT = WatchTimes(first_pause_seconds=0.1, max_pause_seconds=0.5)
SERIALS = itertools.count()

Content = tuple[Mapping[str, tuple[str, str, float]], Mapping[str, list[float]], Mapping[str, list[float]]]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def workers(breakable_cluster: Cluster) -> AsyncIterator[Cluster]:
    """The cluster with three ready nodes whose pods KWOK runs."""
    api = breakable_cluster.api
    await create_nodes(api, [make_node(name) for name in NODES])

    async def probe() -> None:
        nodes = (await api.fetch(NODES_PATH))["items"]
        ready = [node["metadata"]["name"] for node in nodes if is_ready(node)]
        if not set(NODES) <= set(ready):
            raise NotYet(f"ready nodes {ready}")

    await wait_for("ready nodes", probe, timeout_seconds=15)
    yield breakable_cluster
    for name in NODES:
        await breakable_cluster.delete_node(name)


@pytest_asyncio.fixture(loop_scope="session")
async def client(workers: Cluster) -> AsyncIterator[KubeClient]:
    async with KubeClient(workers.admin_kubeconfig) as opened:
        yield opened


def is_ready(node: JsonObject) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"].get("conditions", []))


def content(pods: AssignedPods, nodes: NodeCapacities, now: float) -> Content:
    """Tell everything that is known, in values that compare: pods in flight by UID, totals and capacities by node."""
    view, capacities = pods.view(now), nodes.view().table
    return (
        {each.pod.uid: (each.node, each.state, each.assigned_at) for each in view.in_flight},
        {name: totals for name, row in view.totals.rows.items() if any(totals := view.totals.values[:, row].tolist())},
        {name: np.nan_to_num(capacities.values[:, row], nan=-1).tolist() for name, row in capacities.rows.items()},
    )


async def check_against_a_fresh_list(client: KubeClient, feed: ClusterFeed) -> None:
    """See that what was followed equals what a list says now."""
    now = time.time()
    nodes, pods = await fetch_cluster(client)
    assert content(feed.pods, feed.nodes, now) == content(AssignedPods.of(pods, now=now), NodeCapacities.of(nodes), now)


async def place_marker(api: ApiClient) -> str:
    """Make a pod, which is bound from the start, and answer its UID."""
    manifest = make_pod(f"marker-{next(SERIALS)}", app="marker")
    manifest["spec"]["nodeName"] = NODES[0]
    uid: str = (await api.create(PODS_PATH, manifest))["metadata"]["uid"]
    return uid


async def wait_until_told(feed: ClusterFeed, api: ApiClient, *, nodes: Sequence[str] = ()) -> None:
    """Wait until the feed has told of everything that happened to pods before this call, and of new *nodes*, which another watch tells."""
    uid = await place_marker(api)

    async def probe() -> None:
        if feed.pods.state_of(uid) is None or not all(node in feed.nodes for node in nodes):
            raise NotYet(f"{len(feed.pods)} pods, {len(feed.nodes)} nodes, last error {feed.last_error}")

    await wait_for("markers from the feed", probe, timeout_seconds=TOLD_SECONDS)


@asynccontextmanager
async def following(client: KubeClient, *, times: WatchTimes = PATIENT, **arguments: Any) -> AsyncIterator[ClusterFeed]:
    """Run a feed that has everything."""
    async with ClusterFeed(client, times=times, **arguments) as feed:
        await wait_until_synced(feed)
        yield feed


async def wait_until_synced(feed: ClusterFeed) -> None:
    async def probe() -> None:
        if not feed.synced.is_set():
            raise NotYet(f"last error {feed.last_error}")

    await wait_for("first lists", probe, timeout_seconds=TOLD_SECONDS)


async def change_everything(api: ApiClient, round_number: int) -> None:
    """Pods come, one goes, one ends; a node comes."""
    name = f"change-{round_number}"
    manifests = [make_pod(f"{name}-{i}", app="change", cpu_request=f"{100 + i}m") for i in range(4)]
    for manifest in manifests:
        manifest["spec"]["nodeName"] = NODES[round_number % len(NODES)]
    await create_pods(api, manifests)
    await api.delete(f"{PODS_PATH}/{name}-0")
    await end_pod(api, f"{name}-1")
    await create_nodes(api, [make_node(name, cpu=f"{4 + round_number}", has_kubelet=False)])


async def end_pod(api: ApiClient, name: str) -> None:
    status = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "status": {"phase": "Succeeded"}}
    await api.apply(f"{PODS_PATH}/{name}/status", status)


async def clean_up(api: ApiClient, *nodes: str) -> None:
    for app in ("burst", "change", "marker"):
        await delete_pods(api, app)
    for node in nodes:
        await api.delete(f"{NODES_PATH}/{node}")


async def test_pods_of_a_burst_are_counted_within_one_watch_delay(workers: Cluster, client: KubeClient, binaries: Binaries) -> None:
    """Each once, where it was bound, from its PodScheduled time; and each is told to who listens."""
    bound: list[Pod] = []
    async with following(client, on_bound=bound.append) as feed, running_scheduler(workers, binaries):
        before = feed.pods.in_flight_count
        await create_pods(workers.api, [make_pod(f"burst-{i}", app="burst", cpu_request="250m") for i in range(BURST)])
        nodes = await wait_until_bound(workers.api, "burst", count=BURST)
        await wait_until_told(feed, workers.api)
        burst = [each for each in feed.pods.view(time.time()).in_flight if each.pod.name.startswith("burst-")]
        assert {each.pod.name: each.node for each in burst} == nodes
        assert {each.state for each in burst} == {"bound"}
        assert feed.pods.in_flight_count == before + BURST + 1  # and the marker
        assert sorted(pod.name for pod in bound if pod.name in nodes) == sorted(nodes)
        manifest = await workers.api.fetch(f"{PODS_PATH}/burst-0")
        [scheduled] = [each["lastTransitionTime"] for each in manifest["status"]["conditions"] if each["type"] == "PodScheduled"]
        [since] = [each.assigned_at for each in burst if each.pod.name == "burst-0"]
        assert since == datetime.fromisoformat(scheduled).timestamp()
        await check_against_a_fresh_list(client, feed)
        await clean_up(workers.api)


async def test_a_pod_that_ends_or_is_deleted_leaves(workers: Cluster, client: KubeClient) -> None:
    """One that ends is told as a deletion, since it leaves the selection of the watch."""
    async with following(client) as feed:
        manifests = [make_pod(f"change-{name}", app="change") for name in ("ends", "goes", "stays")]
        for manifest in manifests:
            manifest["spec"]["nodeName"] = NODES[0]
        await create_pods(workers.api, manifests)
        uids = {name: (await fetch_pod(client, "default", f"change-{name}")).uid for name in ("ends", "goes", "stays")}
        await wait_until_told(feed, workers.api)
        assert {feed.pods.state_of(uid) for uid in uids.values()} == {"bound"}
        await end_pod(workers.api, "change-ends")
        await workers.api.delete(f"{PODS_PATH}/change-goes")
        await wait_until_told(feed, workers.api)
        assert {name: feed.pods.state_of(uid) for name, uid in uids.items()} == {"ends": None, "goes": None, "stays": "bound"}
        assert (await workers.api.fetch(f"{PODS_PATH}/change-ends"))["status"]["phase"] == "Succeeded"
        await check_against_a_fresh_list(client, feed)
        await clean_up(workers.api)


async def test_the_watch_survives_a_restart_of_the_api_server(workers: Cluster, client: KubeClient) -> None:
    async with following(client) as feed:
        for round_number in range(2):
            await workers.restart_api_server()
            await change_everything(workers.api, round_number)
            await wait_until_told(feed, workers.api, nodes=[f"change-{round_number}"])
            await check_against_a_fresh_list(client, feed)
        assert feed.bad_object_count == 0
        await clean_up(workers.api, "change-0", "change-1")


async def test_the_watch_survives_a_compaction(workers: Cluster, client: KubeClient, caplog: pytest.LogCaptureFixture) -> None:
    """It goes on from a version that the server has forgotten: 410, a new list, and what vanished meanwhile is gone."""
    caplog.set_level(logging.DEBUG, "trimaran_client.kube.listwatch")
    feed = ClusterFeed(client, times=PATIENT)
    async with feed:
        await wait_until_synced(feed)
        await change_everything(workers.api, 0)
        await wait_until_told(feed, workers.api, nodes=["change-0"])
    await change_everything(workers.api, 1)
    await workers.api.delete(f"{PODS_PATH}/change-0-2")
    await workers.api.delete(f"{NODES_PATH}/change-0")
    await workers.compact_etcd()
    await workers.restart_api_server()
    async with feed:
        await wait_until_told(feed, workers.api, nodes=["change-1"])
        await check_against_a_fresh_list(client, feed)
    assert any("listing again" in record.message and "/api/v1/pods" in record.message for record in caplog.records)
    await clean_up(workers.api, "change-1")


async def test_the_watch_survives_a_silent_stream(workers: Cluster, client: KubeClient) -> None:
    """The API server hangs, its connections stay open: noticed, and made up for."""
    async with following(client, times=IMPATIENT) as feed:
        await change_everything(workers.api, 0)
        await wait_until_told(feed, workers.api, nodes=["change-0"])
        before = content(feed.pods, feed.nodes, time.time())

        async def probe() -> None:
            if feed.last_error is None:
                raise NotYet(f"silent for {feed.silent_seconds:.1f} s")

        with workers.api_server.hanging():
            await wait_for("notice of the silence", probe, timeout_seconds=TOLD_SECONDS)
            assert content(feed.pods, feed.nodes, time.time()) == before
        await change_everything(workers.api, 1)
        await wait_until_told(feed, workers.api, nodes=["change-1"])
        await check_against_a_fresh_list(client, feed)
        await clean_up(workers.api, "change-0", "change-1")


@pytest.mark.parametrize("preset", ["upstream", "default"])
async def test_after_our_own_restart_nothing_old_counts_as_new(workers: Cluster, client: KubeClient, preset: str) -> None:
    """At once it is as before the restart; an hour later, as if there were no pods but the measured ones."""
    policy = TargetLoadPacking.upstream() if preset == "upstream" else TargetLoadPacking(TargetLoadPackingArgs(preset="default"))
    scorer, pod = Scorer(policy), Pod.from_manifest(make_pod("pending"))

    def score(feed: ClusterFeed, now: float) -> tuple[dict[str, int], dict[str, int]]:
        """Score with the pods that the feed knows, and without any, on nodes measured now."""
        snapshot = make_snapshot(dict.fromkeys(NODES, 20.0), sampled_at=now)
        with_pods = scorer.score_nodes(pod, snapshot, now=now, pods=feed.pods, capacities=feed.nodes)
        return with_pods.by_node(), scorer.score_nodes(pod, snapshot, now=now).by_node()

    async with following(client) as feed:
        await change_everything(workers.api, 0)
        await wait_until_told(feed, workers.api, nodes=["change-0"])
        now = time.time()
        before, expected = content(feed.pods, feed.nodes, now), score(feed, now)
        assert expected[0][NODES[0]] != expected[1][NODES[0]]
    async with following(client) as feed:
        assert content(feed.pods, feed.nodes, now) == before
        assert score(feed, now) == expected
    later = now + DEFAULT_HOLD_SECONDS + DEFAULT_BOUND_SECONDS + 60
    async with following(client, clock=lambda: later) as feed:
        assert len(feed.pods) >= len(before[0]) > 0
        assert feed.pods.in_flight_count == 0
        with_pods, without = score(feed, later)
        assert with_pods == without
    await clean_up(workers.api, "change-0")


LOADED, MEASURED_PERCENT = "flight-loaded", 20.0
BURST_PERCENT = 25.0
POD_MILLICORES, POD_COUNT, NODE_MILLICORES = 500, 4, 8000
# A rate of counters over a time of metrics-server's choice.
RATE_ERROR_POINTS = 2.5


async def test_pods_leave_when_the_metrics_show_them(loaded_cluster: Cluster, service: Service, binaries: Binaries) -> None:
    """Measured and in flight together make the real load: never less, and more only while a sample has a part of the burst."""
    cluster, api = loaded_cluster, loaded_cluster.api
    await cluster.create_node(LOADED)
    await cluster.set_load(LOADED, cpu_millicores=1600, memory_mebibytes=1024)
    await cluster.wait_for_load({LOADED: 1600})
    policy = TargetLoadPacking(TargetLoadPackingArgs(cpu_metric=MetricChoice("Latest")))
    scorer, pod = Scorer(policy), Pod.from_manifest(make_pod("pending", cpu_request="100m"))
    async with (
        KubeClient(cluster.admin_kubeconfig) as client,
        following(client, pods=AssignedPods(hold_seconds=0)) as feed,
        WatcherClient(service.url, statistics=["AVG"]) as watcher,
        running_scheduler(cluster, binaries),
    ):
        await service.wait_for_nodes(
            "load of the node", lambda nodes: nodes.get(LOADED, {}).get("status") == "ok", timeout_seconds=START_SECONDS
        )
        usage = {"kwok.x-k8s.io/usage-cpu": f"{POD_MILLICORES}m", "kwok.x-k8s.io/usage-memory": "64Mi"}
        manifests = [make_pod(f"burst-{i}", app="burst", annotations=usage) for i in range(POD_COUNT)]
        for manifest in manifests:
            manifest["spec"]["nodeSelector"] = {"kubernetes.io/hostname": LOADED}
            manifest["spec"]["containers"][0]["resources"] = {"limits": {"cpu": f"{POD_MILLICORES}m"}}
        await create_pods(api, manifests)
        await wait_until_bound(api, "burst", count=POD_COUNT)
        uids = [(await fetch_pod(client, "default", f"burst-{i}")).uid for i in range(POD_COUNT)]

        async def all_told() -> None:
            if any(feed.pods.state_of(uid) != "bound" for uid in uids):
                raise NotYet("pods of the burst are missing")

        await wait_for("the burst from the feed", all_told, timeout_seconds=TOLD_SECONDS)
        seen: list[tuple[float, float]] = []

        async def probe() -> None:
            snapshot = await watcher.fetch_snapshot()
            now = time.time()
            columns = scorer.columns(snapshot, now=now, nodes=[LOADED], pods=feed.pods, capacities=feed.nodes)
            terms = policy.compute_terms(pod, columns)
            measured, in_flight = float(terms.measured_percent[0]), float(100 * terms.in_flight_amount[0] / NODE_MILLICORES)
            if not seen or seen[-1] != (measured, in_flight):
                seen.append((measured, in_flight))
            whole = MEASURED_PERCENT + BURST_PERCENT
            assert measured + in_flight >= whole - RATE_ERROR_POINTS, f"lost: {seen}"
            assert measured + in_flight <= whole + (BURST_PERCENT if in_flight else 0) + RATE_ERROR_POINTS, f"counted twice: {seen}"
            if in_flight:
                raise NotYet(f"measured and in flight, percent: {seen}")
            alone = scorer.score_nodes(pod, snapshot, now=now, nodes=[LOADED], capacities=feed.nodes)
            assert scorer.score_columns(pod, columns).by_node() == alone.by_node()

        await wait_for("a sample with all of the burst", probe, timeout_seconds=6 * METRICS_RESOLUTION_SECONDS)
        assert seen[0][1] == BURST_PERCENT
        assert feed.pods.in_flight_count >= POD_COUNT  # they may leave later; that they no longer count is for the policy to say
    await delete_pods(api, "burst")
    await cluster.delete_node(LOADED)
