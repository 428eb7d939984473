"""The manifests on a real API server: it accepts all of them, and the identities that they make may do exactly what they need."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
import yaml

from tests.e2e.api import ApiClient, ApiError, JsonObject
from tests.e2e.binaries import Binaries
from tests.e2e.cluster import NODE_METRICS_PATH, Cluster
from tests.e2e.extender import running_extender
from tests.e2e.manifests import (
    IDENTITY_KINDS,
    K8S,
    NAMESPACE,
    Right,
    apply_identities,
    compose,
    expand,
    fetch_rights,
    fetch_role,
    find,
    make_pod_of,
    read_config,
    render,
)
from tests.e2e.scheduler import Scheduler, running_scheduler
from tests.e2e.service import Service, on_cluster, running_load_watcher
from tests.e2e.waiting import NotYet, wait_for
from tests.e2e.workloads import NODES_PATH, PODS_PATH, delete_pods, make_pod, wait_for_event, wait_until_bound

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180, func_only=True)]

OVERLAYS = sorted(path.name for path in (K8S / "overlays").iterdir())
COMBINATIONS = [
    ("scheduler", ["before-1.35"]),
    ("scheduler", ["before-1.35", "host-network"]),
    ("extender", ["events", "namespace-overrides"]),
]
IDENTITIES = ("load-watcher", "extender", "trimaran-scheduler")
LEASE_PATH = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/trimaran-scheduler"
LEAD_SECONDS = 40.0  # a lease that was not given back is held for 15 s, and asked for every 2 s

READ_NODES: set[Right] = {("", "nodes", "list"), ("", "nodes", "watch")}
READ_PODS: set[Right] = {("", "pods", "list"), ("", "pods", "watch")}
READ_METRICS: set[Right] = {("metrics.k8s.io", "nodes", "list")}

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": [{"name": "x", "image": "x"}]}}
REFUSED_TO_READERS: list[tuple[str, str, JsonObject | None]] = [
    ("GET", "/api/v1/secrets", None),
    ("GET", "/api/v1/configmaps", None),
    ("GET", "/api/v1/namespaces", None),
    ("GET", "/api/v1/services", None),
    ("GET", "/apis/coordination.k8s.io/v1/leases", None),
    ("GET", f"{NODES_PATH}/node-0", None),
    ("GET", "/apis/metrics.k8s.io/v1beta1/pods", None),
    ("POST", f"{PODS_PATH}?dryRun=All", POD),
    ("POST", f"{PODS_PATH}/x/binding?dryRun=All", {"target": {"kind": "Node", "name": "node-0"}}),
    ("POST", "/api/v1/namespaces/default/events?dryRun=All", {}),
    ("DELETE", f"{NODES_PATH}/node-0?dryRun=All", None),
    ("DELETE", f"{PODS_PATH}/load-node-0?dryRun=All", None),
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def identities(cluster: Cluster, binaries: Binaries) -> dict[str, str]:
    """All roles and identities of the overlays, applied, and a token for each identity: name → token."""
    for overlay in ("load-watcher", "extender", "scheduler"):
        await apply_identities(cluster.api, binaries, overlay)
    return {name: await cluster.create_token(name, namespace=NAMESPACE) for name in IDENTITIES}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def basic_rights(cluster: Cluster) -> set[Right]:
    """What every identity may do: to ask what it may do."""
    await cluster.api.apply_all([{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "nobody"}}])
    async with cluster.connected(await cluster.create_token("nobody")) as nobody:
        return await fetch_rights(nobody)


async def judge(api: ApiClient, manifests: list[JsonObject]) -> None:
    """Let the API server judge *manifests*, and the pods of their Deployments too, by what it would do; only the namespace is made."""
    await api.apply_all(each for each in manifests if each["kind"] == "Namespace")
    await api.apply_all(manifests, is_dry_run=True)
    for deployment in manifests:
        if deployment["kind"] == "Deployment":
            await api.create(f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All", make_pod_of(deployment))


@pytest.mark.parametrize("overlay", OVERLAYS)
async def test_api_server_accepts_every_overlay(cluster: Cluster, binaries: Binaries, overlay: str) -> None:
    await judge(cluster.api, await render(binaries, K8S / "overlays" / overlay))


@pytest.mark.parametrize(("overlay", "components"), COMBINATIONS, ids=lambda value: value if isinstance(value, str) else "+".join(value))
async def test_api_server_accepts_overlays_with_components(
    cluster: Cluster, binaries: Binaries, tmp_path: Path, overlay: str, components: list[str]
) -> None:
    await judge(cluster.api, await compose(binaries, tmp_path, overlay, components))


@pytest.mark.parametrize("sample", sorted((K8S / "samples").iterdir()), ids=lambda path: path.name)
async def test_api_server_accepts_the_samples(cluster: Cluster, sample: Path) -> None:
    await cluster.api.apply_all(yaml.safe_load_all(sample.read_text()), is_dry_run=True)


async def test_all_but_the_host_network_meets_the_strictest_standard_for_pods(cluster: Cluster, binaries: Binaries) -> None:
    """The namespace enforces it, so the API server would refuse what does not; as here."""
    await cluster.api.apply_all(await render(binaries, K8S / "namespace"))
    deployment = find(await render(binaries, K8S / "overlays" / "scheduler-host-network"), "Deployment")
    with pytest.raises(ApiError, match='violates PodSecurity \\\\"restricted:latest\\\\": host namespaces'):
        await cluster.api.create(f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All", make_pod_of(deployment))


@pytest.mark.parametrize(
    ("name", "expected"), [("load-watcher", READ_NODES | READ_METRICS), ("extender", READ_NODES | READ_PODS)], ids=lambda value: value
)
async def test_readers_have_exactly_the_rights_that_they_use(
    cluster: Cluster, identities: dict[str, str], basic_rights: set[Right], name: str, expected: set[Right]
) -> None:
    async with cluster.connected(identities[name]) as identity:
        for namespace in ("default", NAMESPACE, "kube-system"):
            assert await fetch_rights(identity, namespace=namespace) - basic_rights == expected


async def test_scheduler_has_the_built_in_rights_and_those_of_the_sidecars(
    cluster: Cluster, identities: dict[str, str], basic_rights: set[Right]
) -> None:
    built_in = await fetch_role(cluster.api, "system:kube-scheduler") | await fetch_role(cluster.api, "system:volume-scheduler")
    lease: set[Right] = {("coordination.k8s.io", "leases/ trimaran-scheduler", verb) for verb in ("get", "update")}
    reader = await cluster.api.fetch(
        "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/roles/extension-apiserver-authentication-reader"
    )
    everywhere = built_in | READ_NODES | READ_PODS | READ_METRICS
    expected = {"default": everywhere, NAMESPACE: everywhere | lease, "kube-system": everywhere | expand(reader["rules"])}
    async with cluster.connected(identities["trimaran-scheduler"]) as identity:
        assert {namespace: await fetch_rights(identity, namespace=namespace) - basic_rights for namespace in expected} == expected


@pytest.mark.parametrize(
    ("overlay", "component", "added"),
    [
        ("extender", "events", {("", "events", "create")}),
        ("extender", "namespace-overrides", {("", "namespaces", "list"), ("", "namespaces", "watch")}),
    ],
    ids=["events", "namespace-overrides"],
)
async def test_components_add_the_right_that_they_are_for(
    cluster: Cluster,
    binaries: Binaries,
    identities: dict[str, str],
    basic_rights: set[Right],
    tmp_path: Path,
    overlay: str,
    component: str,
    added: set[Right],
) -> None:
    plain = [each["metadata"]["name"] for each in await render(binaries, K8S / "overlays" / overlay)]
    manifests = await compose(binaries, tmp_path, overlay, [component])
    roles = [each for each in manifests if each["kind"].startswith("ClusterRole") and each["metadata"]["name"] not in plain]
    await cluster.api.apply_all(roles)
    try:
        async with cluster.connected(identities["extender"]) as identity:

            async def probe() -> None:  # the authorizer learns of it by a watch
                rights = await fetch_rights(identity) - basic_rights
                if rights != READ_NODES | READ_PODS | added:
                    raise NotYet(f"rights {rights}")

            await wait_for("rights of the component", probe, timeout_seconds=10)
    finally:
        for role in roles:
            await cluster.api.delete(await cluster.api.find_path(role))


@asynccontextmanager
async def requests_of(cluster: Cluster, token: str) -> AsyncIterator[aiohttp.ClientSession]:
    """Open plain requests as the identity of *token*."""
    connector = aiohttp.TCPConnector(ssl=cluster.authority.make_client_context())
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(
        cluster.server, connector=connector, headers=headers, timeout=aiohttp.ClientTimeout(total=15)
    ) as session:
        yield session


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("load-watcher", [NODES_PATH, f"{NODES_PATH}?watch=true&timeoutSeconds=1", NODE_METRICS_PATH]),
        ("extender", [f"{path}{query}" for path in (NODES_PATH, "/api/v1/pods") for query in ("", "?watch=true&timeoutSeconds=1")]),
    ],
    ids=["load-watcher", "extender"],
)
async def test_readers_are_refused_everything_else(
    loaded_cluster: Cluster, identities: dict[str, str], name: str, allowed: list[str]
) -> None:
    """By trying it: the token, not the administrator's certificate, is what is asked with."""
    tried: list[tuple[str, str, JsonObject | None]] = [("GET", path, None) for path in allowed]
    others = [("GET", path, None) for path in (NODE_METRICS_PATH, "/api/v1/pods") if path not in allowed]
    async with requests_of(loaded_cluster, identities[name]) as session:
        for method, path, body in tried:
            async with session.request(method, path, json=body) as response:
                assert (path, response.status) == (path, 200)
        for method, path, body in (*others, *REFUSED_TO_READERS):
            async with session.request(method, path, json=body) as response:
                assert (method, path, response.status) == (method, path, 403)


