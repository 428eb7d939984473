"""
From a snapshot, pods and candidates to the scores of one decision.

The one place where measured load, what is known of pods and nodes, and a policy meet; no formulas and no I/O.
"""

from __future__ import annotations

import itertools
import logging
import math
import operator
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import cast

import numpy as np

from trimaran_client.assigned import AssignedPods
from trimaran_client.capacities import CapacitiesView, NodeCapacities
from trimaran_client.explain import Explanation, explain_columns
from trimaran_client.policies.base import NEUTRAL_NODE_SCORE, NodeColumns, Reason, Scores, ScoringPolicy
from trimaran_client.policies.kept_scores import KeepingPolicy, KeptScores
from trimaran_client.resources import CPU, MEMORY, Node, Pod
from trimaran_client.snapshot import LoadSnapshot, SnapshotSource, are_all_there, take_codes
from trimaran_client.units import IntArray, freeze

logger = logging.getLogger(__name__)

# A scheduler scores against the newest snapshot and pods; the ones before them are not asked again.
_MOST_ALIGNMENTS = 8
_RESOURCES = (CPU, MEMORY)
_NOWHERE: IntArray = np.empty(0, dtype=np.int64)
freeze(_NOWHERE)


class Scorer:
    """
    Score nodes by one policy.

    Args:
        policy: How to score.

    Attributes:
        policy: The policy.
        failures: How often the policy raised, or what it needs could not be gathered; every candidate then gets the neutral score, with the
            reason ``policy_failed``.
        last_error: What was raised last.
    """

    def __init__(self, policy: ScoringPolicy) -> None:
        self.policy = policy
        self._keeping = policy if isinstance(policy, KeepingPolicy) else None
        self.failures = 0
        self.last_error: Exception | None = None
        self._alignments = Alignments()

    def score_nodes(
        self,
        pod: Pod,
        load: LoadSnapshot | SnapshotSource,
        *,
        now: float,
        nodes: Sequence[Node | str] | None = None,
        pods: AssignedPods | Iterable[Pod] | None = None,
        capacities: NodeCapacities | None = None,
    ) -> Scores:
        """
        Score the candidate nodes for a pod; never waits for anything, and never raises.

        Args:
            pod: The pod to place.
            load: The measured load, or whatever holds the newest of it.
            now: The present, Unix seconds; ages follow from it.
            nodes: The candidates, as manifests (whose capacity counts) or names; by default all of the snapshot.
            pods: The pods that hold a place, for what they request and for those whose usage is not measured yet: a cache that is kept up
                to date, or all pods of the cluster; ``None`` = not known.
            capacities: What nodes have, for candidates that are mere names; without it, and for names that it lacks, the snapshot says it.

        Returns:
            Scores in the order of the candidates.
        """
        try:
            columns = self.columns(load, now=now, nodes=nodes, pods=pods, capacities=capacities)
        except Exception as error:  # noqa: BLE001 - the source, the pods and the nodes can be anyone's
            self._note_failure(pod, error)
            return _neutral(_names_of(load, nodes))
        return self.score_columns(pod, columns)

    def score_columns(self, pod: Pod, columns: NodeColumns) -> Scores:
        """Score the candidates of columns that were gathered before, so that they can be explained as they were."""
        try:
            return self.policy.score_nodes(pod, columns)
        except Exception as error:  # noqa: BLE001 - a policy can be anyone's code, and a scheduler must go on
            self._note_failure(pod, error)
            return _neutral(columns.names)

    def kind_of(self, pod: Pod) -> Hashable | None:
        """Answer the same for pods that have the same scores on the same nodes; ``None`` where the policy does not keep scores."""
        return None if self._keeping is None else self._keeping.kind_of(pod)

    def keep_scores(self, pod: Pod, columns: NodeColumns) -> KeptScores | None:
        """Score all nodes of a snapshot, to be kept; ``None`` where the policy cannot, or fails."""
        try:
            return None if self._keeping is None else self._keeping.keep_scores(pod, columns)
        except Exception:  # noqa: BLE001 - what fails here fails in score_columns too, which tells of it
            return None

    def explain(
        self,
        pod: Pod,
        load: LoadSnapshot | SnapshotSource,
        *,
        now: float,
        nodes: Sequence[Node | str] | None = None,
        pods: AssignedPods | Iterable[Pod] | None = None,
        capacities: NodeCapacities | None = None,
        only: Sequence[str] | None = None,
    ) -> Explanation:
        """
        Tell why each candidate has its score; the arguments are those of :meth:`score_nodes`, *only* names the nodes to tell of.

        Returns:
            The scores again, with the arithmetic behind them.
        """
        columns = self.columns(load, now=now, nodes=nodes, pods=pods, capacities=capacities)
        return explain_columns(self.policy, pod, columns, self.score_columns(pod, columns), only=only)

    def columns(
        self,
        load: LoadSnapshot | SnapshotSource,
        *,
        now: float,
        nodes: Sequence[Node | str] | None = None,
        pods: AssignedPods | Iterable[Pod] | None = None,
        capacities: NodeCapacities | None = None,
    ) -> NodeColumns:
        """Gather what is known of the candidates, frozen; the arguments are those of :meth:`score_nodes`."""
        return build_columns(
            load, now=now, nodes=nodes, pods=pods, capacities=capacities, resources=self.policy.resources, alignments=self._alignments
        )

    def _note_failure(self, pod: Pod, error: Exception) -> None:
        self.failures += 1
        if type(error) is not type(self.last_error):  # its words may name the pod, and a traceback for each pod helps nobody
            told = "policy %s failed on pod %s/%s; every node gets the neutral score"
            logger.error(told, self.policy.name, pod.namespace, pod.name, exc_info=error)
        self.last_error = error


