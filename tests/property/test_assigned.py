"""Pods in flight against a plain model that keeps one record for each pod and computes everything anew at each question."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from tests.builders import NOW
from trimaran_client.assigned import HOLD_ANNOTATION, AssignedPods, PodsView
from trimaran_client.prediction import UsagePrediction
from trimaran_client.resources import CPU, MEMORY, Container, Pod
from trimaran_client.units import Quantity

HOLD_SECONDS, BOUND_SECONDS, ASSUME_SECONDS = 10.0, 100.0, 20.0
NODES = st.sampled_from(["n1", "n2", "n3"])
PREDICTIONS = (UsagePrediction(), UsagePrediction(resource=MEMORY, rule="request_first", default_amount=7))
MILLICORES = st.sampled_from([0, 1, 250, 4000, 2**63])


@dataclass(frozen=True)
class Record:
    """What the model knows of a pod."""

    pod: Pod
    node: str
    state: str
    assigned_at: float
    ends_at: float
    or_on: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """Answer all nodes on which it counts."""
        return (self.node, *self.or_on)


class PodsInFlight(RuleBasedStateMachine):
    """Tells both of the same, in any order, and asks both."""

    pods = Bundle("pods")

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.model: dict[str, Record] = {}
        self.nodes: set[str] = set()
        self.views: list[tuple[PodsView, object]] = []

    @initialize()
    def start(self) -> None:
        self.assigned = AssignedPods(hold_seconds=HOLD_SECONDS, bound_seconds=BOUND_SECONDS, assume_seconds=ASSUME_SECONDS)

    @rule(target=pods, uid=st.integers(0, 5), millicores=MILLICORES, hold=st.sampled_from([None, "0", "50", "bad"]))
    def make(self, uid: int, millicores: int, hold: str | None) -> Pod:
        container = Container(requests={CPU: Quantity.from_milli(millicores), MEMORY: Quantity.from_value(millicores + uid)})
        return Pod(uid=f"uid-{uid}", containers=(container,), annotations={} if hold is None else {HOLD_ANNOTATION: hold})

    @rule(pod=pods, node=NODES, age=st.sampled_from([0.0, 5.0, 90.0, 1000.0, math.nan]))
    def tell_bound(self, pod: Pod, node: str, age: float) -> None:
        told = replace(pod, node_name=node, scheduled_at=self.now - age)
        self.assigned.update(told, now=self.now)
        self._hold(told, node, "bound", told.scheduled_at)

    @rule(pod=pods, node=NODES)
    def tell_nominated(self, pod: Pod, node: str) -> None:
        told = replace(pod, nominated_node_name=node)
        self.assigned.update(told, now=self.now)
        known = self.model.get(pod.key)
        is_told_again = known is not None and (known.node, known.state) == (node, "nominated") and amounts(known.pod) == amounts(pod)
        if not is_told_again:
            self._hold(told, node, "nominated", self.now)

    @rule(pod=pods)
    def tell_pending(self, pod: Pod) -> None:
        self.assigned.update(pod, now=self.now)
        known = self.model.get(pod.key)
        if known is not None and known.state != "assumed":
            del self.model[pod.key]

    @rule(pod=pods)
    def tell_ended(self, pod: Pod) -> None:
        self.assigned.update(replace(pod, node_name="n1", is_terminal=True), now=self.now)
        self.model.pop(pod.key, None)

    @rule(pod=pods, node=NODES)
    def assign(self, pod: Pod, node: str) -> None:
        self.assigned.assign(pod, node, at=self.now)
        self._hold(pod, node, "bound", self.now)

    @rule(pod=pods, node=NODES, or_on=st.sets(NODES))
    def assume(self, pod: Pod, node: str, or_on: set[str]) -> None:
        self.assigned.assume(pod, node, now=self.now, or_on=sorted(or_on))
        known = self.model.get(pod.key)
        if known is None or known.state != "bound":
            self._hold(pod, node, "assumed", self.now, or_on=tuple(sorted(or_on - {node})))

    @rule(pod=pods)
    def forget(self, pod: Pod) -> None:
        self.assigned.forget(pod)
        self.model.pop(pod.key, None)

    @rule(node=NODES)
    def add_node(self, node: str) -> None:
        self.assigned.add_node(node)
        self.nodes.add(node)

    @rule(node=NODES)
    def remove_node(self, node: str) -> None:
        self.assigned.remove_node(node)
        self.nodes.discard(node)

    @rule(seconds=st.sampled_from([1.0, 19.0, 30.0, 200.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.assigned.expire(self.now)
        self._expire()

    @rule()
    def keep_a_view(self) -> None:
        view = self.assigned.view(self.now)
        self.views.append((view, content(view)))

    @invariant()
    def both_say_the_same(self) -> None:
        if not hasattr(self, "assigned"):
            return
        view = self.assigned.view(self.now)
        assert len(self.assigned) == len(self.model)
        assert {key: self.assigned.state_of(key) for key in self.model} == {key: each.state for key, each in self.model.items()}
        expected = [
            (key, node, each.state, each.assigned_at) for key, each in self.model.items() for node in each.nodes if each.ends_at > self.now
        ]
        assert sorted((each.pod.key, each.node, each.state, each.assigned_at) for each in view.in_flight) == sorted(expected)
        self._compare_columns(view)
        self._compare_totals(view)

    @invariant()
    def old_views_are_as_they_were(self) -> None:
        for view, before in self.views:
            assert content(view) == before

    def _compare_columns(self, view: PodsView) -> None:
        """Each column equals what is computed anew of its pods."""
        names = {row: name for name, row in view.totals.rows.items()}
        assert [names[row] for row in view.node_rows.tolist()] == [each.node for each in view.in_flight]
        assert view.assigned_at.tolist() == [each.assigned_at for each in view.in_flight]
        assert view.started_at.tolist() == [each.started_at for each in view.in_flight]
        for each in view.in_flight:
            hold = {"0": 0.0, "50": 50.0}.get(each.pod.annotations.get(HOLD_ANNOTATION, ""), HOLD_SECONDS)
            assert each.started_at == (each.assigned_at + hold if each.state == "bound" else math.inf)
        for prediction in PREDICTIONS:
            assert view.usage(prediction).tolist() == [float(prediction.predict(each.pod)) for each in view.in_flight]

    def _compare_totals(self, view: PodsView) -> None:
        """A node is there while it is known or has pods, with the sums of its pods; no other has a row."""
        expected: dict[str, list[int]] = {node: [0, 0, 0, 0] for node in self.nodes}
        for each in self.model.values():
            for node in each.nodes:
                sums = expected.setdefault(node, [0, 0, 0, 0])
                for column, amount in enumerate(amounts(each.pod)):
                    sums[column] += amount
        told = {name: view.totals.values[:, row].tolist() for name, row in view.totals.rows.items()}
        assert told == {name: [float(amount) for amount in sums] for name, sums in expected.items()}

    def _hold(self, pod: Pod, node: str, state: str, assigned_at: float, *, or_on: tuple[str, ...] = ()) -> None:
        hold = {"0": 0.0, "50": 50.0}.get(pod.annotations.get(HOLD_ANNOTATION, ""), HOLD_SECONDS)
        life = ASSUME_SECONDS if state == "assumed" else hold + BOUND_SECONDS
        self.model[pod.key] = Record(pod, node, state, assigned_at, assigned_at + life, or_on)

    def _expire(self) -> None:
        self.model = {key: each for key, each in self.model.items() if each.state != "assumed" or each.ends_at > self.now}


def amounts(pod: Pod) -> tuple[int, ...]:
    """Answer requests and limits of CPU and memory."""
    return (pod.requested(CPU).milli, pod.limited(CPU).milli, pod.requested(MEMORY).value, pod.limited(MEMORY).value)


def content(view: PodsView) -> tuple[Any, ...]:
    """Answer everything in a view, in values that do not change."""
    usages = [view.usage(prediction).tolist() for prediction in PREDICTIONS]
    columns = [np.nan_to_num(view.totals.values, nan=-1).tolist(), view.node_rows.tolist(), view.assigned_at.tolist()]
    return view.in_flight, dict(view.totals.rows), columns, usages


TestPodsInFlight = PodsInFlight.TestCase
