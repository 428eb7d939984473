"""A real, unmodified kube-scheduler as a process, and what its own metrics say."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.e2e.api import ApiClient, JsonObject
from tests.e2e.binaries import Binaries
from tests.e2e.cluster import Cluster
from tests.e2e.metrics import Metrics
from tests.e2e.probes import wait_until_ok
from tests.e2e.processes import ManagedProcess, choose_free_ports, running_process
from tests.e2e.waiting import POLL_SECONDS, NotYet, wait_for

CALLS_PER_SECOND = 5000  # its default of 50 would be what a burst measures
COUNTED_SECONDS = 15.0


class SchedulerMetrics(Metrics):
    """The scheduler's own metrics at one instant."""

    @property
    def cycle_seconds(self) -> float:
        """Mean time of the scheduling algorithm for a pod: filters and scores, extenders included; not the binding."""
        return self.mean("scheduler_scheduling_algorithm_duration_seconds")

    @property
    def cpu_seconds(self) -> float:
        """CPU that the process has used since its start."""
        return self.total("process_cpu_seconds_total")

    @property
    def resident_bytes(self) -> float:
        """Memory that the process holds."""
        return self.total("process_resident_memory_bytes")

    @property
    def scheduled_count(self) -> int:
        """Attempts that placed a pod."""
        return round(self.total("scheduler_schedule_attempts_total", result="scheduled"))


@dataclass(frozen=True)
class Scheduler:
    """
    A running kube-scheduler.

    Attributes:
        process: The process; what it said is in its log.
        api: Calls to its own server as administrator.
    """

    process: ManagedProcess
    api: ApiClient

    async def fetch_metrics(self) -> SchedulerMetrics:
        """Return its metrics as they are now."""
        return SchedulerMetrics.parse(await self.api.fetch_text("/metrics"))

    async def wait_for_scheduled(
        self, count: int, *, timeout_seconds: float = COUNTED_SECONDS, poll_seconds: float = POLL_SECONDS
    ) -> SchedulerMetrics:
        """Wait until *count* pods are counted as placed, which is a moment after each is bound, and return the metrics of then."""

        async def probe() -> SchedulerMetrics:
            self.process.check_running()
            metrics = await self.fetch_metrics()
            if metrics.scheduled_count < count:
                raise NotYet(f"{metrics.scheduled_count} pods")
            return metrics

        what = f"count of {count} placed pods from {self.process.name}"
        return await wait_for(what, probe, timeout_seconds=timeout_seconds, poll_seconds=poll_seconds)


@asynccontextmanager
async def running_scheduler(
    cluster: Cluster,
    binaries: Binaries,
    config: Mapping[str, object] | str = "{}",
    *,
    kubeconfig: Path | None = None,
    verbosity: int = 2,
    settings: Mapping[str, str] | None = None,
) -> AsyncIterator[Scheduler]:
    """
    Run a kube-scheduler, from the time when it is healthy to the end of the context.

    Args:
        cluster: Whose pods it places.
        binaries: Where it is.
        config: A KubeSchedulerConfiguration, as an object or as YAML; by default the stock one. Where it says nothing of them, there is no
            leader election and next to no limit on its calls to the API server.
        kubeconfig: Its identity (default: the administrator); in the configuration it is written over.
        verbosity: Log level; failures of an extender's prioritize show at 5 and more.
        settings: Variables of its environment.
    """
    (port,) = choose_free_ports(1)
    name = f"kube-scheduler-{port}"
    identity = kubeconfig or cluster.admin_kubeconfig
    path = cluster.folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(_complete(yaml.safe_load(config) if isinstance(config, str) else config, identity)))
    serving = cluster.authority.issue_server(name, "127.0.0.1")
    command: list[str | Path] = [
        binaries.path("kube-scheduler"),
        f"--config={path}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--tls-cert-file={serving.certificate}",
        f"--tls-private-key-file={serving.key}",
        f"--client-ca-file={cluster.authority.certificate}",  # it would look this up too, some time after its start
        f"--authentication-kubeconfig={identity}",
        f"--authorization-kubeconfig={identity}",
        f"--v={verbosity}",
    ]
    url = f"https://127.0.0.1:{port}"
    context = cluster.authority.make_client_context(cluster.admin)
    async with running_process(name, command, folder=cluster.folder, settings=settings) as process:
        await wait_until_ok(process, f"{url}/healthz", context=context)
        api = ApiClient(url, context)
        try:
            yield Scheduler(process, api)
        finally:
            await api.close()


def _complete(config: Mapping[str, object], kubeconfig: Path) -> JsonObject:
    given = dict(config)
    connection = given.pop("clientConnection", {})
    assert isinstance(connection, dict)
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"qps": CALLS_PER_SECOND, "burst": CALLS_PER_SECOND, **connection, "kubeconfig": str(kubeconfig)},
        **given,
    }
