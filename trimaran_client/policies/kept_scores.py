"""Scores of all nodes that are kept, and brought up to date node by node as pods come and go."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol, runtime_checkable

from trimaran_client.pod_table import PodChange
from trimaran_client.policies.base import NodeColumns
from trimaran_client.resources import Pod
from trimaran_client.units import IntArray


class KeptScores(Protocol):
    """
    The scores of all nodes of a snapshot for one kind of pod.

    ``values`` and ``reasons`` are what the policy's ``score_nodes`` would answer for all nodes now, shape (nodes,).
    """

    values: IntArray
    reasons: IntArray

    def holds_at(self, now: float) -> bool:
        """Tell whether they still stand by the age of the metrics, at *now*, Unix seconds."""
        ...

    def update(self, changes: Sequence[PodChange]) -> IntArray | None:
        """
        Follow what changed of the pods.

        Returns:
            The rows that were scored again, each once; ``None`` where only making everything anew gives the right scores.
        """
        ...


@runtime_checkable
class KeepingPolicy(Protocol):
    """A policy by which the score of a node does not depend on the other candidates, and of the pod on a few numbers only."""

    def kind_of(self, pod: Pod) -> Hashable | None:
        """Answer the same for pods that have the same scores on the same nodes; ``None`` where that cannot be told."""
        ...

    def keep_scores(self, pod: Pod, nodes: NodeColumns) -> KeptScores:
        """Score all nodes of a snapshot, to be kept."""
        ...
