"""
Pods and nodes as the policies need them, read from plain manifest mappings.

Inputs are what ``kubectl get -o json`` prints or a YAML file holds: mappings, no objects of a Kubernetes client. Unknown fields are
skipped; a field that is needed and cannot be read is an error that gives its path.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Self, TypeVar, cast

from trimaran_client.errors import ManifestError, QuantityError
from trimaran_client.units import ZERO, Quantity

CPU: Final = "cpu"
MEMORY: Final = "memory"

_TERMINAL_PHASES = ("Succeeded", "Failed")
# What users tell us of a pod or a namespace, in labels and annotations.
OWN_PREFIX: Final = "trimaran.io/"
_MOST_ENTRIES: Final = 16
_LONGEST_ENTRY: Final = 256
# Each policy with other arguments remembers its own.
_MOST_REMEMBERED: Final = 64

ValueT = TypeVar("ValueT")

Amounts = Mapping[str, Quantity]


@dataclass(frozen=True, slots=True)
class Container:
    """Requests and limits of one container, resource name → amount; ``is_sidecar`` for an init container that keeps running."""

    name: str = ""
    requests: Amounts = field(default_factory=dict)
    limits: Amounts = field(default_factory=dict)
    is_sidecar: bool = False


class SharedContainers(tuple[Container, ...]):
    """
    The containers of many pods of one template.

    What follows from them alone is kept in ``known``: a scheduler places such pods one after the other, and adding up takes longer than
    scoring a hundred nodes.
    """

    known: dict[Hashable, tuple[tuple[Container, ...], Any]]

    def __new__(cls, containers: Iterable[Container]) -> Self:
        """Share *containers*."""
        made = super().__new__(cls, containers)
        made.known = {}
        return made

    def __reduce__(self) -> tuple[type[SharedContainers], tuple[tuple[Container, ...]]]:
        """Copy and pickle the containers; what was computed of them stays here, and its keys can be anyone's functions."""
        return SharedContainers, (tuple(self),)


