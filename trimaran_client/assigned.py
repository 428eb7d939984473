"""
Pods that hold a place on a node, and those of them whose usage the metrics do not show yet: the pods in flight.

A pod counts from the moment it is bound (or meant for a node) although nothing has measured it; without that, every pod of a burst would
see the same idle node. Fed by a watch (``update``, ``remove``) or by calls (``assign``, ``assume``, ``forget``). No watch, no I/O and no
clock here: the time is an argument.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from trimaran_client.node_table import FrozenNodeTable, NodeTable
from trimaran_client.pod_table import AssignedPod, PodChange, PodChanges, PodTable, State
from trimaran_client.prediction import UsagePrediction
from trimaran_client.resources import CPU, MEMORY, Pod
from trimaran_client.units import FloatArray, IntArray, Quantity, freeze

AmountOf = Callable[[Pod, str], Quantity]
_USUAL_RULES: Final[tuple[AmountOf, AmountOf]] = (Pod.requested, Pod.limited)

HOLD_ANNOTATION: Final = "trimaran.io/hold-seconds"
# Pulling an image and starting up: until then a measurement of the node shows little of the pod.
DEFAULT_HOLD_SECONDS: Final = 30.0
# Longer than the usual window of 15 minutes and a hold time: by then an average has all of the pod.
DEFAULT_BOUND_SECONDS: Final = 1200.0
# A binding takes well under a second; one that waits for a volume is told by status.nominatedNodeName.
DEFAULT_ASSUME_SECONDS: Final = 30.0
_LONGEST_HOLD_SECONDS: Final = 86400.0


class _Held(NamedTuple):
    """What a pod adds to the totals of its node: requests and limits of each resource in turn, base units."""

    node: str
    state: State
    amounts: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PodsView:
    """
    All pods that hold a place, at one moment; nothing in it ever changes.

    Args:
        resources: The resources whose totals are kept.
        totals: Node → requests and limits of each resource in turn, base units (millicores, else whole units); a node without pods
            need not be there.
        node_rows: The row in ``totals`` of each of these, shape (pods,).
        assigned_at: Since when each is there, Unix seconds, shape (pods,).
        started_at: From when on each can be measured, shape (pods,); infinite = not bound.
    """

    resources: tuple[str, ...]
    totals: FrozenNodeTable
    node_rows: IntArray
    assigned_at: FloatArray
    started_at: FloatArray
    _chunks: tuple[tuple[AssignedPod, ...], ...] = field(repr=False)
    _usages: dict[UsagePrediction, FloatArray] = field(repr=False)
    _owner: AssignedPods = field(repr=False)
    _version: int = 0
    is_complete: bool = True

    @property
    def in_flight(self) -> tuple[AssignedPod, ...]:
        """Answer the pods that the metrics may not show yet, in the order of the columns; made anew each time."""
        return tuple(itertools.chain.from_iterable(self._chunks))

    @property
    def in_flight_count(self) -> int:
        """Answer how many pods are in flight."""
        return len(self.node_rows)

    def usage(self, prediction: UsagePrediction) -> FloatArray:
        """Answer what each pod in flight is predicted to use, base units, shape (pods,)."""
        known = self._usages.get(prediction)
        if known is None:
            known = np.array([prediction.predict(each.pod) for each in self.in_flight], dtype=np.float64)
            freeze(known)
            self._usages[prediction] = known
            self._owner._learn(prediction, known, self._version)  # noqa: SLF001 - the two are one: a frozen and a changing face
        return known

    def total_columns(self, resource: str) -> tuple[FloatArray, FloatArray] | None:
        """Answer requests and limits of a resource by row of ``totals``, base units; ``None`` where they are not kept, or not whole."""
        if resource not in self.resources or not self.is_complete:
            return None
        column = 2 * self.resources.index(resource)
        return self.totals.values[column], self.totals.values[column + 1]


class AssignedPods:
    """
    Keep the pods that hold a place, and which of them are in flight.

    A pod counts once, however often and by whom it is told of; its UID decides, or namespace and name where it has none. A pod in flight
    leaves when it ends, or after the bound; within it, how much of it still counts is for the policy to say, by what the metrics cover.
    Calls from several threads are fine.

    Args:
        hold_seconds: How long a pod is taken to need until its usage can be measured; the annotation ``trimaran.io/hold-seconds`` of a pod
            has the last word, and a bad value there is ignored.
        bound_seconds: After that, counted from the end of the hold time, a bound pod is no longer in flight.
        assume_seconds: How long an assumption stands that no binding follows; 0 = assumptions do not count.
        resources: Whose totals are kept for each node.
        requested_of: What a pod requests of a resource; by default the Kubernetes rule. For LowRiskOverCommitment to sum as the Go plugin
            does, take both of :mod:`trimaran_client.policies.upstream_pods`.
        limited_of: What a pod is limited to.

    Attributes:
        is_complete: Whether all pods of the cluster have been told; until then their totals say nothing, and only pods in flight count.
    """

    def __init__(
        self,
        *,
        hold_seconds: float = DEFAULT_HOLD_SECONDS,
        bound_seconds: float = DEFAULT_BOUND_SECONDS,
        assume_seconds: float = DEFAULT_ASSUME_SECONDS,
        resources: tuple[str, ...] = (CPU, MEMORY),
        requested_of: AmountOf = Pod.requested,
        limited_of: AmountOf = Pod.limited,
    ) -> None:
        for name, value in (("hold_seconds", hold_seconds), ("bound_seconds", bound_seconds), ("assume_seconds", assume_seconds)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value!r}; give a finite number of at least 0")
        self._hold_seconds = hold_seconds
        self._bound_seconds = bound_seconds
        self._assume_seconds = assume_seconds
        self.is_complete = True
        self._resources = resources
        self._amount_rules = (requested_of, limited_of)
        self._held: dict[str, _Held] = {}
        self._alternatives: dict[str, tuple[str, ...]] = {}
        self._nodes: set[str] = set()
        self._counts: dict[str, int] = {}
        self._sums: dict[str, list[int]] = {}
        self._totals = NodeTable(2 * len(resources), fill=0.0)
        self._table = PodTable()
        self._changes = PodChanges()
        self._view: PodsView | None = None
        self._lock = threading.RLock()

    @classmethod
    def of(cls, pods: Iterable[Pod], *, now: float, resources: tuple[str, ...] = (CPU, MEMORY)) -> AssignedPods:
        """Take all pods of a cluster as they are now."""
        assigned = cls(resources=resources)
        for pod in pods:
            assigned.update(pod, now=now)
        return assigned

    def __len__(self) -> int:
        """Answer how many pods hold a place, or several until it is known which."""
        with self._lock:
            return len(self._held) - sum(map(len, self._alternatives.values()))

    @property
    def in_flight_count(self) -> int:
        """Answer how many pods are in flight."""
        return len(self._table)

    @property
    def version(self) -> int:
        """Answer a number that grows with each change."""
        return self._changes.version

    def changes_since(self, version: int) -> Sequence[PodChange] | None:
        """List what changed since :attr:`version` was this, oldest first; ``None`` where that is no longer known."""
        with self._lock:
            return self._changes.since(version)

    def state_of(self, key: str) -> State | None:
        """Answer how the pod of a key (:attr:`Pod.key`) holds its place; ``None`` where it holds none."""
        held = self._held.get(key)
        return None if held is None else held.state

    def bound_node_of(self, key: str) -> str:
        """Answer where the pod of a key (:attr:`Pod.key`) is bound; empty where that is not known."""
        held = self._held.get(key)
        return held.node if held is not None and held.state == "bound" else ""

    def update(self, pod: Pod, *, now: float) -> None:
        """
        Take a pod as a watch tells it: bound, nominated, pending or ended.

        A pod counts from its PodScheduled time on, else from its creation; one that says neither has been there for long.

        Args:
            pod: Its newest state.
            now: Unix seconds.
        """
        with self._lock:
            if pod.is_terminal:
                self.remove(pod.key)
            elif pod.node_name:
                since = pod.created_at if math.isnan(pod.scheduled_at) else pod.scheduled_at
                self._hold(pod, pod.node_name, "bound", since, now)
            elif pod.nominated_node_name:
                self._hold(pod, pod.nominated_node_name, "nominated", now, now)
            elif self.state_of(pod.key) != "assumed":
                self.remove(pod.key)

    def assign(self, pod: Pod, node: str | None = None, *, at: float) -> None:
        """
        Say that a pod was placed; for a scheduler that is not Kubernetes.

        Args:
            pod: The pod.
            node: Where; by default what the pod says.
            at: When, Unix seconds.

        Raises:
            ValueError: If neither says where.
        """
        where = node or pod.node_name
        if not where:
            raise ValueError(f"pod {pod.namespace}/{pod.name} is on no node; give the node")
        self._hold(pod, where, "bound", at, at)

    def assume(self, pod: Pod, node: str, *, now: float, or_on: Iterable[str] = ()) -> None:
        """
        Count a pod that was decided on and is not bound yet.

        It counts at once, becomes an ordinary pod when its binding is told, and is forgotten if none follows in time; assuming it again
        begins that time anew. A pod that is known to be bound stays where it is.

        Args:
            pod: The pod.
            node: Where it will most likely go.
            now: Unix seconds.
            or_on: Nodes where it may go just as well. It counts on each of them until more is known: on too many for a moment is better
                than that its node looks as if it were not there.
        """
        key = pod.key
        with self._lock:
            if not self._assume_seconds or self.state_of(key) == "bound":
                return
            self._drop_alternatives(key)
            self._hold(pod, node, "assumed", now, now)
            others = {f"{key} or on {other}": other for other in or_on if other != node}
            for alternative, other in others.items():
                self._hold(pod, other, "assumed", now, now, key=alternative)
            if others:
                self._alternatives[key] = tuple(others)

    def add_node(self, name: str) -> None:
        """
        Learn of a node, whether pods are on it or not.

        Nothing depends on it but speed: else a node comes into the totals with its first pod, and whoever found the places of the others
        there looks for all of them again.
        """
        with self._lock:
            self._nodes.add(name)
            if name not in self._totals:
                self._changes.forget()
                self._totals.write(name, 0, 0.0)

    def remove_node(self, name: str) -> None:
        """Forget a node; pods that are on it stay."""
        with self._lock:
            self._nodes.discard(name)
            if name not in self._counts:
                self._changes.forget()
                self._totals.discard(name)

    def forget(self, pod: Pod | str) -> None:
        """Take back a pod, or the one of a key (:attr:`Pod.key`): it ended, or was not bound after all; unknown ones are no error."""
        self.remove(pod if isinstance(pod, str) else pod.key)

    def remove(self, key: str) -> None:
        """Drop the pod of a key at once, if it is there."""
        with self._lock:
            held = self._held.pop(key, None)
            if held is None:
                return
            self._changes.note(PodChange(-1, held.node, self._table.get(key)))
            self._add_to_totals(held, -1)
            self._table.discard(key)
            self._drop_alternatives(key)

    def expire(self, now: float) -> None:
        """Drop assumptions that no binding followed, and from the pods in flight those past their bound."""
        with self._lock:
            for key, entry in self._table.take_expired(now):
                self._changes.note(PodChange(-1, entry.node, entry))
                if entry.state == "assumed":
                    self.remove(key)

    def view(self, now: float) -> PodsView:
        """Answer the pods as they are at *now*; the same view while nothing changes."""
        with self._lock:
            self.expire(now)
            if self._view is None or self._view._version != self.version or self._view.is_complete != self.is_complete:  # noqa: SLF001
                frozen = self._table.freeze()
                self._view = PodsView(
                    resources=self._resources,
                    totals=self._totals.freeze(),
                    node_rows=frozen.node_rows,
                    assigned_at=frozen.assigned_at,
                    started_at=frozen.started_at,
                    _chunks=frozen.chunks,
                    _usages=frozen.usages,
                    _owner=self,
                    _version=self.version,
                    is_complete=self.is_complete,
                )
            return self._view

    def _learn(self, prediction: UsagePrediction, usage: FloatArray, version: int) -> None:
        with self._lock:
            if version == self.version:
                self._table.learn(prediction, usage)

    def _hold(self, pod: Pod, node: str, state: State, since: float, now: float, *, key: str = "") -> None:
        key = key or pod.key
        held = _Held(node, state, self._amounts(pod))
        entry = AssignedPod(pod, node, since, self._hold_of(pod), state)
        ends_at = now + self._assume_seconds if state == "assumed" else min(since, now) + entry.hold_seconds + self._bound_seconds
        is_in_flight = ends_at > now
        with self._lock:
            known = self._held.get(key)
            if known == held and _is_told_again(self._table.get(key), entry, is_in_flight=is_in_flight):
                return
            self._held[key] = held
            self._add_to_totals(held, 1)
            if known is not None:
                self._changes.note(PodChange(-1, known.node, self._table.get(key)))
                self._add_to_totals(known, -1)
                self._drop_alternatives(key)
            self._changes.note(PodChange(1, node, entry if is_in_flight else None))
            if is_in_flight:
                self._table.put(key, entry, self._totals.row_of(node), ends_at)
            else:
                self._table.discard(key)

    def _drop_alternatives(self, key: str) -> None:
        for alternative in self._alternatives.pop(key, ()):
            self.remove(alternative)

    def _hold_of(self, pod: Pod) -> float:
        try:
            seconds = float(pod.annotations[HOLD_ANNOTATION])
        except (KeyError, ValueError):
            return self._hold_seconds
        return seconds if 0 <= seconds <= _LONGEST_HOLD_SECONDS else self._hold_seconds

    def _amounts(self, pod: Pod) -> tuple[int, ...]:
        # A rule of anyone's own may look at more than the containers.
        return pod.remember(self._resources, self._add_up) if self._amount_rules == _USUAL_RULES else self._add_up(pod)

    def _add_up(self, pod: Pod) -> tuple[int, ...]:
        return tuple(
            quantity.milli if resource == CPU else quantity.value
            for resource in self._resources
            for quantity in (rule(pod, resource) for rule in self._amount_rules)
        )

    def _add_to_totals(self, held: _Held, sign: int) -> None:
        count = self._counts.get(held.node, 0) + sign
        if not count:
            del self._counts[held.node], self._sums[held.node]
            if held.node in self._nodes:
                for column in range(len(held.amounts)):
                    self._totals.write(held.node, column, 0.0)
            else:
                self._totals.discard(held.node)
            return
        self._counts[held.node] = count
        # Summed as whole numbers: a float would not come back to what it was after a huge amount has gone.
        sums = self._sums.setdefault(held.node, [0] * len(held.amounts))
        for column, amount in enumerate(held.amounts):
            sums[column] += sign * amount
            self._totals.write(held.node, column, float(sums[column]))


def _is_told_again(known: AssignedPod | None, told: AssignedPod, *, is_in_flight: bool) -> bool:
    """Tell whether a pod that holds the same place as before is, for the pods in flight too, what it was."""
    if told.state == "assumed":
        return False  # another decision, of now
    if told.state == "nominated":
        return True  # it counts from the first time on
    if known is None:
        return not is_in_flight
    return (known.assigned_at, known.hold_seconds, known.pod.containers) == (told.assigned_at, told.hold_seconds, told.pod.containers)
