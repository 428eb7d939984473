"""
The wire model of ``GET /watcher`` and ``GET /api/v1/snapshot``, shared by the service that writes it and the library that reads it.

The shape of ``GET /watcher`` is that of the Go load-watcher v0.2 (``data.NodeMetricsMap``). ``capacity``, ``allocatable``, ``sampledAt``,
``sampleSeconds`` and ``status`` are ours; the Go client skips them. Reading allows what that client allows (missing keys, null for
anything); writing uses none of it.
"""

from __future__ import annotations

from typing import Final, TypeVar

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

_T = TypeVar("_T")


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


class NodeMetrics(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """
    The metrics of one node.

    ``sampled_at`` is when the newest of them was measured, Unix seconds, ``sample_seconds`` for how long. ``status`` is ``ok``, ``late``
    (kept from an earlier refresh), ``stale`` (older than the limit) or ``no_metrics``.
    """

    metrics: list[Metric | None] | None = None
    tags: dict[str, object] | None = None
    metadata: Metadata | None = None
    capacity: ResourceQuantities | msgspec.UnsetType | None = msgspec.UNSET
    allocatable: ResourceQuantities | msgspec.UnsetType | None = msgspec.UNSET
    sampled_at: int | float | msgspec.UnsetType | None = msgspec.UNSET
    sample_seconds: int | float | msgspec.UnsetType | None = msgspec.UNSET
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


class QuantityColumns(msgspec.Struct, frozen=True):
    """CPU and memory of every node as Kubernetes quantities; ``None`` where unknown."""

    cpu: list[str | None]
    memory: list[str | None]


class MetricColumn(msgspec.Struct, frozen=True):
    """
    One metric of every node; a value is ``None`` where a node does not have it.

    ``statistic`` is ``Latest`` without a window, or for example ``AVG`` or ``P90`` over ``window``. ``unit`` is absent where it is percent
    or not known, ``sources`` where there is one source: else it says of each node which the value is from.
    """

    type: str
    statistic: str
    window: str
    name: str
    values: list[float | None]
    unit: str | msgspec.UnsetType = msgspec.UNSET
    sources: list[str | None] | msgspec.UnsetType = msgspec.UNSET


class NotHeld(msgspec.Struct, frozen=True):
    """A window that was asked for and is not held, and why; empty for the usual ones."""

    window: str
    reason: str


class SnapshotColumns(msgspec.Struct, frozen=True, rename="camel"):
    """
    The whole answer of ``GET /api/v1/snapshot``; every list but the last two has an entry for each node.

    ``id`` names the published snapshot, whatever was asked of it. Instants are Unix seconds; ``window_end_at`` is the newest sample's, 0
    without any. ``columns`` stand in the order of the metrics of ``GET /watcher``.
    """

    id: str
    made_at: int | float
    source: str
    window_end_at: int | float
    nodes: list[str]
    sampled_at: list[float | None]
    sample_seconds: list[float | None]
    statuses: list[str]
    capacity: QuantityColumns
    allocatable: QuantityColumns
    columns: list[MetricColumn]
    not_held: list[NotHeld]


class SnapshotReply(SnapshotColumns, frozen=True, rename="camel"):
    """The same as it is read: what one reply repeats of another is still as its bytes, so that whoever knows these need not read them."""

    nodes: msgspec.Raw  # type: ignore[assignment]
    capacity: msgspec.Raw  # type: ignore[assignment]
    allocatable: msgspec.Raw  # type: ignore[assignment]


_decoder = msgspec.json.Decoder(WatcherMetrics | None)
_reply_decoder = msgspec.json.Decoder(SnapshotReply)
_nodes_decoder = msgspec.json.Decoder(list[str])
_quantities_decoder = msgspec.json.Decoder(QuantityColumns)
_encoder = msgspec.json.Encoder()


def decode_watcher_metrics(body: bytes | str) -> WatcherMetrics:
    """
    Read the body of ``GET /watcher``, of this service or of the Go one.

    Raises:
        SnapshotDecodeError: If it is not JSON, or not of that shape: no part of such a reply is used, as in the Go client.
    """
    return _decode(_decoder, body) or WatcherMetrics()


def decode_snapshot_reply(body: bytes | str) -> SnapshotReply:
    """
    Read the body of ``GET /api/v1/snapshot``, but for what :func:`decode_nodes` and :func:`decode_quantities` read.

    Raises:
        SnapshotDecodeError: If it is not JSON, or not of that shape.
    """
    return _decode(_reply_decoder, body)


def decode_nodes(body: bytes) -> list[str]:
    """
    Read the names of a :class:`SnapshotReply`.

    Raises:
        SnapshotDecodeError: If they are none.
    """
    return _decode(_nodes_decoder, body)


def decode_quantities(body: bytes) -> QuantityColumns:
    """
    Read the capacity or the allocatable of a :class:`SnapshotReply`.

    Raises:
        SnapshotDecodeError: If it is not of that shape.
    """
    return _decode(_quantities_decoder, body)


def _decode(decoder: msgspec.json.Decoder[_T], body: bytes | str) -> _T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        start = body[:80]
        raise SnapshotDecodeError(f"not a load watcher's reply: {error}; it starts {start!r}; check the address") from error


def encode_json(value: object) -> bytes:
    """Write any wire struct as compact JSON; non-finite numbers never reach it (they would be written as null)."""
    return _encoder.encode(value)
