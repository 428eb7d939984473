"""Nodes and pods by the thousand: make them, follow where the pods go, remove them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing

import aiohttp

from tests.e2e.api import ApiClient, ApiError, JsonObject
from tests.e2e.waiting import POLL_SECONDS, NotYet, wait_for

NODES_PATH = "/api/v1/nodes"
NAMESPACE = "default"
PODS_PATH = f"/api/v1/namespaces/{NAMESPACE}/pods"
EVENTS_PATH = f"/api/v1/namespaces/{NAMESPACE}/events"
BOUND_SECONDS = 60.0
EVENT_SECONDS = 15.0

# What KWOK looks after; other nodes and their pods cost it nothing.
KWOK_ANNOTATION = "kwok.x-k8s.io/node"


def make_node(name: str, *, cpu: str = "8", memory: str = "32Gi", has_kubelet: bool = True, has_metrics: bool = True) -> JsonObject:
    """
    Make the manifest of a node without load.

    Args:
        name: Its name, and its host name.
        cpu: Its capacity, all of which is allocatable.
        memory: Likewise.
        has_kubelet: Whether KWOK plays its kubelet; otherwise the node says itself that it is ready, and its pods stay pending when bound.
        has_metrics: Whether metrics-server finds something at its kubelet.
    """
    annotations = {KWOK_ANNOTATION: "fake"} if has_kubelet else {}
    if has_kubelet and has_metrics:
        annotations["metrics.k8s.io/resource-metrics-path"] = f"/metrics/nodes/{name}/metrics/resource"
    resources = {"cpu": cpu, "memory": memory, "pods": "110"}
    status: JsonObject = {"capacity": resources, "allocatable": resources}
    if not has_kubelet:
        status["conditions"] = [{"type": "Ready", "status": "True", "reason": "Created"}]
    metadata = {"name": name, "annotations": annotations, "labels": {"kubernetes.io/hostname": name}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}


def make_pod(
    name: str,
    *,
    app: str = "",
    cpu_request: str = "100m",
    scheduler_name: str = "default-scheduler",
    annotations: Mapping[str, str] | None = None,
) -> JsonObject:
    """Make the manifest of a pod of one container; *app* is its label ``app`` (default: its name)."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": app or name}, "annotations": dict(annotations or {})},
        "spec": {
            "schedulerName": scheduler_name,
            "containers": [{"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu_request}}}],
        },
    }


async def create_nodes(api: ApiClient, manifests: Iterable[JsonObject]) -> None:
    """Create many nodes."""
    await api.create_many(NODES_PATH, manifests)


async def create_pods(api: ApiClient, manifests: Iterable[JsonObject]) -> None:
    """Create many pods."""
    await api.create_many(PODS_PATH, manifests)


async def delete_pods(api: ApiClient, app: str) -> None:
    """Delete all pods with the label ``app``; they are gone when this returns."""
    await api.delete(PODS_PATH, labelSelector=f"app={app}")


async def cordon(api: ApiClient, node: str, *, is_unschedulable: bool = True) -> None:
    """Keep new pods off *node*, or let them come again."""
    manifest = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}, "spec": {"unschedulable": is_unschedulable}}
    await api.apply(f"{NODES_PATH}/{node}", manifest)


async def watch_bindings(api: ApiClient, app: str) -> AsyncGenerator[tuple[str, str], None]:
    """Yield pod and node for every pod with the label ``app`` that is or becomes bound, each once; without end."""
    seen: set[str] = set()
    async with aclosing(_watch_pods(api, app)) as pods:
        async for pod in pods:
            name, node = pod["metadata"]["name"], pod["spec"].get("nodeName")
            if node and name not in seen:
                seen.add(name)
                yield name, node


async def wait_until_bound(api: ApiClient, app: str, *, count: int = 1, timeout_seconds: float = BOUND_SECONDS) -> dict[str, str]:
    """Wait until *count* pods with the label ``app`` are bound, and return pod → node."""
    nodes: dict[str, str] = {}
    deadline = asyncio.timeout(timeout_seconds)
    try:
        async with deadline, aclosing(watch_bindings(api, app)) as bindings:
            async for pod, node in bindings:
                nodes[pod] = node
                if len(nodes) == count:
                    break
    except TimeoutError as error:
        if not deadline.expired():  # a request's own
            raise
        raise TimeoutError(f"{len(nodes)} of {count} pods {app} were bound within {timeout_seconds:g} s") from error
    return nodes


async def fetch_events(api: ApiClient, pod: str) -> list[JsonObject]:
    """Return the events of a pod, as ``kubectl describe`` shows them."""
    listing = await api.fetch(EVENTS_PATH, fieldSelector=f"involvedObject.kind=Pod,involvedObject.name={pod}")
    events: list[JsonObject] = listing["items"]
    return events


async def wait_for_event(api: ApiClient, pod: str, reason: str) -> JsonObject:
    """Wait for the first event of a pod with that reason, such as ``Scheduled`` or ``FailedScheduling``."""

    async def probe() -> JsonObject:
        events = await fetch_events(api, pod)
        for event in events:
            if event["reason"] == reason:
                return event
        raise NotYet(f"events {[(event['reason'], event['message']) for event in events]}")

    return await wait_for(f"event {reason} of pod {pod}", probe, timeout_seconds=EVENT_SECONDS)


async def _watch_pods(api: ApiClient, app: str) -> AsyncGenerator[JsonObject, None]:
    """Yield pods as they are and as they change, across breaks of the connection."""
    selector = f"app={app}"
    while True:
        try:
            listing = await api.fetch(PODS_PATH, labelSelector=selector)
            for pod in listing["items"]:
                yield pod
            version = listing["metadata"]["resourceVersion"]
            async with aclosing(api.watch(PODS_PATH, resource_version=version, labelSelector=selector)) as events:
                async for event in events:
                    yield event["object"]
        except aiohttp.ClientError:
            await asyncio.sleep(POLL_SECONDS)
        except ApiError as error:
            if error.status != 410:
                raise
