"""Small groups of nodes with chosen loads, one group for each question, all in one cluster and warmed up together."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from tests.e2e.api import ApiClient, JsonObject
from tests.e2e.cluster import Cluster
from tests.e2e.extender import SCHEDULER_NAME
from tests.e2e.workloads import NODES_PATH, PODS_PATH, create_nodes, create_pods, make_node, make_pod, wait_until_bound

# The label of a node, and of the pod that loads it, that says which layout it is of; its pods are kept to these nodes by it.
LAYOUT: Final = "layout"
NODE_MILLICORES: Final = 8000
POD_REQUEST: Final = "160m"
POD_PERCENT: Final = 100 * 1.5 * 160 / NODE_MILLICORES  # of a node, as TargetLoadPacking predicts it at its defaults
LOAD_AGE: Final = timedelta(hours=1)

_serials = itertools.count()


@dataclass(frozen=True, kw_only=True)
class Machine:
    """
    A node of 8 cores.

    Attributes:
        load_percent: CPU usage of the pod on it; ``None`` = metrics-server finds nothing at its kubelet.
        requested: What that pod requests, as quantities.
        is_cordoned: Whether no pod may come.
    """

    load_percent: float | None
    requested: Mapping[str, str] = field(default_factory=dict)
    is_cordoned: bool = False


Layout = Mapping[str, Machine]
"""Node name → node; each name is in one layout only."""


async def create_layouts(cluster: Cluster, layouts: Mapping[str, Layout]) -> None:
    """Create the nodes of all layouts and what loads them, pods that seem to be there for long: what is new counts until it is measured."""
    machines = [(layout, name, machine) for layout, nodes in layouts.items() for name, machine in nodes.items()]
    await create_nodes(cluster.api, itertools.starmap(_make_node, machines))
    await create_pods(cluster.api, itertools.starmap(_make_load, machines))
    for _, name, _ in machines:
        await cluster.api.apply(f"{PODS_PATH}/load-{name}/status", _make_status(name))


async def wait_for_layouts(cluster: Cluster, layouts: Mapping[str, Layout]) -> None:
    """Wait until metrics-server reports every load of *layouts*."""
    loads = {name: machine.load_percent for nodes in layouts.values() for name, machine in nodes.items()}
    await cluster.wait_for_load({name: percent / 100 * NODE_MILLICORES for name, percent in loads.items() if percent is not None})


async def delete_layouts(cluster: Cluster) -> None:
    """Delete all nodes of layouts with their pods."""
    for path in (PODS_PATH, NODES_PATH):
        await cluster.api.delete(path, labelSelector=LAYOUT)


async def place(api: ApiClient, layout: str, *, scheduler_name: str = SCHEDULER_NAME, bound_seconds: float = 15) -> tuple[str, str]:
    """Create a pod that may go to any node of a layout, wait until it is bound, and return pod and node."""
    name = f"pod-{layout}-{next(_serials)}"
    pod = make_pod(name, cpu_request=POD_REQUEST, scheduler_name=scheduler_name)
    pod["metadata"]["labels"][LAYOUT] = layout
    pod["spec"]["nodeSelector"] = {LAYOUT: layout}
    await api.create(PODS_PATH, pod)
    return name, (await wait_until_bound(api, name, timeout_seconds=bound_seconds))[name]


def _make_node(layout: str, name: str, machine: Machine) -> JsonObject:
    node = make_node(name, cpu=f"{NODE_MILLICORES}m", has_metrics=machine.load_percent is not None)
    node["metadata"]["labels"][LAYOUT] = layout
    node["spec"] = {"unschedulable": machine.is_cordoned}
    return node


def _make_load(layout: str, name: str, machine: Machine) -> JsonObject:
    # Not measured, it has none; and a node without any memory in use is none to metrics-server.
    millicores = round((machine.load_percent or 0) / 100 * NODE_MILLICORES)
    usage = {"kwok.x-k8s.io/usage-cpu": f"{millicores}m", "kwok.x-k8s.io/usage-memory": "1Gi"}
    pod = make_pod(f"load-{name}", annotations=usage)
    pod["metadata"]["labels"][LAYOUT] = layout
    pod["spec"]["nodeName"] = name
    pod["spec"]["containers"][0]["resources"] = {"requests": dict(machine.requested)}
    return pod


def _make_status(name: str) -> JsonObject:
    scheduled_at = (datetime.now(UTC) - LOAD_AGE).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = {"conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": scheduled_at}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"load-{name}"}, "status": status}
