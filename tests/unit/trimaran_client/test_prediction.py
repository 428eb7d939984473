"""What a pod is taken to use: the rules, the Kubernetes rule over them, and a user's own estimator."""

import logging
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.builders import NOW, make_pod, make_snapshot
from trimaran_client import Pod, PolicyArgumentError, Scorer, TargetLoadPacking, TargetLoadPackingArgs, UsagePrediction
from trimaran_client.prediction import GuardedEstimator, PredictionRule
from trimaran_client.resources import MEMORY

DEFAULT = UsagePrediction()


def container(
    request: str | None = None, limit: str | None = None, *, name: str = "c", sidecar: bool = False, resource: str = "cpu"
) -> Any:
    resources = {key: {resource: value} for key, value in (("requests", request), ("limits", limit)) if value is not None}
    return {"name": name, "resources": resources} | ({"restartPolicy": "Always"} if sidecar else {})


def pod_of(*containers: Any, **spec: Any) -> Pod:
    return Pod.from_manifest({"spec": {"containers": list(containers), **spec}})


@pytest.mark.parametrize(
    ("request_", "limit", "by_rule"),
    [
        ("1", "2", {"limit_first": 2000, "request_first": 1500, "max": 2000}),
        ("2", "2500m", {"limit_first": 2500, "request_first": 3000, "max": 3000}),
        ("1", None, {"limit_first": 1500, "request_first": 1500, "max": 1500}),
        (None, "2", {"limit_first": 2000, "request_first": 2000, "max": 2000}),
        (None, None, {"limit_first": 1000, "request_first": 1000, "max": 1000}),
        ("0", "2", {"limit_first": 2000, "request_first": 0, "max": 2000}),  # 0 is a value, and no absence
        ("1", "0", {"limit_first": 0, "request_first": 1500, "max": 1500}),
        ("0", "0", {"limit_first": 0, "request_first": 0, "max": 0}),
        ("333m", None, {"limit_first": 500, "request_first": 500, "max": 500}),  # 499.5
    ],
)
def test_each_rule_on_one_container(request_: str | None, limit: str | None, by_rule: dict[PredictionRule, int]) -> None:
    pod = pod_of(container(request_, limit))
    assert {rule: UsagePrediction(rule=rule).predict(pod) for rule in by_rule} == by_rule


def test_the_rule_holds_for_each_container_and_the_overhead_comes_on_top() -> None:
    """1500 + 2000 + 1000 + 250."""
    assert DEFAULT.predict(pod_of(container("1"), container("1", "2"), container(), overhead={"cpu": "250m"})) == 4750


@pytest.mark.parametrize(
    ("init", "expected"),
    [
        ([container(limit="3")], 3000),  # a step alone is more than the pod itself
        ([container(limit="500m")], 1000),
        ([container(limit="2", sidecar=True)], 3000),  # a sidecar runs beside it
        ([container(limit="1", sidecar=True), container(limit="3")], 4000),  # the step runs beside the sidecar that started before
        ([container(limit="3"), container(limit="1", sidecar=True)], 3000),  # and not beside one that starts after
        ([container(limit="1", sidecar=True), container(limit="1", sidecar=True), container(limit="500m")], 3000),
        ([container("2")], 3000),  # the rule and its multiplier hold for steps too
    ],
)
def test_steps_and_sidecars_by_the_kubernetes_rule(init: list[Any], expected: int) -> None:
    pod = pod_of(container(limit="1"), initContainers=init)
    assert DEFAULT.predict(pod) == expected
    assert UsagePrediction(combines_steps=False).predict(pod) == 1000  # as upstream, which knows neither


def test_the_overhead_counts_beside_a_step_too() -> None:
    assert DEFAULT.predict(pod_of(container(limit="1"), initContainers=[container(limit="3")], overhead={"cpu": "100m"})) == 3100


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ({"limits": {"cpu": "3"}}, 3000),
        ({"requests": {"cpu": "2"}}, 3000),
        ({"limits": {"memory": "1Gi"}}, 1000),  # says nothing of CPU: the containers do
    ],
)
def test_pod_level_values_replace_those_of_the_containers(level: Any, expected: int) -> None:
    assert DEFAULT.predict(pod_of(container(limit="1"), resources=level)) == expected


def test_other_resources_count_in_whole_units() -> None:
    pod = pod_of(container("1Gi", resource="memory"), container("512Mi", resource="memory"), overhead={"memory": "1Mi"})
    assert UsagePrediction(resource=MEMORY, multiplier=1.0, default_amount=0).predict(pod) == 2**30 + 2**29 + 2**20
    gpu = UsagePrediction(resource="example.com/gpu", multiplier=1.0, default_amount=0)
    assert [gpu.predict(each) for each in (pod_of(container("2", "2", resource="example.com/gpu")), pod)] == [2, 0]


