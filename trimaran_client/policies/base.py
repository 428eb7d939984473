"""The contract of a scoring policy: what it is given, what it answers, and the codes of its reasons."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from trimaran_client.assigned import AssignedPod
from trimaran_client.resources import Pod
from trimaran_client.snapshot import LoadSnapshot, Pick, take_rows
from trimaran_client.units import FloatArray, IntArray, freeze

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


@dataclass(frozen=True, slots=True, eq=False)
class ResourceColumns:
    """
    One resource of the candidates, in its base unit (millicores, bytes); every column has the shape (nodes,).

    Args:
        capacity: What the node has; NaN = unknown.
        allocatable: What it offers to pods; NaN = unknown.
        requested: What the pods on it request; NaN = its pods are not known.
        limited: The sum of their limits, each raised to at least the request; NaN = its pods are not known.
    """

    capacity: FloatArray
    allocatable: FloatArray
    requested: FloatArray
    limited: FloatArray

    @property
    def offered(self) -> FloatArray:
        """Answer allocatable, else capacity, where it is above 0; NaN elsewhere."""
        amounts = np.where(np.isnan(self.allocatable), self.capacity, self.allocatable)
        return np.where(amounts > 0, amounts, math.nan)

    @property
    def offered_upstream(self) -> FloatArray:
        """Answer allocatable as the Go plugins read it: 0 where it is unknown."""
        return np.where(np.isnan(self.allocatable), 0.0, self.allocatable)


@dataclass(frozen=True, slots=True, eq=False)
class NodeColumns:
    """
    The candidate nodes of one decision in columns; every column has the shape (nodes,).

    Args:
        names: The candidates, in the order of the answer.
        snapshot: The measured load.
        rows: The row of each candidate in the snapshot, -1 where it has none.
        age_seconds: How old each node's measurement is; NaN = unknown.
        cpu: Millicores.
        memory: Bytes.
        assigned: Pods bound to any node, with the time of it.
    """

    names: tuple[str, ...]
    snapshot: LoadSnapshot
    rows: IntArray
    age_seconds: FloatArray
    cpu: ResourceColumns
    memory: ResourceColumns
    assigned: Sequence[AssignedPod] = ()

    def metric(self, metric_type: str, operators: tuple[str, ...], *, pick: Pick = "last") -> FloatArray:
        """Select a metric of the candidates, as :meth:`LoadSnapshot.column` does; NaN = absent."""
        return take_rows(self.snapshot.column(metric_type, operators, pick=pick), self.rows)


class ScoringPolicy(Protocol):
    """
    A way to score nodes: pure arithmetic over columns, no clock, no log, no I/O, and no exception whatever the columns hold.

    Parameters belong to the instance and were validated when it was made.
    """

    @property
    def name(self) -> str:
        """Answer the name under which the policy is chosen."""
        ...

    def score_nodes(self, pod: Pod, nodes: NodeColumns) -> Scores:
        """Score every candidate for *pod*."""
        ...


def to_score(values: FloatArray) -> IntArray:
    """
    Turn rounded scores into integers; what is not a number becomes the lowest score.

    >>> to_score(np.array([85.0, math.nan]))
    array([85,  0])
    """
    held = np.clip(values, -_LARGEST_SCORE, _LARGEST_SCORE)  # an upstream preset takes any target, and its scores have no range
    return np.where(np.isnan(held), MIN_NODE_SCORE, held).astype(np.int64)


def full_column(count: int, value: float = math.nan) -> FloatArray:
    """Make a column of one value, NaN by default."""
    return np.full(count, value, dtype=np.float64)
