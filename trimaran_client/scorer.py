"""
From a snapshot, pods and candidates to the scores of one decision.

The one place where measured load, what is known of pods, and a policy meet; no formulas and no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from trimaran_client.assigned import assigned_pods
from trimaran_client.policies.base import NodeColumns, ResourceColumns, Scores, ScoringPolicy, full_column
from trimaran_client.resources import CPU, MEMORY, Node, Pod, sum_over_pods
from trimaran_client.snapshot import LoadSnapshot, Unit, take_rows
from trimaran_client.units import ZERO, FloatArray, Quantity


class Scorer:
    """Score nodes by one policy; holds nothing between calls."""

    def __init__(self, policy: ScoringPolicy) -> None:
        self.policy = policy

    def score_nodes(
        self,
        pod: Pod,
        snapshot: LoadSnapshot,
        *,
        now: float,
        nodes: Sequence[Node | str] | None = None,
        pods: Iterable[Pod] | None = None,
    ) -> Scores:
        """
        Score the candidate nodes for a pod.

        Args:
            pod: The pod to place.
            snapshot: The measured load.
            now: The present, Unix seconds; ages follow from it.
            nodes: The candidates, as manifests (whose capacity counts) or names (then the snapshot's); by default all of the snapshot.
            pods: All pods of the cluster, for what they request and for those whose usage is not measured yet; ``None`` = not known.

        Returns:
            Scores in the order of the candidates.
        """
        return self.policy.score_nodes(pod, build_columns(snapshot, now=now, nodes=nodes, pods=pods))


def build_columns(
    snapshot: LoadSnapshot,
    *,
    now: float,
    nodes: Sequence[Node | str] | None = None,
    pods: Iterable[Pod] | None = None,
) -> NodeColumns:
    """Gather what is known of the candidates into columns; the arguments are those of :meth:`Scorer.score_nodes`."""
    candidates: Sequence[Node | str] = snapshot.nodes if nodes is None else nodes
    names = tuple(node if isinstance(node, str) else node.name for node in candidates)
    rows = snapshot.rows_of(names)
    known_pods = None if pods is None else tuple(pods)
    return NodeColumns(
        names=names,
        snapshot=snapshot,
        rows=rows,
        age_seconds=np.maximum(now - take_rows(snapshot.sampled_at, rows), 0.0),
        cpu=_resource_columns(CPU, "milli", candidates, snapshot.millicores_of(rows), known_pods),
        memory=_resource_columns(MEMORY, "value", candidates, snapshot.bytes_of(rows), known_pods),
        assigned=() if known_pods is None else assigned_pods(known_pods),
    )


def _resource_columns(
    resource: str,
    unit: Unit,
    candidates: Sequence[Node | str],
    served: tuple[FloatArray, FloatArray],
    pods: Sequence[Pod] | None,
) -> ResourceColumns:
    """Take capacity and allocatable from the manifests of the candidates, else from the snapshot; sum what the pods on them hold."""
    capacity, allocatable = served
    for row, node in enumerate(candidates):
        if not isinstance(node, str):
            capacity[row] = _amount(node.capacity.get(resource), unit)
            allocatable[row] = _amount(node.allocatable.get(resource), unit)
    if pods is None:
        unknown = full_column(len(candidates))
        return ResourceColumns(capacity, allocatable, unknown, unknown)
    names = [node if isinstance(node, str) else node.name for node in candidates]
    requested, limited = (
        np.array([_amount(totals.get(name, ZERO), unit) for name in names])
        for totals in (sum_over_pods(pods, resource, Pod.requested), sum_over_pods(pods, resource, Pod.limited))
    )
    return ResourceColumns(capacity, allocatable, requested, limited)


def _amount(quantity: Quantity | None, unit: Unit) -> float:
    return math.nan if quantity is None else float(getattr(quantity, unit))
