"""The contract of a scoring policy: what it is given, what it answers, and the codes of its reasons."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, Protocol

import numpy as np

from trimaran_client.assigned import PodsView
from trimaran_client.capacities import CapacitiesView
from trimaran_client.prediction import PredictedPart
from trimaran_client.resources import CPU, MEMORY, Pod
from trimaran_client.snapshot import LoadSnapshot, MetricSelector, Pick, Selection, take_codes, take_rows
from trimaran_client.units import BoolArray, FloatArray, IntArray, freeze

MIN_NODE_SCORE = 0
MAX_NODE_SCORE = 100
NEUTRAL_NODE_SCORE = 50
_LARGEST_SCORE = 2.0**53


class Reason(enum.IntEnum):
    """Why a node has its score; ``str(reason)`` is the code that people and programs see."""

    AT_OR_BELOW_TARGET = 0
    ABOVE_TARGET = 1
    OVER_CAPACITY = 2
    CAPACITY_UNKNOWN = 3
    NO_METRICS = 4
    FALLBACK_ALLOCATION = 5
    FALLBACK_NEUTRAL = 6
    FALLBACK_MINIMUM = 7
    PODS_UNKNOWN = 8
    RISK = 9
    BEST_EFFORT = 10
    POWER = 11
    NO_MODEL = 12
    POLICY_FAILED = 13

    def __str__(self) -> str:
        return self.name.lower()


class NodeScore(NamedTuple):
    """One node's result."""

    node: str
    score: int
    reason: Reason


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """
    The answer of a policy, in the order of the candidate nodes.

    Args:
        names: The candidate nodes.
        values: Scores, shape (nodes,); 0 to 100, higher is better.
        reasons: :class:`Reason` codes, shape (nodes,).
    """

    names: tuple[str, ...]
    values: IntArray
    reasons: IntArray

    def __post_init__(self) -> None:
        freeze(self.values)
        freeze(self.reasons)

    def by_node(self) -> dict[str, int]:
        """Answer node name → score."""
        return dict(zip(self.names, self.values.tolist(), strict=True))

    def ranked(self) -> list[NodeScore]:
        """List the nodes best first; equal scores by name, so that the order is always the same."""
        triples = zip(self.names, self.values.tolist(), self.reasons.tolist(), strict=True)
        return sorted(
            (NodeScore(name, score, Reason(reason)) for name, score, reason in triples), key=lambda each: (-each.score, each.node)
        )


class ResourceColumns:
    """
    One resource of the candidates, in its base unit (millicores, else whole units); columns have the shape (nodes,).

    What was computed is kept in *known*, which belongs to the nodes: kept here, the two would hold each other, and what a decision was made
    from would stay until the collector of cycles comes by.
    """

    __slots__ = ("_known", "_name", "_nodes")

    def __init__(self, nodes: NodeColumns, name: str, known: dict[Hashable, FloatArray]) -> None:
        self._nodes = nodes
        self._name = name
        self._known = known

    @property
    def capacity(self) -> FloatArray:
        """Answer what the node has; NaN = unknown."""
        return self._find("capacity", lambda: self._nodes.amount(self._name, 0))

    @property
    def allocatable(self) -> FloatArray:
        """Answer what it offers to pods; NaN = unknown."""
        return self._find("allocatable", lambda: self._nodes.amount(self._name, 1))

    @property
    def requested(self) -> FloatArray:
        """Answer what the pods on it request; NaN = its pods are not known."""
        return self._find("requested", lambda: self._nodes.total(self._name, 0))

    @property
    def limited(self) -> FloatArray:
        """Answer the sum of their limits, each raised to at least the request; NaN = its pods are not known."""
        return self._find("limited", lambda: self._nodes.total(self._name, 1))

    @property
    def offered(self) -> FloatArray:
        """Answer allocatable, else capacity, where it is above 0; NaN elsewhere."""
        return self._find("offered", self._find_offered)

    @property
    def offered_upstream(self) -> FloatArray:
        """Answer allocatable as the Go plugins read it: 0 where it is unknown."""
        return self._find("offered_upstream", lambda: np.where(np.isnan(self.allocatable), 0.0, self.allocatable))

    def _find_offered(self) -> FloatArray:
        amounts = np.where(np.isnan(self.allocatable), self.capacity, self.allocatable)
        return np.where(amounts > 0, amounts, math.nan)

    def _find(self, column: str, compute: Callable[[], FloatArray]) -> FloatArray:
        key = (self._name, column)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = compute()
        return known


