"""Pods and nodes as the API server writes them."""

import copy
import json
import pickle

import msgspec
import pytest

from trimaran_client import objects
from trimaran_client.errors import ManifestError
from trimaran_client.objects import NodeObject, PodObject, to_node, to_pod
from trimaran_client.prediction import GuardedEstimator, UsagePrediction
from trimaran_client.resources import Node, Pod, SharedContainers

MANIFEST = {
    "kind": "Pod",
    "metadata": {
        "name": "web-0",
        "namespace": "shop",
        "uid": "b9e0",
        "creationTimestamp": "2024-05-01T10:00:00Z",
        "labels": {"app": "web", "trimaran.io/policy": "Peaks"},
        "annotations": {"trimaran.io/hold-seconds": "90", "other": "x"},
        "ownerReferences": [{"kind": "DaemonSet", "name": "web"}],
    },
    "spec": {
        "nodeName": "n1",
        "schedulerName": "ours",
        "priorityClassName": "high",
        "overhead": {"cpu": "10m"},
        "resources": {"limits": {"cpu": "4"}},
        "containers": [{"name": "web", "image": "web", "resources": {"requests": {"cpu": "250m", "memory": "64Mi"}, "limits": {"cpu": 1}}}],
        "initContainers": [{"name": "proxy", "restartPolicy": "Always", "resources": {"requests": {"cpu": 0.5}}}, {"name": "setup"}],
    },
    "status": {
        "phase": "Running",
        "nominatedNodeName": "n2",
        "conditions": [
            {"type": "Ready", "status": "False"},
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2024-05-01T10:00:05Z"},
        ],
    },
}


def test_every_field_of_a_pod_is_read() -> None:
    pod = to_pod(msgspec.json.decode(msgspec.json.encode(MANIFEST), type=PodObject))
    assert pod == Pod.from_manifest(MANIFEST)
    assert {name for name in Pod.__slots__ if getattr(pod, name) == getattr(Pod(), name)} == {"is_terminal", "is_deleting"}


def test_a_pod_that_has_ended_and_one_that_is_ending() -> None:
    ended, ending = (
        to_pod(msgspec.json.decode(text, type=PodObject))
        for text in ('{"status": {"phase": "Failed"}}', '{"metadata": {"deletionTimestamp": "2024-05-01T10:00:00Z"}}')
    )
    assert (ended.is_terminal, ended.is_deleting) == (True, False)
    assert (ending.is_terminal, ending.is_deleting) == (False, True)


def test_a_bad_quantity_is_told_with_its_path() -> None:
    text = b'{"spec": {"containers": [{}, {"resources": {"limits": {"cpu": "1.5.2"}}}]}}'
    with pytest.raises(ManifestError, match=r"spec\.containers\[1\]\.resources\.limits\.cpu: '1\.5\.2' is not a quantity"):
        to_pod(msgspec.json.decode(text, type=PodObject))


def test_resources_of_a_wrong_form_are_told_with_their_path() -> None:
    text = b'{"spec": {"containers": [{"resources": {"limits": 5}}]}}'
    with pytest.raises(ManifestError, match=r"spec\.containers\[0\]\.resources\.limits: a mapping is needed, not a number"):
        to_pod(msgspec.json.decode(text, type=PodObject))


def test_containers_that_are_alike_are_one() -> None:
    """Replicas of one template cost what one of them does; what is longer than any sane one is not remembered."""
    text = b'{"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"%s}}}]}}'
    for padding, is_one in ((b"", True), (b" " * 2000, False)):
        first, second = (to_pod(msgspec.json.decode(text % padding, type=PodObject)).containers[0] for _ in range(2))
        assert (first == second, first is second) == (True, is_one)


def test_a_node_is_read() -> None:
    manifest = {"metadata": {"name": "n1"}, "status": {"capacity": {"cpu": "8", "memory": None}, "allocatable": {"cpu": "7900m"}}}
    assert to_node(msgspec.json.decode(msgspec.json.encode(manifest), type=NodeObject)) == Node.from_manifest(manifest)


def test_a_node_needs_a_name() -> None:
    with pytest.raises(ManifestError, match=r"metadata\.name"):
        to_node(NodeObject())


def test_large_containers_are_not_kept() -> None:
    """Anyone who may create pods could fill the memory with them."""
    before = len(objects._shared_containers)
    amounts = json.dumps({f"example.com/{number}": "1" for number in range(200)})
    for number in range(3):
        pod = make([{"name": f"c{number}", "resources": msgspec.Raw(b'{"requests": %b}' % amounts.encode())}])
        assert not isinstance(pod.containers, SharedContainers)
    assert not isinstance(make([{"name": f"c{number}"} for number in range(100)]).containers, SharedContainers)
    assert not isinstance(make([{"name": "c" * 2000}]).containers, SharedContainers)
    assert len(objects._shared_containers) == before


def test_pods_that_share_containers_can_be_copied_and_pickled() -> None:
    """What was computed of them is not part of them, and cannot be pickled with a user's function as its key."""
    pod = make([{"name": "c", "resources": msgspec.Raw(b'{"requests": {"cpu": "1"}}')}])
    prediction = UsagePrediction(estimator=GuardedEstimator(lambda *_: -1.0))
    assert prediction.predict(pod) == 1500
    for copied in (pickle.loads(pickle.dumps(pod)), copy.deepcopy(pod)):  # noqa: S301 - our own
        assert copied.containers == pod.containers
        assert prediction.predict(copied) == 1500


def make(containers: list[dict[str, object]]) -> Pod:
    return to_pod(msgspec.json.decode(msgspec.json.encode({"spec": {"containers": containers}}), type=PodObject))
