"""Builders for tests: small objects with sound defaults, so that a test names only what it is about."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from load_watcher.samples import SampleBatch
from trimaran_client import LoadSnapshot, Node, Pod
from trimaran_client.wire import Data, Metric, NodeMetrics, ResourceQuantities, WatcherMetrics, WireWindow

NOW = 1_700_000_000.0
_UIDS = itertools.count()


def make_pod(*, cpu_request: object = None, cpu_limit: object = None, node_name: str = "", scheduled_at: str = "", **manifest: Any) -> Pod:
    """Make a pod of one container; ``scheduled_at`` as the API prints a time."""
    resources: dict[str, Any] = {}
    if cpu_request is not None:
        resources["requests"] = {"cpu": cpu_request}
    if cpu_limit is not None:
        resources["limits"] = {"cpu": cpu_limit}
    spec: dict[str, Any] = {"containers": [{"name": "c", "resources": resources}], "nodeName": node_name} | manifest.pop("spec", {})
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": scheduled_at}
    return Pod.from_manifest(
        {
            "metadata": {"name": "p", "uid": f"uid-{next(_UIDS)}"},
            "spec": spec,
            "status": {"conditions": [condition] if scheduled_at else []},
        }
        | manifest
    )


def make_node(name: str, cpu: object = "8", allocatable_cpu: object = None) -> Node:
    """Make a node; it offers all that it has unless said otherwise."""
    offered = cpu if allocatable_cpu is None else allocatable_cpu
    return Node.from_manifest({"metadata": {"name": name}, "status": {"capacity": {"cpu": cpu}, "allocatable": {"cpu": offered}}})


def make_snapshot(
    cpu_percent: Mapping[str, float | None],
    *,
    sampled_at: float = NOW,
    capacity_cpu: str | None = "8",
    allocatable_cpu: str | None = "8",
) -> LoadSnapshot:
    """Make a snapshot: node name → average CPU utilization, ``None`` for a node without metrics."""
    nodes: dict[str, NodeMetrics | None] = {
        name: NodeMetrics(
            metrics=[] if value is None else [Metric(type="CPU", operator="AVG", rollup="15m", value=value)],
            capacity=ResourceQuantities(cpu=capacity_cpu),
            allocatable=ResourceQuantities(cpu=allocatable_cpu),
        )
        for name, value in cpu_percent.items()
    }
    window = WireWindow(duration="15m", start=sampled_at - 900, end=sampled_at)
    return LoadSnapshot.from_metrics(WatcherMetrics(timestamp=sampled_at, window=window, source="test", data=Data(node_metrics_map=nodes)))


def make_batch(
    cpu_percent: Mapping[str, float | None],
    *,
    memory_percent: Mapping[str, float | None] | None = None,
    sampled_at: float | Mapping[str, float] = NOW,
    **fields: Any,
) -> SampleBatch:
    """Make a batch of the newest values: node name → CPU utilization, ``None`` for a node without it; *fields* go to the batch as given."""
    nodes = tuple(cpu_percent)
    columns = {"CPU": cpu_percent} | ({} if memory_percent is None else {"Memory": memory_percent})
    # numpy reads None as NaN when it makes floats.
    latest = {kind: np.array([values.get(node) for node in nodes], dtype=np.float64) for kind, values in columns.items()}
    times = np.array([sampled_at[node] if isinstance(sampled_at, Mapping) else sampled_at for node in nodes], dtype=np.float64)
    has_value = np.any([~np.isnan(values) for values in latest.values()], axis=0)
    arguments: dict[str, Any] = {"source": "test", "nodes": nodes, "sampled_at": np.where(has_value, times, np.nan), "latest": latest}
    return SampleBatch(**arguments | fields)
