"""Our Prometheus provider against real Prometheus and node_exporter, and against a page that holds what a large cluster would."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import yaml

from load_watcher.providers.nodes import ClusterNodes
from load_watcher.providers.prometheus import PrometheusProvider
from load_watcher.providers.prometheus_http import TlsSettings
from load_watcher.providers.prometheus_options import PrometheusOptions
from load_watcher.samples import FIFTEEN_MINUTES, SampleBatch
from tests.e2e.prometheus import (
    PASSWORD,
    USER,
    Access,
    MachineRecorder,
    Prometheus,
    running_node_exporter,
    running_prometheus,
    serving_page,
)
from tests.e2e.service import running_load_watcher
from tests.e2e.waiting import NotYet, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]

# The spans of rates: the mixin's five minutes would make each test last as long.
SPAN_SECONDS = 20
TOLERANCE_POINTS = 5.0
# As in the node mixin, but for the span and the job, and divided by all time so that a span need not be filled.
CPU_RULE = (
    f'1 - sum without (cpu, mode) (rate(node_cpu_seconds_total{{mode=~"idle|iowait|steal"}}[{SPAN_SECONDS}s]))'
    f" / sum without (cpu, mode) (rate(node_cpu_seconds_total[{SPAN_SECONDS}s]))"
)
MEMORY_RULE = "1 - node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes"
MIXIN = {
    "instance:node_cpu_utilisation:rate5m": CPU_RULE,
    "instance:node_memory_utilisation:ratio": MEMORY_RULE,
    "instance:node_network_receive_bytes_excluding_lo:rate5m": (
        f'sum without (device) (rate(node_network_receive_bytes_total{{device!="lo"}}[{SPAN_SECONDS}s]))'
    ),
}
RENAMED = {"our:cpu:fraction": CPU_RULE, "our:memory:percent": f"100 * ({MEMORY_RULE})"}
RENAMED_CATALOGUE = [
    {"key": "cpu", "type": "CPU", "unit": "ratio", "expressions": ["instance:node_cpu_utilisation:rate5m", "our:cpu:fraction"]},
    {"key": "memory", "type": "Memory", "unit": "percent", "expressions": ["our:memory:percent"]},
]


@dataclass(frozen=True)
class Machine:
    """The machine that the tests run on, as three Prometheus see it, and as psutil does."""

    recorder: MachineRecorder
    plain: Prometheus
    mixin: Prometheus
    renamed: Prometheus


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def machine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Machine]:
    folder = tmp_path_factory.mktemp("prometheus")
    async with AsyncExitStack() as stack:
        recorder = MachineRecorder()
        recording = asyncio.create_task(recorder.run())
        stack.callback(recording.cancel)
        exporter = await stack.enter_async_context(running_node_exporter(folder))
        plain = await stack.enter_async_context(running_prometheus(folder / "plain", {exporter: ""}))
        mixin = await stack.enter_async_context(
            running_prometheus(folder / "mixin", {exporter: "this-machine"}, rules=MIXIN, access=Access("/prom", is_secured=True))
        )
        renamed = await stack.enter_async_context(running_prometheus(folder / "renamed", {exporter: "this-machine"}, rules=RENAMED))
        for prometheus in (plain, mixin, renamed):
            await prometheus.wait_for(f"count_over_time(node_memory_MemTotal_bytes[{SPAN_SECONDS + 5}s]) > {SPAN_SECONDS + 1}")
        yield Machine(recorder, plain, mixin, renamed)


@asynccontextmanager
async def entered(prometheus: Prometheus, folder: Path, metrics: list[dict[str, Any]] | None = None) -> AsyncIterator[PrometheusProvider]:
    """Enter a provider for this Prometheus, without a cluster, with spans that fit the tests."""
    catalogue = folder / "catalogue.yaml"
    catalogue.write_text(yaml.safe_dump({"rate_window": f"{SPAN_SECONDS}s", "subquery_step": "5s", "metrics": metrics or []}))
    is_secured = prometheus.ca_file is not None
    options = PrometheusOptions(
        f"{prometheus.url}/",
        username=USER if is_secured else "",
        password=PASSWORD,
        tls=TlsSettings(ca_file=prometheus.ca_file),
        catalogue_path=catalogue,
        timeout_seconds=30,
    )
    async with PrometheusProvider(options, ClusterNodes(folder / "no-kubeconfig")) as provider:
        yield provider


def newest(batch: SampleBatch, metric_type: str) -> float:
    (value,) = batch.latest[metric_type].tolist()
    return float(value)


def check_agrees(batch: SampleBatch, recorder: MachineRecorder, queried_at: float) -> None:
    sampled_at = float(batch.sampled_at[0])
    assert queried_at - 10 < sampled_at <= time.time()
    assert newest(batch, "CPU") == pytest.approx(recorder.cpu_percent(sampled_at - SPAN_SECONDS, sampled_at), abs=TOLERANCE_POINTS)
    assert newest(batch, "Memory") == pytest.approx(recorder.memory_percent(sampled_at), abs=TOLERANCE_POINTS)
    held = {(a.operator, str(a.window)) for a in batch.aggregates if a.metric_type == "CPU" and not np.isnan(a.values).any()}
    assert held == {(operator, window) for operator in ("AVG", "STD") for window in ("5m", "10m", "15m")}


async def fetch_counted(provider: PrometheusProvider) -> SampleBatch:
    """Fetch once to find the expressions, and once more in at most three requests."""
    await provider.fetch(FIFTEEN_MINUTES)
    before = provider.requests_sent
    batch = await provider.fetch(FIFTEEN_MINUTES)
    assert provider.requests_sent - before <= 3
    return batch


async def test_no_recording_rules(machine: Machine, tmp_path: Path) -> None:
    async with entered(machine.plain, tmp_path) as provider:
        await provider.check_health()
        queried_at = time.time()
        batch = await fetch_counted(provider)
        chosen = {finding.subject: finding.detail for finding in provider.findings()}
    assert batch.nodes == ("127.0.0.1",)
    check_agrees(batch, machine.recorder, queried_at)
    assert newest(batch, "Bandwidth") >= 0
    assert 0 <= newest(batch, "Storage") <= 110
    assert "node_cpu_seconds_total" in chosen["metric cpu"]
    assert "named by an address" in chosen["metric cpu"]


async def test_the_rules_of_the_mixin_behind_a_prefix_tls_and_a_password(machine: Machine, tmp_path: Path) -> None:
    async with entered(machine.mixin, tmp_path) as provider:
        await provider.check_health()
        queried_at = time.time()
        batch = await fetch_counted(provider)
        chosen = {finding.subject: finding.detail for finding in provider.findings()}
    assert batch.nodes == ("this-machine",)
    check_agrees(batch, machine.recorder, queried_at)
    assert chosen["metric cpu"] == "1 nodes from instance:node_cpu_utilisation:rate5m (ratio)"
    assert chosen["metric memory"] == "1 nodes from instance:node_memory_utilisation:ratio (ratio)"
    # Those that have no rule here are found in the raw series.
    assert "node_network_transmit_bytes_total" in chosen["metric network_transmit"]


async def test_report_8_renamed_rules_by_a_catalogue(machine: Machine, tmp_path: Path) -> None:
    async with entered(machine.renamed, tmp_path, RENAMED_CATALOGUE) as provider:
        queried_at = time.time()
        batch = await fetch_counted(provider)
        chosen = {finding.subject: finding.detail for finding in provider.findings()}
    check_agrees(batch, machine.recorder, queried_at)
    assert chosen["metric cpu"] == "1 nodes from our:cpu:fraction (ratio)"


NODES = 5000


def write_page() -> str:
    """Write what a large cluster would: two replicas, values that are none, a machine that is no node, and meters of energy."""
    lines = []
    for number in range(NODES):
        node = f'instance="node-{number:04}"'
        for replica, cpu in (("a", 0.25), ("b", number / NODES)):
            lines.append(f'instance:node_cpu_utilisation:rate5m{{{node},replica="{replica}"}} {cpu}')
        memory = {0: "NaN", 1: "+Inf", 2: "-0.5"}.get(number, "0.5")
        lines.append(f"instance:node_memory_utilisation:ratio{{{node}}} {memory}")
    joules = 10 * time.time()
    for labels in ('exported_instance="node-0001",instance="10.0.0.1:9102"', 'instance="node-0002"'):
        lines += [f'kepler_node_package_joules_total{{{labels},mode="{mode}"}} {joules / 2}' for mode in ("idle", "dynamic")]
    return "\n".join(lines) + "\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def large(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Prometheus]:
    async with (
        serving_page(write_page) as page,
        running_prometheus(tmp_path_factory.mktemp("large"), {page: ""}) as prometheus,
    ):
        await prometheus.wait_for(
            f"count_over_time(kepler_node_package_joules_total[{SPAN_SECONDS + 5}s]) > {SPAN_SECONDS + 1}", timeout_seconds=90
        )
        yield prometheus


async def test_report_12_16_5000_nodes_in_three_requests(large: Prometheus, tmp_path: Path) -> None:
    async with entered(large, tmp_path) as provider:
        batch = await fetch_counted(provider)
    rows = {node: row for row, node in enumerate(batch.nodes)}
    assert len(rows) == NODES
    expected = [100 * max(0.25, number / NODES) for number in range(NODES)]
    np.testing.assert_allclose([batch.latest["CPU"][rows[f"node-{number:04}"]] for number in range(NODES)], expected)
    assert np.isnan(batch.latest["Memory"][[rows["node-0000"], rows["node-0001"]]]).all()
    assert batch.latest["Memory"][rows["node-0002"]] == -50.0  # for the quality rules to refuse and count
    for node in ("node-0001", "node-0002"):
        assert batch.latest["Energy"][rows[node]] == pytest.approx(10.0, abs=1.0)
    assert batch.units["Energy"] == "watts"


async def test_report_63_the_service_answers_while_prometheus_hangs(machine: Machine, tmp_path: Path) -> None:
    prometheus = machine.plain
    settings = {"METRICS_PROVIDER_NAME": "Prometheus", "METRICS_PROVIDER_ADDRESS": prometheus.url, "KUBE_CONFIG": str(Path(__file__))}
    async with running_load_watcher(settings, folder=tmp_path) as service:
        (node,) = (await service.fetch_nodes()).values()
        types = {(metric["type"], metric["operator"], metric.get("unit")) for metric in node["metrics"]}
        assert types >= {
            ("CPU", "Latest", None),
            ("CPU", "AVG", None),
            ("Memory", "Latest", None),
            ("Bandwidth", "AVG", "bytes_per_second"),
        }
        windows = Counter((metric["name"], metric["type"], metric["operator"]) for metric in node["metrics"])
        assert set(windows.values()) == {1}
        prometheus.process.send_signal(signal.SIGSTOP)
        try:

            async def probe() -> None:
                assert await service.fetch_nodes()
                if "refresh failed" not in service.process.log:
                    raise NotYet("every refresh so far succeeded")

            await wait_for("refresh that fails", probe, timeout_seconds=30)
            assert await service.fetch_nodes()
        finally:
            prometheus.process.send_signal(signal.SIGCONT)
