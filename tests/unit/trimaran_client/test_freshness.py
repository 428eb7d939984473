"""Which metric counts, how old it may be, and what takes its place: over all policies."""

import dataclasses
from typing import Any

import pytest

from tests.builders import NOW, make_node, make_pod, make_snapshot
from trimaran_client import (
    AssignedPods,
    LoadSnapshot,
    LoadVariationRiskBalancing,
    LowRiskOverCommitment,
    MetricChoice,
    Peaks,
    PolicyArgumentError,
    Reason,
    Scorer,
    TargetLoadPacking,
    TargetLoadPackingArgs,
    create_policy,
)
from trimaran_client.wire import Data, Metric, NodeMetrics, NotHeld, ResourceQuantities, SnapshotColumns, WatcherMetrics, WireWindow

IDLE = make_pod(cpu_request=0)
TWENTY_MINUTES = 1200.0
MODELS = {"models": {"n1": {"k0": 1, "k1": 1, "k2": 0.02}, "n2": {"k0": 1, "k1": 1, "k2": 0.02}}}


def with_metrics(**nodes: list[Metric | None]) -> LoadSnapshot:
    """Make a snapshot of nodes of 8 cores and 8 GiB."""
    has = ResourceQuantities(cpu="8", memory="8Gi")
    listed: dict[str, NodeMetrics | None] = {
        name: NodeMetrics(metrics=metrics, capacity=has, allocatable=has, sampled_at=NOW, sample_seconds=30)
        for name, metrics in nodes.items()
    }
    return LoadSnapshot.from_metrics(WatcherMetrics(timestamp=NOW, window=WireWindow("15m", NOW - 900, NOW), data=Data(listed)))


def cpu(operator: str, value: float, window: str = "15m") -> Metric:
    return Metric(type="CPU", operator=operator, rollup="" if operator == "Latest" else window, value=value)


def memory(operator: str, value: float, window: str = "15m") -> Metric:
    return Metric(type="Memory", operator=operator, rollup=window, value=value)


# --- age ---


@pytest.mark.parametrize(
    ("fallback", "score", "reason"),
    [
        ("allocation", 78, "fallback_allocation"),  # 2 of 8 cores are requested, 25 %: 60 · 25 / 40 + 40 = 77.5
        ("neutral", 50, "fallback_neutral"),
        ("minimum", 0, "fallback_minimum"),
    ],
)
def test_report_28_a_value_of_twenty_minutes_ago_is_followed_by_the_fallback_and_its_age_is_told(
    fallback: str, score: int, reason: str
) -> None:
    """The node stood at 95 % when its agent died; upstream scores that for ever."""
    snapshot, now = make_snapshot({"n1": 95}), NOW + TWENTY_MINUTES
    pods = [make_pod(cpu_request="2", node_name="n1")]
    scorer = Scorer(create_policy("TargetLoadPacking", {"fallback": fallback}))
    scores = scorer.score_nodes(IDLE, snapshot, now=now, pods=pods)
    assert (scores.by_node(), str(Reason(scores.reasons[0]))) == ({"n1": score}, reason)
    explained = scorer.explain(IDLE, snapshot, now=now, pods=pods).nodes[0]
    assert explained.metrics[0].age_seconds == TWENTY_MINUTES
    assert "its metrics are 1200 s old, more than the 300 s allowed: see whether its agent reports" in explained.hints


@pytest.mark.parametrize("name", ["LoadVariationRiskBalancing", "LowRiskOverCommitment"])
@pytest.mark.parametrize(("fallback", "score"), [("neutral", 50), ("minimum", 0)])
def test_report_28_the_risk_policies_follow_the_same_setting(name: str, fallback: str, score: int) -> None:
    snapshot = with_metrics(n1=[cpu("AVG", 95), memory("AVG", 95)])
    pod = make_pod(cpu_request="1", cpu_limit="2")
    scores = Scorer(create_policy(name, {"fallback": fallback})).score_nodes(pod, snapshot, now=NOW + TWENTY_MINUTES, pods=[])
    assert (scores.by_node(), str(Reason(scores.reasons[0]))) == ({"n1": score}, f"fallback_{fallback}")


def test_report_28_each_node_is_as_old_as_its_own_sample() -> None:
    body = (
        b'{"window": {"end": 1700000000}, "data": {"NodeMetricsMap": {'
        b'"new": {"metrics": [{"type": "CPU", "operator": "AVG", "value": 95}], "capacity": {"cpu": "8"}, "sampledAt": 1699999990},'
        b'"old": {"metrics": [{"type": "CPU", "operator": "AVG", "value": 95}], "capacity": {"cpu": "8"}, "sampledAt": 1699998800}}}}'
    )
    scores = Scorer(TargetLoadPacking()).score_nodes(IDLE, LoadSnapshot.decode(body), now=NOW, pods=[])
    assert [str(Reason(each)) for each in scores.reasons] == ["above_target", "fallback_allocation"]


