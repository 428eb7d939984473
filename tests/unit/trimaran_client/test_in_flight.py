"""How much of the pods in flight still counts, by what the metric of their node shows already."""

import math
from typing import Any

import numpy as np
import pytest

from tests.builders import NOW, make_pod, make_snapshot
from trimaran_client import AssignedPods, LoadSnapshot, MetricChoice, Scorer, TargetLoadPacking, TargetLoadPackingArgs
from trimaran_client.policies.in_flight import uncovered_shares
from trimaran_client.scorer import build_columns
from trimaran_client.snapshot import MetricSelector
from trimaran_client.wire import Data, Metric, NodeMetrics, ResourceQuantities, WatcherMetrics, WireWindow

POD = make_pod(cpu_request="1")
IDLE = make_pod(cpu_request=0)


def measured(operator: str, window: str = "", *, sample_seconds: float | None = 30.0, value: float = 20.0) -> LoadSnapshot:
    """Make a snapshot of the node n1, 8 cores, whose newest sample is of NOW."""
    node = NodeMetrics(
        metrics=[Metric(type="CPU", operator=operator, rollup=window, value=value)],
        capacity=ResourceQuantities(cpu="8"),
        allocatable=ResourceQuantities(cpu="8"),
        sampled_at=NOW,
        sample_seconds=sample_seconds,
    )
    return LoadSnapshot.from_metrics(WatcherMetrics(window=WireWindow("15m", NOW - 900, NOW), data=Data({"n1": node})))


def share(snapshot: LoadSnapshot, ago_seconds: float, *, hold_seconds: float = 0.0, node: str = "n1") -> float:
    """Answer the share of a pod that was bound so long before the newest sample."""
    pods = AssignedPods(hold_seconds=hold_seconds)
    pods.assign(POD, node, at=NOW - ago_seconds)
    columns = build_columns(snapshot, now=NOW, pods=pods)
    keys = snapshot.keys_of("CPU")
    selection = columns.select(MetricSelector("CPU", tuple(key.operator for key in keys)))
    return float(uncovered_shares(columns, selection)[0])


@pytest.mark.parametrize(
    ("window", "ago_seconds", "expected"),
    [
        ("15m", 0, 1.0),
        ("15m", -5, 1.0),  # bound after the newest sample
        ("15m", 300, 2 / 3),  # the average has it for a third of its 15 minutes
        ("15m", 900, 0.0),
        ("15m", 1000, 0.0),
        ("5m", 60, 0.8),
        ("", 450, 0.5),  # without a name of its window: the 15 minutes of the Go load-watcher
        ("soon", 450, 0.5),
    ],
)
def test_an_average_shows_the_part_of_its_window_that_the_pod_ran(window: str, ago_seconds: float, expected: float) -> None:
    assert share(measured("AVG", window), ago_seconds) == pytest.approx(expected)


def test_shares_come_in_steps_so_that_their_sums_are_exact() -> None:
    shares = [share(measured("AVG", "15m"), ago_seconds) for ago_seconds in (1, 7, 100, 333, 899)]
    assert all(0 < each < 1 and (each * 2**20).is_integer() for each in shares)


@pytest.mark.parametrize("operator", ["Latest", "MAX", ""])
@pytest.mark.parametrize(
    ("sample_seconds", "ago_seconds", "expected"),
    [
        (30.0, 29, 1.0),  # the sample began before the pod: it shows little of it
        (30.0, 30, 0.0),
        (None, 59, 1.0),  # not said how long it was measured: a minute, the interval of the agents
        (None, 60, 0.0),
        (0.0, 0, 0.0),
        (0.0, -1, 1.0),
    ],
)
def test_an_instant_shows_all_of_a_pod_once_its_sample_began_after_it(
    operator: str, sample_seconds: float | None, ago_seconds: float, expected: float
) -> None:
    window = "15m" if operator == "MAX" else ""
    assert share(measured(operator, window, sample_seconds=sample_seconds), ago_seconds) == expected


@pytest.mark.parametrize(
    ("operator", "ago_seconds", "expected"),
    [("P90", 89, 1.0), ("P90", 90, 0.0), ("P50", 449, 1.0), ("P50", 450, 0.0), ("P99", 29, 1.0), ("P99", 30, 0.0)],
)
def test_a_percentile_shows_a_pod_once_it_ran_for_the_part_above_it(operator: str, ago_seconds: float, expected: float) -> None:
    """P90 of 15 minutes is what the busiest 90 s are above: from then on the pod is in it; but never before a whole sample, 30 s."""
    assert share(measured(operator, "15m"), ago_seconds) == expected


