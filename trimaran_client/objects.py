"""
Pods and nodes as the API server writes them, for who reads thousands of them: decoded by msgspec into only what scoring needs.

A slow path for any manifest (:meth:`Pod.from_manifest`), a fast one for these; both answer the same. Nothing that the API may leave out or
write as ``null`` is an error here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from sys import intern

import msgspec

from trimaran_client.errors import QuantityError
from trimaran_client.resources import Amounts, Container, Node, Pod, SharedContainers, is_terminal_phase, own_entries, parse_instant
from trimaran_client.units import Quantity

# The values are read one by one, so that the message for a bad one can name it.
RawAmounts = dict[str, object]

# Longer than what any sane container asks for; longer ones are not remembered.
_LONGEST_REMEMBERED = 1000
_MOST_TEMPLATES = 4096
# Sane pods have a few containers.
_MOST_SHARED = 32


class ResourcesObject(msgspec.Struct, frozen=True, gc=False):
    """Requests and limits of a container."""

    requests: RawAmounts | None = None
    limits: RawAmounts | None = None


class ContainerObject(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A container or init container; its resources are read by :func:`to_pod`, and those of many alike only once."""

    name: str | None = None
    resources: msgspec.Raw = msgspec.Raw(b"null")
    restart_policy: str | None = None


class OwnerObject(msgspec.Struct, frozen=True, gc=False):
    """Who made an object."""

    kind: str | None = None