def test_report_98_a_service_that_is_dead_for_an_hour_is_not_believed_and_the_age_is_told() -> None:
    snapshot, pods = make_snapshot({"hot": 95, "idle": 5}), [make_pod(cpu_request="3", node_name="idle")]
    scorer = Scorer(TargetLoadPacking())
    explanation = scorer.explain(IDLE, snapshot, now=NOW + 3600, pods=pods)
    assert explanation.snapshot_age_seconds == 3600
    assert {each.node: (each.score, each.reason) for each in explanation.nodes} == {
        "hot": (40, "fallback_allocation"),
        "idle": (96, "fallback_allocation"),  # 3 of 8 cores: 37.5 %: 60 · 37.5 / 40 + 40 = 96.25
    }


# --- nodes without metrics ---


def test_report_29_without_any_metrics_the_ranking_follows_requests() -> None:
    """Target 40: 3 of 8 cores are packed better than 1 of 8, and 7 of 8 is over it."""
    pods = [make_pod(cpu_request=cores, node_name=name) for name, cores in (("a", "1"), ("b", "3"), ("c", "7"))]
    candidates = [make_node(name) for name in "abc"]
    scores = Scorer(TargetLoadPacking()).score_nodes(IDLE, LoadSnapshot.empty(), now=NOW, nodes=candidates, pods=pods)
    assert [(each.node, each.score) for each in scores.ranked()] == [("b", 96), ("a", 59), ("c", 8)]
    assert {str(Reason(each)) for each in scores.reasons} == {"fallback_allocation"}


def test_report_29_a_measured_node_is_compared_with_them_by_the_same_formula() -> None:
    """Measured at 37.5 % or 3 of 8 cores requested: the same score, so that neither has a lead by how it is known."""
    pods = [make_pod(cpu_request="3", node_name="b")]
    scores = Scorer(TargetLoadPacking()).score_nodes(IDLE, make_snapshot({"a": 37.5, "b": None}), now=NOW, pods=pods)
    assert scores.by_node() == {"a": 96, "b": 96}


# --- windows and statistics ---


def test_report_32_a_window_that_is_not_served_is_no_data_and_the_hints_tell_what_is() -> None:
    snapshot = with_metrics(n1=[cpu("AVG", 20, window) for window in ("5m", "10m", "15m")])
    for window in ("30m", "7m"):
        scorer = Scorer(TargetLoadPacking(TargetLoadPackingArgs(cpu_metric=MetricChoice(window=window))))
        node = scorer.explain(IDLE, snapshot, now=NOW, pods=[]).nodes[0]
        assert (node.metrics[0].value, node.reason) == (None, "fallback_allocation")
        assert f"no CPU metric (AVG or Latest over {window}): the load watcher serves AVG 5m, AVG 10m, AVG 15m for it" in node.hints


def test_report_32_windows_that_the_service_does_not_hold_are_kept_with_the_reason() -> None:
    reply = SnapshotColumns("id", NOW, "s", NOW, [], [], [], [], *_no_columns(), [], [NotHeld("30m", "history is kept for 1h")])
    assert LoadSnapshot.from_columns(reply).not_held == {"30m": "history is kept for 1h"}


def _no_columns() -> tuple[Any, Any]:
    from trimaran_client.wire import QuantityColumns

    return QuantityColumns([], []), QuantityColumns([], [])


def test_report_33_a_policy_that_goes_by_the_percentile_avoids_the_node_that_peaks() -> None:
    """The series 10, 10, 10, 10, 90: its average is 26, its 99th percentile 86.8; tests/integration/test_history_api.py serves them."""
    snapshot = with_metrics(
        peaks=[cpu("AVG", 26), cpu("P99", 86.8)],
        steady=[cpu("AVG", 22), cpu("P99", 24)],
    )

    def best(choice: MetricChoice) -> str:
        return Scorer(TargetLoadPacking(TargetLoadPackingArgs(cpu_metric=choice))).score_nodes(IDLE, snapshot, now=NOW).ranked()[0].node

    assert best(MetricChoice("AVG")) == "peaks"
    assert best(MetricChoice("P99")) == "steady"


def test_report_33_resources_may_differ_in_window_and_statistic() -> None:
    """History for CPU, the present for memory."""
    snapshot = with_metrics(
        n1=[cpu("AVG", 20, "15m"), cpu("AVG", 90, "5m"), memory("AVG", 90), Metric(type="Memory", operator="Latest", value=30.0)]
    )
    policy = create_policy(
        "LoadVariationRiskBalancing", {"cpu_metric": {"statistic": "AVG", "window": "15m"}, "memory_metric": {"statistic": "Latest"}}
    )
    terms = Scorer(policy).explain(IDLE, snapshot, now=NOW, pods=[]).nodes[0].terms
    assert (terms["cpu_mu_ratio"], terms["memory_mu_ratio"]) == (0.2, 0.3)


