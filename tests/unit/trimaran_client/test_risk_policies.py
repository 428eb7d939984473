"""LoadVariationRiskBalancing, LowRiskOverCommitment, Peaks: worked values, arguments, and each difference from the Go plugins."""

from typing import Any

import msgspec
import pytest

from tests.builders import NOW, make_pod, make_snapshot
from trimaran_client import (
    LoadSnapshot,
    LoadVariationRiskBalancing,
    LoadVariationRiskBalancingArgs,
    LowRiskOverCommitment,
    LowRiskOverCommitmentArgs,
    Node,
    Peaks,
    PeaksArgs,
    Pod,
    PolicyArgumentError,
    PowerModel,
    Reason,
    Scorer,
    ScoringPolicy,
    TargetLoadPackingArgs,
)

MODEL = PowerModel(100, 1, 0.02)


def make_measured(**nodes: dict[str, tuple[float, float]]) -> LoadSnapshot:
    """Make a snapshot: node → metric type → average and deviation, percent; nodes of 4 cores and 16 GiB."""
    has = {"cpu": "4", "memory": "16Gi"}
    body = {
        name: {
            "metrics": [
                {"type": metric_type, "operator": operator, "value": value}
                for metric_type, values in metrics.items()
                for operator, value in zip(("AVG", "STD"), values, strict=True)
            ],
            "capacity": has,
            "allocatable": has,
        }
        for name, metrics in nodes.items()
    }
    return LoadSnapshot.decode(msgspec.json.encode({"window": {"end": NOW}, "data": {"NodeMetricsMap": body}}))


def make_sized_pod(cpu: str, memory: str, *, limits: dict[str, str] | None = None, node_name: str = "") -> Pod:
    resources: dict[str, Any] = {"requests": {"cpu": cpu, "memory": memory}} | ({"limits": limits} if limits else {})
    return Pod.from_manifest({"spec": {"nodeName": node_name, "containers": [{"resources": resources}]}})


def reason_of(policy: ScoringPolicy, snapshot: LoadSnapshot, pod: Pod, pods: list[Pod] | None = None, **more: Any) -> tuple[int, str]:
    scores = Scorer(policy).score_nodes(pod, snapshot, now=NOW, pods=pods, **more)
    return int(scores.values[0]), str(Reason(scores.reasons[0]))


POD = make_sized_pod("400m", "1Gi")


def test_variation_prefers_the_steady_node_and_the_worse_resource_counts() -> None:
    """CPU: mu 0.3 + 0.1, sigma 0.08 or 0.4; memory: mu 0.2 + 1/16, sigma 0. Score (1 - (mu + sigma) / 2) · 100."""
    memory = (20.0, 0.0)
    snapshot = make_measured(steady={"CPU": (30, 8), "Memory": memory}, restless={"CPU": (30, 40), "Memory": memory})
    scores = Scorer(LoadVariationRiskBalancing()).score_nodes(POD, snapshot, now=NOW).by_node()
    assert scores == {"steady": 76, "restless": 60}


def test_over_commitment_avoids_limits_beyond_the_node() -> None:
    """Limits of 6 of 4 cores over requests of 1.4: risk by limits (6 - 4) / (6 - 1.4), half of it; no deviation, load within requests."""
    snapshot = make_measured(n1={"CPU": (10, 0), "Memory": (5, 0)})
    others = [make_sized_pod("1", "4Gi", limits={"cpu": "5600m", "memory": "4Gi"}, node_name="n1")]
    assert reason_of(LowRiskOverCommitment(), snapshot, POD, others) == (78, "risk")  # 1 - 0.5 · 2 / 4.6 = 0.783


