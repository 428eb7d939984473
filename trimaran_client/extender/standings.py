"""
Answers that are ready before they are asked for: in a burst the next pod is like the last, and only a few nodes have changed.

For a kind of pod that is asked about again, all nodes of the snapshot are scored once and kept so, with the text of each; an answer then
gathers texts. In a burst it is the steps that cost, since other programs have pushed their code and data out of the processor's caches.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable
from dataclasses import dataclass

from trimaran_client.assigned import AssignedPods, PodsView
from trimaran_client.capacities import CapacitiesView, NodeCapacities
from trimaran_client.extender.wire import encode_array, encode_part, encode_start, hold_scores
from trimaran_client.policies.base import NodeColumns
from trimaran_client.policies.kept_scores import KeptScores
from trimaran_client.resources import Pod
from trimaran_client.scorer import Scorer, find_rows
from trimaran_client.snapshot import LoadSnapshot, SnapshotSource
from trimaran_client.units import IntArray

# Each holds a text for each node. Who asks for more kinds of pods at a time is answered as if there were none of this.
_MOST_KINDS = 16
# Scoring all nodes for a kind of pod pays when it is asked about again.
_FIRST_ASKED = 2


class Standing:
    """
    All nodes of a snapshot, scored for one kind of pod.

    Args:
        kept: The scores, which follow the pods.
        columns: All nodes of the snapshot, without pods: those of then would stay in memory.
        pods: The pods that hold a place.
        version: Which of their changes are in the scores.
        is_short: Whether scores are told from 0 to 10.
    """

    def __init__(self, kept: KeptScores, columns: NodeColumns, *, pods: AssignedPods, version: int, is_short: bool) -> None:
        self.columns = columns
        self.values = hold_scores(kept.values)
        self._kept = kept
        self._pods = pods
        self._pods_are_complete = pods.is_complete
        self._version = version
        self._is_short = is_short
        self._starts = [*map(encode_start, columns.names)]
        self._parts: dict[str, bytes] = {}
        self._write(range(len(columns.names)), self.values.tolist())

    def follow(self, now: float) -> bool:
        """Bring the scores up to *now*, Unix seconds; false where everything is to be made anew."""
        pods = self._pods
        pods.expire(now)
        if not self._kept.holds_at(now) or pods.is_complete != self._pods_are_complete:
            return False
        changes = pods.changes_since(self._version)
        if changes is None:
            return False
        if changes:
            rows = self._kept.update(changes)
            if rows is None:
                return False
            self._version += len(changes)
            values = hold_scores(self._kept.values.take(rows))
            self.values[rows] = values
            self._write(rows.tolist(), values.tolist())
        return True

    def answer(self, names: tuple[str, ...]) -> bytes | None:
        """Write the score of each candidate; ``None`` where one is no node of the snapshot."""
        if len(names) < 2:
            return None
        try:
            return encode_array(operator.itemgetter(*names)(self._parts))
        except KeyError:
            return None

    def scores_at(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Gather scores and reasons as they are now."""
        return self.values.take(rows), self._kept.reasons.take(rows)

    def _write(self, rows: range | list[int], values: list[int]) -> None:
        for row, value in zip(rows, values, strict=True):
            self._parts[self.columns.names[row]] = encode_part(self._starts[row], value, is_short=self._is_short)


def gather(columns: NodeColumns, names: tuple[str, ...], rows: IntArray, pods: PodsView, now: float) -> NodeColumns:
    """Gather what the scores of some candidates were computed from, out of the columns of all nodes, where the pods were these."""
    return NodeColumns(
        names=names,
        snapshot=columns.snapshot,
        now=now,
        rows=rows,
        pods=pods,
        pod_rows=find_rows(names, pods.totals.rows),
        capacities=columns.capacities,
        capacity_rows=columns.capacity_rows if columns.capacities is None else columns.capacity_rows.take(rows),
        whole=columns,
    )


@dataclass(slots=True)
class _Kind:
    """How often a kind of pod was asked about since its standing went, and after how many times there is one again."""

    asked: int = 0
    needed: int = _FIRST_ASKED
    standing: Standing | None = None


class Standings:
    """
    Find the standing for a pod, and make it where that pays.

    Args:
        load: The measured load.
        pods: The pods that hold a place.
        nodes: What nodes have; ``None`` where the cluster is not watched.
        is_short: Whether scores are told from 0 to 10.
    """

    def __init__(self, load: SnapshotSource, pods: AssignedPods, nodes: NodeCapacities | None, *, is_short: bool) -> None:
        self._load = load
        self._pods = pods
        self._nodes = nodes
        self._is_short = is_short
        self._made_from: tuple[LoadSnapshot | None, CapacitiesView | None] = (None, None)
        self._kinds: dict[tuple[Scorer, Hashable], _Kind] = {}

    def find(self, scorer: Scorer, pod: Pod, now: float) -> Standing | None:
        """Answer the standing for a pod, brought up to *now*, Unix seconds; ``None`` where there is none."""
        what = scorer.kind_of(pod)
        if what is None:
            return None
        made_from = (self._load.snapshot, None if self._nodes is None else self._nodes.view())
        if made_from[0] is not self._made_from[0] or made_from[1] is not self._made_from[1]:
            self._made_from = made_from
            self._kinds.clear()
        kind = self._kinds.get((scorer, what))
        if kind is None:
            if len(self._kinds) >= _MOST_KINDS:
                del self._kinds[next(iter(self._kinds))]
            kind = self._kinds[scorer, what] = _Kind()
        if kind.standing is None:
            kind.asked += 1
            if kind.asked >= kind.needed:
                kind.standing = self._make(scorer, pod, now)
        elif not kind.standing.follow(now):
            # Where pods that are measured in part come and go all the time, making it anew each time would cost more than it saves.
            kind.asked, kind.needed, kind.standing = 0, 2 * kind.needed, None
        return kind.standing

    def clear(self) -> None:
        """Forget all of them."""
        self._kinds.clear()

    def _make(self, scorer: Scorer, pod: Pod, now: float) -> Standing | None:
        columns = scorer.columns(self._load, now=now, pods=self._pods, capacities=self._nodes)
        kept, version = scorer.keep_scores(pod, columns), self._pods.version
        if kept is None or columns.whole is None:
            return None
        return Standing(kept, columns.whole, pods=self._pods, version=version, is_short=self._is_short)