async def test_load_watcher_serves_with_the_rights_of_its_manifest(loaded_cluster: Cluster, identities: dict[str, str]) -> None:
    kubeconfig = await loaded_cluster.create_token_kubeconfig("load-watcher", namespace=NAMESPACE)
    async with (
        running_load_watcher(on_cluster(kubeconfig), folder=loaded_cluster.folder) as service,
        aiohttp.ClientSession(service.url) as session,
    ):
        await service.wait_for_nodes("node with metrics", lambda nodes: nodes.get("node-0", {}).get("status") == "ok")
        async with session.get("/readyz") as response:
            assert response.status == 200
        assert "403" not in service.process.log


async def test_extender_is_ready_with_the_rights_of_its_manifest(
    loaded_cluster: Cluster, service: Service, identities: dict[str, str]
) -> None:
    kubeconfig = await loaded_cluster.create_token_kubeconfig("extender", namespace=NAMESPACE)
    async with running_extender(loaded_cluster, service.url, kubeconfig=kubeconfig) as extender:
        await extender.wait_until_ready()
        assert "403" not in extender.process.log


async def test_extender_writes_events_and_follows_namespaces_with_the_rights_of_the_components(
    loaded_cluster: Cluster, binaries: Binaries, service: Service, tmp_path: Path
) -> None:
    """A pod that it has scored is bound, as a scheduler would."""
    api = loaded_cluster.api
    manifests = await compose(binaries, tmp_path, "extender", ["events", "namespace-overrides"])
    await api.apply_all(each for each in manifests if each["kind"] in IDENTITY_KINDS)
    kubeconfig = await loaded_cluster.create_token_kubeconfig("extender", namespace=NAMESPACE)
    settings = {"events": True, "namespaceOverrides": True}
    try:
        async with running_extender(loaded_cluster, service.url, settings, kubeconfig=kubeconfig) as extender:
            await extender.wait_until_ready()
            pod = await api.create(PODS_PATH, make_pod("told", scheduler_name="trimaran"))
            await extender.prioritize(pod, ["node-0", "node-1"])
            await api.create(f"{PODS_PATH}/told/binding", {"metadata": {"name": "told"}, "target": {"kind": "Node", "name": "node-1"}})
            event = await wait_for_event(api, "told", "TrimaranScored")
            assert "scored node-1" in event["message"]
            assert "403" not in extender.process.log
    finally:
        await delete_pods(api, "told")
        for kind in ("ClusterRole", "ClusterRoleBinding"):
            for name in ("trimaran:extender-events", "trimaran:extender-namespaces"):
                await api.delete(await api.find_path(find(manifests, kind, name)))