def test_peaks_prefers_the_node_whose_power_grows_least() -> None:
    """The same model at 10, 50 and 90 %: the curve is steeper where the load is higher."""
    snapshot = make_measured(**{name: {"CPU": (load, 0.0)} for name, load in (("low", 10.0), ("middle", 50.0), ("high", 89.0))})
    policy = Peaks(PeaksArgs(models=dict.fromkeys(snapshot.nodes, MODEL)))
    scores = Scorer(policy).score_nodes(POD, snapshot, now=NOW).by_node()
    assert (scores["low"], scores["high"]) == (100, 0)
    assert 0 < scores["middle"] < 100


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: LoadVariationRiskBalancingArgs(margin=-1, sensitivity=-1), "margin is -1.*sensitivity is -1"),
        (lambda: LoadVariationRiskBalancingArgs(margin=float("nan")), "margin is nan"),
        (
            lambda: LowRiskOverCommitmentArgs(smoothing_window=0, cpu_risk_limit_weight=2),
            "smoothing_window is 0.*cpu_risk_limit_weight is 2",
        ),
        (lambda: LowRiskOverCommitmentArgs(memory_risk_limit_weight=float("nan")), "memory_risk_limit_weight is nan"),
        (lambda: PeaksArgs(), "models is empty"),
        (lambda: PeaksArgs(models={"n1": PowerModel(1, float("inf"), 1)}), "model of node 'n1'"),
        (lambda: LoadVariationRiskBalancing.upstream({"safeVarianceMargin": "1"}), "safeVarianceMargin is '1'"),
        (lambda: LowRiskOverCommitment.upstream({"riskLimitWeights": 5}), "riskLimitWeights is 5"),
        (lambda: Peaks.upstream({"nodePowerModel": {"n1": 5}}), "nodePowerModel is"),
        (lambda: Peaks.upstream({}), "nodePowerModel is None"),
    ],
)
def test_bad_arguments_are_refused_when_the_policy_is_made(make: Any, named: str) -> None:
    with pytest.raises(PolicyArgumentError, match=named):
        make()


# --- rows of docs/policies.md ---

RISK_POLICIES = [LoadVariationRiskBalancing, LowRiskOverCommitment]


@pytest.mark.parametrize(("policy", "score"), [(LoadVariationRiskBalancing, 70), (LowRiskOverCommitment, 100)])
def test_differs_from_upstream_risk_without_metrics_falls_back_to_allocation(policy: Any, score: int) -> None:
    """What the pods request is taken for what they use, steadily: CPU (2 + 0.4) of 4 is mu 0.6; no limits, no risk of over-commitment."""
    snapshot = make_measured(n1={})
    others = [make_sized_pod("2", "1Gi", node_name="n1")]
    assert reason_of(policy(), snapshot, POD, others) == (score, "fallback_allocation")
    assert reason_of(policy(), snapshot, POD) == (50, "pods_unknown")
    assert reason_of(policy.upstream(), snapshot, POD, others) == (0, "no_metrics")


@pytest.mark.parametrize("operator", ["STD", "P90", "MAX"])
@pytest.mark.parametrize("policy", RISK_POLICIES)
def test_differs_from_upstream_risk_without_a_mean_is_as_without_metrics(policy: Any, operator: str) -> None:
    """A node of which only another statistic is served is not idle."""
    metrics = [{"type": each, "operator": operator, "rollup": "15m", "value": 90} for each in ("CPU", "Memory")]
    has = {"cpu": "4", "memory": "16Gi"}
    node = {"metrics": metrics, "capacity": has, "allocatable": has}
    snapshot = LoadSnapshot.decode(msgspec.json.encode({"timestamp": NOW, "data": {"NodeMetricsMap": {"n1": node}}}))
    assert reason_of(policy(), snapshot, POD, [])[1] == "fallback_allocation"
    assert reason_of(policy.upstream(), snapshot, POD, [])[1] == "risk"


@pytest.mark.parametrize("policy", RISK_POLICIES)
def test_differs_from_upstream_risk_of_old_metrics_does_not_count(policy: Any) -> None:
    snapshot = make_measured(n1={"CPU": (95, 5), "Memory": (95, 5)})
    reasons = [str(Reason(Scorer(policy()).score_nodes(POD, snapshot, now=NOW + age, pods=[]).reasons[0])) for age in (300, 301)]
    assert reasons == ["risk", "fallback_allocation"]


@pytest.mark.parametrize("policy", RISK_POLICIES)
def test_differs_from_upstream_risk_on_a_node_of_unknown_capacity_is_avoided(policy: Any) -> None:
    snapshot = make_measured(n1={"CPU": (10, 0), "Memory": (10, 0)})
    bare = [Node.from_manifest({"metadata": {"name": "n1"}})]
    assert reason_of(policy(), snapshot, POD, [], nodes=bare) == (0, "capacity_unknown")


