"""Pods and nodes from manifests."""

import math
from typing import Any

import pytest

from tests.builders import NOW, make_snapshot
from trimaran_client.errors import ManifestError
from trimaran_client.resources import CPU, MEMORY, Node, Pod, manifest_items, own_entries
from trimaran_client.scorer import build_columns
from trimaran_client.units import ZERO


def requests(**amounts: object) -> dict[str, Any]:
    return {"resources": {"requests": amounts}}


def test_effective_request_is_the_larger_of_running_and_init_with_earlier_sidecars() -> None:
    pod = Pod.from_manifest(
        {
            "spec": {
                "containers": [requests(cpu="100m"), requests(cpu="200m")],
                "initContainers": [
                    requests(cpu="350m"),
                    requests(cpu="50m") | {"restartPolicy": "Always"},
                    requests(cpu="400m"),
                ],
                "overhead": {"cpu": "10m"},
            }
        }
    )
    assert pod.requested(CPU).milli == 460  # step three: 400 + sidecar 50 = 450 > 100 + 200 + 50; overhead 10 on top


def test_pod_level_values_replace_those_of_the_containers_only_for_their_resource() -> None:
    pod = Pod.from_manifest(
        {"spec": {"resources": {"requests": {"cpu": "2"}}, "containers": [requests(cpu="1", memory="1Gi")], "overhead": {"cpu": "1m"}}}
    )
    assert (pod.requested(CPU).milli, pod.requested(MEMORY).value) == (2001, 2**30)


def test_a_limit_without_a_request_is_a_request() -> None:
    """The API server sets it so, and a file that never saw one means the same."""
    pod = Pod.from_manifest({"spec": {"containers": [{"resources": {"limits": {"cpu": "300m"}}}]}})
    assert pod.requested(CPU).milli == 300


def test_a_request_of_zero_is_a_request() -> None:
    pod = Pod.from_manifest({"spec": {"containers": [{"resources": {"requests": {"cpu": 0}, "limits": {"cpu": 1}}}]}})
    assert pod.requested(CPU) == ZERO


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job"])
def test_reads_the_pod_template_of_a_workload(kind: str) -> None:
    pod = Pod.from_manifest(
        {"kind": kind, "metadata": {"name": "web", "namespace": "shop"}, "spec": {"template": {"spec": {"containers": [requests(cpu=1)]}}}}
    )
    assert (pod.namespace, pod.name, pod.requested(CPU).milli) == ("shop", "web", 1000)


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ("text", r"pod: a mapping is needed, not text"),
        ([], r"pod: a mapping is needed, not a list"),
        ({"kind": "Service"}, r"kind 'Service' is not a pod"),
        ({"spec": []}, r"spec: a mapping is needed, not a list"),
        ({"spec": {"containers": {}}}, r"spec\.containers: a list of containers is needed, not a mapping"),
        ({"spec": {"containers": ["c"]}}, r"spec\.containers\[0\]: a mapping is needed, not text"),
        ({"spec": {"containers": [requests(cpu="1O0m")]}}, r"spec\.containers\[0\]\.resources\.requests\.cpu: '1O0m' is not a quantity"),
        ({"spec": {"initContainers": [{}, requests(memory="x")]}}, r"spec\.initContainers\[1\]\.resources\.requests\.memory"),
        ({"spec": {"overhead": {"cpu": True}}}, r"spec\.overhead\.cpu: True is not a quantity"),
        ({"metadata": {"name": ["a"]}}, r"metadata\.name: text is needed, not a list"),
    ],
)
def test_a_malformed_pod_is_an_error_that_names_the_field(manifest: object, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        Pod.from_manifest(manifest)


@pytest.mark.parametrize("nothing", [None, {}, {"spec": None}, {"spec": {"containers": None}}, {"spec": {"containers": [None]}}])
def test_a_pod_that_says_nothing_requests_nothing(nothing: object) -> None:
    assert Pod.from_manifest(nothing).requested(CPU) == ZERO


def test_the_scheduled_time_is_that_of_the_true_condition() -> None:
    conditions = [
        {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:09Z"},
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z"},
    ]
    assert Pod.from_manifest({"status": {"conditions": conditions}}).scheduled_at == 1767225601.0


@pytest.mark.parametrize("conditions", [None, {}, [None], [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "soon"}]])
def test_an_unreadable_scheduled_time_is_unknown(conditions: object) -> None:
    assert math.isnan(Pod.from_manifest({"status": {"conditions": conditions}}).scheduled_at)


def test_a_node_without_a_name_is_an_error() -> None:
    with pytest.raises(ManifestError, match=r"metadata\.name: a node needs a name"):
        Node.from_manifest({"status": {}})


def test_a_node_keeps_what_it_says_and_no_more() -> None:
    node = Node.from_manifest({"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "8"}}})
    assert (node.capacity[CPU].milli, MEMORY in node.capacity, dict(node.allocatable)) == (8000, False, {})


def test_only_bound_and_running_pods_hold_requests() -> None:
    spec = {"nodeName": "n1", "containers": [requests(cpu="1")]}
    pods = [
        Pod.from_manifest({"metadata": {"name": "bound"}, "spec": spec}),
        Pod.from_manifest({"metadata": {"name": "ended"}, "spec": spec, "status": {"phase": "Succeeded"}}),
        Pod.from_manifest({"metadata": {"name": "pending"}, "spec": {"containers": [requests(cpu="1")]}}),
        Pod.from_manifest({"metadata": {"name": "running"}, "spec": spec, "status": {"phase": "Running"}}),
    ]
    columns = build_columns(make_snapshot({"n1": 10}), now=NOW, pods=pods)
    assert columns.cpu.requested.tolist() == [2000]


@pytest.mark.parametrize(
    ("document", "count"), [({"kind": "List", "items": [{}, {}]}, 2), ([{}], 1), ({"kind": "Pod"}, 1), ({"kind": "PodList"}, 0)]
)
def test_lists_as_kubectl_prints_them(document: object, count: int) -> None:
    assert len(manifest_items(document)) == count


@pytest.mark.parametrize("document", ["text", 3, {"items": "x"}])
def test_a_document_of_another_form_is_an_error(document: object) -> None:
    with pytest.raises(ManifestError, match="a manifest is a mapping or a list"):
        manifest_items(document)


def test_of_our_annotations_long_ones_and_more_than_a_few_are_left() -> None:
    long = {"trimaran.io/policy": "x" * 257, "trimaran.io/hold-seconds": "30", "other/key": "y"}
    assert own_entries(long) == {"trimaran.io/hold-seconds": "30"}
    many = {f"trimaran.io/{index:03}": "v" for index in range(100)}
    assert list(own_entries(many)) == [f"trimaran.io/{index:03}" for index in range(16)]