@asynccontextmanager
async def shipped_scheduler(
    cluster: Cluster, binaries: Binaries, manifests: list[JsonObject], *, extender_url: str = ""
) -> AsyncIterator[Scheduler]:
    """Run the scheduler of *manifests*: their configuration, their identity; the extender's port may be another here."""
    kubeconfig = await cluster.create_token_kubeconfig("trimaran-scheduler", namespace=NAMESPACE)
    config = read_config(manifests, "scheduler-config")
    config["extenders"][0]["urlPrefix"] = extender_url or config["extenders"][0]["urlPrefix"]
    async with running_scheduler(cluster, binaries, config, kubeconfig=kubeconfig) as scheduler:
        yield scheduler


async def wait_for_leader(cluster: Cluster, *, other_than: str = "") -> str:
    """Wait until a scheduler other than the given one holds the lease, and return who does."""

    async def probe() -> str:
        try:
            holder: str = (await cluster.api.fetch(LEASE_PATH))["spec"]["holderIdentity"]
        except ApiError as error:
            if error.status != 404:
                raise
            raise NotYet("no lease") from error
        if holder in ("", other_than):
            raise NotYet(f"lease of {holder!r}")
        return holder

    return await wait_for("holder of the lease", probe, timeout_seconds=LEAD_SECONDS)