@dataclass(frozen=True, eq=False)
class NodeSelection:
    """
    The metric that counts for each candidate, shape (nodes,); NaN and -1 where none does.

    Args:
        chosen: The metric that counts for each node of a snapshot.
        rows: The row of each candidate in it, -1 where it has none; ``None`` = they are the candidates.
    """

    chosen: Selection
    rows: IntArray | None = None

    @cached_property
    def values(self) -> FloatArray:
        """Answer its values."""
        return self.chosen.values if self.rows is None else take_rows(self.chosen.values, self.rows)

    @cached_property
    def keys(self) -> IntArray:
        """Answer what it is, as indexes into ``snapshot.metrics.key_names``."""
        return self.chosen.keys if self.rows is None else take_codes(self.chosen.keys, self.rows)

    @cached_property
    def positions(self) -> IntArray:
        """Answer where it stands in the table of metrics."""
        return self.chosen.positions if self.rows is None else take_codes(self.chosen.positions, self.rows)


@dataclass(frozen=True, eq=False)
class NodeColumns:
    """
    The candidate nodes of one decision in columns; every column has the shape (nodes,).

    Args:
        names: The candidates, in the order of the answer.
        snapshot: The measured load.
        now: The present, Unix seconds.
        rows: The row of each candidate in the snapshot, -1 where it has none; ``None`` = all of the snapshot, in its order.
        pods: The pods that hold a place; ``None`` = not known.
        pod_rows: The row of each candidate in ``pods.totals``, -1 where it has no pods.
        capacities: What nodes have, where that is known apart from the snapshot.
        capacity_rows: The row of each candidate there, -1 where it is not known.
        whole: All nodes of the same snapshot with the same capacities, shared by many decisions; ``None`` where a candidate is none of
            them.
    """

    names: tuple[str, ...]
    snapshot: LoadSnapshot
    now: float
    rows: IntArray | None = None
    pods: PodsView | None = None
    pod_rows: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    capacities: CapacitiesView | None = None
    capacity_rows: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    whole: NodeColumns | None = field(default=None, repr=False)

    def derive(self, what: Hashable, compute: Callable[[NodeColumns], FloatArray]) -> FloatArray:
        """
        Compute columns that follow from snapshot and capacities alone, shape (…, nodes): once for all nodes, and gathered here.

        Args:
            what: What they are, the same for the same *compute*.
            compute: Computes them; it must not look at pods or the present.
        """
        source = self if self.whole is None else self.whole
        key = ("derived", what)
        known = source.computed.get(key)
        if known is None:
            known = source.computed[key] = compute(source)
            freeze(known)
        return known if source is self or self.rows is None else known.take(self.rows, axis=-1)

    def metric(self, metric_type: str, operators: tuple[str, ...], *, pick: Pick = "last") -> FloatArray:
        """Select a metric of the candidates, as :meth:`LoadSnapshot.column` does; NaN = absent."""
        return self._take(self.snapshot.column(metric_type, operators, pick=pick))

    def select(self, selector: MetricSelector) -> NodeSelection:
        """Select a metric of the candidates, and tell which one it was."""
        return NodeSelection(self.snapshot.select(selector), self.rows)

    @cached_property
    def sampled_at(self) -> FloatArray:
        """Answer when each candidate was measured, Unix seconds; NaN = never, or not known."""
        return self._take(self.snapshot.sampled_at)

    @cached_property
    def newest_sampled_at(self) -> float:
        """Answer when the newest measurement of all nodes was made, Unix seconds; NaN without any."""
        source = self if self.whole is None else self.whole
        return source.newest_sampled_at if source is not self else float(np.fmax.reduce(self.sampled_at, initial=math.nan))

    @cached_property
    def sample_seconds(self) -> FloatArray:
        """Answer over how long its newest sample was measured; NaN = not known."""
        return self._take(self.snapshot.sample_seconds)

    @cached_property
    def age_seconds(self) -> FloatArray:
        """Answer how old each candidate's measurement is; NaN = unknown."""
        return np.maximum(self.now - self.sampled_at, 0.0)

    @property
    def cpu(self) -> ResourceColumns:
        """Answer CPU, millicores."""
        return self.resource(CPU)

    @property
    def memory(self) -> ResourceColumns:
        """Answer memory, bytes."""
        return self.resource(MEMORY)

    def resource(self, name: str) -> ResourceColumns:
        """Answer what the candidates have of a resource and what their pods hold of it, base units (millicores, else whole units)."""
        return ResourceColumns(self, name, self.computed)

    @cached_property
    def candidates_of_pods(self) -> IntArray:
        """Answer the candidate that each pod in flight is on, shape (pods,); -1 where it is on none of them."""
        if self.pods is None:
            return np.empty(0, dtype=np.int64)
        candidate_of = np.full(self.pods.totals.row_count + 1, -1)
        candidate_of[self.pod_rows] = np.arange(len(self.pod_rows))
        candidate_of[-1] = -1  # where candidates without pods point
        return candidate_of.take(self.pods.node_rows)

    def sum_by_node(self, amounts: FloatArray) -> FloatArray:
        """Sum a column of the pods in flight, shape (pods,), over the candidates that they are on."""
        if self.pods is None or not len(amounts):
            return np.zeros(len(self.names))
        # One more at the end, for the index -1 of candidates without pods.
        sums = np.bincount(self.pods.node_rows, weights=amounts, minlength=self.pods.totals.row_count + 1)
        return np.asarray(sums, dtype=np.float64).take(self.pod_rows)

    def amount(self, resource: str, column: Literal[0, 1]) -> FloatArray:
        """Answer the capacity (0) or allocatable (1) of a resource, as node objects tell it, else the snapshot; NaN = unknown."""
        kept = None if self.capacities is None else self.capacities.columns(resource)
        if kept is not None and self._has_capacities.all():
            return kept[column][self.capacity_rows]
        served = self.snapshot.capacity_of(resource)[column]
        told = full_column(len(self.names)) if served is None else self._take(served)
        return told if kept is None else np.where(self._has_capacities, take_rows(kept[column], self.capacity_rows), told)

    def total(self, resource: str, column: Literal[0, 1]) -> FloatArray:
        """Answer what the pods of each candidate request (0) or are limited to (1); NaN = not known."""
        totals = None if self.pods is None else self.pods.total_columns(resource)
        if totals is None:
            return full_column(len(self.names))
        return np.where(self.pod_rows >= 0, take_rows(totals[column], self.pod_rows), 0.0)

    @cached_property
    def computed(self) -> dict[Hashable, FloatArray]:
        """Answer the columns that were computed so far."""
        return {}

    def _take(self, column: FloatArray) -> FloatArray:
        return column if self.rows is None else take_rows(column, self.rows)

    @cached_property
    def _has_capacities(self) -> BoolArray:
        return self.capacity_rows >= 0


