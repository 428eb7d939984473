"""
From a snapshot, pods and candidates to the scores of one decision.

The one place where measured load, what is known of pods, and a policy meet; no formulas and no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from trimaran_client.assigned import assigned_pods
from trimaran_client.policies.base import NodeColumns, Scores, ScoringPolicy, full_column
from trimaran_client.resources import CPU, Node, Pod, sum_requested
from trimaran_client.snapshot import LoadSnapshot, take_rows
from trimaran_client.units import ZERO, FloatArray


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
        capacity_millicores=_millicores(candidates, take_rows(snapshot.capacity.millicores, rows), "capacity"),
        allocatable_millicores=_millicores(candidates, take_rows(snapshot.allocatable.millicores, rows), "allocatable"),
        requested_millicores=_requested_millicores(names, known_pods),
        assigned=() if known_pods is None else assigned_pods(known_pods),
    )


def _millicores(candidates: Sequence[Node | str], served: FloatArray, field: str) -> FloatArray:
    column = served.copy()
    for row, node in enumerate(candidates):
        if not isinstance(node, str):
            amount = getattr(node, field).get(CPU)
            column[row] = math.nan if amount is None else amount.milli
    return column


def _requested_millicores(names: tuple[str, ...], pods: Sequence[Pod] | None) -> FloatArray:
    if pods is None:
        return full_column(len(names))
    requested = sum_requested(pods, CPU)
    return np.array([float(requested.get(name, ZERO).milli) for name in names])
