"""Why a node has its score, as data."""

import json
from typing import Any

import pytest

from tests.builders import NOW, make_node, make_pod, make_snapshot
from trimaran_client import (
    AssignedPods,
    LoadSnapshot,
    NodeCapacities,
    NodeColumns,
    Pod,
    Reasoning,
    Scorer,
    Scores,
    TargetLoadPacking,
    create_policy,
)
from trimaran_client.explain import ExplainedNode, Explanation
from trimaran_client.policies.arguments import MetricChoice
from trimaran_client.policies.target_load_packing import TargetLoadPackingArgs
from trimaran_client.wire import Data, Metric, NodeMetrics, ResourceQuantities, WatcherMetrics, WireWindow, encode_json

POD = make_pod(cpu_request="1")


def explain(snapshot: LoadSnapshot, pod: Pod = POD, *, scorer: Scorer | None = None, **more: Any) -> Explanation:
    arguments: dict[str, Any] = {"now": NOW + 30, "pods": []} | more
    return (scorer or Scorer(TargetLoadPacking())).explain(pod, snapshot, **arguments)


def only(explanation: Explanation, node: str) -> ExplainedNode:
    return next(each for each in explanation.nodes if each.node == node)


def test_report_46_three_nodes_and_the_cause_of_each() -> None:
    """One is hot, one is not measured, and one is full by requests though idle: the fit filter will refuse that one."""
    snapshot = make_snapshot({"hot": 92, "silent": None, "full": 12}, capacity_cpu="10", allocatable_cpu="10")
    pods = [make_pod(cpu_request="9600m", node_name="full"), make_pod(cpu_request="2", node_name="silent")]
    explanation = explain(snapshot, pods=pods)
    hot, silent, full = (only(explanation, name) for name in ("hot", "silent", "full"))

    assert (hot.score, hot.reason) == (0, "over_capacity")  # 92 + 15 %
    assert hot.metrics[0].value == 92
    assert hot.steps == [
        "cpu: measured 92 %; measured + in flight + pod: 100 × (9200m + 0m + 1500m) / 10000m = 107 % predicted",
        "cpu: more than 100 %: score 0",
    ]

    assert (silent.score, silent.reason) == (85, "fallback_allocation")  # 2 + 1 of 10 cores requested: 60 · 30 / 40 + 40
    assert "no CPU metric (AVG or Latest): the load watcher serves none for this node (status unknown), though for others" in silent.hints
    assert silent.steps[0] == "cpu: no fresh metric; requests with the pod are 30 % of allocatable, taken for utilization"

    assert (full.score, full.reason) == (81, "at_or_below_target")  # 12 + 15 %: 60 · 27 / 40 + 40 = 80.5
    assert full.hints == [
        "requests already fill 96 % of allocatable cpu, and the pod asks for 1000m: the fit filter will refuse it",
    ]
    assert {each.reason for each in explanation.nodes} == {"over_capacity", "fallback_allocation", "at_or_below_target"}


def test_report_46_the_prediction_is_told_by_container_and_rule() -> None:
    containers = [
        {"name": "app", "resources": {"requests": {"cpu": "1"}}},
        {"name": "cache", "resources": {"limits": {"cpu": "2"}}},
        {"name": "agent"},
    ]
    prediction = explain(make_snapshot({"n1": 10}), make_pod(spec={"containers": containers})).predictions[0]
    assert (prediction.resource, prediction.unit, prediction.amount) == ("cpu", "millicores", 4500)
    assert [(each.part, each.rule, each.amount) for each in prediction.parts] == [
        ("app", "request × 1.5", 1500),
        ("cache", "limit", 2000),
        ("agent", "default", 1000),
    ]


def test_report_45_the_target_that_applied_is_named() -> None:
    """Where an evictor works with another threshold, both must be seen to be compared."""
    scorer = Scorer(TargetLoadPacking(TargetLoadPackingArgs(target_percent=65)))
    explanation = explain(make_snapshot({"below": 40, "above": 60}, capacity_cpu="16"), scorer=scorer)
    assert explanation.arguments["target_percent"] == 65
    assert only(explanation, "below").steps[-1] == "cpu: at or below the target of 65 %: (100 - 65) × 49.38 / 65 + 65 = 91.59"
    assert only(explanation, "above").steps[-1] == "cpu: above the target of 65 %: 65 × (100 - 69.38) / (100 - 65) = 56.88"