def test_a_reply_of_the_go_load_watcher_counts_by_its_windows_end() -> None:
    reply = b'{"window": {"duration": "15m", "end": 1700000000}, "data": {"NodeMetricsMap": {"n1": {"metrics": [%b]}}}}'
    average = LoadSnapshot.decode(reply % b'{"type": "CPU", "operator": "AVG", "rollup": "15m", "value": 20}')
    instant = LoadSnapshot.decode(reply % b'{"type": "CPU", "operator": "Latest", "value": 20}')
    assert share(average, 300) == pytest.approx(2 / 3)
    assert [share(instant, 59), share(instant, 60)] == [1.0, 0.0]


@pytest.mark.parametrize(("operator", "window"), [("AVG", "15m"), ("Latest", ""), ("P90", "15m")])
def test_pods_that_are_only_decided_on_count_in_full(operator: str, window: str) -> None:
    snapshot = measured(operator, window)
    pods = AssignedPods(hold_seconds=0)
    pods.assume(POD, "n1", now=NOW - 29)
    pods.update(make_pod(cpu_request="1", status={"nominatedNodeName": "n1"}), now=NOW - 1000)
    columns = build_columns(snapshot, now=NOW, pods=pods)
    shares = uncovered_shares(columns, columns.select(MetricSelector("CPU", (operator,))))
    assert shares.tolist() == [1.0, 1.0]


def test_the_hold_time_puts_off_when_a_pod_can_be_measured() -> None:
    assert share(measured("AVG", "15m"), 300, hold_seconds=300) == 1.0
    assert share(measured("AVG", "15m"), 300, hold_seconds=30) == pytest.approx(1 - 270 / 900)
    assert [share(measured("Latest"), 89, hold_seconds=60), share(measured("Latest"), 90, hold_seconds=60)] == [1.0, 0.0]


def test_a_pod_says_its_own_hold_time() -> None:
    pods = AssignedPods(hold_seconds=0)
    for seconds in ("600", "soon", "-1"):
        slow = make_pod(cpu_request="1", metadata={"annotations": {"trimaran.io/hold-seconds": seconds}, "uid": seconds})
        pods.assign(slow, "n1", at=NOW - 300)
    columns = build_columns(measured("AVG", "15m"), now=NOW, pods=pods)
    shares = uncovered_shares(columns, columns.select(MetricSelector("CPU", ("AVG",))))
    assert shares.tolist() == pytest.approx([1.0, 2 / 3, 2 / 3])  # a bad value is ignored


def test_without_the_metric_and_off_the_candidates_nothing_is_shown() -> None:
    snapshot = make_snapshot({"n1": None, "n2": 20})
    assert share(snapshot, 900, node="n1") == 1.0
    pods = AssignedPods()
    pods.assign(POD, "elsewhere", at=NOW - 900)
    columns = build_columns(snapshot, now=NOW, nodes=["n2"], pods=pods)
    assert uncovered_shares(columns, columns.select(MetricSelector("CPU", ("AVG",)))).tolist() == [1.0]
    assert columns.sum_by_node(np.array([500.0])).tolist() == [0.0]


def test_each_node_goes_by_its_own_metric() -> None:
    """One node has an average, the other only an instant: the same pod is a third in one, and wholly in the other."""
    nodes: dict[str, NodeMetrics | None] = {
        "slow": NodeMetrics(metrics=[Metric(type="CPU", operator="AVG", rollup="15m", value=1.0)], sampled_at=NOW),
        "quick": NodeMetrics(metrics=[Metric(type="CPU", operator="Latest", value=1.0)], sampled_at=NOW, sample_seconds=30),
    }
    snapshot = LoadSnapshot.from_metrics(WatcherMetrics(data=Data(nodes)))
    pods = AssignedPods(hold_seconds=0)
    for name in nodes:
        pods.assign(make_pod(cpu_request="1"), name, at=NOW - 300)
    columns = build_columns(snapshot, now=NOW, pods=pods)
    shares = uncovered_shares(columns, columns.select(MetricSelector("CPU", ("AVG", "Latest"))))
    assert shares.tolist() == pytest.approx([2 / 3, 0.0])


# --- what it does to scores ---


def predicted_percent(policy: TargetLoadPacking, snapshot: LoadSnapshot, pods: AssignedPods, pod: Any = IDLE) -> float:
    return float(policy.compute_terms(pod, build_columns(snapshot, now=NOW, pods=pods)).predicted_percent[0])


def test_the_worked_example_of_the_documentation() -> None:
    """8 cores at 20 % on average over 15 minutes; a pod of 1000m (so 1500m) bound 330 s ago, 30 s of hold: two thirds of it count."""
    pods = AssignedPods()
    pods.assign(POD, "n1", at=NOW - 330)
    policy = TargetLoadPacking()
    assert predicted_percent(policy, measured("AVG", "15m"), pods) == pytest.approx(20 + 100 * 1000 / 8000)
    assert Scorer(policy).score_nodes(IDLE, measured("AVG", "15m"), now=NOW, pods=pods).by_node() == {"n1": 89}  # 60 · 32.5 / 40 + 40


