"""Laws that hold for every input of the default preset."""

import math
from random import Random
from typing import Literal

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from load_watcher.last_good import merge
from load_watcher.quality import assess
from load_watcher.samples import FIFTEEN_MINUTES
from load_watcher.snapshot import encode_snapshot
from tests.builders import NOW, make_batch, make_pod, make_snapshot
from tests.conformance.reference import target_load_packing_score
from trimaran_client import (
    AssignedPods,
    LoadSnapshot,
    LoadVariationRiskBalancing,
    LoadVariationRiskBalancingArgs,
    LowRiskOverCommitment,
    LowRiskOverCommitmentArgs,
    MetricChoice,
    Peaks,
    PeaksArgs,
    Pod,
    PowerModel,
    ResourceTarget,
    Scorer,
    ScoringPolicy,
    TargetLoadPacking,
    TargetLoadPackingArgs,
)
from trimaran_client.policies.targets import score_utilization
from trimaran_client.wire import Data, Metric, NodeMetrics, ResourceQuantities, WatcherMetrics, WireWindow, encode_json

anything = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True), st.floats(0, 100))
loads = st.dictionaries(st.text(min_size=1, max_size=8), anything, min_size=1, max_size=8)
targets = st.floats(1, 99)
requests = st.one_of(st.none(), st.integers(0, 2**63), st.sampled_from(["100m", "1", "1E", "-5", "0"]))


@given(loads, targets, requests, st.floats(allow_nan=False), st.sampled_from(["0", "1m", "8", "8E", "-1", None]))
def test_every_score_is_an_integer_from_0_to_100(
    cpu_percent: dict[str, float | None], target: float, request: object, now: float, capacity: str | None
) -> None:
    snapshot = make_snapshot(cpu_percent, capacity_cpu=capacity, allocatable_cpu=capacity)
    pods: list[Pod] = [make_pod(cpu_request=request, node_name=name, scheduled_at="2023-11-14T22:13:20Z") for name in cpu_percent]
    policy = TargetLoadPacking(TargetLoadPackingArgs(target_percent=target))
    values = Scorer(policy).score_nodes(make_pod(cpu_request=request), snapshot, now=now, pods=pods).values
    assert values.dtype == np.int64
    assert ((values >= 0) & (values <= 100)).all()


@given(loads, st.randoms(use_true_random=False))
def test_permuting_nodes_permutes_scores(cpu_percent: dict[str, float | None], random: Random) -> None:
    names = list(cpu_percent)
    random.shuffle(names)
    snapshot, scorer, pod = make_snapshot(cpu_percent), Scorer(TargetLoadPacking()), make_pod(cpu_request="500m")
    assert scorer.score_nodes(pod, snapshot, now=NOW, nodes=names).by_node() == scorer.score_nodes(pod, snapshot, now=NOW).by_node()


@given(st.floats(0, 100), st.floats(0, 100), targets)
def test_at_or_under_the_target_never_scores_below_over_it(one: float, other: float, target: float) -> None:
    under, over = sorted((one, other))
    if under <= target < over:
        scores = score_utilization(np.array([under, over]), target)
        assert scores[0] >= scores[1]


@given(st.floats(0, 200), st.floats(0, 200), targets)
def test_more_load_never_helps_above_the_target(one: float, other: float, target: float) -> None:
    less, more = sorted((one, other))
    if less > target:
        scores = score_utilization(np.array([less, more]), target)
        assert scores[0] >= scores[1]


@given(st.floats(0, 150), targets)
def test_a_column_agrees_with_the_plain_reference(predicted: float, target: float) -> None:
    assert score_utilization(np.array([predicted]), target)[0] == target_load_packing_score(predicted, target)


@given(st.lists(st.floats(0, 150), max_size=20), targets)
def test_a_column_equals_its_nodes_one_by_one(predicted: list[float], target: float) -> None:
    column = score_utilization(np.array(predicted, dtype=np.float64), target)
    assert column.tolist() == [score_utilization(np.array([each]), target)[0] for each in predicted]