def test_differs_from_upstream_over_commitment_needs_the_pods_of_the_node() -> None:
    """Upstream always knows them; where we do not, nothing can be said."""
    snapshot = make_measured(n1={"CPU": (10, 1), "Memory": (10, 1)})
    assert reason_of(LowRiskOverCommitment(), snapshot, POD) == (50, "pods_unknown")


def test_a_pod_without_requests_has_no_risk_to_tell() -> None:
    snapshot = make_measured(n1={"CPU": (10, 1), "Memory": (10, 1)})
    assert reason_of(LowRiskOverCommitment(), snapshot, make_pod(), []) == (0, "best_effort")


def test_differs_from_upstream_peaks_gives_the_worst_score_over_capacity() -> None:
    """Upstream leaves the raw score of such a node at 0, which can come out best."""
    snapshot = make_measured(full={"CPU": (99, 0)}, good={"CPU": (20, 0)}, fair={"CPU": (50, 0)})
    models = dict.fromkeys(snapshot.nodes, MODEL)
    scores = Scorer(Peaks(PeaksArgs(models=models))).score_nodes(POD, snapshot, now=NOW)
    assert (scores.by_node()["full"], str(Reason(scores.reasons[0]))) == (0, "over_capacity")
    upstream = Peaks.upstream({"nodePowerModel": {key: {"k0": 100, "k1": 1, "k2": 0.02} for key in snapshot.nodes}})
    assert Scorer(upstream).score_nodes(POD, snapshot, now=NOW).by_node()["full"] == 100


def test_differs_from_upstream_peaks_gives_the_worst_score_without_metrics() -> None:
    snapshot = make_measured(silent={}, good={"CPU": (20, 0)})
    scores = Scorer(Peaks(PeaksArgs(models=dict.fromkeys(snapshot.nodes, MODEL)))).score_nodes(POD, snapshot, now=NOW)
    assert (scores.by_node(), str(Reason(scores.reasons[0]))) == ({"silent": 0, "good": 100}, "no_metrics")


def test_differs_from_upstream_peaks_has_no_opinion_of_a_node_without_a_model() -> None:
    """It gets the mean of the others, so that neither its presence nor its absence moves a pod."""
    snapshot = make_measured(low={"CPU": (10, 0)}, high={"CPU": (80, 0)}, plain={"CPU": (50, 0)})
    scores = Scorer(Peaks(PeaksArgs(models={"low": MODEL, "high": MODEL}))).score_nodes(POD, snapshot, now=NOW)
    assert (scores.by_node(), str(Reason(scores.reasons[2]))) == ({"low": 100, "high": 0, "plain": 50}, "no_model")


def test_report_81_without_any_model_that_fits_nobody_is_preferred() -> None:
    snapshot = make_snapshot({"a": 10, "b": 90})
    assert Scorer(Peaks(PeaksArgs(models={"elsewhere": MODEL}))).score_nodes(POD, snapshot, now=NOW).by_node() == {"a": 50, "b": 50}


@pytest.mark.parametrize("value", ["40", None, True, float("nan"), float("inf"), 10**400, [1]])
@pytest.mark.parametrize(
    "make",
    [
        lambda value: TargetLoadPackingArgs(target_percent=value),
        lambda value: TargetLoadPackingArgs(request_multiplier=value, preset="upstream"),
        lambda value: TargetLoadPackingArgs(default_request_millicores=value),
        lambda value: LoadVariationRiskBalancingArgs(margin=value),
        lambda value: LoadVariationRiskBalancingArgs(sensitivity=value, preset="upstream"),
        lambda value: LowRiskOverCommitmentArgs(smoothing_window=value),
        lambda value: LowRiskOverCommitmentArgs(cpu_risk_limit_weight=value),
        lambda value: PeaksArgs(models={"n1": PowerModel(1, value, 1)}),
    ],
)
def test_what_is_no_number_is_refused_with_its_name(make: Any, value: object) -> None:
    with pytest.raises(PolicyArgumentError):
        make(value)