def test_the_metric_that_is_chosen_decides() -> None:
    pods = AssignedPods(hold_seconds=0)
    pods.assign(POD, "n1", at=NOW - 300)
    nodes: dict[str, NodeMetrics | None] = {
        "n1": NodeMetrics(
            metrics=[
                Metric(type="CPU", operator="Latest", value=10.0),
                Metric(type="CPU", operator="AVG", rollup="5m", value=10.0),
                Metric(type="CPU", operator="AVG", rollup="15m", value=10.0),
            ],
            capacity=ResourceQuantities(cpu="10"),
            sampled_at=NOW,
            sample_seconds=30,
        )
    }
    snapshot = LoadSnapshot.from_metrics(WatcherMetrics(data=Data(nodes)))
    by_choice = {
        (choice.statistic, choice.window): predicted_percent(TargetLoadPacking(TargetLoadPackingArgs(cpu_metric=choice)), snapshot, pods)
        for choice in (MetricChoice(), MetricChoice("AVG", "5m"), MetricChoice("Latest"))
    }
    assert by_choice == {("", ""): pytest.approx(20.0), ("AVG", "5m"): pytest.approx(10.0), ("Latest", ""): pytest.approx(10.0)}


def test_differs_from_upstream_pods_in_flight_count_by_the_share_that_is_not_shown() -> None:
    """Upstream counts a pod in full until it is a minute old, and then not at all, though an average of 15 minutes shows a 15th of it."""
    snapshot = measured("AVG", "15m")
    policies, by_age = (TargetLoadPacking.upstream(), TargetLoadPacking()), {}
    for ago_seconds in (30, 59, 60, 450):
        pods = AssignedPods(hold_seconds=0)
        pods.assign(POD, "n1", at=NOW - ago_seconds)
        by_age[ago_seconds] = [predicted_percent(policy, snapshot, pods) - 20 for policy in policies]
    whole = 100 * 1500 / 8000
    assert {ago: upstream for ago, (upstream, _) in by_age.items()} == pytest.approx({30: whole, 59: whole, 60: 0, 450: 0})
    assert {ago: ours for ago, (_, ours) in by_age.items()} == pytest.approx(
        {30: whole * 29 / 30, 59: whole * 841 / 900, 60: whole * 14 / 15, 450: whole / 2}
    )


def test_report_37_a_burst_is_seen_before_anything_is_bound() -> None:
    """8 cores at 20 %, six pods of 1000m, so 1500m each, decided on one after the other; every decision is counted at once."""
    scorer, pods = Scorer(TargetLoadPacking()), AssignedPods()
    scores: list[int] = []
    for _ in range(6):
        pod = make_pod(cpu_request="1000m")
        scores += scorer.score_nodes(pod, measured("AVG", "15m"), now=NOW, pods=pods).by_node().values()
        pods.assume(pod, "n1", now=NOW)
    # 38.75 % and 18.75 % more each time: 60 · 38.75 / 40 + 40, then 40 · (100 - 57.5) / 60, ...
    assert scores == [98, 28, 16, 3, 0, 0]


def test_report_37_an_assumption_that_no_binding_follows_ends_and_one_that_is_bound_counts_once() -> None:
    snapshot, policy = measured("AVG", "15m"), TargetLoadPacking()
    pods = AssignedPods(assume_seconds=30)
    decided, lost = make_pod(cpu_request="1"), make_pod(cpu_request="1")
    pods.assume(decided, "n1", now=NOW)
    pods.assume(lost, "n1", now=NOW)
    pods.assign(decided, "n1", at=NOW)
    assert predicted_percent(policy, snapshot, pods) == pytest.approx(20 + 2 * 18.75)
    columns = build_columns(snapshot, now=NOW + 31, pods=pods)
    assert policy.compute_terms(IDLE, columns).in_flight_amount.tolist() == [1500]


def test_report_38_pods_that_are_old_leave_nothing_behind() -> None:
    """All three of the node are 25 minutes old: none is in flight, and the node has no entry once they ended."""
    pods = AssignedPods()
    old = [make_pod(cpu_request="1", node_name="n1", scheduled_at="2023-11-14T21:48:20Z") for _ in range(3)]
    for pod in old:
        pods.update(pod, now=NOW)
    assert (len(pods), pods.in_flight_count) == (3, 0)
    for pod in old:
        pods.forget(pod)
    assert len(pods) == 0
    assert "n1" not in pods.view(NOW).totals.rows


def test_report_38_ten_thousand_nodes_over_time_leave_none_behind() -> None:
    pods = AssignedPods()
    for index in range(10_000):
        pods.assign(make_pod(cpu_request="1", metadata={"uid": f"{index}"}), f"node-{index}", at=NOW + index)
        pods.forget(f"{index - 3}")
    view = pods.view(NOW + 10_000)
    assert (len(pods), len(view.totals.rows)) == (3, 3)
    assert view.totals.values.shape[1] < 100
    assert not math.isnan(view.totals.values[:, list(view.totals.rows.values())].sum())