def test_unknown_stays_unknown() -> None:
    assert math.isnan(score_utilization(np.array([math.nan]), 40.0)[0])


# --- every policy, on nodes that hold anything ---

amounts = st.sampled_from(["0", "1m", "8", "8E", "-1", "1Gi", "9Ei", None])
metrics = st.lists(
    st.builds(
        Metric,
        type=st.sampled_from(["CPU", "Memory", "Bandwidth"]),
        operator=st.sampled_from(["AVG", "STD", "Latest", "P90", ""]),
        rollup=st.sampled_from(["15m", "5m", ""]),
        value=st.one_of(st.none(), st.floats(), st.floats(0, 100)),
        unit=st.sampled_from([msgspec.UNSET, "percent", "bytes"]),
    ),
    max_size=6,
)
hostile_nodes = st.builds(
    NodeMetrics,
    metrics=metrics,
    capacity=st.builds(ResourceQuantities, cpu=amounts, memory=amounts),
    allocatable=st.builds(ResourceQuantities, cpu=amounts, memory=amounts),
    sampled_at=st.sampled_from([msgspec.UNSET, NOW, NOW - 1000, NOW + 1000]),
    sample_seconds=st.sampled_from([msgspec.UNSET, 30.0, 0.0]),
)
clusters = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), hostile_nodes)
choices = st.builds(MetricChoice, st.sampled_from(["", "AVG", "P90", "Latest"]), st.sampled_from(["", "15m", "5m"]))
models = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.builds(PowerModel, *[st.floats(-1e299, 1e299)] * 3), min_size=1)
others = st.lists(
    st.builds(
        ResourceTarget,
        resource=st.sampled_from(["memory", "network"]),
        metric_type=st.sampled_from(["Memory", "Bandwidth"]),
        target_percent=targets,
        metric=choices,
        full_amount=st.sampled_from([None, 1e-300, 100.0, 1e300]),
        fallback=st.sampled_from(["allocation", "neutral", "minimum", "leave_out"]),
        weight=st.sampled_from([1e-300, 1.0, 1e300]),
    ),
    max_size=2,
    unique_by=lambda each: each.resource,
).map(tuple)
packing = st.builds(
    TargetLoadPacking,
    st.builds(
        TargetLoadPackingArgs,
        target_percent=targets,
        request_multiplier=st.floats(0, 1e299),
        prediction=st.sampled_from(["limit_first", "request_first", "max"]),
        cpu_metric=choices,
        others=others,
        combine=st.sampled_from(["minimum", "weights"]),
        fallback=st.sampled_from(["allocation", "neutral", "minimum"]),
    ),
)
absolute_policies = st.one_of(
    packing,
    st.builds(
        LoadVariationRiskBalancing,
        st.builds(LoadVariationRiskBalancingArgs, margin=st.floats(0, 1e299), sensitivity=st.floats(0, 1e299), cpu_metric=choices),
    ),
    st.builds(LowRiskOverCommitment, st.builds(LowRiskOverCommitmentArgs, smoothing_window=st.integers(1, 10**9), memory_metric=choices)),
)
policies = st.one_of(absolute_policies, st.builds(Peaks, st.builds(PeaksArgs, models=models, cpu_metric=choices)))


@st.composite
def pods_in_flight(draw: st.DrawFn) -> AssignedPods | None:
    """Pods that are bound, decided on or nominated, for any time and of any size; or not known."""
    if draw(st.booleans()):
        return None
    pods = AssignedPods(hold_seconds=draw(st.sampled_from([0.0, 30.0])))
    for _ in range(draw(st.integers(0, 5))):
        request, node = draw(requests), draw(st.sampled_from(["a", "b", "c", "elsewhere"]))
        pod = make_pod(cpu_request=request, cpu_limit=draw(requests))
        if draw(st.booleans()):
            pods.assume(pod, node, now=NOW)
        else:
            pods.assign(pod, node, at=NOW - draw(st.floats(-1e6, 1e6)))
    return pods