@pytest.mark.parametrize("name", ["TargetLoadPacking", "LoadVariationRiskBalancing", "LowRiskOverCommitment", "Peaks"])
def test_every_policy_takes_a_choice_of_metric_and_knows_none_without_it(name: str) -> None:
    snapshot = with_metrics(n1=[cpu("AVG", 20), memory("AVG", 20)])
    args: dict[str, Any] = {"cpu_metric": {"statistic": "P95"}} | (MODELS if name == "Peaks" else {})
    scores = Scorer(create_policy(name, args)).explain(make_pod(cpu_request="1", cpu_limit="2"), snapshot, now=NOW, pods=[])
    node = scores.nodes[0]
    assert node.metrics[0].value is None
    assert any(hint.startswith("no CPU metric (P95)") for hint in node.hints)


# --- several policies, and pods that must run ---


def test_report_84_two_policies_share_a_snapshot_and_the_pods_in_flight() -> None:
    """What one decides the other sees at once; each predicts by its own rule."""
    snapshot = with_metrics(n1=[cpu("AVG", 20), memory("AVG", 20)], n2=[cpu("AVG", 20), memory("AVG", 20)])
    pods = AssignedPods()
    packing, balancing = Scorer(TargetLoadPacking()), Scorer(LoadVariationRiskBalancing())
    pod = make_pod(cpu_request="4", cpu_limit="6")
    before = [scorer.score_nodes(pod, snapshot, now=NOW, pods=pods).by_node() for scorer in (packing, balancing)]
    assert all(scores["n1"] == scores["n2"] for scores in before)
    pods.assume(pod, "n1", now=NOW)
    after = [scorer.score_nodes(pod, snapshot, now=NOW, pods=pods).by_node() for scorer in (packing, balancing)]
    assert all(scores["n1"] < scores["n2"] for scores in after)
    columns = packing.columns(snapshot, now=NOW, pods=pods)
    assert columns.snapshot is snapshot  # of one cycle everything comes from the one object
    in_flight = [scorer.explain(pod, snapshot, now=NOW, pods=pods, only=["n1"]).nodes[0].in_flight[0] for scorer in (packing, balancing)]
    assert [each.amount for each in in_flight] == [6000, 4000]


def test_report_43_scores_do_not_depend_on_who_owns_the_pod() -> None:
    """A filter leaves pods of a DaemonSet alone; a score is about the node."""
    owner: dict[str, Any] = {"metadata": {"name": "agent", "ownerReferences": [{"kind": "DaemonSet", "name": "agent"}]}}
    daemon, plain = make_pod(cpu_request="100m", **owner), make_pod(cpu_request="100m")
    assert (daemon.is_daemon, plain.is_daemon) == (True, False)
    snapshot = with_metrics(n1=[cpu("AVG", 99), memory("AVG", 50)], n2=[cpu("AVG", 30), memory("AVG", 50)])
    for policy in (TargetLoadPacking(), LoadVariationRiskBalancing(), LowRiskOverCommitment(), create_policy("Peaks", MODELS)):
        by_owner = [Scorer(policy).score_nodes(pod, snapshot, now=NOW, pods=[]).by_node() for pod in (daemon, plain)]
        assert by_owner[0] == by_owner[1], policy.name


# --- rows of docs/policies.md: pods in flight count for every policy ---


def _with_burst(snapshot: LoadSnapshot) -> AssignedPods:
    pods = AssignedPods()
    pods.assume(make_pod(cpu_request="4"), "n1", now=NOW)
    assert snapshot.nodes == ("n1", "n2")
    return pods


@pytest.mark.parametrize("kind", [LoadVariationRiskBalancing, LowRiskOverCommitment])
def test_differs_from_upstream_risk_policies_count_pods_in_flight(kind: Any) -> None:
    """Equal nodes, and one of them was just given a pod of 4 of its 8 cores: the plugin sees no difference in their load."""
    metrics: list[Metric | None] = [cpu("AVG", 30), cpu("STD", 5), memory("AVG", 30), memory("STD", 5)]
    snapshot = with_metrics(n1=metrics, n2=metrics)
    pods, pod, scorer = _with_burst(snapshot), make_pod(cpu_request="100m", cpu_limit="200m"), Scorer(kind())
    columns = scorer.columns(snapshot, now=NOW, pods=pods)
    name = "cpu_mu_ratio" if kind is LoadVariationRiskBalancing else "cpu_in_flight_millicores"
    ours, theirs = (policy.explain(pod, columns).terms[name] for policy in (kind(), kind.upstream()))
    assert ours[0] > ours[1]
    assert theirs[0] == theirs[1]


