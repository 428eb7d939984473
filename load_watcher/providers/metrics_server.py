"""Kubernetes Metrics Server: usage from the Metrics API, divided by the capacities of the node list, which is kept by a watch."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import reprlib
from collections.abc import Iterable, Mapping
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Annotated, Final, Self

import msgspec
import numpy as np

from load_watcher.errors import (
    ProviderAuthError,
    ProviderConfigError,
    ProviderError,
    ProviderNotInstalledError,
    ProviderReplyError,
    ProviderUnavailableError,
)
from load_watcher.providers.nodes import AMOUNT, UNKNOWN_NODE, NodeCapacity, NodeTable, Resources, parse_quantity, watch_nodes
from load_watcher.samples import Rejection, SampleBatch, Window
from load_watcher.settings import Settings
from trimaran_client.errors import KubernetesConfigError, KubernetesError, KubernetesReplyError, KubernetesStatusError
from trimaran_client.kube import KubeClient, ObjectMeta
from trimaran_client.wire import CPU, MEMORY

NAME: Final = "KubernetesMetricsServer"
METRICS_API_PATH = "/apis/metrics.k8s.io/v1beta1"
NODE_METRICS_PATH = f"{METRICS_API_PATH}/nodes"
# A probe that takes longer is a failure for whoever asked.
HEALTH_TIMEOUT_SECONDS = 5.0

UNPARSEABLE_QUANTITY: Final = "unparseable_quantity"
CAPACITY_UNKNOWN: Final = "capacity_unknown"
BAD_TIMESTAMP: Final = "bad_timestamp"

_GO_SECONDS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_GO_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?)(h|ms|m|s|us|µs|ns)", re.ASCII)
_GO_DURATION: Final = re.compile(rf"(?:{_GO_PART.pattern})+", re.ASCII)

_MAY_READ_NODES = "grant the verbs list and watch on nodes in a ClusterRole"
_MAY_READ_METRICS = "grant the verb list on nodes of the API group metrics.k8s.io in a ClusterRole"
_CHECK_METRICS_API = "check with `kubectl get apiservice v1beta1.metrics.k8s.io`"
_INSTALL = (
    "the Metrics API is not installed; install metrics-server with `kubectl apply -f"
    f" https://github.com/kubernetes-sigs/metrics-server/releases/latest/download/components.yaml` and {_CHECK_METRICS_API}"
)

_DOWN = (
    f"if the API server itself is well, the server behind the Metrics API is not: {_CHECK_METRICS_API} and"
    " `kubectl --namespace kube-system logs deployment/metrics-server`"
)

_Instant = Annotated[datetime, msgspec.Meta(tz=True)]


class NodeMetricsItem(msgspec.Struct, frozen=True):
    """The part of a node's metrics that is used."""

    metadata: ObjectMeta | None = None
    timestamp: object = None
    window: object = None
    usage: Resources | None = None


class NodeMetricsReply(msgspec.Struct, frozen=True):
    """The list of the Metrics API; ``null`` stands for no items, and an answer without them is no list."""

    items: list[NodeMetricsItem | None] | None


class ApiResources(msgspec.Struct, frozen=True):
    """What the Metrics API says of itself; only that it does is of interest."""

    resources: list[object]


class MetricsServerProvider:
    """
    Get CPU and memory utilization of each node, operator ``Latest``, from the Metrics API.

    Metrics Server averages over a span of its own, some 10 to 30 seconds, so a window makes no difference. Once the node list has come,
    a failing watch of it is no error: the nodes stay as they were until it works again.

    Args:
        kubeconfig: The only place to look for access; without it the in-cluster files, then ``KUBECONFIG`` or ``~/.kube/config``.
        request_timeout_seconds: For each request, and for the first node list.
    """

    name: Final = NAME

    def __init__(self, kubeconfig: Path | None = None, request_timeout_seconds: float = 10) -> None:
        self._request_timeout_seconds = request_timeout_seconds
        self._table = NodeTable()
        self._client = KubeClient(kubeconfig)
        self._nodes = watch_nodes(self._client, self._table, request_timeout_seconds=request_timeout_seconds)
        self._opened = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        """
        Open the session and start the watch of the nodes.

        Raises:
            ProviderConfigError: If there is no access to a cluster.
        """
        try:
            await self._opened.enter_async_context(self._client)
        except KubernetesConfigError as error:
            raise ProviderConfigError(f"{NAME}: {error}") from error
        await self._opened.enter_async_context(self._nodes)
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        await self._opened.aclose()

    async def fetch(self, window: Window) -> SampleBatch:
        """
        Get the newest samples of all nodes; the *window* makes no difference.

        Raises:
            ProviderError: If the node list never came, or the Metrics API does not give its list.
        """
        del window
        timeout_seconds = self._request_timeout_seconds
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._nodes.attempted.wait()
        except TimeoutError as error:
            raise ProviderUnavailableError(f"{NAME}: no node list from the API server within {timeout_seconds:g} s") from error
        self._require_nodes()
        try:
            reply = await self._client.get(NODE_METRICS_PATH, NodeMetricsReply, timeout_seconds=timeout_seconds)
        except KubernetesError as error:
            raise _metrics_error(error) from error
        # In a thread: 5,000 nodes take some 30 ms. Of a copy: the watch goes on.
        return await asyncio.to_thread(build_batch, dict(self._table.capacities), [item for item in reply.items or () if item is not None])

    async def check_health(self) -> None:
        """
        Ask whether the Metrics API is there and its server answers.

        Raises:
            ProviderError: If not, or if the node list was refused.
        """
        if self._nodes.attempted.is_set():
            self._require_nodes()
        try:
            await self._client.get(
                METRICS_API_PATH, ApiResources, timeout_seconds=min(HEALTH_TIMEOUT_SECONDS, self._request_timeout_seconds)
            )
        except KubernetesError as error:
            raise _metrics_error(error) from error

    def _require_nodes(self) -> None:
        error = self._nodes.last_error
        if not self._nodes.synced.is_set() and error is not None:
            raise _provider_error(error, _MAY_READ_NODES) from error