def _neutral(names: tuple[str, ...]) -> Scores:
    count = len(names)
    return Scores(names, np.full(count, NEUTRAL_NODE_SCORE, dtype=np.int64), np.full(count, Reason.POLICY_FAILED, dtype=np.int64))


def _names_of(load: LoadSnapshot | SnapshotSource, nodes: Sequence[Node | str] | None) -> tuple[str, ...]:
    try:
        return load.snapshot.nodes if nodes is None else tuple(node if isinstance(node, str) else node.name for node in nodes)
    except Exception:  # noqa: BLE001 - noted already; without names there is nothing to score
        return ()


class Alignments:
    """
    Find the rows of names in tables, and remember the last few; calls from several threads are fine.

    A scheduler asks for all nodes again and again, or each time for a few others out of thousands; the tables of nodes and pods stay the
    same for many questions, or get a new node with each in a burst.
    """

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._known: dict[tuple[int, int], tuple[object, object, IntArray]] = {}
        self._asked: dict[int, Mapping[str, int]] = {}
        self._whole: NodeColumns | None = None

    def list_names(self, nodes: Sequence[Node | str]) -> tuple[tuple[str, ...], list[Node]]:
        """Answer the names of candidates, the same object where they are those of the last time, and which candidates are manifests."""
        given, last = tuple(nodes), self._names
        if given is last or given == last:
            return last, []
        if set(map(type, given)) <= {str}:
            names = self._names = cast("tuple[str, ...]", given)
            return names, []
        manifests = [node for node in given if not isinstance(node, str)]
        return tuple(node if isinstance(node, str) else node.name for node in given), manifests

    def align(self, names: tuple[str, ...], rows: Mapping[str, int]) -> IntArray:
        """Answer the row of each name, shape (names,); -1 where it has none. Neither argument may change afterwards."""
        key = (id(names), id(rows))
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MOST_ALIGNMENTS:
                self._known = {}
            found = find_rows(names, rows)
            known = self._known[key] = (names, rows, found)  # both are held, so that no other object gets their identity
        return known[2]

    def locate(self, names: tuple[str, ...], snapshot: LoadSnapshot) -> IntArray:
        """Answer the row of each name in a snapshot, shape (names,); few names out of many are not worth remembering."""
        return find_rows(names, snapshot.rows) if _are_few(names, snapshot) else self.align(names, snapshot.rows)

    def align_through(self, names: tuple[str, ...], rows: IntArray, snapshot: LoadSnapshot, other: Mapping[str, int]) -> IntArray:
        """Answer the row of each name in another table: few names directly, unless the whole snapshot is aligned with it already."""
        if names is snapshot.nodes or not snapshot.nodes:
            return self.align(names, other)
        if _are_few(names, snapshot) and id(other) not in self._asked:
            if len(self._asked) >= _MOST_ALIGNMENTS:
                self._asked = {}
            self._asked[id(other)] = other  # held, so that no other object gets its identity
            return find_rows(names, other)
        found = take_codes(self.align(snapshot.nodes, other), rows)
        if not are_all_there(rows):
            strangers = np.flatnonzero(rows < 0)
            found[strangers] = find_rows([names[row] for row in strangers.tolist()], other)
        return found

    def whole(self, snapshot: LoadSnapshot, capacities: CapacitiesView | None) -> NodeColumns:
        """Answer the columns of all nodes of a snapshot, the same as the last time where both are."""
        known = self._whole
        if known is None or known.snapshot is not snapshot or known.capacities is not capacities:
            rows = _NOWHERE if capacities is None else self.align(snapshot.nodes, capacities.table.rows)
            known = NodeColumns(snapshot.nodes, snapshot, math.nan, capacities=capacities, capacity_rows=rows)
            self._whole = known
        return known