def test_the_score_is_told_with_everything_it_was_computed_from() -> None:
    explanation = explain(make_snapshot({"n1": 20}))
    node = explanation.nodes[0]
    assert (explanation.pod, explanation.policy, explanation.preset, explanation.source) == (
        "default/p",
        "TargetLoadPacking",
        "default",
        "test",
    )
    assert explanation.snapshot_age_seconds == 30
    assert node.terms == {
        "cpu_measured_percent": 20,
        "cpu_capacity_millicores": 8000,
        "cpu_measured_millicores": 1600,
        "cpu_in_flight_millicores": 0,
        "cpu_pod_millicores": 1500,
        "cpu_predicted_percent": 38.75,
        "cpu_allocated_percent": 12.5,
        "cpu_score": 98.125,
    }
    assert [(each.resource, each.capacity, each.allocatable, each.requested) for each in node.resources] == [("cpu", 8000, 8000, 0)]


def test_the_metric_is_told_with_window_age_unit_and_source() -> None:
    metric = Metric(type="CPU", operator="AVG", rollup="15m", value=20.0, unit="percent", source="Prometheus")
    node = NodeMetrics(metrics=[metric], capacity=ResourceQuantities(cpu="8"), sampled_at=NOW - 10, status="late")
    snapshot = LoadSnapshot.from_metrics(WatcherMetrics(window=WireWindow(end=NOW), data=Data({"n1": node})))
    told = explain(snapshot).nodes[0]
    assert told.status == "late"
    metric_told = told.metrics[0]
    assert (metric_told.type, metric_told.statistic, metric_told.window, metric_told.unit) == ("CPU", "AVG", "15m", "percent")
    assert (metric_told.value, metric_told.age_seconds, metric_told.source) == (20, 40, "Prometheus")


def test_pods_in_flight_are_told_with_the_share_that_counts() -> None:
    pods = AssignedPods(hold_seconds=0)
    pods.assign(make_pod(cpu_request="1", metadata={"name": "half", "uid": "u1"}), "n1", at=NOW - 450)
    pods.assume(make_pod(cpu_request="1", metadata={"name": "decided", "uid": "u2"}), "n1", now=NOW)
    pods.assign(make_pod(cpu_request="1", metadata={"name": "shown", "uid": "u3"}), "n1", at=NOW - 901)
    pods.assign(make_pod(cpu_request="1", metadata={"name": "elsewhere", "uid": "u4"}), "n2", at=NOW)
    told = only(explain(make_snapshot({"n1": 20, "n2": 20}), pods=pods, now=NOW), "n1").in_flight
    assert [(each.pod, each.state, each.amount, each.share, each.age_seconds) for each in told] == [
        ("default/half", "bound", 1500, 0.5, 450),
        ("default/decided", "assumed", 1500, 1, 0),
    ]


def test_only_some_nodes_may_be_told_of_and_the_scores_are_those_of_all() -> None:
    snapshot = make_snapshot({"a": 10, "b": 30, "c": 90})
    explanation = explain(snapshot, only=["c", "a"])
    assert [each.node for each in explanation.nodes] == ["a", "c"]
    by_node = Scorer(TargetLoadPacking()).score_nodes(POD, snapshot, now=NOW + 30, pods=[]).by_node()
    assert {each.node: each.score for each in explanation.nodes} == {name: by_node[name] for name in ("a", "c")}


def test_a_node_that_the_load_watcher_does_not_know_is_told_so() -> None:
    explanation = explain(make_snapshot({"n1": 10}), nodes=["n1", "10.0.0.7"], capacities=NodeCapacities.of([make_node("10.0.0.7")]))
    stranger = only(explanation, "10.0.0.7")
    assert stranger.hints[0].startswith("the load watcher does not know this node: see its /api/v1/nodes")
    assert (stranger.metrics[0].value, stranger.metrics[0].type) == (None, "CPU")


@pytest.mark.parametrize(
    ("cpu_percent", "more", "told"),
    [
        ({}, {}, "there is no snapshot: the load watcher was not reached, or has nothing yet"),
        ({"n1": None}, {}, "the load watcher serves no CPU metric for any node: its /api/v1/status tells what it looked for"),
        ({"n1": 10}, {"pods": None}, "the pods of the cluster are not known: pods in flight do not count"),
        ({"n1": 10}, {}, None),
    ],
)  # fmt: skip
def test_what_concerns_every_node_is_told_once(cpu_percent: dict[str, float | None], more: dict[str, Any], told: str | None) -> None:
    hints = explain(make_snapshot(cpu_percent), **more).hints
    assert len(hints) == (0 if told is None else 1)
    assert told is None or hints[0].startswith(told)


