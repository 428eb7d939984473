"""An answer that was ready is the answer that scoring at that moment gives, whatever has happened to the pods meanwhile."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.builders import NOW, make_node, make_pod
from trimaran_client import AssignedPods, NodeCapacities, Pod, Scorer, TargetLoadPacking, TargetLoadPackingArgs
from trimaran_client.extender.standings import Standing, Standings, gather
from trimaran_client.extender.wire import to_short_scale
from trimaran_client.resources import SharedContainers
from trimaran_client.scorer import find_rows
from trimaran_client.snapshot import LoadSnapshot
from trimaran_client.wire import Data, Metric, NodeMetrics, ResourceQuantities, WatcherMetrics, WireWindow

NAMES = [f"n{number}" for number in range(6)]
POLICIES = {
    "default": TargetLoadPacking(),
    "high": TargetLoadPacking(TargetLoadPackingArgs(target_percent=70.0, max_age_seconds=200.0, fallback="neutral")),
    "upstream": TargetLoadPacking.upstream(),
    "beyond": TargetLoadPacking.upstream({"targetUtilization": 150}),
}
names = st.sampled_from(NAMES)
percents = st.sampled_from([0.0, 19.97, 20.0, 39.0, 41.0, 95.0])


def make_kind(**more: Any) -> Pod:
    """Make a pod whose containers are shared by all of its template, as those of an API server are."""
    pod = make_pod(**more)
    return replace(pod, containers=SharedContainers(pod.containers))


PODS = [make_kind(cpu_request="100m"), make_kind(cpu_request="333m"), make_kind(cpu_request="1", cpu_limit="3"), make_kind()]
pods_asked = st.sampled_from(PODS)
states = st.sampled_from(["measured", "measured", "measured", "measured", "measured", "without metrics", "old", "without capacity"])


def make_snapshot(nodes: dict[str, tuple[float, str]], at: float) -> LoadSnapshot:
    """Make a snapshot: node → utilization, and what is the matter with it."""
    told: dict[str, NodeMetrics | None] = {}
    for name, (percent, state) in nodes.items():
        offered = ResourceQuantities(cpu=None if state == "without capacity" else "8", memory="16Gi")
        metrics: list[Metric | None] = (
            [] if state == "without metrics" else [Metric(type="CPU", operator="AVG", rollup="15m", value=percent)]
        )
        sampled_at = at - 250 if state == "old" else at
        told[name] = NodeMetrics(metrics=metrics, capacity=offered, allocatable=offered, sampled_at=sampled_at)
    window = WireWindow(duration="15m", start=at - 900, end=at)
    return LoadSnapshot.from_metrics(WatcherMetrics(timestamp=at, window=window, source="test", data=Data(node_metrics_map=told)))


class Source:
    """Holds the newest snapshot."""

    def __init__(self, snapshot: LoadSnapshot) -> None:
        self.snapshot = snapshot


class StandingMachine(RuleBasedStateMachine):
    """Changes whatever an answer is made from, and asks in between."""

    @initialize(nodes=st.fixed_dictionaries({name: st.tuples(percents, states) for name in NAMES}), is_short=st.booleans())
    def start(self, nodes: dict[str, tuple[float, str]], is_short: bool) -> None:
        self.now = NOW
        self.uids = count()
        self.placed: list[Pod] = []
        self.nodes = nodes
        self.source = Source(make_snapshot(nodes, self.now))
        self.pods = AssignedPods(hold_seconds=30.0, bound_seconds=1000.0, assume_seconds=60.0)
        self.capacities: NodeCapacities | None = None
        self.is_short = is_short
        self.scorers = {name: Scorer(policy) for name, policy in POLICIES.items()}
        self._begin()

    def _begin(self) -> None:
        self.standings = Standings(self.source, self.pods, self.capacities, is_short=self.is_short)

    @rule(node=names, told=st.tuples(percents, states))
    def measure_anew(self, node: str, told: tuple[float, str]) -> None:
        self.nodes = self.nodes | {node: told}
        self.source.snapshot = make_snapshot(self.nodes, self.now)

    @rule(node=names, cpu=st.sampled_from(["4", "8", "16"]))
    def tell_capacity(self, node: str, cpu: str) -> None:
        if self.capacities is None:
            self.capacities = NodeCapacities.of([make_node(name) for name in NAMES])
            self._begin()
        self.capacities.update(make_node(node, cpu))

    @rule(
        pod=pods_asked,
        node=st.sampled_from([*NAMES, "stranger"]),
        or_on=st.lists(names, max_size=3),
        how=st.sampled_from(["bound", "assumed"]),
    )
    def place(self, pod: Pod, node: str, or_on: list[str], how: str) -> None:
        pod = replace(pod, uid=f"uid-{next(self.uids)}")
        self.placed.append(pod)
        if how == "bound":
            self.pods.update(replace(pod, node_name=node, scheduled_at=self.now), now=self.now)
        else:
            self.pods.assume(pod, node, now=self.now, or_on=or_on)

    @rule(node=names, ago=st.sampled_from([0.0, 0.0, 3.0, 100.0, 500.0, 2000.0]), data=st.data())
    def bind(self, node: str, ago: float, data: st.DataObject) -> None:
        if self.placed:
            pod = data.draw(st.sampled_from(self.placed))
            self.pods.update(replace(pod, node_name=node, scheduled_at=self.now - ago), now=self.now)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.placed:
            self.pods.forget(data.draw(st.sampled_from(self.placed)))

    @rule(name=names, is_added=st.booleans())
    def tell_node(self, name: str, is_added: bool) -> None:
        (self.pods.add_node if is_added else self.pods.remove_node)(name)

    @rule(is_complete=st.booleans())
    def complete(self, is_complete: bool) -> None:
        self.pods.is_complete = is_complete

    @rule(seconds=st.sampled_from([1.0, 29.0, 100.0, 400.0, -50.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(
        pod=st.sampled_from(PODS[:2]),
        asked=st.permutations(NAMES),
        most=st.integers(2, len(NAMES)),
        turns=st.lists(
            st.tuples(names, st.lists(names, max_size=2), st.sampled_from([None, *NAMES]), st.booleans()), min_size=3, max_size=8
        ),
    )
    def burst(self, pod: Pod, asked: list[str], most: int, turns: list[tuple[str, list[str], str | None, bool]]) -> None:
        """Ask for one pod after another: each counts where it may go, some are seen bound, and some end."""
        for node, or_on, bound_to, ends in turns:
            for policy, scorer in self.scorers.items():
                standing = self.standings.find(scorer, pod, self.now)
                event("ready" if standing is not None else "not ready")
                if standing is not None:
                    self._compare(standing, policy, pod, tuple(asked[:most]))
            placed = replace(pod, uid=f"uid-{next(self.uids)}")
            self.pods.assume(placed, node, now=self.now, or_on=or_on)
            if bound_to is not None:
                self.pods.update(replace(placed, node_name=bound_to, scheduled_at=self.now), now=self.now)
            if ends:
                self.pods.forget(placed)

    def _compare(self, standing: Standing, policy: str, pod: Pod, candidates: tuple[str, ...]) -> None:
        fresh = Scorer(POLICIES[policy])
        columns = fresh.columns(self.source, now=self.now, nodes=candidates, pods=self.pods, capacities=self.capacities)
        scores = fresh.score_columns(pod, columns)
        held = np.clip(scores.values, 0, 100)
        answer = standing.answer(candidates)
        assert answer is not None
        told = (to_short_scale(held) if self.is_short else held).tolist()
        assert json.loads(answer) == [{"Host": name, "Score": score} for name, score in zip(candidates, told, strict=True)]
        rows = find_rows(candidates, self.source.snapshot.rows)
        values, reasons = standing.scores_at(rows)
        assert (values.tolist(), reasons.tolist()) == (held.tolist(), scores.reasons.tolist())
        again = fresh.score_columns(pod, gather(standing.columns, candidates, rows, self.pods.view(self.now), self.now))
        assert (again.values.tolist(), again.reasons.tolist()) == (scores.values.tolist(), scores.reasons.tolist())


TestStanding = StandingMachine.TestCase
TestStanding.settings = settings(stateful_step_count=40)


def find_twice(standings: Standings, pod: Pod, *, scorer: Scorer) -> Standing | None:
    """Ask as often as it takes for one to be made at first."""
    standings.find(scorer, pod, NOW)
    return standings.find(scorer, pod, NOW)


class TestWhenThereIsOne:
    """Only where it pays, and only where it is right."""

    def setup_method(self) -> None:
        self.source = Source(make_snapshot(dict.fromkeys(NAMES, (20.0, "measured")), NOW))
        self.pods = AssignedPods()
        self.scorer = Scorer(TargetLoadPacking())
        self.standings = Standings(self.source, self.pods, None, is_short=False)

    def test_the_first_question_on_a_kind_of_pod_has_none(self) -> None:
        assert self.standings.find(self.scorer, PODS[0], NOW) is None
        assert self.standings.find(self.scorer, PODS[1], NOW) is None
        assert self.standings.find(self.scorer, PODS[0], NOW) is not None

    def test_it_follows_pods_that_come_and_go_without_being_made_anew(self) -> None:
        standing = find_twice(self.standings, PODS[0], scorer=self.scorer)
        assert standing is not None
        before = json.loads(standing.answer(("n0", "n1")) or b"")
        pod = replace(PODS[2], uid="other")
        self.pods.assume(pod, "n1", now=NOW, or_on=["n2"])
        assert self.standings.find(self.scorer, PODS[0], NOW) is standing
        during = json.loads(standing.answer(("n0", "n1")) or b"")
        assert during[0] == before[0]
        assert during[1]["Score"] != before[1]["Score"]
        self.pods.forget(pod)
        assert self.standings.find(self.scorer, PODS[0], NOW) is standing
        assert json.loads(standing.answer(("n0", "n1")) or b"") == before

    def test_a_clock_that_is_set_back_ends_it(self) -> None:
        """What was too old then is not any more."""
        self.source.snapshot = make_snapshot({"n0": (20.0, "measured"), "n1": (20.0, "old")}, NOW)
        for now in (NOW + 100, NOW + 100, NOW):
            standing = self.standings.find(self.scorer, PODS[0], now)
        assert standing is None

    def test_a_newer_snapshot_ends_it(self) -> None:
        assert find_twice(self.standings, PODS[0], scorer=self.scorer) is not None
        self.source.snapshot = make_snapshot(dict.fromkeys(NAMES, (20.0, "measured")), NOW)
        assert self.standings.find(self.scorer, PODS[0], NOW) is None

    def test_what_cannot_be_followed_ends_it_and_the_next_comes_later_each_time(self) -> None:
        asked = Counter[int]()
        for turn in range(3):
            while self.standings.find(self.scorer, PODS[0], NOW) is None:
                asked[turn] += 1
            self.pods.update(replace(PODS[1], uid=f"old-{turn}", node_name="n1", scheduled_at=NOW - 100), now=NOW)
            assert self.standings.find(self.scorer, PODS[0], NOW) is None
        assert asked == {0: 1, 1: 3, 2: 7}

    @pytest.mark.parametrize("candidates", [(), ("n0",), ("n0", "stranger")])
    def test_few_and_unknown_candidates_are_not_its_business(self, candidates: tuple[str, ...]) -> None:
        standing = find_twice(self.standings, PODS[0], scorer=self.scorer)
        assert standing is not None
        assert standing.answer(candidates) is None

    def test_an_estimator_and_other_resources_have_none(self) -> None:
        estimated = Scorer(TargetLoadPacking(TargetLoadPackingArgs(prediction=lambda *_: 100.0)))
        assert find_twice(self.standings, PODS[0], scorer=estimated) is None

    def test_kinds_of_pods_are_forgotten_when_there_are_too_many(self) -> None:
        assert find_twice(self.standings, PODS[0], scorer=self.scorer) is not None
        for milli in range(16):
            self.standings.find(self.scorer, make_kind(cpu_request=f"{milli + 1}m"), NOW)
        assert self.standings.find(self.scorer, PODS[0], NOW) is None
