"""
Which node a source means: names, addresses and capacities from the API server, and the rules that lead from what a source says to a node.

The node list is kept by a watch and each node is read once, when it changes, not at each fetch.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

import msgspec

from load_watcher.samples import NodeInfo
from trimaran_client.errors import KubernetesConfigError, QuantityError
from trimaran_client.kube import KubeClient, ListWatch, ObjectMeta, ObjectSelection, WatchTimes
from trimaran_client.units import Quantity
from trimaran_client.wire import CPU, MEMORY, ResourceQuantities

NODES_PATH = "/api/v1/nodes"

_PORT: Final = re.compile(r":[0-9]{1,5}")
# The whole units in which usage is divided by capacity, as in Go: millicores and bytes.
AMOUNT: Mapping[str, Callable[[Quantity], int]] = {CPU: lambda quantity: quantity.milli, MEMORY: lambda quantity: quantity.value}


class Resources(msgspec.Struct, frozen=True, gc=False):
    """Quantities as they came: a bad one is a verdict on one sample, not on the whole reply."""

    cpu: object = None
    memory: object = None

    @property
    def by_type(self) -> dict[str, object]:
        """Answer the values that are there by metric type."""
        return {metric_type: value for metric_type, value in ((CPU, self.cpu), (MEMORY, self.memory)) if value is not None}


class NodeAddress(msgspec.Struct, frozen=True, gc=False):
    """One address of a node: IPv4, IPv6, or a host name."""

    address: str = ""


class NodeStatus(msgspec.Struct, frozen=True):
    """What a node has, and where it is reached."""

    capacity: Resources | None = None
    allocatable: Resources | None = None
    addresses: list[NodeAddress] | None = None


class NodeObject(msgspec.Struct, frozen=True):
    """The part of a node that is used."""

    metadata: ObjectMeta = ObjectMeta()
    status: NodeStatus | None = None


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """
    What the usage of a node is divided by.

    Args:
        amounts: Metric type → capacity in millicores or bytes, where it is known and above zero.
        printed: As the API server has it.
        info: What is served of it.
    """

    amounts: Mapping[str, int]
    printed: Resources
    info: NodeInfo

    @classmethod
    def of(cls, node: NodeObject) -> NodeCapacity:
        """Read it from the API's node."""
        status = node.status or NodeStatus()
        capacity, allocatable = status.capacity or Resources(), status.allocatable or Resources()
        parsed = {metric_type: parse_quantity(value) for metric_type, value in capacity.by_type.items()}
        amounts = {metric_type: AMOUNT[metric_type](quantity) for metric_type, quantity in parsed.items() if quantity is not None}
        positive = {metric_type: amount for metric_type, amount in amounts.items() if amount > 0}
        return cls(positive, capacity, NodeInfo(_quantities(capacity), _quantities(allocatable)))


class NodeTable:
    """The capacity and the addresses of each node; listens to the watch of the nodes."""

    def __init__(self) -> None:
        self.capacities: dict[str, NodeCapacity] = {}
        self.addresses: dict[str, tuple[str, ...]] = {}

    def on_update(self, key: str, value: NodeObject) -> None:
        """Read a node that is new or has changed."""
        self.capacities[key] = NodeCapacity.of(value)
        addresses = (value.status and value.status.addresses) or ()
        self.addresses[key] = tuple(entry.address for entry in addresses if entry.address)

    def on_delete(self, key: str, value: NodeObject) -> None:  # noqa: ARG002 - the listener's protocol
        """Forget a node that is gone."""
        del self.capacities[key], self.addresses[key]

    def on_relist(self) -> None:
        """Need nothing: the changes were told one by one."""


def watch_nodes(client: KubeClient, table: NodeTable, *, request_timeout_seconds: float) -> ListWatch[NodeObject]:
    """Make the watch that keeps *table* up to date; it runs within ``async with``."""
    return ListWatch(
        client,
        ObjectSelection(NODES_PATH, NodeObject, key=lambda metadata: metadata.name),
        listener=table,
        times=WatchTimes(request_timeout_seconds=request_timeout_seconds),
    )


class ClusterNodes:
    """
    The node list for a source that can do without it: ``async with`` starts the watch if there is access to a cluster.

    Args:
        kubeconfig: The only place to look for access; without it those of :class:`KubeClient`.
        request_timeout_seconds: For each request.
    """

    def __init__(self, kubeconfig: Path | None = None, *, request_timeout_seconds: float = 10) -> None:
        self._kubeconfig = kubeconfig
        self._request_timeout_seconds = request_timeout_seconds
        self._table = NodeTable()
        self._watch: ListWatch[NodeObject] | None = None
        self._absence = "the watch of the nodes has not started"
        self._opened = AsyncExitStack()

    async def __aenter__(self) -> Self:
        client = KubeClient(self._kubeconfig)
        try:
            await self._opened.enter_async_context(client)
        except KubernetesConfigError as error:
            self._watch, self._absence = None, str(error)
            return self
        self._table = NodeTable()
        self._watch = watch_nodes(client, self._table, request_timeout_seconds=self._request_timeout_seconds)
        await self._opened.enter_async_context(self._watch)
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        await self._opened.aclose()

    async def wait(self, timeout_seconds: float) -> None:
        """Wait until the first list came or failed, or the time is over."""
        if self._watch is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_seconds):
                    await self._watch.attempted.wait()

    @property
    def absence(self) -> str | None:
        """Say why the nodes are not known; ``None`` if they are."""
        if self._watch is None:
            return self._absence
        if self._watch.synced.is_set():
            return None
        return str(self._watch.last_error or "the API server has not answered yet")

    def copy(self) -> tuple[dict[str, NodeCapacity], dict[str, tuple[str, ...]]] | None:
        """Copy capacities and addresses as they are now, for a thread; ``None`` where the nodes are not known."""
        if self.absence is not None:
            return None
        return dict(self._table.capacities), dict(self._table.addresses)