def snapshot_of(nodes: dict[str, NodeMetrics]) -> LoadSnapshot:
    listed: dict[str, NodeMetrics | None] = dict(nodes)
    return LoadSnapshot.from_metrics(WatcherMetrics(window=WireWindow(end=NOW), data=Data(listed)))


@given(policies, clusters, st.one_of(st.none(), requests), pods_in_flight())
def test_no_policy_ever_raises_warns_or_leaves_the_range(
    policy: ScoringPolicy, nodes: dict[str, NodeMetrics], request: object, pods: AssignedPods | None
) -> None:
    scorer, pod = Scorer(policy), make_pod(cpu_request=request, cpu_limit=request)
    values = scorer.score_nodes(pod, snapshot_of(nodes), now=NOW, pods=pods).values
    assert scorer.last_error is None
    assert values.dtype == np.int64
    assert ((values >= 0) & (values <= 100)).all()


@given(policies, clusters, requests, pods_in_flight())
def test_an_explanation_never_raises_and_has_the_scores(
    policy: ScoringPolicy, nodes: dict[str, NodeMetrics], request: object, pods: AssignedPods | None
) -> None:
    scorer, pod, snapshot = Scorer(policy), make_pod(cpu_request=request), snapshot_of(nodes)
    explanation = scorer.explain(pod, snapshot, now=NOW, pods=pods)
    assert {each.node: each.score for each in explanation.nodes} == scorer.score_nodes(pod, snapshot, now=NOW, pods=pods).by_node()
    assert b"NaN" not in encode_json(explanation)


@given(policies, clusters, requests, pods_in_flight(), st.randoms(use_true_random=False))
def test_permuting_the_candidates_permutes_the_scores_of_every_policy(
    policy: ScoringPolicy, nodes: dict[str, NodeMetrics], request: object, pods: AssignedPods | None, random: Random
) -> None:
    snapshot, scorer, pod = snapshot_of(nodes), Scorer(policy), make_pod(cpu_request=request)
    names = [*nodes]
    random.shuffle(names)
    in_order = scorer.score_nodes(pod, snapshot, now=NOW, pods=pods)
    shuffled = scorer.score_nodes(pod, snapshot, now=NOW, pods=pods, nodes=names)
    assert shuffled.names == tuple(names)
    assert shuffled.by_node() == in_order.by_node()


@given(absolute_policies, clusters, requests, pods_in_flight())
def test_a_column_equals_its_nodes_one_by_one_for_every_policy(
    policy: ScoringPolicy, nodes: dict[str, NodeMetrics], request: object, pods: AssignedPods | None
) -> None:
    snapshot, scorer, pod = snapshot_of(nodes), Scorer(policy), make_pod(cpu_request=request)
    together = scorer.score_nodes(pod, snapshot, now=NOW, pods=pods).by_node()
    alone = {name: int(scorer.score_nodes(pod, snapshot, now=NOW, pods=pods, nodes=[name]).values[0]) for name in nodes}
    assert together == alone


# --- TargetLoadPacking as a whole, with memory and pods in flight ---

percents = st.floats(0, 100)
millicores = st.integers(0, 4000)


def busy_node(cpu: float, memory: float) -> NodeMetrics:
    has = ResourceQuantities(cpu="8", memory="8Gi")
    values = (("CPU", cpu), ("Memory", memory))
    return NodeMetrics(
        metrics=[Metric(type=kind, operator="AVG", rollup="15m", value=value) for kind, value in values], capacity=has, allocatable=has
    )


def decided(millicores_by_node: dict[str, int]) -> AssignedPods:
    pods = AssignedPods()
    for name, amount in millicores_by_node.items():
        pods.assume(make_pod(cpu_limit=f"{amount}m"), name, now=NOW)
    return pods


