"""Both ways of reading a pod and a node, the one for any manifest and the fast one, answer the same."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from trimaran_client.errors import ManifestError
from trimaran_client.objects import NodeObject, PodObject, to_node, to_pod
from trimaran_client.resources import Node, Pod

NAMES = st.text("abc-.", max_size=6)
QUANTITIES = st.one_of(
    st.none(),
    st.integers(-(10**25), 10**25),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["250m", "1.5", "64Mi", "2e3", "", "+1", "5Ei", "-3", "0"]),
)
BAD_QUANTITIES = st.sampled_from(["1.5.2", "12 GB", "m5", "Pi", True, [], {"a": 1}])
TIMES = st.sampled_from(["2024-05-01T10:00:00Z", "2024-05-01T10:00:00.123456Z", "2024-05-01T10:00:00+02:00", "yesterday", ""])


def maybe(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any] | None]:
    """Make objects that lack some of their fields, have others as null, and are null themselves at times."""
    return st.none() | st.fixed_dictionaries({}, optional={name: st.none() | value for name, value in fields.items()})


def amounts(quantities: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), quantities, max_size=3)


def pods(quantities: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    resources = maybe(requests=amounts(quantities), limits=amounts(quantities), claims=st.just([]))
    container = maybe(name=NAMES, image=NAMES, resources=resources, restartPolicy=st.sampled_from(["Always", "Never"]))
    condition = maybe(type=st.sampled_from(["PodScheduled", "Ready"]), status=st.sampled_from(["True", "False"]), lastTransitionTime=TIMES)
    entries = st.dictionaries(st.sampled_from(["trimaran.io/hold-seconds", "trimaran.io/x", "app"]), st.none() | NAMES, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            "kind": st.just("Pod"),
            "metadata": maybe(
                name=NAMES,
                generateName=NAMES,
                namespace=NAMES,
                uid=NAMES,
                resourceVersion=NAMES,
                creationTimestamp=TIMES,
                deletionTimestamp=TIMES,
                labels=entries,
                annotations=entries,
                ownerReferences=st.lists(maybe(kind=st.sampled_from(["DaemonSet", "ReplicaSet"])), max_size=2),
            ),
            "spec": maybe(
                containers=st.lists(container, max_size=3),
                initContainers=st.lists(container, max_size=2),
                resources=resources,
                overhead=amounts(quantities),
                nodeName=NAMES,
                schedulerName=NAMES,
                priorityClassName=NAMES,
            ),
            "status": maybe(
                phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
                nominatedNodeName=NAMES,
                conditions=st.lists(condition, max_size=3),
            ),
        },
    )


def nodes(quantities: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    status = maybe(capacity=amounts(quantities), allocatable=amounts(quantities), images=st.just([]))
    return st.fixed_dictionaries({}, optional={"metadata": maybe(name=NAMES), "status": status})


def comparable(value: Pod | Node) -> dict[str, Any]:
    """Make the fields, with something equal to itself for NaN."""
    return {name: "NaN" if isinstance(field, float) and math.isnan(field) else field for name, field in asdict(value).items()}


@given(pods(QUANTITIES))
def test_a_pod_is_the_same_by_both_ways(manifest: dict[str, Any]) -> None:
    text = json.dumps(manifest)
    fast = to_pod(msgspec.json.decode(text, type=PodObject))
    assert comparable(fast) == comparable(Pod.from_manifest(json.loads(text)))


@given(pods(QUANTITIES | BAD_QUANTITIES))
def test_a_pod_is_refused_by_both_ways_with_the_same_words(manifest: dict[str, Any]) -> None:
    text = json.dumps(manifest)
    assert _words(lambda: to_pod(msgspec.json.decode(text, type=PodObject))) == _words(lambda: Pod.from_manifest(json.loads(text)))


@given(nodes(QUANTITIES | BAD_QUANTITIES))
def test_a_node_is_the_same_by_both_ways_or_refused_with_the_same_words(manifest: dict[str, Any]) -> None:
    text = json.dumps(manifest)
    assert _words(lambda: to_node(msgspec.json.decode(text, type=NodeObject))) == _words(lambda: Node.from_manifest(json.loads(text)))


def _words(read: Any) -> object:
    try:
        return comparable(read())
    except ManifestError as error:
        return str(error)
