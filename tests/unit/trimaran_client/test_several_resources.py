"""TargetLoadPacking over several resources at once."""

from typing import Any

import pytest

from tests.builders import NOW, make_pod
from trimaran_client import AssignedPods, LoadSnapshot, Node, Pod, PolicyArgumentError, Reason, Scorer, TargetLoadPacking, create_policy
from trimaran_client.wire import Data, Metric, NodeMetrics, ResourceQuantities, WatcherMetrics, WireWindow

IDLE = make_pod(cpu_request=0)
MEMORY = {"resource": "memory", "target_percent": 60}
HAS = ResourceQuantities(cpu="10", memory="10Gi")


def measured(**nodes: dict[str, float]) -> LoadSnapshot:
    """Make a snapshot: node → metric type → newest value; ``|`` parts a type from its unit."""
    listed: dict[str, NodeMetrics | None] = {}
    for name, values in nodes.items():
        metrics: list[Metric | None] = []
        for key, value in values.items():
            kind, _, unit = key.partition("|")
            metrics.append(Metric(type=kind, operator="Latest", value=value, unit=unit or "percent"))
        listed[name] = NodeMetrics(metrics=metrics, capacity=HAS, allocatable=HAS, sampled_at=NOW, sample_seconds=30)
    return LoadSnapshot.from_metrics(WatcherMetrics(window=WireWindow("15m", NOW - 900, NOW), data=Data(listed)))


def packing(*others: dict[str, Any], **args: Any) -> Scorer:
    return Scorer(create_policy("TargetLoadPacking", {"others": list(others), **args}))


def score(scorer: Scorer, snapshot: LoadSnapshot, pod: Pod = IDLE, **more: Any) -> tuple[int, str]:
    scores = scorer.score_nodes(pod, snapshot, now=NOW, **({"pods": []} | more))
    return int(scores.values[0]), str(Reason(scores.reasons[0]))


def test_the_least_score_counts_with_its_reason() -> None:
    """CPU 20 %: 60 · 20 / 40 + 40 = 70. Memory 90 % over the target of 60: 60 · 10 / 40 = 15."""
    snapshot = measured(n1={"CPU": 20, "Memory": 90})
    assert score(packing(MEMORY), snapshot) == (15, "above_target")
    assert score(packing(), snapshot) == (70, "at_or_below_target")


def test_differs_from_upstream_other_resources_count_where_they_are_chosen() -> None:
    """The plugin looks at CPU alone, and packs a node whose memory is full."""
    snapshot = measured(full={"CPU": 35, "Memory": 99}, free={"CPU": 30, "Memory": 30})
    upstream, ours = Scorer(TargetLoadPacking.upstream()), packing(MEMORY)
    best = [scorer.score_nodes(IDLE, snapshot, now=NOW, pods=[]).ranked()[0].node for scorer in (upstream, ours)]
    assert best == ["full", "free"]


@pytest.mark.parametrize(
    ("weight", "memory_weight", "expected"),
    [(1, 1, 43), (3, 1, 56), (1, 3, 29), (1e300, 1e300, 43), (1e-300, 1, 15)],  # (70 + 15) / 2 = 42.5; (3 · 70 + 15) / 4 = 56.25; ...
)
def test_or_the_weighted_mean_does(weight: float, memory_weight: float, expected: int) -> None:
    scorer = packing(MEMORY | {"weight": memory_weight}, combine="weights", weight=weight)
    assert score(scorer, measured(n1={"CPU": 20, "Memory": 90}))[0] == expected


@pytest.mark.parametrize(
    ("fallback", "by_minimum", "by_weights"),
    [
        ("leave_out", 70, 70),  # CPU alone
        ("neutral", 50, 60),
        ("minimum", 0, 35),
        ("allocation", 67, 68),  # 1 of 10 GiB is requested: 40 · 10 / 60 + 60 = 66.7
    ],
)
def test_a_metric_that_is_missing_takes_its_fallback_and_does_not_zero_the_rest(fallback: str, by_minimum: int, by_weights: int) -> None:
    snapshot = measured(n1={"CPU": 20}, n2={"CPU": 20, "Memory": 50})
    pods = [_memory_pod("1Gi", node_name="n1")]
    pod = make_pod(cpu_request=0)
    memory = MEMORY | {"fallback": fallback}
    assert score(packing(memory), snapshot, pod, pods=pods)[0] == by_minimum
    assert score(packing(memory, combine="weights"), snapshot, pod, pods=pods)[0] == by_weights


def test_by_allocation_a_missing_metric_goes_by_requests() -> None:
    """1 of 10 GiB is requested, 10 %: 40 · 10 / 60 + 60 = 66.7, less than the 70 of CPU."""
    snapshot = measured(n1={"CPU": 20})
    assert score(packing(MEMORY), snapshot, pods=[_memory_pod("1Gi", node_name="n1")]) == (67, "fallback_allocation")


def test_an_allocation_that_is_not_known_is_left_out() -> None:
    assert score(packing(MEMORY), measured(n1={"CPU": 20}), pods=None) == (70, "at_or_below_target")
    network = {"resource": "network", "metric_type": "Bandwidth"}
    assert score(packing(network), measured(n1={"CPU": 20})) == (70, "at_or_below_target")


