"""TargetLoadPacking: the formula, the arguments, and each deliberate difference from the Go plugin."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from tests.builders import NOW, make_node, make_pod, make_snapshot
from trimaran_client import PolicyArgumentError, Reason, Scorer, TargetLoadPacking, TargetLoadPackingArgs
from trimaran_client.policies.go_numbers import parse_go_float
from trimaran_client.policies.targets import score_utilization

IDLE_POD = make_pod(cpu_request=0)
UPSTREAM = TargetLoadPacking.upstream()
DEFAULT = TargetLoadPacking()


def test_worked_example_of_the_design_document() -> None:
    """KEP 61: target 50, nodes that end at 25, 50 and 75 %."""
    assert score_utilization(np.array([25.0, 50.0, 75.0]), 50.0).tolist() == [75, 100, 25]


def test_report_36_below_the_target_always_beats_above() -> None:
    """Target 20: 5 % gives 80 · 5 / 20 + 20 = 40, and 25 % gives 20 · 75 / 80 = 18.75."""
    assert score_utilization(np.array([5.0, 25.0]), 20.0).tolist() == [40, 19]


def test_scores_of_one_call_carry_their_reasons() -> None:
    snapshot = make_snapshot({"packed": 30, "over": 70, "full": 101, "none": None})
    scores = Scorer(DEFAULT).score_nodes(IDLE_POD, snapshot, now=NOW, pods=[])
    assert [(each.node, each.score, str(each.reason)) for each in scores.ranked()] == [
        ("packed", 85, "at_or_below_target"),  # (100 - 40) · 30 / 40 + 40
        ("none", 40, "fallback_allocation"),  # nothing requested: 0 %
        ("over", 20, "above_target"),  # 40 · 30 / 60
        ("full", 0, "over_capacity"),
    ]


def test_one_node_scores_as_it_does_in_a_column() -> None:
    snapshot = make_snapshot({f"n{load}": float(load) for load in range(0, 120, 7)})
    scorer, pod = Scorer(DEFAULT), make_pod(cpu_request="300m")
    together = scorer.score_nodes(pod, snapshot, now=NOW).by_node()
    alone = {name: scorer.score_nodes(pod, snapshot, now=NOW, nodes=[name]).by_node()[name] for name in snapshot.nodes}
    assert together == alone


def test_candidates_may_be_manifests_names_or_strangers() -> None:
    snapshot = make_snapshot({"n1": 40, "n2": 40}, capacity_cpu=None, allocatable_cpu=None)
    scores = Scorer(DEFAULT).score_nodes(IDLE_POD, snapshot, now=NOW, nodes=[make_node("n1"), "n2", make_node("new")], pods=[])
    assert [str(Reason(reason)) for reason in scores.reasons] == ["at_or_below_target", "capacity_unknown", "fallback_allocation"]


@pytest.mark.parametrize(
    ("containers", "upstream_millicores", "default_millicores"),
    [
        ({"cpu_limit": "2", "cpu_request": "1"}, 2000, 2000),
        ({"cpu_limit": 0, "cpu_request": "1"}, 0, 0),
        ({"cpu_request": "333m"}, 500, 500),  # 499.5, halves away from zero
        ({"cpu_request": 0}, 0, 0),
        ({}, 1000, 1000),
        ({"spec": {"overhead": {"cpu": "7m"}}}, 1007, 1007),
        ({"spec": {"initContainers": [{"restartPolicy": "Always", "resources": {"limits": {"cpu": "1"}}}]}}, 1000, 2000),
        ({"spec": {"initContainers": [{"resources": {"limits": {"cpu": "3"}}}]}}, 1000, 3000),
    ],
)
def test_report_41_predicted_usage(containers: dict[str, Any], upstream_millicores: int, default_millicores: int) -> None:
    """Limit, else request times 1.5, else 1000m; the default preset also knows sidecars and init steps."""
    pod = make_pod(**containers)
    assert (UPSTREAM.predict_pod_millicores(pod), DEFAULT.predict_pod_millicores(pod)) == (upstream_millicores, default_millicores)


def test_upstream_counts_pods_bound_within_a_minute_of_the_metrics() -> None:
    """NOW is 2023-11-14T22:13:20Z: one pod of 1500m bound at it, one too long ago to count, one that has ended."""
    pods = [
        make_pod(cpu_request="1", node_name="n1", scheduled_at="2023-11-14T22:13:20Z"),
        make_pod(cpu_request="1", node_name="n1", scheduled_at="2023-11-14T22:12:20Z"),
        dataclasses.replace(make_pod(cpu_request="1", node_name="n1", scheduled_at="2023-11-14T22:13:20Z"), is_terminal=True),
    ]
    scores = Scorer(TargetLoadPacking.upstream()).score_nodes(IDLE_POD, make_snapshot({"n1": 10}), now=NOW, pods=pods)
    assert scores.by_node() == {"n1": 83}  # 10 % + 1500 / 8000 = 28.75 %: 60 · 28.75 / 40 + 40 = 83.1


@pytest.mark.parametrize(
    ("kwargs", "named"),
    [
        ({"target_percent": 0}, "target_percent is 0"),
        ({"target_percent": 100.0}, "target_percent is 100.0"),
        ({"target_percent": math.nan}, "target_percent is nan"),
        ({"request_multiplier": -1}, "request_multiplier is -1"),
        ({"request_multiplier": math.inf}, "request_multiplier is inf"),
        ({"default_request_millicores": -1}, "default_request_millicores is -1"),
        ({"max_age_seconds": 0}, "max_age_seconds is 0"),
        ({"fallback": "best"}, "fallback is 'best'; choose from allocation, neutral, minimum"),
        ({"preset": "go"}, "preset is 'go'"),
    ],
)
def test_bad_arguments_are_refused_when_the_policy_is_made(kwargs: dict[str, Any], named: str) -> None:
    with pytest.raises(PolicyArgumentError, match=named):
        TargetLoadPackingArgs(**kwargs)


def test_every_bad_argument_is_named_at_once() -> None:
    with pytest.raises(PolicyArgumentError, match="target_percent.*request_multiplier.*max_age_seconds"):
        TargetLoadPackingArgs(target_percent=-1, request_multiplier=-1, max_age_seconds=-1)


@pytest.mark.parametrize("text", ["", " 1", "1.5x", "1e400", "0x1", "1__0", "_1", "1_", "1_.5", "١", 1.5])
def test_a_multiplier_that_go_refuses_is_an_error(text: object) -> None:
    with pytest.raises(PolicyArgumentError, match="is not a number"):
        TargetLoadPacking.upstream({"defaultRequestsMultiplier": text})


@pytest.mark.parametrize(
    ("text", "value"),
    [("+.5", 0.5), ("5.", 5.0), ("1E2", 100.0), ("0X1P1", 2.0), ("0x.8p0", 0.5), ("-0", 0.0), ("1_000", 1000.0), ("0x_1p1", 2.0)],
)
def test_numbers_as_go_writes_them(text: str, value: float) -> None:
    assert parse_go_float(text) == value


# --- rows of docs/policies.md ---


def test_differs_from_upstream_node_without_metrics_falls_back_to_allocation() -> None:
    """Upstream 0 for ever, so that a new node stays empty; here its requests count: 4 + 1 of 10 cores = 50 %: 40 · 50 / 60 = 33."""
    snapshot = make_snapshot({"n1": None}, capacity_cpu="12", allocatable_cpu="10")
    pods = [make_pod(cpu_request="4", node_name="n1")]
    pod = make_pod(cpu_request="1")
    assert Scorer(UPSTREAM).score_nodes(pod, snapshot, now=NOW, pods=pods).by_node() == {"n1": 0}
    scores = Scorer(DEFAULT).score_nodes(pod, snapshot, now=NOW, pods=pods)
    assert (scores.by_node(), str(Reason(scores.reasons[0]))) == ({"n1": 33}, "fallback_allocation")


@pytest.mark.parametrize(("fallback", "score"), [("neutral", 50), ("minimum", 0)])
def test_differs_from_upstream_fallback_is_selectable(fallback: Any, score: int) -> None:
    scores = Scorer(TargetLoadPacking(TargetLoadPackingArgs(fallback=fallback))).score_nodes(IDLE_POD, make_snapshot({"n1": None}), now=NOW)
    assert (scores.by_node(), str(Reason(scores.reasons[0]))) == ({"n1": score}, f"fallback_{fallback}")


def test_differs_from_upstream_without_pods_a_fallback_is_neutral_and_says_so() -> None:
    scores = Scorer(DEFAULT).score_nodes(IDLE_POD, make_snapshot({"n1": None}), now=NOW)
    assert (scores.by_node(), str(Reason(scores.reasons[0]))) == ({"n1": 50}, "pods_unknown")


def test_differs_from_upstream_old_metrics_do_not_count() -> None:
    """Five minutes are fresh, a second more is not; upstream uses them for ever."""
    snapshot = make_snapshot({"n1": 95})
    fresh, old = (Scorer(DEFAULT).score_nodes(IDLE_POD, snapshot, now=NOW + age, pods=[]) for age in (300, 301))
    assert [str(Reason(scores.reasons[0])) for scores in (fresh, old)] == ["above_target", "fallback_allocation"]
    assert Scorer(UPSTREAM).score_nodes(IDLE_POD, snapshot, now=NOW + 301).by_node() == fresh.by_node()


@pytest.mark.parametrize("capacity", ["0", None])
def test_differs_from_upstream_unknown_capacity_is_avoided(capacity: str | None) -> None:
    """Upstream predicts 0 % and scores the target, 40, for a node that has no CPU at all."""
    snapshot = make_snapshot({"n1": 10}, capacity_cpu=capacity, allocatable_cpu=capacity)
    assert Scorer(UPSTREAM).score_nodes(IDLE_POD, snapshot, now=NOW).by_node() == {"n1": 40}
    scores = Scorer(DEFAULT).score_nodes(IDLE_POD, snapshot, now=NOW, pods=[])
    assert (scores.by_node(), str(Reason(scores.reasons[0]))) == ({"n1": 0}, "capacity_unknown")


def test_differs_from_upstream_impossible_metrics_do_not_count() -> None:
    """A foreign load watcher may serve a negative value; upstream computes with it."""
    scores = Scorer(DEFAULT).score_nodes(IDLE_POD, make_snapshot({"n1": -5}), now=NOW, pods=[])
    assert str(Reason(scores.reasons[0])) == "fallback_allocation"
