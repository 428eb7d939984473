"""The pods and nodes of a Kubernetes cluster: kept up to date by two watches, or fetched once."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, Self, TypeVar
from urllib.parse import quote

import msgspec

from trimaran_client.assigned import AssignedPods
from trimaran_client.capacities import NodeCapacities
from trimaran_client.errors import KubernetesError, KubernetesReplyError, ManifestError
from trimaran_client.kube import KubeClient, ListWatch, ObjectMeta, ObjectSelection, WatchTimes
from trimaran_client.kube.wire import decode
from trimaran_client.objects import NodeObject, PodObject, to_node, to_pod
from trimaran_client.resources import Node, Pod

logger = logging.getLogger(__name__)

PODS_PATH: Final = "/api/v1/pods"
NODES_PATH: Final = "/api/v1/nodes"
# An API server tells of a pod that ends, and so leaves the selection, as of one that is deleted.
RUNNING_PODS: Final = "status.phase!=Succeeded,status.phase!=Failed"
# A page of 500 objects; an API server that takes longer has other troubles.
_TIMEOUT_SECONDS: Final = 30.0
# Looking through the pods in flight for those whose time is over costs more than taking one.
_EXPIRY_SECONDS: Final = 1.0

ObjectT = TypeVar("ObjectT")
ReadT = TypeVar("ReadT")


def _pod_key(metadata: ObjectMeta) -> str:
    """Answer :attr:`Pod.key`."""
    return metadata.uid or (f"{metadata.namespace or 'default'}/{metadata.name}" if metadata.name else "")


# Nothing of the objects is kept: what is used of them is in the pods and nodes, and their keys say who goes.
_NO_POD, _NO_NODE = PodObject(), NodeObject()
_PODS = ObjectSelection(PODS_PATH, PodObject, key=_pod_key, field_selector=RUNNING_PODS, keep=lambda _: _NO_POD)
_NODES = ObjectSelection(NODES_PATH, NodeObject, key=lambda metadata: metadata.name, keep=lambda _: _NO_NODE)


class ClusterFeed:
    """
    Keep the pods and nodes of a cluster up to date, within ``async with``.

    Nothing is waited for on entering. While the API server cannot be reached everything stays as it was last known, and what changed
    meanwhile is made up for afterwards. A pod or node that cannot be read stays as it was, is counted, and logged once.

    Args:
        client: An open client; it must outlive this.
        pods: What to keep the pods in; its ``is_complete`` is false until all of them have been told.
        nodes: What to keep the nodes in.
        clock: The present, Unix seconds; pods in flight leave by it.
        on_bound: Called with each pod that becomes bound, within the event loop; it must neither block nor raise. Pods that were bound
            before the first list are not told, but for those that ``pods`` knew of.
        times: How long to wait for what.

    Attributes:
        pods: The pods that hold a place.
        nodes: What the nodes have.
        synced: Set once all pods and all nodes have been told.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        pods: AssignedPods | None = None,
        nodes: NodeCapacities | None = None,
        clock: Callable[[], float] = time.time,
        on_bound: Callable[[Pod], None] | None = None,
        times: WatchTimes | None = None,
    ) -> None:
        self.pods = pods if pods is not None else AssignedPods()
        self.nodes = nodes if nodes is not None else NodeCapacities()
        self.synced = asyncio.Event()
        self._pod_listener = _PodListener(self.pods, clock, on_bound, self._note_list)
        self._node_listener = _NodeListener(self.nodes, self.pods, self._note_list)
        self._watches = (
            ListWatch(client, _PODS, listener=self._pod_listener, times=times),
            ListWatch(client, _NODES, listener=self._node_listener, times=times),
        )
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.pods.is_complete = self._pod_listener.is_listed
        async with AsyncExitStack() as stack:
            for watch in self._watches:
                await stack.enter_async_context(watch)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        await self._stack.aclose()

    @property
    def last_error(self) -> KubernetesError | None:
        """Answer why pods or nodes may be out of date; ``None`` while both are watched."""
        return next((watch.last_error for watch in self._watches if watch.last_error is not None), None)

    @property
    def silent_seconds(self) -> float:
        """Answer since when the API server has said nothing, of pods or of nodes, seconds; infinite before the first lists."""
        return max(watch.silent_seconds for watch in self._watches)

    @property
    def event_count(self) -> int:
        """Answer how many changes of pods and nodes were told so far."""
        return sum(watch.event_count for watch in self._watches)

    @property
    def bad_object_count(self) -> int:
        """Answer how many of them could not be read."""
        return sum(watch.unreadable_count for watch in self._watches)

    def _note_list(self) -> None:
        self.pods.is_complete = self._pod_listener.is_listed
        if self._pod_listener.is_listed and self._node_listener.is_listed:
            self.synced.set()


