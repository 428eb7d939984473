"""
What a provider hands over: one batch of samples in columns, one row a node.

Columns, not objects: five thousand nodes are a handful of arrays, and each later stage is one expression over them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from trimaran_client.units import FloatArray, freeze
from trimaran_client.wire import ResourceQuantities

# What `unit` says of a value in percent of capacity; where nothing is said, CPU and Memory are that and other types are not known.
PERCENT = "percent"

# Of several sources at once: which one each value is from, one name for each node; empty where there is one source.
Origins = tuple[str, ...]

_WINDOW = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_SECONDS_PER_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """
    A span of time over which a source averages.

    >>> Window.parse("15m").duration_seconds, str(Window(300))
    (900, '5m')
    """

    duration_seconds: int

    @classmethod
    def parse(cls, text: str) -> Window:
        """
        Read a duration such as ``15m``, ``90s`` or ``1h``.

        Raises:
            ValueError: If it is not one.
        """
        match = _WINDOW.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a window; write a number with s, m, h or d, for example 15m")
        return cls(int(match[1]) * _SECONDS_PER_UNIT[match[2]])

    def __str__(self) -> str:
        for unit, seconds in (("d", 86400), ("h", 3600), ("m", 60)):
            if self.duration_seconds % seconds == 0:
                return f"{self.duration_seconds // seconds}{unit}"
        return f"{self.duration_seconds}s"


FIFTEEN_MINUTES = Window(900)
TEN_MINUTES = Window(600)
FIVE_MINUTES = Window(300)


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What the API server says a node has; a quantity that does not parse is left out."""

    capacity: ResourceQuantities
    allocatable: ResourceQuantities


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate:
    """
    A column that the source itself computed over a window, shape (nodes,), NaN = absent.

    ``window`` is ``None`` for newest values that stand beside those of ``latest``: another metric of the same type. ``unit`` as
    in :class:`SampleBatch`.
    """

    name: str
    metric_type: str
    operator: str
    window: Window | None
    values: FloatArray
    unit: str = ""
    origins: Origins = ()


@dataclass(frozen=True, slots=True)
class Rejection:
    """A sample that does not count, and the rule that says so, for example ``negative``; ``detail`` shows the value."""

    node: str
    metric_type: str
    rule: str
    detail: str


@dataclass(frozen=True, slots=True, eq=False)
class SampleBatch:
    """
    The samples of one fetch.

    Args:
        source: The provider's name, as ``source`` of the reply.
        nodes: Every node the source knows of, also those without a sample; no name twice.
        sampled_at: When the samples were measured, Unix seconds, shape (nodes,); NaN where a node has none.
        latest: Metric type → the newest values, shape (nodes,); NaN = absent.
        aggregates: What the source averaged itself.
        infos: Capacity and allocatable of each node; ``None`` where unknown.
        rejections: Samples that the provider itself could not use.
        members_known: Whether ``nodes`` is the cluster's own list: then a node that it lacks is gone.
        units: Metric type → unit of its newest values; without one, CPU and Memory are percent of capacity.
        times: Metric type → when its newest values were measured, where that is not ``sampled_at``.
        origins: Metric type → the source of each newest value, where there are several sources.
        sample_seconds: How long each node's sample measured, shape (nodes,), NaN = unknown; empty where the source does not say it.
    """

    source: str
    nodes: tuple[str, ...]
    sampled_at: FloatArray
    latest: Mapping[str, FloatArray]
    aggregates: tuple[Aggregate, ...] = ()
    infos: tuple[NodeInfo | None, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    members_known: bool = True
    units: Mapping[str, str] = field(default_factory=dict)
    times: Mapping[str, FloatArray] = field(default_factory=dict)
    origins: Mapping[str, Origins] = field(default_factory=dict)
    sample_seconds: FloatArray = field(default_factory=lambda: np.empty(0))

    def __post_init__(self) -> None:
        shape = (len(self.nodes),)
        columns = [self.sampled_at, *self.latest.values(), *self.times.values(), *(a.values for a in self.aggregates)]
        if self.sample_seconds.size:
            columns.append(self.sample_seconds)
        if any(column.shape != shape or column.dtype != np.float64 for column in columns):
            raise ValueError(f"each column of a batch is float64 with one row for each of its {len(self.nodes)} nodes")
        if self.infos and len(self.infos) != len(self.nodes):
            raise ValueError(f"{len(self.infos)} node infos for {len(self.nodes)} nodes")
        if len(set(self.nodes)) != len(self.nodes):
            raise ValueError("a node name stands twice in the batch")
        for column in columns:
            freeze(column)

    def times_of(self, metric_type: str) -> FloatArray:
        """Answer when the newest values of a metric were measured, Unix seconds, shape (nodes,)."""
        return self.times.get(metric_type, self.sampled_at)