async def place_sample(cluster: Cluster, name: str) -> str:
    """Create our sample pod and return the node that it is bound to."""
    pod = yaml.safe_load((K8S / "samples/pod.yaml").read_text())
    pod["metadata"] |= {"name": name, "labels": {"app": name}}
    await cluster.api.create(PODS_PATH, pod)
    try:
        return (await wait_until_bound(cluster.api, name))[name]
    finally:
        await delete_pods(cluster.api, name)


@pytest.mark.parametrize("components", [[], ["before-1.35"]], ids=["current", "before-1.35"])
async def test_report_67_68_scheduler_starts_and_places_pods_without_its_sidecars(
    loaded_cluster: Cluster, binaries: Binaries, identities: dict[str, str], tmp_path: Path, components: list[str]
) -> None:
    """The real one, with the configuration and the identity that we ship, and nobody behind the extender's address."""
    manifests = await compose(binaries, tmp_path, "scheduler", components)
    async with shipped_scheduler(loaded_cluster, binaries, manifests) as scheduler:
        await wait_for_leader(loaded_cluster)
        assert (await place_sample(loaded_cluster, "without-sidecars")).startswith("node-")
        assert "forbidden" not in scheduler.process.log.lower()


async def test_second_scheduler_takes_over(loaded_cluster: Cluster, binaries: Binaries, identities: dict[str, str]) -> None:
    manifests = await render(binaries, K8S / "overlays" / "scheduler")
    async with shipped_scheduler(loaded_cluster, binaries, manifests) as first:
        leader = await wait_for_leader(loaded_cluster)
        async with shipped_scheduler(loaded_cluster, binaries, manifests) as second:
            await first.process.stop()
            assert await wait_for_leader(loaded_cluster, other_than=leader)
            assert await place_sample(loaded_cluster, "taken-over")
            second.process.check_running()


async def test_the_whole_pod_places_by_load_with_its_one_identity(
    loaded_cluster: Cluster, binaries: Binaries, identities: dict[str, str]
) -> None:
    """Scheduler, load watcher and extender as the service account of the overlay; nothing else tells these nodes apart."""
    manifests = await render(binaries, K8S / "overlays" / "scheduler")
    kubeconfig = await loaded_cluster.create_token_kubeconfig("trimaran-scheduler", namespace=NAMESPACE)
    async with (
        running_load_watcher(on_cluster(kubeconfig), folder=loaded_cluster.folder) as service,
        running_extender(loaded_cluster, service.url, kubeconfig=kubeconfig) as extender,
        shipped_scheduler(loaded_cluster, binaries, manifests, extender_url=extender.url) as scheduler,
    ):
        await service.wait_for_nodes("nodes with metrics", lambda nodes: all(nodes[f"node-{i}"]["status"] == "ok" for i in range(6)))
        await extender.wait_until_ready()
        await wait_for_leader(loaded_cluster)

        node = await place_sample(loaded_cluster, "by-load")
        decision = await extender.wait_for_decision("by-load")
        best, *_, worst = decision["nodes"]
        assert (best["node"], decision["boundTo"]) == (node, node)
        assert best["score"] > worst["score"]
        assert decision["degraded"] == ""
        for process in (service.process, extender.process, scheduler.process):
            assert "forbidden" not in process.log.lower()