def _are_few(names: tuple[str, ...], snapshot: LoadSnapshot) -> bool:
    return 2 * len(names) < len(snapshot.nodes)


def find_rows(names: Sequence[str], rows: Mapping[str, int]) -> IntArray:
    """Look up the row of each name, shape (names,); -1 where it has none."""
    if len(names) > 1:
        try:  # three times as fast, where all are there
            return np.fromiter(operator.itemgetter(*names)(rows), dtype=np.int64, count=len(names))
        except KeyError:
            pass
    return np.fromiter(map(rows.get, names, itertools.repeat(-1)), dtype=np.int64, count=len(names))


def build_columns(
    load: LoadSnapshot | SnapshotSource,
    *,
    now: float,
    nodes: Sequence[Node | str] | None = None,
    pods: AssignedPods | Iterable[Pod] | None = None,
    capacities: NodeCapacities | None = None,
    resources: tuple[str, ...] = _RESOURCES,
    alignments: Alignments | None = None,
) -> NodeColumns:
    """Gather what is known of the candidates into columns; the arguments are those of :meth:`Scorer.score_nodes`."""
    alignments = alignments or Alignments()
    snapshot = load.snapshot
    names, manifests = (snapshot.nodes, []) if nodes is None else alignments.list_names(nodes)
    if manifests:
        capacities = NodeCapacities.of(manifests, resources)
    if pods is not None and not isinstance(pods, AssignedPods):
        pods = AssignedPods.of(pods, now=now, resources=resources)
    pods_view = None if pods is None else pods.view(now)
    capacities_view = None if capacities is None else capacities.view()
    rows = alignments.locate(names, snapshot)
    whole = alignments.whole(snapshot, capacities_view) if not manifests and are_all_there(rows) else None
    if capacities_view is None:
        capacity_rows = _NOWHERE
    elif whole is not None:
        capacity_rows = take_codes(whole.capacity_rows, rows)
    else:
        capacity_rows = alignments.align_through(names, rows, snapshot, capacities_view.table.rows)
    return NodeColumns(
        names=names,
        snapshot=snapshot,
        now=now,
        rows=None if nodes is None else rows,
        pods=pods_view,
        pod_rows=_NOWHERE if pods_view is None else alignments.align_through(names, rows, snapshot, pods_view.totals.rows),
        capacities=capacities_view,
        capacity_rows=capacity_rows,
        whole=whole,
    )
