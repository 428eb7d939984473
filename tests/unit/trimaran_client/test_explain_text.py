"""The text of an explanation."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from trimaran_client.cli.explain_text import WIDTH, write_explanation
from trimaran_client.explain import ExplainedNode, Explanation
from trimaran_client.policies.base import NodeScore, Reason

CPU_METRIC = {"resource": "cpu", "type": "CPU", "statistic": "AVG", "window": "15m", "unit": "percent", "source": ""}


def make_node(name: str, **fields: Any) -> ExplainedNode:
    empty: dict[str, Any] = {"metrics": [], "resources": [], "inFlight": [], "terms": {}, "steps": [], "hints": []}
    return msgspec.convert({"node": name, "score": 7, "reason": "risk", "status": "", **empty, **fields}, ExplainedNode)


def write(*nodes: ExplainedNode, ranked: list[str] | None = None, **fields: Any) -> list[str]:
    empty: dict[str, Any] = {"preset": "default", "arguments": {}, "snapshotAgeSeconds": 12.4, "predictions": [], "hints": []}
    head = {"pod": "shop/web", "policy": "P", "source": "Prometheus", "nodes": [], **empty, **fields}
    explanation = msgspec.structs.replace(msgspec.convert(head, Explanation), nodes=list(nodes))
    scores = [NodeScore(name, 7, Reason.RISK) for name in (ranked if ranked is not None else [each.node for each in nodes])]
    return list(write_explanation(explanation, scores))


def entry(lines: list[str], label: str) -> list[str]:
    """Cut out what stands beside a label, down to the next one."""
    start = next(index for index, line in enumerate(lines) if line.strip().startswith(label))
    rest = lines[start + 1 :]
    end = next((index for index, line in enumerate(rest) if not line.startswith(" " * 4)), len(rest))
    return [lines[start].strip().removeprefix(label).strip(), *(line.strip() for line in rest[:end])]


def test_the_head_says_policy_pod_and_source() -> None:
    assert write()[0] == "P (default) for pod shop/web; load from Prometheus, its reply 12 s old"


def test_arguments_are_told_without_what_is_left_to_the_policy() -> None:
    arguments = {"preset": "default", "target": 40.0, "metric": {"statistic": "", "window": ""}, "other": {"window": "5m"}, "list": [1]}
    assert entry(write(arguments=arguments), "arguments") == ["target=40, metric=any, other={window: 5m}, list=[1]"]


def test_of_many_entries_of_an_argument_the_first_are_told() -> None:
    models = {f"n{number}": {"k1": -2.0} for number in range(3000)}
    told = "{n0: {k1: -2}, n1: {k1: -2}, n2: {k1: -2}, n3: {k1: -2}, n4: {k1: -2}, 2995 more}"
    assert entry(write(arguments={"models": models}), "arguments") == [f"models={told}"]


def test_a_prediction_is_told_part_by_part() -> None:
    parts = [{"part": "web", "kind": "container", "rule": "limit", "amount": 1500}, {"part": "", "kind": "pod", "rule": "x", "amount": 0}]
    lines = write(predictions=[{"resource": "cpu", "unit": "millicores", "amount": 1500, "parts": parts}])
    assert entry(lines, "prediction") == [
        "cpu: the pod is taken to use 1500m, part by part:",
        "container web: 1500m (limit)",
        "pod : 0m (x)",
    ]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"value": 12.5, "ageSeconds": 11.2}, "cpu: CPU AVG over 15m = 12.5 %, 11 s old, from Prometheus"),
        ({"value": 0.0, "ageSeconds": 0.0}, "cpu: CPU AVG over 15m = 0 %, 0 s old, from Prometheus"),
        ({"value": 3e6, "ageSeconds": None, "unit": "watts", "source": "B"}, "cpu: CPU AVG over 15m = 3e+06 watts, of unknown age, from B"),
        ({"value": None, "ageSeconds": 5.0, "statistic": "", "window": ""}, "cpu: CPU: none"),
    ],
)
def test_a_metric_has_value_window_age_and_source_and_zero_is_not_absence(fields: dict[str, Any], told: str) -> None:
    assert entry(write(make_node("n", metrics=[CPU_METRIC | fields])), "metric") == [told]


def test_what_is_not_known_of_a_node_is_said() -> None:
    known = {"resource": "memory", "unit": "bytes", "capacity": 4 * 2**30, "allocatable": 2**30, "requested": 2**28}
    unknown = {"resource": "cpu", "unit": "millicores", "capacity": 4000, "allocatable": None, "requested": None}
    assert entry(write(make_node("n", resources=[known, unknown])), "resources") == [
        "memory: capacity 4096Mi, allocatable 1024Mi, requested by its pods 256Mi (25 % of allocatable)",
        "cpu: capacity 4000m, allocatable not known, requested by its pods not known",
    ]


def test_pods_in_flight_have_amount_and_share_the_largest_first_and_not_without_end() -> None:
    pods = [
        {"pod": f"a/p{number}", "state": "bound", "resource": "cpu", "amount": 100.0 * number, "share": 0.25, "ageSeconds": 3.0}
        for number in range(1, 14)
    ]
    told = entry(write(make_node("n", inFlight=pods)), "in flight")
    assert told[0] == "a/p13: 325m of cpu = 25 % of 1300m; bound 3 s ago"
    assert told[10:] == ["3 more, of which each counts for less; --output json lists them"]


def test_nodes_that_are_left_out_are_counted_where_they_would_stand() -> None:
    lines = write(make_node("b"), make_node("e"), ranked=["a", "b", "c", "d", "e", "f"])
    heads = [line for line in lines if line.startswith(("#", "..."))]
    assert [line[:18] for line in heads] == [
        "... 1 node left ou",
        "#2 of 6: b, score ",
        "... 2 nodes left o",
        "#5 of 6: e, score ",
        "... 1 node left ou",
    ]


def test_without_candidates_it_says_so() -> None:
    assert write()[-1] == "no candidate nodes: the load watcher serves none, or the list of nodes is empty"


def test_no_line_is_wider_than_a_terminal_but_for_a_word_that_is() -> None:
    words = "requests already fill 96 % of allocatable cpu " * 12
    lines = write(make_node("n", steps=[words], hints=[words, "x" * 200]), hints=[words], arguments={f"name_{i}": i for i in range(40)})
    assert {len(line) > WIDTH for line in lines if "x" * 200 not in line} == {False}
    assert any("x" * 200 in line for line in lines)
