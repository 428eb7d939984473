"""A running control plane as the tests handle it: identities, loads of nodes, breaks of the API server."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.e2e.api import ApiClient, ApiError, JsonObject
from tests.e2e.credentials import Authority, KeyPair, write_kubeconfig
from tests.e2e.probes import READY_SECONDS, wait_until_ok
from tests.e2e.processes import ManagedProcess
from tests.e2e.waiting import NotYet, wait_for
from tests.e2e.workloads import NODES_PATH, PODS_PATH, make_node
from trimaran_client.units import Quantity

ETCD_SECONDS = 15.0
TOKEN_SECONDS = 3600
METRICS_RESOLUTION_SECONDS = 10.0  # the least that metrics-server allows
# A first rate needs two scrapes of a running pod; then a third, as the first of them may cover the pod's start.
METRICS_SECONDS = 6 * METRICS_RESOLUTION_SECONDS

NODE_METRICS_PATH = "/apis/metrics.k8s.io/v1beta1/nodes"


@dataclass(frozen=True)
class NodeSample:
    """
    What metrics-server says of one node.

    Attributes:
        timestamp: Its time of the sample, as text.
        usage: Resource → usage, as quantities.
    """

    timestamp: str
    usage: Mapping[str, str]

    @property
    def cpu_millicores(self) -> float:
        """CPU usage; metrics-server writes the largest unit that needs no fraction: mostly nanocores, by chance microcores, a plain 0."""
        return Quantity.parse(self.usage["cpu"]).nanos / 1e6


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """
    A running control plane.

    Attributes:
        api: Calls to the API server as administrator.
        server: The API server's address.
        authority: Signs the identities that the API server accepts.
        admin: The administrator's certificate; every server of the control plane lets it read everything.
        admin_kubeconfig: The same for programs.
        api_server: The API server's process; ``with cluster.api_server.hanging():`` makes it fall silent.
        etcd: That of etcd.
        metrics_server: That of metrics-server; ``None`` where there is none.
        etcd_url: The address of etcd.
        folder: Logs, certificates and data; it goes away with the test run.
    """

    api: ApiClient
    server: str
    authority: Authority
    admin: KeyPair
    admin_kubeconfig: Path
    api_server: ManagedProcess
    etcd: ManagedProcess
    etcd_url: str
    folder: Path
    metrics_server: ManagedProcess | None = None

    async def restart_api_server(self) -> None:
        """Stop the API server, which ends every watch, and start it again with the same data and address."""
        await self.api_server.stop()
        await self.api_server.start()
        await self.wait_until_ready()

    async def wait_until_ready(self) -> None:
        """Wait until the API server is ready and has made its namespaces."""
        await wait_until_ok(self.api_server, f"{self.server}/readyz", context=self.authority.make_client_context(self.admin))

        async def probe() -> None:
            self.api_server.check_running()
            try:
                await self.api.fetch("/api/v1/namespaces/default")
            except ApiError as error:
                if error.status != 404:
                    raise
                raise NotYet("no namespace default") from error

        await wait_for("namespace default", probe, timeout_seconds=READY_SECONDS)

    async def compact_etcd(self) -> None:
        """Forget the history up to now; after the API server's next start, watches from before get 410 Gone."""
        async with aiohttp.ClientSession(self.etcd_url, raise_for_status=True, timeout=aiohttp.ClientTimeout(total=ETCD_SECONDS)) as etcd:
            async with etcd.post("/v3/kv/range", json={"key": base64.b64encode(b"any").decode()}) as response:
                revision = (await response.json())["header"]["revision"]
            await etcd.post("/v3/kv/compaction", json={"revision": revision, "physical": True})

    async def create_user(self, name: str, rules: list[JsonObject]) -> Path:
        """Let the user *name* do what *rules*, as of a ClusterRole, allow, and return the path of its kubeconfig."""
        group = "rbac.authorization.k8s.io"
        role = {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}
        await self.api.apply(f"/apis/{group}/v1/clusterroles/{name}", role)
        binding = {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": group, "kind": "User", "name": name}],
        }
        await self.api.apply(f"/apis/{group}/v1/clusterrolebindings/{name}", binding)
        return self._write_kubeconfig(name, self.authority.issue_client(name))

    async def create_token(self, service_account: str, *, namespace: str = "default") -> str:
        """Return a bearer token of an existing service account, by the TokenRequest API."""
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": TOKEN_SECONDS}}
        answer = await self.api.create(f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token", request)
        token: str = answer["status"]["token"]
        return token

    async def create_token_kubeconfig(self, service_account: str, *, namespace: str = "default") -> Path:
        """Return the path of a kubeconfig with a token of an existing service account."""
        token = await self.create_token(service_account, namespace=namespace)
        return self._write_kubeconfig(f"{namespace}-{service_account}", token)

    @asynccontextmanager
    async def connected(self, token: str) -> AsyncIterator[ApiClient]:
        """Give calls to the API server as the service account of *token*."""
        client = ApiClient(self.server, self.authority.make_client_context(), token=token)
        try:
            yield client
        finally:
            await client.close()

    async def create_node(self, name: str, *, cpu: str = "8", memory: str = "32Gi", has_metrics: bool = True) -> None:
        """Create a ready node of that capacity, without load; without metrics, metrics-server finds nothing at its kubelet."""
        await self.api.create(NODES_PATH, make_node(name, cpu=cpu, memory=memory, has_metrics=has_metrics))

    async def set_load(self, node: str, *, cpu_millicores: int, memory_mebibytes: int) -> None:
        """Make *node* use that much, from its next sample on, through one pod that is created on the first call."""
        name = f"load-{node}"
        usage = {"kwok.x-k8s.io/usage-cpu": f"{cpu_millicores}m", "kwok.x-k8s.io/usage-memory": f"{memory_mebibytes}Mi"}
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "annotations": usage},
            "spec": {"nodeName": node, "containers": [{"name": "load", "image": "load"}]},
        }
        await self.api.apply(f"{PODS_PATH}/{name}", manifest)

    async def delete_node(self, name: str) -> None:
        """Delete a node and its load, if there."""
        try:
            await self.api.delete(f"{PODS_PATH}/load-{name}")
        except ApiError as error:
            if error.status != 404:
                raise
        await self.api.delete(f"{NODES_PATH}/{name}")

    async def fetch_node_samples(self) -> dict[str, NodeSample]:
        """Return what metrics-server serves now: node name → sample."""
        listing = await self.api.fetch(NODE_METRICS_PATH)
        return {item["metadata"]["name"]: NodeSample(item["timestamp"], item["usage"]) for item in listing["items"]}

    async def wait_for_load(self, millicores: Mapping[str, float], *, tolerance_millicores: float = 80) -> dict[str, NodeSample]:
        """
        Wait until metrics-server reports the expected CPU usage.

        Args:
            millicores: Node name → expected usage.
            tolerance_millicores: Allowed distance on each node, which is a rate of counters, over a time of metrics-server's choice.
        """

        async def probe() -> dict[str, NodeSample]:
            samples = await self.fetch_node_samples()
            seen = {name: samples[name].cpu_millicores if name in samples else None for name in millicores}
            if any(value is None or abs(value - millicores[name]) > tolerance_millicores for name, value in seen.items()):
                raise NotYet(f"CPU millicores by metrics-server {seen}")
            return samples

        return await wait_for(f"usage of {dict(millicores)} from metrics-server", probe, timeout_seconds=METRICS_SECONDS)

    async def wait_for_next_samples(self, nodes: Collection[str]) -> dict[str, NodeSample]:
        """Wait until metrics-server has a newer sample of each of *nodes* than it has now."""
        before = await self.fetch_node_samples()

        async def probe() -> dict[str, NodeSample]:
            samples = await self.fetch_node_samples()
            if any(samples[name].timestamp == before[name].timestamp for name in nodes):
                raise NotYet(f"timestamps { ({name: samples[name].timestamp for name in nodes}) }")
            return samples

        return await wait_for("newer samples from metrics-server", probe, timeout_seconds=METRICS_SECONDS)

    def _write_kubeconfig(self, name: str, identity: KeyPair | str) -> Path:
        return write_kubeconfig(self.folder / f"{name}.kubeconfig", server=self.server, authority=self.authority, identity=identity)
