"""
What a scheduler's question, an event of a pod and a refresh cost, as counts of function calls, which do not depend on the machine.

A guard beside the benchmarks, as ``test_costs.py`` is for the load watcher's answers: what is remembered between questions must stay so,
and nothing may be done once for each candidate that can be done for all of them.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import count
from typing import Any

import msgspec
import pytest

from load_watcher.providers.catalogue import HOST_LABELS, CatalogueMetric, Expression
from load_watcher.providers.nodes import NodeCapacity, NodeResolver, Resources
from load_watcher.providers.prometheus_batch import TIMES, ChosenMetric, Column, Identity, build_batch
from load_watcher.providers.prometheus_vector import VectorDecoder
from load_watcher.providers.promql import PART_LABEL
from load_watcher.samples import FIFTEEN_MINUTES, NodeInfo
from tests.builders import NOW
from tests.calls import count_calls
from tests.fakes.extender import make_decider, make_load, make_manifest, make_question, read_scores
from trimaran_client.assigned import AssignedPods
from trimaran_client.extender.decider import Decider
from trimaran_client.objects import PodObject, to_pod
from trimaran_client.snapshot import LoadSnapshot
from trimaran_client.wire import ResourceQuantities

NAMES = [f"node-{number:04}" for number in range(1000)]
# No two of the best are equally good: a pod that may go to either counts on both.
BEST = {name: 24.0 - 3 * number for number, name in enumerate(NAMES[:8])}
LOAD = LoadSnapshot.decode(make_load({name: 50 + 50 * math.sin(number) ** 2 for number, name in enumerate(NAMES)} | BEST))


# Containers by which a pod takes long to add up: three, two init steps.
SPEC: dict[str, Any] = {
    "containers": [{"name": f"c{number}", "resources": {"requests": {"cpu": "250m", "memory": "64Mi"}}} for number in range(3)],
    "initContainers": [{"name": f"i{number}", "resources": {"requests": {"cpu": "100m"}}} for number in range(2)],
}
# What follows from a template, or from snapshot and capacities, is computed for the first of the questions alone.
REMEMBERED = {"AssignedPods._add_up", "UsagePrediction._by_rule", "Target.measure", "Quantity.parse", "encode_start", "Standings._make"}


def ask_warm(decider: Decider, most: int) -> tuple[Counter[str], bytes]:
    """Ask for one pod after another of a template, until all is remembered; count the last time."""
    bodies = [make_question(make_manifest(f"web-{number}", spec=SPEC), NAMES[:most]) for number in range(6)]
    for body in bodies[:-1]:
        decider.prioritize(body)
    answers: list[bytes] = []
    return count_calls(lambda: answers.append(decider.prioritize(bodies[-1]))), answers[0]


@pytest.mark.parametrize(
    ("document", "most"),
    # Pods that are assumed change the totals with each question; without that, nothing changes in between.
    [pytest.param({}, 380, id="assumed"), pytest.param({"assumeSeconds": 0}, 190, id="not-assumed")],
)
def test_calls_of_a_question(document: dict[str, Any], most: int) -> None:
    """However many candidates there are; a fifth above today's 318 and 158, and nothing of it what was computed before."""
    few, answer = ask_warm(make_decider(document, LOAD), 420)
    assert len(read_scores(answer)) == 420
    many, answer = ask_warm(make_decider(document, LOAD), 840)
    assert len(read_scores(answer)) == 840
    assert abs(many.total() - few.total()) <= 20, many - few
    assert 0 < few.total() <= most, few
    assert not REMEMBERED & (few.keys() | many.keys())


def test_nothing_is_written_anew_of_nodes_whose_score_stays() -> None:
    """Joining bytes calls no function: what was written of each node must be the same object."""
    decider = make_decider({"assumeSeconds": 0, "profiles": [{"schedulerName": "trimaran", "policy": "LoadVariationRiskBalancing"}]}, LOAD)
    for number in range(2):
        decider.prioritize(make_question(make_manifest(f"web-{number}"), NAMES[:420]))
    before = list(decider._encoder._parts)
    decider.prioritize(make_question(make_manifest("web-2"), NAMES))
    after = decider._encoder._parts
    assert all(before[:420])
    assert all(one is other for one, other in zip(before[:420], after[:420], strict=True))
    assert (any(before[420:]), all(after[420:])) == (False, True)


def test_nothing_is_written_anew_of_nodes_that_stand_as_they_did() -> None:
    """Nor where the answer is ready: of a pod that was decided on, its node alone is another."""
    decider = make_decider({}, LOAD)
    for number in range(3):
        decider.prioritize(make_question(make_manifest(f"web-{number}"), NAMES))
    [kind] = decider._standings._kinds.values()
    assert kind.standing is not None
    before = dict(kind.standing._parts)
    decider.prioritize(make_question(make_manifest("web-3"), NAMES))
    changed = [name for name, part in kind.standing._parts.items() if part is not before[name]]
    assert len(changed) == 1


def test_calls_of_an_event_of_a_pod() -> None:
    """From the decoded object of a pod that was bound just now; a fifth above today's 92."""
    pods = AssignedPods()
    for name in NAMES:
        pods.add_node(name)
    numbers = count()

    def follow() -> None:
        number = next(numbers)
        manifest = make_manifest(f"web-{number}", spec=SPEC | {"nodeName": NAMES[number]})
        manifest["status"] = {"conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2023-11-14T22:13:20Z"}]}
        pod = msgspec.json.decode(json.dumps(manifest), type=PodObject)
        calls.append(count_calls(lambda: pods.update(to_pod(pod), now=NOW)))

    calls: list[Counter[str]] = []
    for _ in range(10):
        follow()
    assert pods.in_flight_count == 10
    assert 0 < calls[-1].total() <= 110, calls[-1]
    assert not REMEMBERED & calls[-1].keys()


def test_calls_of_a_refresh() -> None:
    """For each series that Prometheus answers, from its bytes to the batch; a fifth above today's 12.6."""
    labels = tuple(HOST_LABELS)
    columns = {
        f"{key}-{operator}-{window}": Column(key, operator, window)
        for key in ("cpu", "memory")
        for operator, window in (("Latest", None), (TIMES, None), ("AVG", FIFTEEN_MINUTES), ("STD", FIFTEEN_MINUTES))
    }
    series = [
        {"metric": {"instance": name, "job": "node", PART_LABEL: key}, "value": [NOW, str(NOW if TIMES in key else number / 1000)]}
        for key in columns
        for number, name in enumerate(NAMES[:200])
    ]
    body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": series}}).encode()
    expression = Expression("query", "ratio", "rule")
    chosen = {
        key: ChosenMetric(CatalogueMetric(key, metric_type, ("Latest", "AVG", "STD"), (expression,)), expression)
        for key, metric_type in (("cpu", "CPU"), ("memory", "Memory"))
    }
    info = NodeInfo(ResourceQuantities(), ResourceQuantities())
    capacities = {name: NodeCapacity({"CPU": 8000, "Memory": 2**34}, Resources(), info) for name in NAMES[:200]}
    decoder = VectorDecoder(PART_LABEL, labels)

    def refresh() -> None:
        identity = Identity(labels, (), NodeResolver(dict.fromkeys(capacities, ())))
        joined = build_batch([decoder.decode(body)], columns, chosen, identity=identity, capacities=capacities, evaluated_at=NOW)
        assert len(joined.batch.nodes) == 200
        assert not joined.batch.rejections

    refresh()
    calls = count_calls(refresh)
    assert 0 < calls.total() / len(series) <= 15.1, calls
    assert calls["Identity.find"] == 200  # once for the labels of a node, whatever the number of its metrics