def test_differs_from_upstream_peaks_counts_pods_in_flight() -> None:
    """The power curve is steeper where the pod in flight will be."""
    snapshot, pod = with_metrics(n1=[cpu("AVG", 30)], n2=[cpu("AVG", 30)]), make_pod(cpu_request="100m")
    pods = _with_burst(snapshot)
    assert Scorer(create_policy("Peaks", MODELS)).score_nodes(pod, snapshot, now=NOW, pods=pods).by_node() == {"n1": 0, "n2": 100}
    upstream = Peaks.upstream({"nodePowerModel": MODELS["models"]})
    assert Scorer(upstream).score_nodes(pod, snapshot, now=NOW, pods=pods).by_node() == {"n1": 100, "n2": 100}


def test_differs_from_upstream_windows_and_statistics_are_a_setting() -> None:
    """The plugin takes the last average of the reply; here a window may be chosen, and another does not stand in for it."""
    snapshot = with_metrics(n1=[cpu("AVG", 10, "5m"), cpu("AVG", 30, "15m")])
    chosen = TargetLoadPacking(TargetLoadPackingArgs(cpu_metric=MetricChoice("AVG", "5m")))
    scores = [Scorer(policy).score_nodes(IDLE, snapshot, now=NOW).by_node()["n1"] for policy in (TargetLoadPacking.upstream(), chosen)]
    assert scores == [85, 55]  # 60 · 30 / 40 + 40, 60 · 10 / 40 + 40


@pytest.mark.parametrize("scheduled_at", ["2023-11-14T22:12:50Z", "2023-11-14T21:13:20Z"])
def test_differs_from_upstream_the_scheduled_time_decides_and_not_when_we_saw_the_pod(scheduled_at: str) -> None:
    """Told of it only now, as after a restart: 30 s old counts in part, an hour old not at all. The plugin takes both for new."""
    pods = AssignedPods(hold_seconds=0)
    pods.update(make_pod(cpu_request="1", node_name="n1", scheduled_at=scheduled_at), now=NOW)
    policy = TargetLoadPacking()
    terms = policy.compute_terms(IDLE, Scorer(policy).columns(make_snapshot({"n1": 20}), now=NOW, pods=pods))
    expected = 1500 * (1 - 30 / 900) if "22:12" in scheduled_at else 0.0
    assert terms.in_flight_amount.tolist() == [pytest.approx(expected)]


def test_differs_from_upstream_pods_that_ended_do_not_count() -> None:
    pods = AssignedPods()
    running = make_pod(cpu_request="1", node_name="n1", scheduled_at="2023-11-14T22:13:10Z")
    pods.update(running, now=NOW)
    assert pods.in_flight_count == 1
    pods.update(dataclasses.replace(running, is_terminal=True), now=NOW)
    assert (len(pods), pods.in_flight_count) == (0, 0)


def test_differs_from_upstream_sidecars_and_init_steps_count() -> None:
    steps = [{"restartPolicy": "Always", "resources": {"limits": {"cpu": "1"}}}, {"resources": {"limits": {"cpu": "3"}}}]
    pod = make_pod(cpu_limit="500m", spec={"initContainers": steps})
    default, upstream = TargetLoadPacking(), TargetLoadPacking.upstream()
    plain = make_pod(cpu_limit="500m")
    assert default.predict_pod_millicores(dataclasses.replace(plain, init_containers=pod.init_containers)) == 4000
    assert upstream.predict_pod_millicores(dataclasses.replace(plain, init_containers=pod.init_containers)) == 500


def test_differs_from_upstream_arguments_out_of_range_are_refused() -> None:
    """The plugin takes a target over 100, and its scores go over 100 with it."""
    upstream = TargetLoadPacking.upstream({"targetUtilization": 200})
    assert Scorer(upstream).score_nodes(IDLE, make_snapshot({"n1": 10}), now=NOW).by_node() == {"n1": 195}
    with pytest.raises(PolicyArgumentError, match="target_percent is 200"):
        TargetLoadPackingArgs(target_percent=200)


@pytest.mark.parametrize("kind", [LoadVariationRiskBalancing, LowRiskOverCommitment])
def test_differs_from_upstream_a_limit_without_a_request_is_a_request(kind: Any) -> None:
    """As the API server sets it; a manifest from a file may not have met it."""
    snapshot = with_metrics(n1=[cpu("AVG", 0), memory("AVG", 0)])
    pod = make_pod(cpu_limit="4")
    name = "cpu_pod_millicores" if kind is LoadVariationRiskBalancing else "cpu_node_requested_millicores"
    columns = Scorer(kind()).columns(snapshot, now=NOW, pods=[])
    ours, theirs = (policy.explain(pod, columns).terms[name][0] for policy in (kind(), kind.upstream()))
    assert (ours, theirs) == (4000, 0)