@dataclass(frozen=True, slots=True)
class Pod:
    """
    What scoring needs of a pod.

    Args:
        name: Its name.
        namespace: Its namespace.
        uid: Its UID; empty for a pod that no API server has seen.
        containers: The containers.
        init_containers: The init containers, in their order.
        pod_level: The resources of ``spec.resources``; ``None`` where absent.
        overhead: What its runtime class adds.
        node_name: Where it is bound; empty until then.
        nominated_node_name: Where the scheduler means to put it, while it waits for that.
        scheduled_at: When its PodScheduled condition became true, Unix seconds; NaN = unknown.
        created_at: When it was created, Unix seconds; NaN = unknown.
        is_terminal: Whether it has ended.
        is_deleting: Whether its deletion was asked for.
        scheduler_name: Who is to place it.
        priority_class: The name of its priority class.
        is_daemon: Whether a DaemonSet owns it.
        labels: Its labels that begin with ``trimaran.io/``.
        annotations: Its annotations that do.
    """

    name: str = ""
    namespace: str = "default"
    uid: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    pod_level: Container | None = None
    overhead: Amounts = field(default_factory=dict)
    node_name: str = ""
    nominated_node_name: str = ""
    scheduled_at: float = math.nan
    created_at: float = math.nan
    is_terminal: bool = False
    is_deleting: bool = False
    scheduler_name: str = ""
    priority_class: str = ""
    is_daemon: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Answer what identifies the pod: its UID, else its namespace and name."""
        return self.uid or f"{self.namespace}/{self.name}"

    @classmethod
    def from_manifest(cls, manifest: object) -> Pod:
        """
        Read a pod, or the pod template of a Deployment, StatefulSet, DaemonSet, ReplicaSet or Job.

        Raises:
            ManifestError: If a field that is needed has the wrong form; the message gives its path.
        """
        top = _mapping(manifest, "pod")
        template = _mapping(_mapping(top.get("spec"), "spec").get("template"), "spec.template")
        if template:
            own = _mapping(template.get("metadata"), "spec.template.metadata")
            named = {key: value for key, value in _mapping(top.get("metadata"), "metadata").items() if key in ("name", "namespace")}
            top = {"metadata": {**own, **named}, "spec": template.get("spec")}
        elif top.get("kind") not in (None, "Pod"):
            raise ManifestError(
                f"kind {reprlib.repr(top['kind'])} is not a pod and has no pod template; give a Pod or, for example, a Deployment"
            )
        metadata = _mapping(top.get("metadata"), "metadata")
        spec = _mapping(top.get("spec"), "spec")
        status = _mapping(top.get("status"), "status")
        pod_level = spec.get("resources")
        return cls(
            name=_text(metadata.get("name") or metadata.get("generateName"), "metadata.name"),
            namespace=_text(metadata.get("namespace"), "metadata.namespace") or "default",
            uid=_text(metadata.get("uid"), "metadata.uid"),
            containers=_containers(spec, "containers"),
            init_containers=_containers(spec, "initContainers"),
            pod_level=_container({"resources": pod_level}, "spec") if pod_level else None,
            overhead=_amounts(spec.get("overhead"), "spec.overhead"),
            node_name=_text(spec.get("nodeName"), "spec.nodeName"),
            nominated_node_name=_text(status.get("nominatedNodeName"), "status.nominatedNodeName"),
            scheduled_at=_scheduled_at(status),
            created_at=parse_instant(metadata.get("creationTimestamp")),
            is_terminal=is_terminal_phase(status.get("phase")),
            is_deleting=metadata.get("deletionTimestamp") is not None,
            scheduler_name=_text(spec.get("schedulerName"), "spec.schedulerName"),
            priority_class=_text(spec.get("priorityClassName"), "spec.priorityClassName"),
            is_daemon=_is_daemon(metadata.get("ownerReferences")),
            labels=own_entries(metadata.get("labels")),
            annotations=own_entries(metadata.get("annotations")),
        )

    def remember(self, what: Hashable, compute: Callable[[Pod], ValueT]) -> ValueT:
        """
        Compute what follows from the containers of the pod, once for all pods that share them.

        Args:
            what: What it is, the same for the same *compute*.
            compute: Computes it, from containers, pod-level resources and overhead alone.
        """
        containers = self.containers
        if not isinstance(containers, SharedContainers) or self.overhead or self.pod_level is not None:
            return compute(self)
        known = containers.known.get(what)
        if known is None or known[0] is not self.init_containers:
            if len(containers.known) >= _MOST_REMEMBERED:
                containers.known.clear()
            known = containers.known[what] = (self.init_containers, compute(self))
        return cast("ValueT", known[1])

    def total(self, amount_of: Callable[[Container], Quantity], resource: str) -> Quantity:
        """
        Combine an amount over the containers by today's Kubernetes rule for effective requests.

        The larger of what runs together (containers and sidecars) and each init step with the sidecars started before it; pod-level
        values replace that where they name the resource; the overhead comes on top.

        Args:
            amount_of: What one container, or the pod-level resources, counts for.
            resource: ``cpu``, ``memory`` or any other resource name.

        Source: Kubernetes, ``k8s.io/component-helpers/resource/helpers.go``.
        """
        overhead = self.overhead.get(resource, ZERO)
        if self.pod_level is not None and (resource in self.pod_level.requests or resource in self.pod_level.limits):
            return amount_of(self.pod_level) + overhead
        sidecars = peak = ZERO
        for container in self.init_containers:
            amount = amount_of(container)
            peak = max(peak, sidecars + amount)
            if container.is_sidecar:
                sidecars += amount
        running = sum((amount_of(container) for container in self.containers), sidecars)
        return max(running, peak) + overhead

    def requested(self, resource: str) -> Quantity:
        """Answer the effective request of the pod for *resource*; a limit without a request is a request, as the API server sets it."""
        return self.total(lambda container: container.requests.get(resource, container.limits.get(resource, ZERO)), resource)

    def limited(self, resource: str) -> Quantity:
        """Answer the effective limit for *resource*, at least the request; a container without a limit counts with its request."""
        limit = self.total(lambda container: container.limits.get(resource, container.requests.get(resource, ZERO)), resource)
        return max(limit, self.requested(resource))


@dataclass(frozen=True, slots=True)
class Node:
    """Capacity and allocatable of a node, resource name → amount; what the manifest does not say is absent."""

    name: str
    capacity: Amounts = field(default_factory=dict)
    allocatable: Amounts = field(default_factory=dict)

    @classmethod
    def from_manifest(cls, manifest: object) -> Node:
        """
        Read a node.

        Raises:
            ManifestError: If it has no name, or a quantity does not parse; the message gives the path.
        """
        top = _mapping(manifest, "node")
        name = _text(_mapping(top.get("metadata"), "metadata").get("name"), "metadata.name")
        if not name:
            raise ManifestError("metadata.name: a node needs a name")
        status = _mapping(top.get("status"), "status")
        return cls(
            name=name,
            capacity=_amounts(status.get("capacity"), "status.capacity"),
            allocatable=_amounts(status.get("allocatable"), "status.allocatable"),
        )


def manifest_items(document: object) -> list[object]:
    """
    List the objects of a document: those of a List, of a sequence, or the one object itself.

    Raises:
        ManifestError: If it is none of these.
    """
    if isinstance(document, Mapping):
        items = document.get("items")
        if items is None and not str(document.get("kind", "")).endswith("List"):
            return [document]
        document = items if items is not None else []
    if isinstance(document, list):
        return document
    raise ManifestError(f"a manifest is a mapping or a list of them, as `kubectl get -o yaml` prints it, not {_kind(document)}")


def _containers(spec: Mapping[str, object], key: str) -> tuple[Container, ...]:
    listed = spec.get(key)
    if listed is None:
        return ()
    if not isinstance(listed, list):
        raise ManifestError(f"spec.{key}: a list of containers is needed, not {_kind(listed)}")
    return tuple(_container(item, f"spec.{key}[{index}]") for index, item in enumerate(listed))


def _container(item: object, path: str) -> Container:
    container = _mapping(item, path)
    resources = _mapping(container.get("resources"), f"{path}.resources")
    return Container(
        name=_text(container.get("name"), f"{path}.name"),
        requests=_amounts(resources.get("requests"), f"{path}.resources.requests"),
        limits=_amounts(resources.get("limits"), f"{path}.resources.limits"),
        is_sidecar=container.get("restartPolicy") == "Always",
    )


def _amounts(value: object, path: str) -> dict[str, Quantity]:
    amounts: dict[str, Quantity] = {}
    for name, amount in _mapping(value, path).items():
        try:
            amounts[name] = Quantity.parse(amount)
        except QuantityError as error:
            raise ManifestError(f"{path}.{name}: {error}") from error
    return amounts


def _scheduled_at(status: Mapping[str, object]) -> float:
    conditions = status.get("conditions")
    for condition in conditions if isinstance(conditions, list) else []:
        if isinstance(condition, Mapping) and condition.get("type") == "PodScheduled" and condition.get("status") == "True":
            return parse_instant(condition.get("lastTransitionTime"))
    return math.nan


def parse_instant(value: object) -> float:
    """Read a time as the API prints it, or as a YAML reader made of it, Unix seconds; NaN where it cannot be read."""
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
        return moment.timestamp()
    except (ValueError, OverflowError):
        return math.nan


def is_terminal_phase(phase: object) -> bool:
    """Tell whether a pod in this phase has ended."""
    return phase in _TERMINAL_PHASES


def own_entries(value: object) -> dict[str, str]:
    """
    Take out the labels or annotations that are ours; whatever else is there, or is no text, is left.

    Whoever may create pods may write a quarter of a megabyte into each one's annotations: long values, and more than a few, are left too.
    """
    if not isinstance(value, Mapping):
        return {}
    found = {
        key: entry
        for key, entry in value.items()
        if isinstance(key, str) and key.startswith(OWN_PREFIX) and isinstance(entry, str) and len(entry) <= _LONGEST_ENTRY
    }
    return found if len(found) <= _MOST_ENTRIES else {key: found[key] for key in sorted(found)[:_MOST_ENTRIES]}


def _is_daemon(owners: object) -> bool:
    listed = owners if isinstance(owners, list) else []
    return any(isinstance(owner, Mapping) and owner.get("kind") == "DaemonSet" for owner in listed)


def _mapping(value: object, path: str) -> Mapping[str, object]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ManifestError(f"{path}: a mapping is needed, not {_kind(value)}")
    return value


def _text(value: object, path: str) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping | list):
        raise ManifestError(f"{path}: text is needed, not {_kind(value)}")
    return str(value)


def _kind(value: object) -> str:
    return {dict: "a mapping", list: "a list", str: "text", bool: "a boolean", type(None): "nothing"}.get(type(value), "a number")
