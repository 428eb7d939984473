"""The harness itself: a real scheduler that can be read, and an API server that can be broken and mended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest
import pytest_asyncio

from tests.e2e.api import ApiError, JsonObject
from tests.e2e.binaries import Binaries
from tests.e2e.cluster import Cluster
from tests.e2e.scheduler import Scheduler, running_scheduler
from tests.e2e.waiting import NotYet, wait_for
from tests.e2e.workloads import (
    NODES_PATH,
    PODS_PATH,
    cordon,
    create_nodes,
    create_pods,
    delete_pods,
    make_node,
    make_pod,
    wait_for_event,
    wait_until_bound,
)

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120, func_only=True)]

BREAK_SECONDS = 15.0
SILENT_SECONDS = 0.5  # far more than an answer takes
NODES = [f"worker-{i}" for i in range(3)]
SERVICE_ACCOUNT: list[JsonObject] = [
    {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reader"}},
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "reader"},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": "default"}],
    },
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def workers(breakable_cluster: Cluster) -> AsyncIterator[Cluster]:
    """The cluster with three nodes that KWOK has made ready."""
    api = breakable_cluster.api
    await create_nodes(api, [make_node(name) for name in NODES])

    async def probe() -> None:
        nodes = (await api.fetch(NODES_PATH))["items"]
        ready = [node["metadata"]["name"] for node in nodes if is_true(node, "Ready")]
        if len(ready) < len(NODES):
            raise NotYet(f"ready nodes {ready}")

    await wait_for("ready nodes", probe, timeout_seconds=15)
    yield breakable_cluster
    for name in NODES:
        await breakable_cluster.delete_node(name)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def scheduler(workers: Cluster, binaries: Binaries) -> AsyncIterator[Scheduler]:
    """The stock scheduler."""
    async with running_scheduler(workers, binaries) as running:
        yield running


def is_true(manifest: JsonObject, condition: str) -> bool:
    """Tell whether a condition of an object's status holds."""
    return any(entry["type"] == condition and entry["status"] == "True" for entry in manifest["status"].get("conditions", []))


async def test_scheduler_binds_pods_and_its_metrics_are_read(workers: Cluster, scheduler: Scheduler) -> None:
    before = await scheduler.fetch_metrics()
    await create_pods(workers.api, [make_pod(f"many-{i}", app="many") for i in range(9)])
    nodes = await wait_until_bound(workers.api, "many", count=9)
    assert set(nodes.values()) == set(NODES)  # the stock profile spreads
    after = await scheduler.wait_for_scheduled(before.scheduled_count + 9)
    assert 0 < after.cycle_seconds < 1
    await delete_pods(workers.api, "many")
    assert (await workers.api.fetch(PODS_PATH, labelSelector="app=many"))["items"] == []


async def test_node_that_says_itself_that_it_is_ready_gets_pods(workers: Cluster, binaries: Binaries) -> None:
    """As thousands of nodes do, that KWOK need not look after; and cordoned nodes get none."""
    await create_nodes(workers.api, [make_node("silent", has_kubelet=False)])
    for name in NODES:
        await cordon(workers.api, name)
    try:
        await create_pods(workers.api, [make_pod("quiet", scheduler_name="late")])
        # Started after all that, it has seen all that.
        async with running_scheduler(workers, binaries, {"profiles": [{"schedulerName": "late"}]}):
            assert await wait_until_bound(workers.api, "quiet") == {"quiet": "silent"}
            event = await wait_for_event(workers.api, "quiet", "Scheduled")
        assert event["message"] == "Successfully assigned default/quiet to silent"
    finally:
        for name in NODES:
            await cordon(workers.api, name, is_unschedulable=False)
        await delete_pods(workers.api, "quiet")
        await workers.delete_node("silent")


async def test_scheduler_has_the_rights_of_the_identity_that_it_is_given(workers: Cluster, binaries: Binaries) -> None:
    await workers.api.apply_all(SERVICE_ACCOUNT)
    kubeconfig = await workers.create_token_kubeconfig("reader")
    async with running_scheduler(workers, binaries, kubeconfig=kubeconfig) as powerless:

        async def probe() -> None:
            log = powerless.process.log.replace("\\", "")
            if 'User "system:serviceaccount:default:reader" cannot list resource "nodes"' not in log:
                raise NotYet(log)

        await wait_for("refusal in the log", probe, timeout_seconds=15)


async def test_token_may_do_what_its_role_says(workers: Cluster) -> None:
    await workers.api.apply_all(SERVICE_ACCOUNT)
    async with workers.connected(await workers.create_token("reader")) as client:
        await client.fetch(PODS_PATH)
        with pytest.raises(ApiError) as refusal:
            await client.fetch(NODES_PATH)
    assert refusal.value.status == 403


async def test_restart_of_the_api_server_ends_watches_and_keeps_objects(workers: Cluster, scheduler: Scheduler) -> None:
    """The scheduler finds it again, and goes on."""
    async with watching(workers, "kept") as watch:
        await workers.restart_api_server()
        await asyncio.wait_for(watch, BREAK_SECONDS)
    assert (await workers.api.fetch(f"{PODS_PATH}/kept"))["spec"]["schedulerName"] == "nobody"
    await create_pods(workers.api, [make_pod("later")])
    assert (await wait_until_bound(workers.api, "later"))["later"] in NODES
    for app in ("kept", "later"):
        await delete_pods(workers.api, app)


async def test_hung_api_server_keeps_watches_open_and_silent(workers: Cluster) -> None:
    async with watching(workers, "seen") as watch:
        with workers.api_server.hanging():
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(workers.api.fetch(PODS_PATH), SILENT_SECONDS)
            assert not watch.done()
        await delete_pods(workers.api, "seen")
        assert not watch.done()


async def test_watch_from_before_a_compaction_is_gone(workers: Cluster) -> None:
    old = await fetch_version(workers)
    await create_pods(workers.api, [make_pod("passing", scheduler_name="nobody")])
    await delete_pods(workers.api, "passing")
    await workers.compact_etcd()
    await workers.restart_api_server()
    with pytest.raises(ApiError) as refusal:
        await asyncio.wait_for(watch_pods(workers, old, asyncio.Event()), BREAK_SECONDS)
    assert refusal.value.status == 410


@asynccontextmanager
async def watching(cluster: Cluster, pod: str) -> AsyncIterator[asyncio.Task[None]]:
    """Watch the pods from the creation of *pod* on, which no scheduler places."""
    version = await fetch_version(cluster)
    await create_pods(cluster.api, [make_pod(pod, scheduler_name="nobody")])
    is_open = asyncio.Event()
    watch = asyncio.create_task(watch_pods(cluster, version, is_open))
    try:
        await asyncio.wait_for(is_open.wait(), BREAK_SECONDS)
        yield watch
    finally:
        watch.cancel()


async def fetch_version(cluster: Cluster) -> str:
    """Return the version of the pods now."""
    version: str = (await cluster.api.fetch(PODS_PATH))["metadata"]["resourceVersion"]
    return version


async def watch_pods(cluster: Cluster, version: str, has_event: asyncio.Event) -> None:
    """Watch pods until the stream ends."""
    async with aclosing(cluster.api.watch(PODS_PATH, resource_version=version)) as events:
        async for _ in events:
            has_event.set()