def test_nearly_full_by_requests_is_a_hint_even_where_the_pod_asks_for_nothing() -> None:
    node = explain(make_snapshot({"n1": 10}), make_pod(), pods=[make_pod(cpu_request="7500m", node_name="n1")]).nodes[0]
    assert node.hints == ["requests already fill 94 % of allocatable cpu: little more will fit"]


@pytest.mark.parametrize(
    ("policy", "preset", "args"),
    [
        ("TargetLoadPacking", "upstream", {}),
        ("LoadVariationRiskBalancing", "default", {}),
        ("LowRiskOverCommitment", "default", {}),
        ("Peaks", "default", {"models": {"n1": {"k0": 1, "k1": 1, "k2": 0.02}}}),
    ],
)
def test_every_policy_lays_open_its_arithmetic(policy: str, preset: str, args: dict[str, Any]) -> None:
    scorer = Scorer(create_policy(policy, args, preset))
    explanation = explain(make_snapshot({"n1": 20}), make_pod(cpu_request="1", cpu_limit="2"), scorer=scorer)
    node = explanation.nodes[0]
    assert (explanation.policy, explanation.preset) == (policy, preset)
    assert node.terms
    assert node.steps
    assert (
        node.score
        == scorer.score_nodes(make_pod(cpu_request="1", cpu_limit="2"), make_snapshot({"n1": 20}), now=NOW + 30, pods=[]).values[0]
    )


class FailingPolicy:
    name = "Failing"
    resources = ("cpu",)

    def score_nodes(self, pod: Pod, nodes: NodeColumns) -> Scores:
        raise RuntimeError("not today")

    def explain(self, pod: Pod, nodes: NodeColumns) -> Reasoning:
        raise RuntimeError("not today either")


def test_a_policy_that_fails_is_explained_as_failed() -> None:
    explanation = explain(make_snapshot({"n1": 20}), scorer=Scorer(FailingPolicy()))
    assert (explanation.nodes[0].score, explanation.nodes[0].reason) == (50, "policy_failed")
    assert explanation.hints[0] == "the policy raised an error: every node has the neutral score; the log shows it"


class SilentPolicy(TargetLoadPacking):
    def explain(self, pod: Pod, nodes: NodeColumns) -> Reasoning:
        raise RuntimeError("no words")


def test_a_policy_that_cannot_explain_itself_still_has_scores_metrics_and_hints() -> None:
    explanation = explain(make_snapshot({"n1": 20}), scorer=Scorer(SilentPolicy()))
    assert (explanation.nodes[0].score, explanation.nodes[0].reason) == (98, "at_or_below_target")
    assert explanation.hints == ["the policy cannot explain itself: RuntimeError('no words')"]


def test_it_can_be_written_as_json_with_functions_by_their_name() -> None:
    def by_history(pod: Pod, resource: str) -> float:
        return 500.0

    args = TargetLoadPackingArgs(prediction=by_history, cpu_metric=MetricChoice("P90", "15m"))
    written = json.loads(encode_json(explain(make_snapshot({"n1": float("nan")}), scorer=Scorer(TargetLoadPacking(args)))))
    assert written["arguments"]["prediction"].endswith("by_history")
    assert written["arguments"]["cpu_metric"] == {"statistic": "P90", "window": "15m"}
    assert written["nodes"][0]["terms"]["cpu_measured_percent"] is None
    assert {"snapshotAgeSeconds", "predictions", "nodes", "hints"} <= written.keys()
    assert written["predictions"][0]["parts"] == [{"part": "pod", "kind": "pod", "rule": "estimator", "amount": 500}]


@pytest.mark.parametrize("name", ["LoadVariationRiskBalancing", "LowRiskOverCommitment", "Peaks"])
def test_the_formula_is_told_only_where_the_score_comes_from_it(name: str) -> None:
    policy = create_policy(name, {"models": {"n1": {"k0": 1, "k1": 1, "k2": 0.01}}} if name == "Peaks" else {})
    metrics: list[Metric | None] = [Metric(type=kind, operator="AVG", rollup="15m", value=20.0) for kind in ("CPU", "Memory")]
    has = ResourceQuantities(cpu="8", memory="32Gi")
    nodes: dict[str, NodeMetrics | None] = {"n1": NodeMetrics(metrics=metrics, capacity=has, allocatable=has, sampled_at=NOW)}
    snapshot = LoadSnapshot.from_metrics(WatcherMetrics(window=WireWindow(end=NOW), data=Data(node_metrics_map=nodes)))
    fresh, old = (only(explain(snapshot, scorer=Scorer(policy), now=NOW + seconds), "n1") for seconds in (30, 3600))
    assert "score = " in fresh.steps[-1]
    assert "score = " not in old.steps[-1]