class ConditionObject(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A condition of a pod, such as PodScheduled."""

    type: str | None = None
    status: str | None = None
    last_transition_time: str | None = None


class PodMetaObject(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """What a pod is called, whose it is, and since when."""

    name: str | None = None
    generate_name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, object] | None = None
    annotations: dict[str, object] | None = None
    owner_references: list[OwnerObject | None] | None = None


class PodSpecObject(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """What a pod asks for, and where it is."""

    containers: list[ContainerObject | None] | None = None
    init_containers: list[ContainerObject | None] | None = None
    resources: dict[str, object] | None = None
    overhead: RawAmounts | None = None
    node_name: str | None = None
    scheduler_name: str | None = None
    priority_class_name: str | None = None


class PodStatusObject(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """How far a pod has come."""

    phase: str | None = None
    nominated_node_name: str | None = None
    conditions: list[ConditionObject | None] | None = None


class PodObject(msgspec.Struct, frozen=True, gc=False):
    """A pod; for :func:`to_pod`."""

    metadata: PodMetaObject | None = None
    spec: PodSpecObject | None = None
    status: PodStatusObject | None = None


class NodeMetaObject(msgspec.Struct, frozen=True, gc=False):
    """What a node is called."""

    name: str | None = None


class NodeStatusObject(msgspec.Struct, frozen=True, gc=False):
    """What a node has and offers."""

    capacity: RawAmounts | None = None
    allocatable: RawAmounts | None = None


class NodeObject(msgspec.Struct, frozen=True, gc=False):
    """A node; for :func:`to_node`."""

    metadata: NodeMetaObject | None = None
    status: NodeStatusObject | None = None


_NO_META, _NO_SPEC, _NO_STATUS = PodMetaObject(), PodSpecObject(), PodStatusObject()
_NO_CONTAINER, _NO_RESOURCES = ContainerObject(), ResourcesObject()
_RESOURCES_DECODER = msgspec.json.Decoder(ResourcesObject | None)
# By the identity of the containers, which they keep alive.
_shared_containers: dict[tuple[int, ...], SharedContainers] = {}


def to_pod(value: PodObject) -> Pod:
    """
    Make of an object what :meth:`Pod.from_manifest` makes of its JSON, several times faster.

    Raises:
        ManifestError: If a quantity, or the form of resources, cannot be read; the message gives its path.
    """
    metadata, spec, status = value.metadata or _NO_META, value.spec or _NO_SPEC, value.status or _NO_STATUS
    try:
        return Pod(
            name=metadata.name or metadata.generate_name or "",
            namespace=metadata.namespace or "default",
            uid=metadata.uid or "",
            containers=_containers(spec.containers),
            init_containers=_containers(spec.init_containers),
            # Few pods have them.
            pod_level=Pod.from_manifest({"spec": {"resources": spec.resources}}).pod_level if spec.resources else None,
            overhead=_amounts(spec.overhead),
            node_name=intern(spec.node_name or ""),  # thousands of pods name the same few
            nominated_node_name=status.nominated_node_name or "",
            scheduled_at=_scheduled_at(status.conditions),
            created_at=_instant(metadata.creation_timestamp),
            is_terminal=is_terminal_phase(status.phase),
            is_deleting=metadata.deletion_timestamp is not None,
            scheduler_name=spec.scheduler_name or "",
            priority_class=spec.priority_class_name or "",
            is_daemon=_is_daemon(metadata.owner_references),
            labels=own_entries(metadata.labels) if metadata.labels else {},
            annotations=own_entries(metadata.annotations) if metadata.annotations else {},
        )
    except (QuantityError, msgspec.DecodeError):
        return Pod.from_manifest(msgspec.json.decode(msgspec.json.encode(value)))  # which tells where it stands


def to_node(value: NodeObject) -> Node:
    """
    Make of an object what :meth:`Node.from_manifest` makes of its JSON.

    Raises:
        ManifestError: If it has no name, or a quantity cannot be read; the message gives the path.
    """
    status = value.status or NodeStatusObject()
    try:
        if value.metadata is not None and value.metadata.name:
            return Node(value.metadata.name, _amounts(status.capacity), _amounts(status.allocatable))
    except QuantityError:
        pass  # and told by the other path, with where it stands
    return Node.from_manifest(msgspec.to_builtins(value))


def _containers(listed: Sequence[ContainerObject | None] | None) -> tuple[Container, ...]:
    if not listed:
        return ()
    sizes = [_size(each) for each in listed if each is not None]
    if len(listed) > _MOST_SHARED or max(sizes, default=0) > _LONGEST_REMEMBERED:
        return tuple([_read(_read_container.__wrapped__, each or _NO_CONTAINER) for each in listed])
    containers = [_read(_read_container, each or _NO_CONTAINER) for each in listed]
    identity = tuple(map(id, containers))
    shared = _shared_containers.get(identity)
    if shared is None:
        if len(_shared_containers) >= _MOST_TEMPLATES:
            _shared_containers.clear()
        shared = _shared_containers[identity] = SharedContainers(containers)
    return shared


def _size(value: ContainerObject) -> int:
    return len(value.name or "") + len(bytes(value.resources))


def _read(read: Callable[[str, bytes, bool], Container], value: ContainerObject) -> Container:
    return read(value.name or "", bytes(value.resources), value.restart_policy == "Always")


@lru_cache(maxsize=_MOST_TEMPLATES)  # thousands of pods are made of the same few templates
def _read_container(name: str, resources: bytes, is_sidecar: bool) -> Container:  # noqa: FBT001 - the cache is faster without names
    read = _RESOURCES_DECODER.decode(resources) or _NO_RESOURCES
    return Container(name, _amounts(read.requests), _amounts(read.limits), is_sidecar)


def _amounts(amounts: RawAmounts | None) -> Amounts:
    parse = Quantity.parse
    return {name: parse(amount) for name, amount in amounts.items()} if amounts else {}


def _is_daemon(owners: Sequence[OwnerObject | None] | None) -> bool:
    return any(owner is not None and owner.kind == "DaemonSet" for owner in owners) if owners else False


def _scheduled_at(conditions: Sequence[ConditionObject | None] | None) -> float:
    for condition in conditions or ():
        if condition is not None and condition.type == "PodScheduled" and condition.status == "True":
            return _instant(condition.last_transition_time)
    return math.nan


def _instant(text: str | None) -> float:
    return math.nan if text is None else parse_instant(text)
