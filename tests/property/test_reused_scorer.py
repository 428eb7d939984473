"""A scorer that has seen much answers as one that has seen nothing: what it keeps between decisions never shows."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.builders import NOW, make_node, make_pod
from trimaran_client import (
    AssignedPods,
    LoadSnapshot,
    LoadVariationRiskBalancing,
    LowRiskOverCommitment,
    Node,
    NodeCapacities,
    Pod,
    ResourceTarget,
    Scorer,
    Scores,
    ScoringPolicy,
    TargetLoadPacking,
    TargetLoadPackingArgs,
)
from trimaran_client.wire import Data, Metric, NodeMetrics, ResourceQuantities, WatcherMetrics, WireWindow

NAMES = ["a", "b", "c", "d", "e", "f", "g"]
STRANGERS = ["unknown", "nobody"]
names = st.sampled_from(NAMES)
# One of each, for as long as the process: a policy may be shared by any number of scorers.
OF_BOTH = TargetLoadPacking(TargetLoadPackingArgs(others=(ResourceTarget(resource="memory", metric_type="Memory", target_percent=60.0),)))
POLICIES: list[ScoringPolicy] = [
    TargetLoadPacking(),
    TargetLoadPacking.upstream(),
    OF_BOTH,
    LoadVariationRiskBalancing(),
    LowRiskOverCommitment(),
]
# Asked on the columns of another: what was computed there for the other target is not its own.
OTHER_TARGET = TargetLoadPacking(TargetLoadPackingArgs(target_percent=70.0))

percents = st.sampled_from([0.0, 5.0, 20.0, 39.0, 41.0, 60.0, 95.0])
cores = st.sampled_from([None, "1", "2", "4", "8", "16"])
sizes = st.sampled_from([None, "2Gi", "4Gi", "16Gi"])
quantities = st.builds(ResourceQuantities, cpu=cores, memory=sizes)


def metric(kind: str, operator: str) -> st.SearchStrategy[Metric]:
    return percents.map(lambda value: Metric(type=kind, operator=operator, rollup="15m", value=value / 4 if operator == "STD" else value))


measured = st.builds(
    NodeMetrics,
    metrics=st.one_of(
        st.tuples(metric("CPU", "AVG"), metric("CPU", "STD"), metric("Memory", "AVG"), metric("Memory", "STD")).map(list),
        st.tuples(metric("CPU", "AVG")).map(list),
        st.just([]),
    ),
    capacity=quantities,
    allocatable=quantities,
    sampled_at=st.sampled_from([NOW, NOW - 30, NOW + 300, NOW + 1200]),
)
clusters = st.dictionaries(names, measured, min_size=1).flatmap(lambda nodes: st.permutations(list(nodes.items())).map(dict))


@st.composite
def nodes_told(draw: st.DrawFn, name: str) -> Node:
    cpu, memory = draw(cores), draw(sizes)
    amounts = {key: value for key, value in (("cpu", cpu), ("memory", memory)) if value is not None}
    return Node.from_manifest({"metadata": {"name": name}, "status": {"capacity": amounts, "allocatable": amounts}})


def make_snapshot(nodes: dict[str, NodeMetrics | None]) -> LoadSnapshot:
    window = WireWindow(duration="15m", start=NOW - 900, end=NOW)
    return LoadSnapshot.from_metrics(WatcherMetrics(timestamp=NOW, window=window, source="test", data=Data(node_metrics_map=nodes)))


def make_measured(percent: float, sampled_at: float) -> NodeMetrics:
    kinds: list[Metric | None] = [Metric(type=kind, operator="AVG", rollup="15m", value=percent) for kind in ("CPU", "Memory")]
    offered = ResourceQuantities(cpu="8", memory="16Gi")
    return NodeMetrics(metrics=kinds, capacity=offered, allocatable=offered, sampled_at=sampled_at)


def make_pods() -> list[Pod]:
    """Make a few templates: small, large, with limits, without anything."""
    spec = {
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "3", "memory": "3Gi"}}}]
    }
    return [make_pod(cpu_request="250m"), make_pod(cpu_request="2"), make_pod(spec=spec), make_pod()]


PODS = make_pods()
templates = st.sampled_from(PODS)


class ReusedScorer(RuleBasedStateMachine):
    """Changes whatever a decision is made from, and decides in between; who has decided before must not tell."""

    def __init__(self) -> None:
        super().__init__()
        self.scorers = [Scorer(policy) for policy in POLICIES]
        self.now = NOW
        self.uids = count()
        self.placed: list[Pod] = []
        self.told: dict[str, Node] = {}

    @initialize(nodes=clusters, is_complete=st.booleans())
    def start(self, nodes: dict[str, NodeMetrics | None], is_complete: bool) -> None:
        self.nodes = nodes
        self.snapshot = make_snapshot(nodes)
        self.capacities = NodeCapacities()
        self.pods = AssignedPods(hold_seconds=10.0, bound_seconds=1000.0, assume_seconds=60.0)
        self.pods.is_complete = is_complete

    @rule(nodes=clusters)
    def measure_anew(self, nodes: dict[str, NodeMetrics | None]) -> None:
        """Nodes come and go, have other loads, and another order."""
        self.nodes = nodes
        self.snapshot = make_snapshot(nodes)

    @rule(node=measured, data=st.data())
    def measure_one_anew(self, node: NodeMetrics, data: st.DataObject) -> None:
        """The names stay the same, in their order."""
        self.nodes = self.nodes | {data.draw(st.sampled_from(list(self.nodes))): node}
        self.snapshot = make_snapshot(self.nodes)

    @rule(node=names.flatmap(nodes_told))
    def tell_capacity(self, node: Node) -> None:
        self.capacities.update(node)
        self.told[node.name] = node

    @rule(data=st.data())
    def tell_all_capacities(self, data: st.DataObject) -> None:
        for name in NAMES:
            self.tell_capacity(data.draw(nodes_told(name)))

    @rule(name=names)
    def remove_capacity(self, name: str) -> None:
        self.capacities.remove(name)
        self.told.pop(name, None)

    @rule(pod=templates, node=st.sampled_from([*NAMES, *STRANGERS]), how=st.sampled_from(["bound", "assigned", "assumed"]))
    def place(self, pod: Pod, node: str, how: str) -> None:
        pod = replace(pod, uid=f"uid-{next(self.uids)}")
        self.placed.append(pod)
        if how == "bound":
            self.pods.update(replace(pod, node_name=node, scheduled_at=self.now), now=self.now)
        elif how == "assigned":
            self.pods.assign(pod, node, at=self.now)
        else:
            self.pods.assume(pod, node, now=self.now)

    @rule(node=names, data=st.data())
    def bind(self, node: str, data: st.DataObject) -> None:
        """An assumed pod is bound, or a bound one is told elsewhere."""
        if self.placed:
            pod = data.draw(st.sampled_from(self.placed))
            self.pods.update(replace(pod, node_name=node, scheduled_at=self.now), now=self.now)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.placed:
            self.pods.forget(data.draw(st.sampled_from(self.placed)))

    @rule(name=names, is_added=st.booleans())
    def tell_node(self, name: str, is_added: bool) -> None:
        (self.pods.add_node if is_added else self.pods.remove_node)(name)

    @rule(seconds=st.sampled_from([1.0, 29.0, 100.0, 400.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(pod=templates, knows_pods=st.booleans(), knows_capacities=st.booleans())
    def decide_on_all(self, pod: Pod, knows_pods: bool, knows_capacities: bool) -> None:
        self._decide(pod, None, knows_pods=knows_pods, knows_capacities=knows_capacities)

    @rule(pod=templates, data=st.data())
    def decide_on_all_by_name(self, pod: Pod, data: st.DataObject) -> None:
        self._decide(pod, data.draw(st.permutations(list(self.nodes))))

    @rule(pod=templates, candidates=st.lists(st.sampled_from([*NAMES, *STRANGERS]), unique=True))
    def decide_on_some(self, pod: Pod, candidates: list[str]) -> None:
        self._decide(pod, candidates)

    @rule(pod=templates, data=st.data())
    def decide_on_few_known(self, pod: Pod, data: st.DataObject) -> None:
        self._decide(pod, data.draw(st.lists(st.sampled_from(list(self.nodes)), min_size=1, max_size=3, unique=True)))

    @rule(pod=templates, listed=st.lists(st.sampled_from([*NAMES, *STRANGERS]), unique=True, min_size=1), data=st.data())
    def decide_on_manifests(self, pod: Pod, listed: list[str], data: st.DataObject) -> None:
        """Whole nodes, or some among names."""
        self._decide(pod, [data.draw(nodes_told(name)) if data.draw(st.integers(0, 3)) else name for name in listed])

    def _decide(self, pod: Pod, nodes: list[Any] | None, *, knows_pods: bool = True, knows_capacities: bool = True) -> None:
        """Ask those that were asked before, and new ones that get the same load and capacities as new objects."""
        given: dict[str, Any] = {"now": self.now, "nodes": nodes, "pods": self.pods if knows_pods else None}
        anew = NodeCapacities.of(self.told.values())
        for scorer, policy in zip(self.scorers, POLICIES, strict=True):
            reused = scorer.score_nodes(pod, self.snapshot, capacities=self.capacities if knows_capacities else None, **given)
            fresh = Scorer(policy).score_nodes(pod, make_snapshot(self.nodes), capacities=anew if knows_capacities else None, **given)
            assert content(reused) == content(fresh), policy.name
            assert scorer.failures == 0, scorer.last_error
            if policy.resources == OF_BOTH.resources:
                self._ask_another_target(scorer, pod, given | {"capacities": self.capacities if knows_capacities else None})

    def _ask_another_target(self, scorer: Scorer, pod: Pod, given: dict[str, Any]) -> None:
        """The columns that one policy computed on give another policy what is its own."""
        columns = scorer.columns(self.snapshot, **given)
        scorer.score_columns(pod, columns)
        for policy in (OTHER_TARGET, *POLICIES[:3]):
            assert content(policy.score_nodes(pod, columns)) == content(Scorer(policy).score_nodes(pod, self.snapshot, **given)), (
                policy.name
            )


def content(scores: Scores) -> tuple[object, ...]:
    return scores.names, scores.values.tolist(), scores.reasons.tolist()


TestReusedScorer = ReusedScorer.TestCase
# Half the usual steps: what one decision leaves behind shows in the next few.
TestReusedScorer.settings = settings(stateful_step_count=25)


def test_capacities_that_change_count_in_the_next_decision() -> None:
    """The same snapshot, the same names, the same pod: only what the nodes have is another."""
    snapshot = make_snapshot({name: make_measured(20.0, NOW) for name in NAMES})
    capacities = NodeCapacities.of([make_node(name, "8") for name in NAMES])
    scorers = [Scorer(policy) for policy in POLICIES]
    for cpu in ("8", "2", "64"):
        capacities.update(make_node("a", cpu))
        for scorer, policy in zip(scorers, POLICIES, strict=True):
            for nodes in (None, NAMES, ["a", "b"]):
                given: dict[str, Any] = {"now": NOW, "nodes": nodes, "capacities": capacities}
                assert content(scorer.score_nodes(PODS[1], snapshot, **given)) == content(
                    Scorer(policy).score_nodes(PODS[1], snapshot, **given)
                )


@pytest.mark.parametrize("nodes", [None, ["a", "b"], NAMES])
def test_a_newer_snapshot_shows_pods_that_the_one_before_could_not(nodes: list[str] | None) -> None:
    """All pods in flight were newer than any sample of the first; most of their usage is in the second."""
    pods = AssignedPods(hold_seconds=10.0)
    pods.assign(make_pod(cpu_request="2"), "a", at=NOW)
    scorer, now = Scorer(TargetLoadPacking()), NOW + 700
    values = []
    for sampled_at in (NOW, NOW + 700):
        snapshot = make_snapshot({name: make_measured(20.0, sampled_at) for name in NAMES})
        given: dict[str, Any] = {"now": now, "nodes": nodes, "pods": pods}
        scores = scorer.score_nodes(PODS[0], snapshot, **given)
        assert content(scores) == content(Scorer(TargetLoadPacking()).score_nodes(PODS[0], snapshot, **given))
        values.append(scores.by_node()["a"])
    assert values[0] != values[1]