class _PodListener:
    """Tells the pods of each change."""

    def __init__(
        self, pods: AssignedPods, clock: Callable[[], float], on_bound: Callable[[Pod], None] | None, on_listed: Callable[[], None]
    ) -> None:
        self.is_listed = False
        self._pods = pods
        self._clock = clock
        self._on_bound = on_bound
        self._on_listed = on_listed
        self._expired_at = -math.inf

    def on_update(self, key: str, value: PodObject) -> None:
        pod = to_pod(value)
        now = self._clock()
        if not 0 <= now - self._expired_at < _EXPIRY_SECONDS:
            self._expired_at = now
            self._pods.expire(now)
        before = self._pods.state_of(key)
        self._pods.update(pod, now=now)
        is_news = before is not None or self.is_listed
        if self._on_bound is not None and is_news and before != "bound" and self._pods.state_of(key) == "bound":
            self._on_bound(pod)

    def on_delete(self, key: str, value: PodObject) -> None:  # noqa: ARG002 - the listener's protocol
        self._pods.remove(key)

    def on_relist(self) -> None:
        self.is_listed = True
        self._on_listed()


class _NodeListener:
    """Tells the nodes of each change."""

    def __init__(self, nodes: NodeCapacities, pods: AssignedPods, on_listed: Callable[[], None]) -> None:
        self.is_listed = False
        self._nodes = nodes
        self._pods = pods
        self._on_listed = on_listed

    def on_update(self, key: str, value: NodeObject) -> None:  # noqa: ARG002 - the listener's protocol
        node = to_node(value)
        self._nodes.update(node)
        self._pods.add_node(node.name)

    def on_delete(self, key: str, value: NodeObject) -> None:  # noqa: ARG002 - the listener's protocol
        self._nodes.remove(key)
        self._pods.remove_node(key)

    def on_relist(self) -> None:
        self.is_listed = True
        self._on_listed()


async def fetch_pod(client: KubeClient, namespace: str, name: str) -> Pod:
    """
    Fetch one pod.

    Raises:
        KubernetesStatusError: If there is none of that name (404), or access is refused.
        KubernetesError: If the API server gives no answer that can be read.
        ManifestError: If a quantity of the pod cannot be read.
    """
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"
    return to_pod(await client.get(path, PodObject, timeout_seconds=_TIMEOUT_SECONDS))


async def fetch_cluster(client: KubeClient) -> tuple[list[Node], list[Pod]]:
    """
    Fetch all nodes, and all pods that have not ended; what cannot be read is logged and left out.

    Raises:
        KubernetesError: If the API server does not give them.
    """
    return await _fetch(client, _NODES, to_node), await _fetch(client, _PODS, to_pod)


async def _fetch(client: KubeClient, selection: ObjectSelection[ObjectT], read: Callable[[ObjectT], ReadT]) -> list[ReadT]:
    found: list[ReadT] = []
    async for page in client.list_pages(selection.path, msgspec.Raw, params=selection.params, timeout_seconds=_TIMEOUT_SECONDS):
        if page.is_first:
            found.clear()
        for item in page.items:
            try:
                found.append(read(decode(item, selection.object_type, selection.path)))
            except (KubernetesReplyError, ManifestError) as error:
                logger.warning("%s: an object cannot be read and is left out: %s", selection.path, error)
    return found
