"""The load watcher and TargetLoadPacking on a real cluster: what metrics-server measures is served, and scored by the formula."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.api import JsonObject
from tests.e2e.cluster import Cluster
from tests.e2e.nodes import LOADED_NODES
from tests.e2e.service import Service, on_cluster, run_command, running_load_watcher

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180, func_only=True)]

TOLERANCE_POINTS = 2.0
RESOURCES = {"cpu": "8", "memory": "32Gi"}

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: pending}
spec:
  containers:
  - {name: limited, image: any, resources: {limits: {cpu: 500m}, requests: {cpu: 100m}}}
  - {name: requesting, image: any, resources: {requests: {cpu: 400m}}}
  - {name: silent, image: any}
"""
POD_MILLICORES = 500 + 600 + 1000  # the limit; 400 x 1.5; the default request


def get_values(entry: JsonObject) -> dict[tuple[str, str], float]:
    """Return a served node's values: (type, operator) → percent."""
    return {(metric["type"], metric["operator"]): metric["value"] for metric in entry["metrics"]}


def compute_score(cpu_percent: float) -> int:
    """TargetLoadPacking at its defaults (target 40) for POD on a node of 8 cores, by the plain formula of KEP 61."""
    predicted = 100 * (cpu_percent / 100 * 8000 + POD_MILLICORES) / 8000
    if predicted > 100:
        return 0
    if predicted > 40:
        return math.floor(40 * (100 - predicted) / (100 - 40) + 0.5)
    return math.floor((100 - 40) * predicted / 40 + 40 + 0.5)


async def test_each_node_is_served_with_its_load(service: Service) -> None:
    reply = await service.fetch()
    assert reply["source"] == "KubernetesMetricsServer"
    for node in LOADED_NODES:
        entry = reply["data"]["NodeMetricsMap"][node.name]
        values = get_values(entry)
        assert values["CPU", "Latest"] == pytest.approx(node.cpu_percent, abs=TOLERANCE_POINTS)
        assert values["Memory", "Latest"] == pytest.approx(node.memory_percent, abs=TOLERANCE_POINTS)
        assert (entry["capacity"], entry["allocatable"]) == (RESOURCES, RESOURCES)
        assert entry["status"] == "ok"
        assert 0 <= time.time() - entry["sampledAt"] < 60


async def test_node_appears_and_goes(loaded_cluster: Cluster, service: Service) -> None:
    """An added node is served once metrics-server has it, and a deleted one is neither listed nor found."""
    await loaded_cluster.create_node("passing")
    await loaded_cluster.set_load("passing", cpu_millicores=3200, memory_mebibytes=8192)
    await loaded_cluster.wait_for_load({"passing": 3200})
    nodes = await service.wait_for_nodes("new node", lambda nodes: nodes.get("passing", {}).get("status") == "ok")
    assert get_values(nodes["passing"])["CPU", "Latest"] == pytest.approx(40, abs=TOLERANCE_POINTS)
    assert get_values(nodes["passing"])["Memory", "Latest"] == pytest.approx(25, abs=TOLERANCE_POINTS)
    assert await service.fetch_status(host="passing") == 200

    await loaded_cluster.delete_node("passing")
    await service.wait_for_nodes("end of the deleted node", lambda nodes: "passing" not in nodes)
    assert await service.fetch_status(host="passing") == 404


async def test_node_without_metrics_is_served_as_such(loaded_cluster: Cluster, service: Service) -> None:
    """A node that metrics-server cannot measure has no number, and the others keep theirs."""
    await loaded_cluster.create_node("unmeasured", has_metrics=False)
    try:
        nodes = await service.wait_for_nodes("node without metrics", lambda nodes: "unmeasured" in nodes)
    finally:
        await loaded_cluster.delete_node("unmeasured")
    assert nodes["unmeasured"]["metrics"] == []
    assert nodes["unmeasured"]["status"] == "no_metrics"
    assert nodes["unmeasured"]["capacity"] == RESOURCES
    assert all(nodes[node.name]["status"] == "ok" for node in LOADED_NODES)
    await service.wait_for_nodes("end of the deleted node", lambda nodes: "unmeasured" not in nodes)


async def test_report_31_windows_come_from_instants(service: Service) -> None:
    """Metrics Server gives one instant; with two samples of it the service has averages and deviations over five minutes."""
    names = [node.name for node in LOADED_NODES]
    nodes = await service.wait_for_nodes(
        "averages",
        lambda nodes: all(("CPU", "AVG") in get_values(nodes.get(name, {"metrics": []})) for name in names),
        timeout_seconds=60,  # two scrapes of metrics-server, which are 10 s apart
    )
    for node in LOADED_NODES:
        metrics = {(metric["type"], metric["operator"]): metric for metric in nodes[node.name]["metrics"]}
        assert metrics["CPU", "AVG"]["value"] == pytest.approx(node.cpu_percent, abs=TOLERANCE_POINTS)
        assert metrics["CPU", "STD"]["value"] == pytest.approx(0, abs=TOLERANCE_POINTS)
        assert {metrics[key]["rollup"] for key in (("CPU", "AVG"), ("CPU", "STD"))} <= {"5m", "10m", "15m"}
        assert metrics["CPU", "Latest"]["rollup"] == ""


async def test_score_orders_nodes_by_the_formula(service: Service, tmp_path: Path) -> None:
    pod = tmp_path / "pod.yaml"
    pod.write_text(POD)
    arguments = ("score", "--pod", pod, "--watcher", service.url, "--output", "json")
    reply, output = await service.observe_stable(lambda: run_command(sys.executable, "-m", "trimaran_client", *arguments))
    nodes = reply["data"]["NodeMetricsMap"]
    expected = {node.name: compute_score(get_values(nodes[node.name])["CPU", "Latest"]) for node in LOADED_NODES}
    assert list(expected.values()) == sorted(set(expected.values()), reverse=True)  # else the order would show nothing
    scored = json.loads(output)
    assert [(row["node"], row["score"]) for row in scored["nodes"]] == list(expected.items())


async def test_sigterm_ends_the_service_cleanly(loaded_cluster: Cluster, kubeconfig: Path) -> None:
    async with running_load_watcher(on_cluster(kubeconfig), folder=loaded_cluster.folder) as service:
        assert await service.process.stop() == 0
