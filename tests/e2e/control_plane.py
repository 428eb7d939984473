"""
A real Kubernetes control plane from plain processes on loopback: etcd, API server, metrics-server and KWOK.

KWOK plays the kubelets: it keeps the nodes ready, the pods running, and serves each node's usage to metrics-server as the sum of its pods'
usage annotations, so a test chooses a node's load by one pod. There is no controller manager, and no scheduler but those that a test starts
(scheduler.py): nothing moves by itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from tests.e2e.api import ApiClient, JsonObject
from tests.e2e.binaries import Binaries
from tests.e2e.cluster import METRICS_RESOLUTION_SECONDS, Cluster
from tests.e2e.credentials import Authority, write_kubeconfig
from tests.e2e.probes import READY_SECONDS, wait_until_ok
from tests.e2e.processes import ManagedProcess, choose_free_ports, running_process
from tests.e2e.waiting import NotYet, wait_for
from tests.e2e.workloads import KWOK_ANNOTATION

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


@asynccontextmanager
async def running_cluster(binaries: Binaries, folder: Path, *, with_kwok: bool = True, with_metrics: bool = True) -> AsyncIterator[Cluster]:
    """
    Start a control plane with its files in *folder*, and stop all of it at the end.

    Args:
        binaries: What runs.
        folder: Of its own.
        with_kwok: Whether nodes get kubelets; without, they have to be made ready (``make_node(..., has_kubelet=False)``).
        with_metrics: Whether metrics-server runs.
    """
    async with AsyncExitStack() as stack:
        start = _Start(binaries, folder, stack)
        cluster = await start.start_api()
        if with_kwok:
            await start.start_kwok()
        if with_metrics:
            cluster = replace(cluster, metrics_server=await start.start_metrics_server(cluster.api))
        yield cluster


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
        self._context = self._authority.make_client_context(self._admin)
        self._server = f"https://127.0.0.1:{self._api_port}"
        self._kubeconfig = write_kubeconfig(
            folder / "admin.kubeconfig", server=self._server, authority=self._authority, identity=self._admin
        )

    async def start_api(self) -> Cluster:
        api = ApiClient(self._server, self._context)
        self._stack.push_async_callback(api.close)
        etcd_url = f"http://127.0.0.1:{self._etcd_port}"
        etcd = await self._run("etcd", *self._etcd_flags(etcd_url))
        await wait_until_ok(etcd, f"{etcd_url}/health", context=self._context)
        # A heap of four times what lives makes a third more pods a second.
        api_server = await self._run("kube-apiserver", *self._api_server_flags(etcd_url), settings={"GOGC": "400"})
        cluster = Cluster(
            api=api,
            server=self._server,
            authority=self._authority,
            admin=self._admin,
            admin_kubeconfig=self._kubeconfig,
            api_server=api_server,
            etcd=etcd,
            etcd_url=etcd_url,
            folder=self._folder,
        )
        await cluster.wait_until_ready()
        return cluster

    async def start_kwok(self) -> None:
        kwok = await self._run("kwok", *self._kwok_flags())
        await wait_until_ok(kwok, f"https://127.0.0.1:{self._kwok_port}/healthz", context=self._context)

    async def start_metrics_server(self, api: ApiClient) -> ManagedProcess:
        metrics_server = await self._run("metrics-server", *self._metrics_server_flags())
        await self._register_metrics_api(api)
        await self._wait_until_metrics_api_available(metrics_server, api)
        return metrics_server

    async def _run(self, program: str, *flags: str, settings: Mapping[str, str] | None = None) -> ManagedProcess:
        command: list[str | Path] = [self._binaries.path(program), *flags]
        return await self._stack.enter_async_context(running_process(program, command, folder=self._folder, settings=settings))

    def _etcd_flags(self, url: str) -> list[str]:
        return [
            f"--data-dir={self._folder / 'etcd'}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            "--listen-peer-urls=http://127.0.0.1:0",
            "--unsafe-no-fsync",
        ]

    def _api_server_flags(self, etcd_url: str) -> list[str]:
        serving = self._authority.issue_server("kube-apiserver", "127.0.0.1", "localhost")
        proxy = self._front_proxy.issue_client("front-proxy-client")
        signing = self._authority.issue_client("service-accounts")  # only its key is used
        return [
            f"--etcd-servers={etcd_url}",
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
            "--delete-collection-workers=16",
            "--shutdown-watch-termination-grace-period=1s",
        ]

    def _kwok_flags(self) -> list[str]:
        config = self._folder / "kwok.yaml"
        kustomize = self._binaries.kwok_kustomize
        config.write_text("\n---\n".join((kustomize / manifest).read_text() for manifest in _KWOK_MANIFESTS))
        serving = self._authority.issue_server("kwok", "127.0.0.1")
        return [
            f"--config={config}",
            f"--kubeconfig={self._kubeconfig}",
            "--manage-all-nodes=false",
            f"--manage-nodes-with-annotation-selector={KWOK_ANNOTATION}=fake",
            "--node-ip=127.0.0.1",
            f"--node-port={self._kwok_port}",
            f"--server-address=127.0.0.1:{self._kwok_port}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
        ]

    def _metrics_server_flags(self) -> list[str]:
        serving = self._authority.issue_server("metrics-server", "localhost", "127.0.0.1")
        return [
            "--bind-address=127.0.0.1",
            f"--secure-port={self._metrics_port}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--kubeconfig={self._kubeconfig}",
            f"--authentication-kubeconfig={self._kubeconfig}",
            f"--authorization-kubeconfig={self._kubeconfig}",
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

    async def _wait_until_metrics_api_available(self, metrics_server: ManagedProcess, api: ApiClient) -> None:
        async def probe() -> None:
            metrics_server.check_running()
            conditions = (await api.fetch(APISERVICE_PATH)).get("status", {}).get("conditions", [])
            available = [condition for condition in conditions if condition["type"] == "Available"]
            if not available or available[0]["status"] != "True":
                raise NotYet(f"conditions {conditions}")

        await wait_for("metrics API", probe, timeout_seconds=READY_SECONDS)