def test_without_cpu_its_own_fallback_stands_beside_the_other_resources() -> None:
    """Nothing is requested: CPU stands at its target, 40; memory at 50 % of 60: 40 · 50 / 60 + 60 = 93."""
    assert score(packing(MEMORY), measured(n1={"Memory": 50})) == (40, "fallback_allocation")
    assert score(packing(MEMORY), measured(n1={"Memory": 90})) == (15, "above_target")


def test_report_14_a_pod_for_a_gpu_goes_where_the_gpus_are_idle() -> None:
    """Equal CPU; GPU utilization 10 and 80; what there is of GPUs is told by the node objects."""
    snapshot = measured(a={"CPU": 20, "GPU": 10}, b={"CPU": 20, "GPU": 80})
    gpus = {"resource": "example.com/gpu", "metric_type": "GPU", "target_percent": 70}
    pod = Pod.from_manifest({"spec": {"containers": [{"resources": {"limits": {"example.com/gpu": 1, "cpu": "1"}}}]}})
    nodes = [
        Node.from_manifest({"metadata": {"name": name}, "status": {"capacity": {"cpu": "10", "example.com/gpu": "4"}}}) for name in "ab"
    ]
    scorer = packing(gpus)
    scores = scorer.score_nodes(pod, snapshot, now=NOW, nodes=nodes, pods=[])
    # a: 10 + 25 %: 30 · 35 / 70 + 70 = 85, and CPU at 30 %: 85; b: 105 % is over capacity.
    assert scores.by_node() == {"a": 85, "b": 0}
    assert str(Reason(scores.reasons[1])) == "over_capacity"


def test_a_pod_that_needs_none_of_a_resource_needs_no_capacity_either() -> None:
    """As measured, 80 % of the GPUs: 70 · 20 / 30 = 46.7; nobody said how many there are."""
    gpus = {"resource": "example.com/gpu", "metric_type": "GPU", "target_percent": 70}
    assert score(packing(gpus), measured(n1={"CPU": 20, "GPU": 80})) == (47, "above_target")


def test_a_pod_that_needs_some_of_what_nobody_said_there_is_leaves_it_out() -> None:
    gpus = {"resource": "example.com/gpu", "metric_type": "GPU", "target_percent": 70}
    pod = Pod.from_manifest({"spec": {"containers": [{"resources": {"requests": {"cpu": 0, "example.com/gpu": 1}}}]}})
    assert score(packing(gpus), measured(n1={"CPU": 20, "GPU": 80}), pod)[0] == 70


@pytest.mark.parametrize(
    ("full_amount", "expected"),
    [
        (1000.0, 15),  # 900 of 1000 MB/s is 90 %: 60 · 10 / 40
        (None, 70),  # in MB/s, and nobody said what is much: left out
    ],
)
def test_a_metric_that_is_no_percentage_needs_what_full_means(full_amount: float | None, expected: int) -> None:
    network = {"resource": "network", "metric_type": "Bandwidth", "target_percent": 60, "full_amount": full_amount, "fallback": "leave_out"}
    assert score(packing(network), measured(n1={"CPU": 20, "Bandwidth|MB/s": 900}))[0] == expected


def test_a_percentage_needs_nothing_more() -> None:
    network = {"resource": "network", "metric_type": "Bandwidth", "target_percent": 60}
    assert score(packing(network), measured(n1={"CPU": 20, "Bandwidth|percent": 90}))[0] == 15


def test_pods_in_flight_count_in_every_resource() -> None:
    """Memory 30 %, and a pod of 5 GiB decided on: 80 %, over the target: 60 · 20 / 40 = 30."""
    pods = AssignedPods()
    pods.assume(_memory_pod("5Gi"), "n1", now=NOW)
    assert score(packing(MEMORY), measured(n1={"CPU": 20, "Memory": 30}), pods=pods) == (30, "above_target")


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"resource": "gpu"}, "others[gpu].metric_type is missing"),
        ({"resource": ""}, "a resource target has no resource"),
        (MEMORY | {"target_percent": 100}, "others[memory].target_percent is 100; give a percentage"),
        (MEMORY | {"full_amount": 0}, "others[memory].full_amount is 0; give a number above 0"),
        (MEMORY | {"default_request": 0.5}, "others[memory].default_request is 0.5; give a whole number"),
        (MEMORY | {"fallback": "guess"}, "others[memory].fallback is 'guess'; choose from allocation, neutral, minimum, leave_out"),
        ({"resource": "cpu", "metric_type": "CPU"}, "cpu"),
    ],
)
def test_a_target_that_cannot_be_is_refused(other: dict[str, Any], told: str) -> None:
    with pytest.raises(PolicyArgumentError) as caught:
        packing(other)
    assert told in str(caught.value)


def test_the_explanation_tells_every_resource() -> None:
    node = packing(MEMORY).explain(_memory_pod("1Gi"), measured(n1={"CPU": 20, "Memory": 90}), now=NOW, pods=[]).nodes[0]
    assert [(each.resource, each.value) for each in node.metrics] == [("cpu", 20), ("memory", 90)]
    assert node.terms["memory_predicted_percent"] == 100
    assert any(
        step.startswith("memory: measured 90 %; measured + in flight + pod: 100 × (9216Mi + 0Mi + 1024Mi) / 10240Mi") for step in node.steps
    )


def _memory_pod(memory: str, *, node_name: str = "") -> Pod:
    return Pod.from_manifest(
        {
            "metadata": {"name": "m"},
            "spec": {"nodeName": node_name, "containers": [{"resources": {"requests": {"cpu": 0, "memory": memory}}}]},
        }
    )
