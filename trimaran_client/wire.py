"""
The wire model: what ``GET /watcher`` serves, shared by the service that writes it and the library that reads it.

The shape is that of the Go load-watcher v0.2 (``data.NodeMetricsMap``). ``capacity``, ``allocatable``, ``sampledAt`` and ``status`` are
ours; the Go client skips them. Reading allows what that client allows (missing keys, null for anything); writing uses none of it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from trimaran_client.errors import SnapshotDecodeError

CPU: Final = "CPU"
MEMORY: Final = "Memory"

AVERAGE: Final = "AVG"
STANDARD_DEVIATION: Final = "STD"
LATEST: Final = "Latest"

# Values of `status`.
OK: Final = "ok"
LATE: Final = "late"
STALE: Final = "stale"
NO_METRICS: Final = "no_metrics"


class Metric(msgspec.Struct, frozen=True, gc=False):
    """
    One value of one node; ``rollup`` names the window it covers.

    ``unit`` is ours, and there where the value is not percent of capacity and its unit is known. So is ``source``: which of several sources
    the value is from. The Go client skips both.
    """

    name: str | None = ""
    type: str | None = ""
    operator: str | None = ""
    rollup: str | None = ""
    value: float | None = None
    unit: str | msgspec.UnsetType | None = msgspec.UNSET
    source: str | msgspec.UnsetType | None = msgspec.UNSET


class Metadata(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """What the Go load-watcher says of a node beside its metrics; always empty in ours."""

    data_center: str | None = ""


class ResourceQuantities(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """CPU and memory of a node as Kubernetes quantities, for example ``"7910m"`` and ``"32Gi"``; ``None`` where unknown."""

    cpu: str | None = None
    memory: str | None = None


class NodeMetrics(msgspec.Struct, frozen=True, rename="camel"):
    """
    The metrics of one node.

    ``sampled_at`` is when the newest of them was measured, Unix seconds. ``status`` is ``ok``, ``late`` (kept from an earlier refresh),
    ``stale`` (older than the limit) or ``no_metrics``.
    """

    metrics: list[Metric | None] | None = None
    tags: dict[str, object] | None = None
    metadata: Metadata | None = None
    capacity: ResourceQuantities | msgspec.UnsetType | None = msgspec.UNSET
    allocatable: ResourceQuantities | msgspec.UnsetType | None = msgspec.UNSET
    sampled_at: int | float | msgspec.UnsetType | None = msgspec.UNSET
    status: str | msgspec.UnsetType | None = msgspec.UNSET


class WireWindow(msgspec.Struct, frozen=True, gc=False):
    """The window asked for; ``end`` is the time of the newest sample, both instants in Unix seconds."""

    duration: str | None = ""
    start: int | float | None = 0
    end: int | float | None = 0


class Data(msgspec.Struct, frozen=True):
    """The envelope around the nodes."""

    node_metrics_map: dict[str, NodeMetrics | None] | msgspec.UnsetType | None = msgspec.field(default=msgspec.UNSET, name="NodeMetricsMap")


class WatcherMetrics(msgspec.Struct, frozen=True):
    """The whole reply; ``timestamp`` is when it was made, Unix seconds."""

    timestamp: int | float | None = 0
    window: WireWindow | None = None
    source: str | None = ""
    data: Data | None = None


_decoder = msgspec.json.Decoder(WatcherMetrics | None)
_encoder = msgspec.json.Encoder()


def decode_watcher_metrics(body: bytes | str) -> WatcherMetrics:
    """
    Read the body of ``GET /watcher``, of this service or of the Go one.

    Raises:
        SnapshotDecodeError: If it is not JSON, or not of that shape: no part of such a reply is used, as in the Go client.
    """
    try:
        return _decoder.decode(body) or WatcherMetrics()
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        start = body[:80]
        raise SnapshotDecodeError(f"not a load watcher's reply: {error}; it starts {start!r}; check the address") from error


def encode_json(value: object) -> bytes:
    """Write any wire struct as compact JSON; non-finite numbers never reach it (they would be written as null)."""
    return _encoder.encode(value)
