"""What is remembered of pods of one template is what each of them says of itself, in whatever order they are asked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import NOW
from trimaran_client import objects, resources
from trimaran_client.assigned import AssignedPods
from trimaran_client.policies.upstream_pods import upstream_limited, upstream_requested
from trimaran_client.prediction import UsagePrediction
from trimaran_client.resources import MEMORY, Pod, SharedContainers

Manifest = dict[str, Any]


def container(name: str, cpu: str, *, memory: str = "1Gi", limit: str | None = None, **more: Any) -> Manifest:
    limits = {} if limit is None else {"limits": {"cpu": limit}}
    return {"name": name, "resources": {"requests": {"cpu": cpu, "memory": memory}, **limits}, **more}


# Few of each, so that many pods differ in one part only, each of which changes what a pod adds up to.
CONTAINERS: list[list[Manifest]] = [
    [container("a", "1")],
    [container("b", "200m", limit="2", memory="64Mi"), {"name": "c"}],
    [container("a", "1"), container("d", "300m", memory="5Gi")],
]
INIT_CONTAINERS: list[list[Manifest] | None] = [
    None,
    [container("i", "7", memory="9Gi")],
    [container("j", "500m", restartPolicy="Always")],
    [container("j", "500m", restartPolicy="Always"), container("i", "8", limit="9")],
]
OVERHEADS: list[Manifest | None] = [None, {"cpu": "250m"}, {"cpu": "1", "memory": "1Gi"}]
POD_LEVELS: list[Manifest | None] = [None, {"requests": {"cpu": "11"}}, {"limits": {"cpu": "12", "memory": "20Gi"}}]

manifests = st.builds(
    lambda containers, inits, overhead, level: {
        "metadata": {"name": "p"},
        "spec": {"containers": containers, "initContainers": inits, "overhead": overhead, "resources": level, "nodeName": "n"},
    },
    containers=st.sampled_from(CONTAINERS),
    inits=st.sampled_from(INIT_CONTAINERS),
    # Most pods have neither, as in a cluster: with one of them nothing is remembered.
    overhead=st.sampled_from([None] * 5 + OVERHEADS),
    level=st.sampled_from([None] * 5 + POD_LEVELS),
)
PREDICTIONS = [
    UsagePrediction(),
    UsagePrediction(rule="request_first"),
    UsagePrediction(rule="max", multiplier=3.0),
    UsagePrediction(combines_steps=False),
    UsagePrediction(resource=MEMORY, default_amount=7),
]
# By the rule of Kubernetes, by that of the Go plugins, and of one resource alone.
SUMS: list[dict[str, Any]] = [
    {},
    {"requested_of": upstream_requested, "limited_of": upstream_limited},
    {"resources": (MEMORY,)},
]


@contextmanager
def fresh_memory(*, templates: int, remembered: int) -> Iterator[None]:
    """Begin with nothing remembered, and room for so much only."""
    with (
        mock.patch.object(objects, "_MOST_TEMPLATES", templates),
        mock.patch.object(resources, "_MOST_REMEMBERED", remembered),
        mock.patch.object(objects, "_read_container", lru_cache(maxsize=templates)(objects._read_container.__wrapped__)),
        mock.patch.dict(objects._shared_containers, clear=True),
    ):
        yield


def read_fast(manifest: Manifest) -> Pod:
    return objects.to_pod(msgspec.json.decode(json.dumps(manifest), type=objects.PodObject))


def sum_up(pods: AssignedPods, pod: Pod) -> list[float]:
    """Answer the totals of a node with this pod alone."""
    pods.update(pod, now=NOW)
    view = pods.view(NOW)
    found = view.totals.values[:, view.totals.rows[pod.node_name]].tolist()
    pods.remove(pod.key)
    return [float(value) for value in found]


def ask(pod: Pod, question: int) -> object:
    """Ask a pod for one prediction, or for its part in one kind of totals."""
    if question < len(PREDICTIONS):
        return PREDICTIONS[question].predict(pod)
    return sum_up(AssignedPods(**SUMS[question - len(PREDICTIONS)]), pod)


QUESTIONS = range(len(PREDICTIONS) + len(SUMS))
room = st.sampled_from([1, 2, 4096])


@given(
    st.lists(manifests, min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(QUESTIONS)), min_size=10, max_size=40),
    room,
    room,
)
def test_what_is_remembered_is_what_each_pod_says(
    listed: list[Manifest], asked: Sequence[tuple[int, int]], templates: int, remembered: int
) -> None:
    """Pods of a few templates, some held while others are read anew; also where there is room for hardly any."""
    with fresh_memory(templates=templates, remembered=remembered):
        held = [read_fast(manifest) for manifest in listed]
        for number, question in asked:
            manifest = listed[number % len(listed)]
            expected = ask(Pod.from_manifest(manifest), question)
            assert ask(held[number % len(listed)], question) == expected
            assert ask(read_fast(manifest), question) == expected


@pytest.mark.parametrize("part", ["initContainers", "overhead", "resources"])
@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("is_plain_first", [True, False])
def test_pods_of_the_same_containers_that_differ_in_one_part(part: str, question: int, *, is_plain_first: bool) -> None:
    """Each part that counts beside the containers, asked right after and right before a pod without it."""
    value: Any = {"initContainers": INIT_CONTAINERS[3], "overhead": OVERHEADS[2], "resources": POD_LEVELS[2]}[part]
    plain: Manifest = {"metadata": {"name": "p"}, "spec": {"containers": CONTAINERS[0], "nodeName": "n"}}
    other = plain | {"spec": plain["spec"] | {part: value}}
    order = [plain, other, plain] if is_plain_first else [other, plain, other]
    with fresh_memory(templates=4096, remembered=64):
        pods = [read_fast(manifest) for manifest in order]
        assert len({id(pod.containers) for pod in pods}) == 1
        assert [ask(pod, question) for pod in pods] == [ask(Pod.from_manifest(manifest), question) for manifest in order]


def test_pods_of_one_template_are_added_up_once() -> None:
    """A scheduler places such pods one after the other."""
    manifest: Manifest = {"spec": {"containers": CONTAINERS[1], "initContainers": INIT_CONTAINERS[2]}}
    compute = mock.Mock(return_value=7)
    assert [read_fast(manifest).remember("what", compute) for _ in range(5)] == [7] * 5
    assert compute.call_count == 1


def test_what_is_remembered_does_not_grow_with_what_was_asked() -> None:
    with fresh_memory(templates=3, remembered=4):
        pods = [read_fast({"spec": {"containers": [container(f"c{number}", "1")]}}) for number in range(20)]
        assert len(objects._shared_containers) <= 3
        for pod in pods:
            values = [pod.remember(number, lambda _, number=number: number) for number in [*range(10), *range(10)]]  # type: ignore[misc]
            assert values == [*range(10), *range(10)]
            assert isinstance(pod.containers, SharedContainers)
            assert len(pod.containers.known) <= 4