@dataclass(frozen=True, slots=True, eq=False)
class MetricUse:
    """Which metric a policy looked at, for each candidate, under which name of a resource."""

    resource: str
    selector: MetricSelector
    selection: NodeSelection


@dataclass(frozen=True, slots=True, eq=False)
class PodUse:
    """
    What the pod, and the pods in flight, are taken to use of a resource.

    Args:
        resource: Its name.
        parts: What the pod is taken to use, part by part.
        amount: The whole of it, base units.
        in_flight: What each pod in flight is taken to use, base units, shape (pods,).
        shares: How much of that the metrics do not show yet, 0 to 1, shape (pods,).
    """

    resource: str
    parts: tuple[PredictedPart, ...]
    amount: float
    in_flight: FloatArray
    shares: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Reasoning:
    """
    What a policy computed, for people: made on demand, never for a score.

    Args:
        metrics: The metrics it looked at.
        pods: What it took pods to use.
        terms: Name with its unit → intermediate, in the order of the arithmetic, shape (nodes,) each; NaN = not known, or not used.
        sentences: How the score of each candidate came about, in plain words and numbers; as many lists as candidates.
    """

    metrics: tuple[MetricUse, ...]
    pods: tuple[PodUse, ...]
    terms: Mapping[str, FloatArray]
    sentences: Sequence[Sequence[str]]


class ScoringPolicy(Protocol):
    """
    A way to score nodes: pure arithmetic over columns, no clock, no log, no I/O, and no exception whatever the columns hold.

    Parameters belong to the instance and were validated when it was made.
    """

    @property
    def name(self) -> str:
        """Answer the name under which the policy is chosen."""
        ...

    @property
    def resources(self) -> tuple[str, ...]:
        """Answer the resources that it needs capacities and totals of, such as ``cpu``."""
        ...

    def score_nodes(self, pod: Pod, nodes: NodeColumns) -> Scores:
        """Score every candidate for *pod*."""
        ...

    def explain(self, pod: Pod, nodes: NodeColumns) -> Reasoning:
        """Lay open the arithmetic behind :meth:`score_nodes` for the same inputs."""
        ...


def to_score(values: FloatArray, low: float = -_LARGEST_SCORE, high: float = _LARGEST_SCORE) -> IntArray:
    """
    Turn rounded scores into integers, held between *low* and *high*; what is not a number becomes the lowest score.

    Without bounds only what no integer can be is held: an upstream preset takes any target, and its scores have no range.

    >>> to_score(np.array([85.0, math.nan]))
    array([85,  0])
    """
    held = np.fmin(np.fmax(values, low), high)  # where there is no number, fmax answers the bound
    return (held if low == MIN_NODE_SCORE else np.where(np.isnan(values), MIN_NODE_SCORE, held)).astype(np.int64)


def full_column(count: int, value: float = math.nan) -> FloatArray:
    """Make a column of one value, NaN by default."""
    return np.full(count, value, dtype=np.float64)