def test_enormous_amounts_stay_finite() -> None:
    prediction = UsagePrediction(multiplier=1e299)
    amount = prediction.predict(pod_of(*[container("9E")] * 5))
    assert math.isfinite(float(amount))


# --- telling it ---


def test_the_parts_tell_each_container_and_its_rule() -> None:
    pod = pod_of(
        container("1", name="app"),
        container("1", "2", name="cache"),
        container(name="agent"),
        initContainers=[container(limit="100m", name="setup"), container(limit="200m", name="proxy", sidecar=True)],
        overhead={"cpu": "50m"},
    )
    parts = DEFAULT.explain(pod)
    assert [(each.part, each.kind, each.rule, each.amount) for each in parts] == [
        ("setup", "init", "limit", 100),
        ("proxy", "sidecar", "limit", 200),
        ("app", "container", "request × 1.5", 1500),
        ("cache", "container", "limit", 2000),
        ("agent", "container", "default", 1000),
        ("overhead", "overhead", "overhead", 50),
    ]
    # What runs together is the whole, where no step is larger.
    assert sum(each.amount for each in parts if each.kind != "init") == DEFAULT.predict(pod)


def test_pod_level_values_are_told_as_one_part() -> None:
    pod = pod_of(container(limit="1"), resources={"requests": {"cpu": "2"}}, overhead={"cpu": "50m"})
    parts = DEFAULT.explain(pod)
    assert [(each.part, each.rule, each.amount) for each in parts] == [("pod", "request × 1.5", 3000), ("overhead", "overhead", 50)]
    assert sum(each.amount for each in parts) == DEFAULT.predict(pod)


def test_the_upstream_rule_tells_only_what_it_counts() -> None:
    pod = pod_of(container(limit="1"), initContainers=[container(limit="3")], resources={"limits": {"cpu": "9"}})
    upstream = UsagePrediction(combines_steps=False)
    assert [(each.kind, each.amount) for each in upstream.explain(pod)] == [("container", 1000)]


def test_an_estimate_is_told_as_one_part() -> None:
    prediction = UsagePrediction(estimator=GuardedEstimator(lambda *_: 700))
    assert [(each.part, each.rule, each.amount) for each in prediction.explain(pod_of(container()))] == [("pod", "estimator", 700)]


# --- reports ---


def test_report_35_the_rule_is_a_setting_and_the_default_is_upstreams() -> None:
    """4 cores at 10 %, request 100m, limit 4000m, target 40: by the limit over capacity; by the request 10 + 3.75 %."""
    pod = make_pod(cpu_request="100m", cpu_limit="4000m")
    snapshot = make_snapshot({"n1": 10}, capacity_cpu="4", allocatable_cpu="4")
    policies = {
        "upstream": TargetLoadPacking.upstream(),
        "default": TargetLoadPacking(),
        "request_first": TargetLoadPacking(TargetLoadPackingArgs(prediction="request_first")),
        "max": TargetLoadPacking(TargetLoadPackingArgs(prediction="max")),
        "blend": TargetLoadPacking(TargetLoadPackingArgs(prediction=lambda *_: 0.9 * 150 + 0.1 * 4000)),
    }
    scores = {name: Scorer(policy).score_nodes(pod, snapshot, now=NOW).values[0] for name, policy in policies.items()}
    assert scores == {"upstream": 0, "default": 0, "request_first": 61, "max": 0, "blend": 75}  # 60 · 13.75 / 40 + 40; 535m: 23.375 %


def test_differs_from_upstream_the_rule_of_prediction_is_a_setting() -> None:
    pod = make_pod(cpu_request="100m", cpu_limit="4")
    assert TargetLoadPacking.upstream().predict_pod_millicores(pod) == 4000
    assert TargetLoadPacking(TargetLoadPackingArgs(prediction="request_first")).predict_pod_millicores(pod) == 150


@pytest.mark.parametrize(
    ("resources", "quality", "expected"),
    [
        ({"requests": {"cpu": "500m"}, "limits": {"cpu": "500m"}}, "Guaranteed", 500),
        ({"requests": {"cpu": "500m"}}, "Burstable", 750),
        ({"requests": {"cpu": "500m"}, "limits": {"cpu": "4"}}, "Burstable", 4000),
        ({"limits": {"cpu": "2"}}, "Guaranteed", 2000),
        ({}, "BestEffort", 1000),
        ({"requests": {"cpu": "0"}}, "BestEffort", 0),
        ({"limits": {"cpu": "0"}}, "BestEffort", 0),
    ],
)
def test_report_41_the_quality_classes_of_the_documentation(resources: Any, quality: str, expected: int) -> None:
    pod = Pod.from_manifest({"spec": {"containers": [{"resources": resources}]}})
    assert DEFAULT.predict(pod) == expected, quality