def build_batch(capacities: Mapping[str, NodeCapacity], items: Iterable[NodeMetricsItem]) -> SampleBatch:
    """
    Divide usage by capacity: ``100 * usage / capacity`` with CPU in millicores and memory in bytes, both rounded up to integers first.

    Args:
        capacities: Node name → capacity, all nodes of the cluster.
        items: Metrics of nodes, in any order.

    Returns:
        One row for each node of *capacities*, by name; NaN where it has no metrics. What cannot be used is among the rejections.

    Source: load-watcher, ``metricsprovider/k8s.go``, ``FetchAllHostsMetrics``.
    """
    names = tuple(sorted(capacities))
    rows = {name: row for row, name in enumerate(names)}
    latest = {CPU: np.full(len(names), np.nan), MEMORY: np.full(len(names), np.nan)}
    sampled_at = np.full(len(names), np.nan)
    sample_seconds = np.full(len(names), np.nan)
    rejections: list[Rejection] = []
    for item in items:
        if item.metadata is None:
            continue
        name, used = item.metadata.name, (item.usage or Resources()).by_type
        capacity, measured_at = capacities.get(name), _parse_instant(item.timestamp)
        if capacity is None:
            rejections += [Rejection(name, metric_type, UNKNOWN_NODE, "the node list has no such node") for metric_type in used]
            continue
        if measured_at is None:
            detail = f"timestamp {reprlib.repr(item.timestamp)}"
            rejections += [Rejection(name, metric_type, BAD_TIMESTAMP, detail) for metric_type in used]
            continue
        if not np.isnan(sampled_at[rows[name]]):
            if measured_at < sampled_at[rows[name]]:  # of several items of a node the newest counts, as a whole
                continue
            for values in latest.values():
                values[rows[name]] = np.nan
        for metric_type, value in used.items():
            quantity, whole = parse_quantity(value), capacity.amounts.get(metric_type)
            if quantity is None:
                rejections.append(Rejection(name, metric_type, UNPARSEABLE_QUANTITY, f"usage {reprlib.repr(value)}"))
            elif whole is None:
                detail = f"capacity {reprlib.repr(capacity.printed.by_type.get(metric_type))}"
                rejections.append(Rejection(name, metric_type, CAPACITY_UNKNOWN, detail))
            else:
                latest[metric_type][rows[name]] = float(100 * AMOUNT[metric_type](quantity)) / float(whole)
                sampled_at[rows[name]] = measured_at
                sample_seconds[rows[name]] = parse_go_duration(item.window)
    infos = tuple(capacities[name].info for name in names)
    return SampleBatch(NAME, names, sampled_at, latest, infos=infos, rejections=tuple(rejections), sample_seconds=sample_seconds)


def parse_go_duration(text: object) -> float:
    """
    Read a duration as Go prints it, in seconds; NaN for anything else.

    Source: the Go package ``time``, ``Duration.String`` and ``ParseDuration``.

    >>> parse_go_duration("20s"), parse_go_duration("1m0.5s"), parse_go_duration("soon")
    (20.0, 60.5, nan)
    """
    if not isinstance(text, str) or not _GO_DURATION.fullmatch(text):
        return math.nan
    seconds = sum(float(number) * _GO_SECONDS[unit] for number, unit in _GO_PART.findall(text))
    return seconds if math.isfinite(seconds) else math.nan


def _parse_instant(value: object) -> float | None:
    """Parse RFC 3339 with a zone, strictly; Go writes the time that was never set as null."""
    try:
        return msgspec.convert(value, _Instant).timestamp()
    except msgspec.ValidationError:
        return None


def _metrics_error(error: KubernetesError) -> ProviderError:
    status = error.status if isinstance(error, KubernetesStatusError) else None
    if status == HTTPStatus.NOT_FOUND:
        return ProviderNotInstalledError(f"{NAME}: {error}; {_INSTALL}")
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        return ProviderUnavailableError(f"{NAME}: {error}; {_DOWN}")
    return _provider_error(error, _MAY_READ_METRICS)


def _provider_error(error: KubernetesError, permission: str) -> ProviderError:
    if isinstance(error, KubernetesConfigError):
        return ProviderConfigError(f"{NAME}: {error}")
    if isinstance(error, KubernetesReplyError):
        return ProviderReplyError(f"{NAME}: {error}")
    if (
        not isinstance(error, KubernetesStatusError)
        or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        or error.status == HTTPStatus.TOO_MANY_REQUESTS
    ):
        return ProviderUnavailableError(f"{NAME}: {error}")
    if error.status == HTTPStatus.UNAUTHORIZED:
        return ProviderAuthError(f"{NAME}: {error}; renew the token of the kubeconfig or service account; `kubectl auth whoami` tests it")
    if error.status == HTTPStatus.FORBIDDEN:
        return ProviderAuthError(f"{NAME}: {error}; {permission}")
    return ProviderReplyError(f"{NAME}: {error}; check that the address is that of a Kubernetes API server")


def create_provider(settings: Settings) -> MetricsServerProvider:
    """Make the provider; one request may take the time that a whole refresh may."""
    return MetricsServerProvider(settings.kubeconfig, settings.fetch_timeout_seconds)