def packing_with_memory(target: float, combine: Literal["minimum", "weights"] = "minimum") -> TargetLoadPacking:
    memory = ResourceTarget(resource="memory", target_percent=target)
    return TargetLoadPacking(TargetLoadPackingArgs(target_percent=target, others=(memory,), combine=combine))


@given(percents, percents, percents, percents, millicores, millicores, millicores, targets)
def test_a_node_at_or_under_both_targets_never_scores_below_one_over_any(
    cpu: float, memory: float, other_cpu: float, other_memory: float, pod: int, one: int, other: int, target: float
) -> None:
    snapshot = snapshot_of({"one": busy_node(cpu, memory), "other": busy_node(other_cpu, other_memory)})
    policy, placed = packing_with_memory(target), make_pod(cpu_limit=f"{pod}m")
    columns = Scorer(policy).columns(snapshot, now=NOW, pods=decided({"one": one, "other": other}))
    terms, scores = policy.explain(placed, columns).terms, policy.score_nodes(placed, columns).values
    is_under = np.maximum(terms["cpu_predicted_percent"], terms["memory_predicted_percent"]) <= target
    if is_under[0] and not is_under[1]:
        assert scores[0] >= scores[1]


@given(percents, percents, percents, millicores, millicores, targets, st.sampled_from(["minimum", "weights"]))
def test_more_load_or_more_pods_in_flight_never_help_above_the_target(
    cpu: float, more_cpu: float, memory: float, one: int, other: int, target: float, combine: Literal["minimum", "weights"]
) -> None:
    (less, more), (few, many) = sorted((cpu, more_cpu)), sorted((one, other))
    snapshot = snapshot_of({"less": busy_node(less, memory), "more": busy_node(more, memory)})
    policy, pod = packing_with_memory(target, combine), make_pod(cpu_request=0)
    columns = Scorer(policy).columns(snapshot, now=NOW, pods=decided({"less": few, "more": many}))
    if policy.compute_terms(pod, columns).predicted_percent[0] > target:
        scores = policy.score_nodes(pod, columns).by_node()
        assert scores["more"] <= scores["less"]


# --- what is decoded is what was encoded ---


@given(clusters)
def test_decoding_what_was_encoded_gives_the_same_columns(nodes: dict[str, NodeMetrics]) -> None:
    """As long as every value is a number: the service never writes another."""
    finite = {
        name: msgspec.structs.replace(
            node, metrics=[metric for metric in node.metrics or [] if metric and metric.value is not None and math.isfinite(metric.value)]
        )
        for name, node in nodes.items()
    }
    listed: dict[str, NodeMetrics | None] = dict(finite)
    reply = WatcherMetrics(timestamp=NOW, window=WireWindow("15m", NOW - 900, NOW), source="s", data=Data(listed))
    one, other = LoadSnapshot.from_metrics(reply), LoadSnapshot.decode(encode_json(reply))
    assert one.nodes == other.nodes
    assert one.metrics.key_names == other.metrics.key_names
    for name in ("values", "rows", "keys"):
        np.testing.assert_array_equal(getattr(one.metrics, name), getattr(other.metrics, name))
    np.testing.assert_array_equal(one.sampled_at, other.sampled_at)
    np.testing.assert_array_equal(one.capacity.millicores, other.capacity.millicores)


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), st.floats(0, 100), min_size=1))
def test_what_the_service_publishes_is_the_value_rounded_to_nine_places(cpu_percent: dict[str, float]) -> None:
    good = merge(None, assess(make_batch(cpu_percent), NOW), now=NOW, expired_seconds=900)
    published = encode_snapshot(good, now=NOW, stale_seconds=300, window=FIFTEEN_MINUTES)
    snapshot = LoadSnapshot.decode(published.identity.body)
    assert dict(zip(snapshot.nodes, snapshot.column("CPU", ("Latest",)).tolist(), strict=True)) == {
        name: round(value, 9) for name, value in cpu_percent.items()
    }
