"""
A real Kubernetes control plane from plain processes on loopback: etcd, API server, metrics-server and KWOK.

KWOK plays the kubelets: it keeps the nodes ready, the pods running, and serves each node's usage to metrics-server as the sum of its pods'
usage annotations, so a test chooses a node's load by one pod. There is no controller manager and no scheduler: nothing moves by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.e2e.api import ApiClient, ApiError, JsonObject
from tests.e2e.binaries import Binaries
from tests.e2e.credentials import Authority, write_kubeconfig
from tests.e2e.processes import ManagedProcess, choose_free_ports, running_process
from tests.e2e.waiting import NotYet, wait_for

READY_SECONDS = 60.0
PROBE_SECONDS = 5.0
METRICS_RESOLUTION_SECONDS = 10.0  # the least that metrics-server allows
# A first rate needs two scrapes of a running pod; then a third, as the first of them may cover the pod's start.
METRICS_SECONDS = 6 * METRICS_RESOLUTION_SECONDS

NODES_PATH = "/api/v1/nodes"
PODS_PATH = "/api/v1/namespaces/default/pods"
NODE_METRICS_PATH = "/apis/metrics.k8s.io/v1beta1/nodes"
APISERVICE_PATH = "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.metrics.k8s.io"

_KWOK_MANIFESTS = (
    "metrics/resource/metrics-resource.yaml",
    "metrics/usage/usage-from-annotation.yaml",
    "stage/node/fast/node-initialize.yaml",
    "stage/node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "stage/pod/fast/pod-ready.yaml",
    "stage/pod/fast/pod-complete.yaml",
    "stage/pod/fast/pod-delete.yaml",
)


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
        """CPU usage; metrics-server writes nanocores, and a plain 0."""
        text = self.usage["cpu"]
        return int(text.removesuffix("n")) / 1e6 if text.endswith("n") else int(text) * 1e3


class Cluster:
    """
    A running control plane.

    Attributes:
        api: Calls to the API server as administrator.
        server: The API server's address.
        authority: Signs the identities that the API server accepts.
        folder: Logs, certificates and data; it goes away with the test run.
    """

    def __init__(self, *, api: ApiClient, server: str, authority: Authority, folder: Path) -> None:
        self.api = api
        self.server = server
        self.authority = authority
        self.folder = folder

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
        identity = self.authority.issue_client(name)
        return write_kubeconfig(self.folder / f"{name}.kubeconfig", server=self.server, authority=self.authority, identity=identity)

    async def create_node(self, name: str, *, cpu: str = "8", memory: str = "32Gi", has_metrics: bool = True) -> None:
        """Create a ready node of that capacity, without load; without metrics, metrics-server finds nothing at its kubelet."""
        annotations = {"kwok.x-k8s.io/node": "fake"}
        if has_metrics:
            annotations["metrics.k8s.io/resource-metrics-path"] = f"/metrics/nodes/{name}/metrics/resource"
        resources = {"cpu": cpu, "memory": memory, "pods": "110"}
        manifest = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "annotations": annotations, "labels": {"kubernetes.io/hostname": name}},
            "status": {"capacity": resources, "allocatable": resources},
        }
        await self.api.create(NODES_PATH, manifest)

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


@asynccontextmanager
async def running_cluster(binaries: Binaries, folder: Path) -> AsyncIterator[Cluster]:
    """Start a control plane with its files in *folder*, and stop all of it at the end."""
    async with AsyncExitStack() as stack:
        yield await _Start(binaries, folder, stack).start()


class _Start:
    """The start of one control plane, part by part."""

    def __init__(self, binaries: Binaries, folder: Path, stack: AsyncExitStack) -> None:
        self._binaries = binaries
        self._folder = folder
        self._stack = stack
        self._etcd_port, self._api_port, self._kwok_port, self._metrics_port = choose_free_ports(4)
        self._authority = Authority(folder, "kubernetes-ca")
        self._front_proxy = Authority(folder, "front-proxy-ca")
        self._admin = self._authority.issue_client("admin", group="system:masters")
        self._server = f"https://127.0.0.1:{self._api_port}"

    async def start(self) -> Cluster:
        api = ApiClient(self._server, self._authority.make_client_context(self._admin))
        self._stack.push_async_callback(api.close)
        path = self._folder / "admin.kubeconfig"
        kubeconfig = write_kubeconfig(path, server=self._server, authority=self._authority, identity=self._admin)
        cluster = Cluster(api=api, server=self._server, authority=self._authority, folder=self._folder)
        etcd = await self._run("etcd", *self._etcd_flags())
        await self._wait_until_ok(etcd, f"http://127.0.0.1:{self._etcd_port}/health")
        api_server = await self._run("kube-apiserver", *self._api_server_flags())
        await self._wait_until_ready(api_server, api)
        kwok = await self._run("kwok", *self._kwok_flags(kubeconfig))
        metrics_server = await self._run("metrics-server", *self._metrics_server_flags(kubeconfig))
        await self._register_metrics_api(api)
        await asyncio.gather(
            self._wait_until_ok(kwok, f"https://127.0.0.1:{self._kwok_port}/healthz"),
            self._wait_until_metrics_api_available(metrics_server, api),
        )
        return cluster

    async def _run(self, program: str, *flags: str) -> ManagedProcess:
        return await self._stack.enter_async_context(running_process(program, [self._binaries.path(program), *flags], folder=self._folder))

    def _etcd_flags(self) -> list[str]:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", "http://127.0.0.1:0"
        return [
            f"--data-dir={self._folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            "--unsafe-no-fsync",
        ]

    def _api_server_flags(self) -> list[str]:
        serving = self._authority.issue_server("kube-apiserver", "127.0.0.1", "localhost")
        proxy = self._front_proxy.issue_client("front-proxy-client")
        signing = self._authority.issue_client("service-accounts")  # only its key is used
        return [
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",  # the API refuses loopback addresses as endpoints
            f"--secure-port={self._api_port}",
            f"--cert-dir={self._folder}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--client-ca-file={self._authority.certificate}",
            f"--requestheader-client-ca-file={self._front_proxy.certificate}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={proxy.certificate}",
            f"--proxy-client-key-file={proxy.key}",
            "--enable-aggregator-routing=false",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={signing.key}",
            f"--service-account-signing-key-file={signing.key}",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--authorization-mode=Node,RBAC",
            # Nobody makes service accounts or lifts the taint of a new node here: the controller manager would.
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
        ]

    def _kwok_flags(self, kubeconfig: Path) -> list[str]:
        config = self._folder / "kwok.yaml"
        kustomize = self._binaries.kwok_kustomize
        config.write_text("\n---\n".join((kustomize / manifest).read_text() for manifest in _KWOK_MANIFESTS))
        serving = self._authority.issue_server("kwok", "127.0.0.1")
        return [
            f"--config={config}",
            f"--kubeconfig={kubeconfig}",
            "--manage-all-nodes=true",
            "--node-ip=127.0.0.1",
            f"--node-port={self._kwok_port}",
            f"--server-address=127.0.0.1:{self._kwok_port}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
        ]

    def _metrics_server_flags(self, kubeconfig: Path) -> list[str]:
        serving = self._authority.issue_server("metrics-server", "localhost", "127.0.0.1")
        return [
            "--bind-address=127.0.0.1",
            f"--secure-port={self._metrics_port}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--kubelet-use-node-status-port",
            "--kubelet-preferred-address-types=InternalIP",
            "--kubelet-insecure-tls",
            f"--metric-resolution={METRICS_RESOLUTION_SECONDS:.0f}s",
            "--kubelet-request-timeout=5s",  # must be less than the resolution
        ]

    async def _register_metrics_api(self, api: ApiClient) -> None:
        service: JsonObject = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "metrics-server"},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        }
        await api.apply("/api/v1/namespaces/kube-system/services/metrics-server", service)
        registration: JsonObject = {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": "v1beta1.metrics.k8s.io"},
            "spec": {
                "group": "metrics.k8s.io",
                "version": "v1beta1",
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "insecureSkipTLSVerify": True,
                "service": {"namespace": "kube-system", "name": "metrics-server", "port": self._metrics_port},
            },
        }
        await api.apply(APISERVICE_PATH, registration)

    async def _wait_until_ok(self, process: ManagedProcess, url: str) -> None:
        context = self._authority.make_client_context(self._admin)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PROBE_SECONDS)) as session:

            async def probe() -> None:
                process.check_running()
                try:
                    async with session.get(url, ssl=context) as response:
                        if response.status != 200:
                            raise NotYet(f"{response.status} {await response.text()}")
                except (aiohttp.ClientError, TimeoutError) as error:
                    raise NotYet(repr(error)) from error

            await wait_for(f"200 from {process.name} at {url} (log: {process.log_path})", probe, timeout_seconds=READY_SECONDS)

    async def _wait_until_ready(self, api_server: ManagedProcess, api: ApiClient) -> None:
        await self._wait_until_ok(api_server, f"{self._server}/readyz")

        async def probe() -> None:
            api_server.check_running()
            try:
                await api.fetch("/api/v1/namespaces/default")
            except ApiError as error:
                if error.status != 404:
                    raise
                raise NotYet("no namespace default") from error

        await wait_for("namespace default", probe, timeout_seconds=READY_SECONDS)

    async def _wait_until_metrics_api_available(self, metrics_server: ManagedProcess, api: ApiClient) -> None:
        async def probe() -> None:
            metrics_server.check_running()
            conditions = (await api.fetch(APISERVICE_PATH)).get("status", {}).get("conditions", [])
            available = [condition for condition in conditions if condition["type"] == "Available"]
            if not available or available[0]["status"] != "True":
                raise NotYet(f"conditions {conditions}")

        await wait_for("metrics API", probe, timeout_seconds=READY_SECONDS)