@pytest.mark.parametrize("multiplier", ["", "abc", None, -1, "1.5"])
def test_report_41_a_multiplier_that_is_no_number_is_refused(multiplier: Any) -> None:
    with pytest.raises(PolicyArgumentError, match="request_multiplier"):
        TargetLoadPackingArgs(request_multiplier=multiplier)


def test_report_41_the_plugins_multiplier_is_text_that_go_reads() -> None:
    assert TargetLoadPacking.upstream({"defaultRequestsMultiplier": "1.5"}).args.request_multiplier == 1.5
    for text in ("", "abc"):
        with pytest.raises(PolicyArgumentError, match="defaultRequestsMultiplier"):
            TargetLoadPacking.upstream({"defaultRequestsMultiplier": text})


class Clock:
    """Seconds that only tests move."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def raise_error(pod: Pod, resource: str) -> float:
    raise RuntimeError("no such workload")


class Tensor:
    """A number of another library that is none after all."""

    def __float__(self) -> float:
        raise RuntimeError("a tensor with 2 elements cannot be converted to a scalar")


@pytest.mark.parametrize(
    ("estimate", "cause"),
    [
        (raise_error, "raised"),
        (lambda *_: -1.0, "negative"),
        (lambda *_: -math.inf, "not_a_number"),
        (lambda *_: math.nan, "not_a_number"),
        (lambda *_: math.inf, "not_a_number"),
        (lambda *_: 1e300, "not_a_number"),
        (lambda *_: "700", "not_a_number"),
        (lambda *_: None, "not_a_number"),
        (lambda *_: True, "not_a_number"),
        (lambda *_: Tensor(), "not_a_number"),
    ],
)
def test_report_85_whatever_goes_wrong_in_an_estimator_the_rule_answers_and_it_is_counted(
    estimate: Any, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    guard = GuardedEstimator(estimate)
    prediction, pod = UsagePrediction(estimator=guard), pod_of(container("1"))
    with caplog.at_level(logging.WARNING):
        assert [prediction.predict(pod) for _ in range(3)] == [1500, 1500, 1500]
    assert dict(guard.failures) == {cause: 3}
    assert len(caplog.records) == 1  # of each kind the first is told


def test_report_85_the_error_of_an_estimator_is_kept() -> None:
    guard = GuardedEstimator(raise_error)
    assert guard.estimate(pod_of(), "cpu") is None
    assert isinstance(guard.last_error, RuntimeError)


def test_report_85_an_estimator_that_takes_5_seconds_is_left_alone_for_a_while() -> None:
    """The call cannot be cut short, so that its answer counts; after it the rule answers, and a minute later it is asked again."""
    clock, calls = Clock(), []

    def estimate(pod: Pod, resource: str) -> float:
        calls.append(resource)
        clock.seconds += 5.0 if len(calls) == 1 else 0.001
        return 700.0

    guard = GuardedEstimator(estimate, monotonic=clock)
    prediction, pod = UsagePrediction(estimator=guard), pod_of(container("1"))
    assert [prediction.predict(pod) for _ in range(3)] == [700, 1500, 1500]
    assert (len(calls), dict(guard.failures)) == (1, {"slow": 1})
    clock.seconds += 61.0
    assert [prediction.predict(pod) for _ in range(2)] == [700, 700]
    assert dict(guard.failures) == {"slow": 1}


@pytest.mark.parametrize("value", [0, 0.4, np.float64(700.5), np.int64(7), Fraction(3, 2)])
def test_report_85_any_number_of_at_least_0_is_an_estimate(value: Any) -> None:
    guard = GuardedEstimator(lambda *_: value)
    assert guard.estimate(pod_of(), "cpu") == math.floor(float(value) + 0.5)
    assert not guard.failures


def test_report_85_a_failing_estimator_of_a_policy_never_reaches_the_scores() -> None:
    policy = TargetLoadPacking(TargetLoadPackingArgs(prediction=raise_error))
    pod, snapshot = make_pod(cpu_request="1"), make_snapshot({"n1": 10})
    scorer = Scorer(policy)
    assert scorer.score_nodes(pod, snapshot, now=NOW).by_node() == Scorer(TargetLoadPacking()).score_nodes(pod, snapshot, now=NOW).by_node()
    assert scorer.failures == 0
    guard = policy.targets[0].prediction.estimator
    assert guard is not None
    assert guard.failures["raised"] == 1