class Strength(IntEnum):
    """How a host was found to be a node, the strongest first."""

    NAME = 0
    ADDRESS = 1
    SUFFIX = 2
    SHORT_NAME = 3
    UNCHECKED = 4


class Match(NamedTuple):
    """The node that a host is, and how that was found."""

    node: str
    strength: Strength
    host: str


class NoMatch(NamedTuple):
    """Why a host is no node: ``unknown_node`` or ``ambiguous_host``, with a sentence."""

    rule: str
    detail: str


UNKNOWN_NODE: Final = "unknown_node"
AMBIGUOUS_HOST: Final = "ambiguous_host"


class NodeResolver:
    """
    Answer which node a host is, as a source calls it: a name, or an address with or without a port.

    In this order, and the first that applies counts: the node's name; one of its addresses; its name with the suffix removed or added; its
    short name, if either of the two is short and exactly one node fits. What fits several nodes is refused. Without a node list every host
    is taken as it stands, without port and suffix.

    Args:
        addresses: Node name → its addresses; ``None`` where the nodes are not known.
        suffix: What the source appends to the names of nodes, for example ``.example.org``.

    >>> resolver = NodeResolver({"worker-1": ("10.0.0.1", "fd00::1"), "worker-2": ()}, suffix="")
    >>> resolver.resolve("[fd00::1]:9100").node, resolver.resolve("worker-2.example.org").node
    ('worker-1', 'worker-2')
    """

    def __init__(self, addresses: Mapping[str, Iterable[str]] | None, *, suffix: str = "") -> None:
        self.knows_nodes = addresses is not None
        self._suffix = suffix
        self._names = frozenset(addresses or ())
        self._by_address: defaultdict[str, set[str]] = defaultdict(set)
        self._by_short_name: defaultdict[str, set[str]] = defaultdict(set)
        for node, entries in (addresses or {}).items():
            self._by_short_name[_shorten(node)].add(node)
            for entry in entries:
                self._by_address[_normalize_address(entry)].add(node)

    def resolve(self, text: str) -> Match | NoMatch:
        """Find the node; the answer for the same text and the same nodes is always the same."""
        host = strip_port(text)
        if not self.knows_nodes:
            return Match(host.removesuffix(self._suffix) or host, Strength.UNCHECKED, host)
        for name in (text, host):
            if name in self._names:
                return Match(name, Strength.NAME, host)
        finders = (
            (Strength.ADDRESS, self._find_by_address),
            (Strength.SUFFIX, self._find_by_suffix),
            (Strength.SHORT_NAME, self._find_by_short_name),
        )
        for strength, find in finders:
            nodes = find(host)
            if len(nodes) > 1:
                return NoMatch(AMBIGUOUS_HOST, f"{host} fits the nodes {_list(nodes)}")
            for node in nodes:
                return Match(node, strength, host)
        return NoMatch(UNKNOWN_NODE, f"{host} is neither the name nor an address of a node")

    def _find_by_address(self, host: str) -> set[str]:
        return self._by_address.get(_normalize_address(host), set())

    def _find_by_suffix(self, host: str) -> set[str]:
        if not self._suffix:
            return set()
        return {name for name in (host.removesuffix(self._suffix), host + self._suffix) if name in self._names}

    def _find_by_short_name(self, host: str) -> set[str]:
        if _is_address(host):
            return set()
        fitting = self._by_short_name.get(_shorten(host), set())
        # Of two full names that differ, none is short for the other.
        return {node for node in fitting if "." not in host or "." not in node}


def strip_port(text: str) -> str:
    """
    Strip the port and an IPv6 address's brackets.

    >>> [strip_port(text) for text in ("10.0.0.1:9100", "[fd00::1]:9100", "fd00::1", "worker-1")]
    ['10.0.0.1', 'fd00::1', 'fd00::1', 'worker-1']
    """
    if text.startswith("["):
        return text[1:].partition("]")[0]
    if text.count(":") == 1:
        return _PORT.sub("", text)
    return text


def parse_quantity(value: object) -> Quantity | None:
    """Parse a quantity; null is none, though Kubernetes reads it as zero: absence is not a measurement."""
    if value is None:
        return None
    try:
        return Quantity.parse(value)
    except QuantityError:
        return None


def _quantities(resources: Resources) -> ResourceQuantities:
    cpu, memory = (None if parse_quantity(value) is None else str(value) for value in (resources.cpu, resources.memory))
    return ResourceQuantities(cpu, memory)


def _normalize_address(text: str) -> str:
    """Write the many spellings of an IPv6 address, which has a colon, as one, and host names in lower case; IPv4 has one spelling."""
    if ":" in text:
        with suppress(ValueError):
            return str(ip_address(text))
    return text.lower().rstrip(".")


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _shorten(name: str) -> str:
    return name.partition(".")[0].lower()


def _list(nodes: Iterable[str]) -> str:
    return ", ".join(sorted(nodes))
