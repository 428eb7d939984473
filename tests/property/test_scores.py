"""Laws that hold for every input of the default preset."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import NOW, make_pod, make_snapshot
from tests.conformance.reference import target_load_packing_score
from trimaran_client import (
    LoadSnapshot,
    LoadVariationRiskBalancing,
    LoadVariationRiskBalancingArgs,
    LowRiskOverCommitment,
    LowRiskOverCommitmentArgs,
    Peaks,
    PeaksArgs,
    Pod,
    PowerModel,
    Scorer,
    ScoringPolicy,
    TargetLoadPacking,
    TargetLoadPackingArgs,
)
from trimaran_client.policies.targets import score_utilization
from trimaran_client.wire import Data, Metric, NodeMetrics, ResourceQuantities, WatcherMetrics, WireWindow

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
def test_permuting_nodes_permutes_scores(cpu_percent: dict[str, float | None], random: "object") -> None:
    names = list(cpu_percent)
    random.shuffle(names)  # type: ignore[attr-defined]
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


amounts = st.sampled_from(["0", "1m", "8", "8E", "-1", "1Gi", "9Ei", None])
metrics = st.lists(
    st.builds(
        Metric,
        type=st.sampled_from(["CPU", "Memory"]),
        operator=st.sampled_from(["AVG", "STD", "Latest", ""]),
        value=st.one_of(st.none(), st.floats(), st.floats(0, 100)),
    ),
    max_size=6,
)
hostile_nodes = st.builds(
    NodeMetrics,
    metrics=metrics,
    capacity=st.builds(ResourceQuantities, cpu=amounts, memory=amounts),
    allocatable=st.builds(ResourceQuantities, cpu=amounts, memory=amounts),
)
models = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.builds(PowerModel, *[st.floats(-1e299, 1e299)] * 3), min_size=1)
policies = st.one_of(
    st.builds(
        LoadVariationRiskBalancing, st.builds(LoadVariationRiskBalancingArgs, margin=st.floats(0, 1e299), sensitivity=st.floats(0, 1e299))
    ),
    st.builds(LowRiskOverCommitment, st.builds(LowRiskOverCommitmentArgs, smoothing_window=st.integers(1, 10**9))),
    st.builds(Peaks, st.builds(PeaksArgs, models=models)),
    st.builds(TargetLoadPacking, st.builds(TargetLoadPackingArgs, target_percent=targets)),
)


@given(policies, st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), hostile_nodes), st.one_of(st.none(), requests), st.booleans())
def test_no_policy_ever_raises_warns_or_leaves_the_range(
    policy: ScoringPolicy, nodes: dict[str, NodeMetrics | None], request: object, pods_known: bool
) -> None:
    snapshot = LoadSnapshot.from_metrics(WatcherMetrics(window=WireWindow(end=NOW), data=Data(node_metrics_map=nodes)))
    pods = [make_pod(cpu_request=request, cpu_limit="1E", node_name=name) for name in nodes] if pods_known else None
    values = Scorer(policy).score_nodes(make_pod(cpu_request=request, cpu_limit=request), snapshot, now=NOW, pods=pods).values
    assert values.dtype == np.int64
    assert ((values >= 0) & (values <= 100)).all()
