"""Every vector passes, every rule that the documentation names exists, and the runner notices a wrong answer."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.__main__ import SUITES, main, run_case, run_file

ROOT = Path(__file__).parents[2]
VECTORS = ROOT / "tests/vectors"


@pytest.mark.parametrize("suite", SUITES)
async def test_every_case_passes(suite: str) -> None:
    outcomes, _ = await run_file(VECTORS / f"{suite}.json")
    assert outcomes
    assert {rule for _, outcome in outcomes for rule in outcome.rules} <= set(SUITES[suite].RULES)
    assert {case_id: outcome for case_id, outcome in outcomes if outcome.problem} == {}


@pytest.mark.slow
async def test_every_case_of_the_wire_is_run() -> None:
    cases = json.loads((VECTORS / "wire.json").read_text())["cases"]
    outcomes, left_out = await run_file(VECTORS / "wire.json")
    assert (len(outcomes), left_out) == (len(cases), 0)


def first_case(suite: str, **wanted: Any) -> dict[str, Any]:
    cases = json.loads((VECTORS / f"{suite}.json").read_text())["cases"]
    found: dict[str, Any] = next(case for case in cases if wanted.items() <= case.items())
    return copy.deepcopy(found)


@pytest.mark.parametrize(
    ("suite", "case_id", "path", "wrong"),
    [
        ("quantity", "qty-0003", ("expected", "milli"), "2001"),
        ("quantity", "qty-0148", ("expected",), {"milli": "0", "value": "0", "zero": True}),
        ("watcher_decode", "dec-0002", ("expected", "value"), 2),
        ("watcher_decode", "dec-0016", ("expected", "nearest"), 98),
        ("target_load_packing", "tlp-0002", ("expected", "score"), 50),
        ("target_load_packing", "tlp-0002", ("expected", "predicted"), 0.5000000000000001),
        ("target_load_packing", "tlp-0002", ("expected",), {"error": True}),
        ("target_load_packing", "tlp-0247", ("expected",), {"score": 1}),
        ("target_load_packing", "tlp-0131", ("expected", "predicted"), 8),
    ],
)
async def test_a_wrong_expectation_fails(suite: str, case_id: str, path: tuple[str, ...], wrong: object) -> None:
    case = first_case(suite, id=case_id)
    target = case
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = wrong
    outcome = await run_case(suite, case)
    assert outcome is not None
    assert outcome.problem


@pytest.mark.parametrize(
    ("old", "new"), [(":30.875", ":30.875000002"), ('"n1"', '"n9"'), ('"type":"CPU"', '"type":"cpu"'), ('"tags":{}', '"tags":{}')]
)
async def test_a_wrong_reply_on_the_wire_fails_and_an_equal_one_does_not(old: str, new: str) -> None:
    case = first_case("wire", id="wire-0043")
    get = case["expected"]["gets"][0]
    get["body"] = get["body"].replace(old, new)
    outcome = await run_case("wire", case)
    assert outcome is not None
    assert bool(outcome.problem) == (old != new)


def tlp_case(metrics: list[dict[str, Any] | None], expected: dict[str, Any], **more: Any) -> dict[str, Any]:
    case = first_case("target_load_packing", id="tlp-0073")
    case["watcher"]["data"]["NodeMetricsMap"]["n1"]["metrics"] = metrics
    return case | {"expected": expected} | more


CPU_30 = {"type": "CPU", "operator": "AVG", "value": 30}
CPU_ABSENT = {"type": "CPU", "operator": "Latest"}
ZERO_LOAD = {"score": 40, "pod_millis": 0, "missing_millis": 0, "util_millis": 0, "capacity_millis": 4000, "predicted": 0}


@pytest.mark.parametrize(
    ("case", "rules"),
    [
        (tlp_case([CPU_30, CPU_ABSENT], ZERO_LOAD), ("absent_is_not_zero",)),
        (tlp_case([CPU_30, None], ZERO_LOAD | {"score": 85, "util_millis": 1200, "predicted": 30}), ()),
        (tlp_case([CPU_30 | {"value": 1e22}], {"score": 0}), ()),
        (tlp_case([], {"error": True}, args={"defaultRequestsMultiplier": "1_0_"}), ()),
        (tlp_case([CPU_30], {"score": 0}, args={"defaultRequestsMultiplier": "inf"}), ("rejects_invalid_arguments",)),
        (tlp_case([CPU_30], {"score": 0}, watcher_status=500), ()),
        (tlp_case([CPU_30], {"score": 0}, watcher_text="<html>"), ()),
        (tlp_case([CPU_30], {"score": 90}, watcher_text='{"data": {}} trailing'), ("rejects_invalid_json",)),
        (
            tlp_case(
                [],
                {"score": 0},
                watcher_text='{"data":{"NodeMetricsMap":{"n1":{"metrics":[{"type":"CPU","operator":"AVG","value":3e-20}]}}}}',
            ),
            ("reads_valid_numbers",),
        ),
    ],
)
async def test_rules_decide_from_the_data_of_unseen_cases(case: dict[str, Any], rules: tuple[str, ...]) -> None:
    outcome = await run_case("target_load_packing", case)
    assert outcome is not None
    assert (outcome.rules, outcome.problem) == (rules, "")


def metrics_server_case(usage: dict[str, Any], body: str, status: int = 200) -> dict[str, Any]:
    case = first_case("wire", id="wire-0044")
    replies = case["replies"]
    replies["/apis/metrics.k8s.io/v1beta1/nodes"]["body"]["items"][0]["usage"] = usage
    case["expected"]["gets"] = [{"path": "/watcher", "status": status, "content_type": "application/json", "body": body}]
    return case


def go_body(*values: object) -> str:
    metrics = [
        f'{{"name":"","type":"{kind}","operator":"Latest","rollup":"","value":{value}}}'
        for kind, value in zip(("CPU", "Memory"), values, strict=True)
    ]
    node = f'{{"metrics":[{",".join(metrics)}],"tags":{{}},"metadata":{{"dataCenter":""}}}}'
    return f'{{"timestamp":0,"window":{{}},"source":"KubernetesMetricsServer","data":{{"NodeMetricsMap":{{"n1":{node}}}}}}}'


@pytest.mark.parametrize(
    ("case", "rules"),
    [
        (metrics_server_case({"cpu": "12", "memory": "1Gi"}, go_body(300, 6.25)), ("rejects_impossible",)),
        (metrics_server_case({"cpu": "-1", "memory": "1Gi"}, go_body(-25, 6.25)), ("rejects_impossible",)),
        (metrics_server_case({"cpu": "much", "memory": "1Gi"}, "", 500), ("keeps_good_nodes",)),
    ],
)
async def test_rules_of_the_wire_decide_from_the_data_of_unseen_cases(case: dict[str, Any], rules: tuple[str, ...]) -> None:
    outcome = await run_case("wire", case)
    assert outcome is not None
    assert (outcome.rules, outcome.problem) == (rules, "")


CPU_AVERAGE = "avg_over_time(instance:node_cpu:ratio[*])"


def prometheus_case(replies: dict[str, Any], nodes: dict[str, float] | None, window: str = "15m") -> dict[str, Any]:
    """Make a case of one CPU rule: node as Go names it → value as Go serves it; ``None`` for 500."""
    entries = {
        node: {"metrics": [{"name": "instance:node_cpu:ratio", "type": "CPU", "operator": "AVG", "rollup": window, "value": value}]}
        for node, value in (nodes or {}).items()
    }
    body = {"timestamp": 0, "window": {}, "source": "Prometheus", "data": {"NodeMetricsMap": entries}}
    get = (
        {"path": "/watcher", "status": 200, "body": json.dumps(body)}
        if nodes is not None
        else {"path": "/watcher", "status": 500, "body": ""}
    )
    return first_case("wire", id="wire-0004") | {"replies": replies, "expected": {"gets": [get]}}


def vector(*series: tuple[dict[str, str], str], kind: str = "vector") -> dict[str, Any]:
    result = [{"metric": labels, "value": [1700000000.123, value]} for labels, value in series]
    return {"body": {"status": "success", "data": {"resultType": kind, "result": result}}}


@pytest.mark.parametrize(
    ("case", "rules"),
    [
        pytest.param(
            prometheus_case({CPU_AVERAGE: vector(({"instance": "n1:9100"}, "0.5"))}, {"n1:9100": 50}),
            {"finds_the_node"},
            id="port",
        ),
        pytest.param(
            prometheus_case(
                {CPU_AVERAGE: vector(({"instance": "n1", "replica": "b"}, "0.5"), ({"instance": "n1", "replica": "a"}, "0.4"))}, {"n1": 50}
            ),
            {"one_value_a_node"},
            id="replicas",
        ),
        pytest.param(
            prometheus_case({CPU_AVERAGE: vector(({"instance": "n1"}, "abc"), ({"instance": "n2"}, "0.4"))}, None),
            {"keeps_good_queries", "lists_nodes_without_metrics"},
            id="value that does not parse",
        ),
        pytest.param(
            prometheus_case(
                {
                    CPU_AVERAGE.replace("*", "15m"): vector(({"instance": "n1"}, "0.5")),
                    CPU_AVERAGE.replace("*", "5m"): vector(({"instance": "n1"}, "0.3"), ({"instance": "n2"}, "0.4")),
                },
                {"n1": 50},
            ),
            {"falls_back_by_metric"},
            id="a node without the longest window",
        ),
        pytest.param(
            prometheus_case({CPU_AVERAGE.replace("*", "15m"): vector(({"instance": "n1"}, "0.5"), kind="matrix")}, {}),
            {"keeps_good_queries"},
            id="not a vector",
        ),
        pytest.param(prometheus_case({CPU_AVERAGE: {"status": 401, "body": "no"}}, None), {"says_not_ready"}, id="401"),
        pytest.param(prometheus_case({CPU_AVERAGE: {"status": 200, "body": "<html>"}}, None), {"says_not_ready"}, id="no JSON"),
        pytest.param(
            prometheus_case({CPU_AVERAGE: vector(({"job": "x"}, "0.5"))}, {"": 50}), {"drops_unknown_nodes"}, id="no label names a node"
        ),
    ],
)
async def test_rules_of_prometheus_decide_from_the_data_of_unseen_cases(case: dict[str, Any], rules: set[str]) -> None:
    outcome = await run_case("wire", case)
    assert outcome is not None
    assert (set(outcome.rules), outcome.problem) == (rules, "")


@pytest.mark.parametrize("wrong", [{"n1": 60.0}, {"n2": 50.0, "n1": 50.0}])
async def test_a_value_of_go_that_we_do_not_serve_fails(wrong: dict[str, float]) -> None:
    series = [({"instance": "n1"}, "0.5"), ({"instance": "n2"}, "0.4")]
    outcome = await run_case("wire", prometheus_case({CPU_AVERAGE: vector(*series)}, wrong))
    assert outcome is not None
    assert "Go serves" in outcome.problem


async def test_the_command_reports_and_exits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert await main([str(VECTORS / "quantity.json")]) == 0
    assert capsys.readouterr().out.splitlines() == ["rule quantity_artefact: 10", "129 passed, 0 failed"]

    wrong = {"suite": "quantity", "cases": [{"id": "bad-1", "input": "1", "expected": {"error": True}}]}
    (tmp_path / "wrong.json").write_text(json.dumps(wrong))
    assert await main([str(tmp_path / "wrong.json"), str(VECTORS / "quantity.json")]) == 1
    out = capsys.readouterr().out
    assert out.startswith("FAILED bad-1")
    assert out.endswith("129 passed, 1 failed\n")

    (tmp_path / "other.json").write_text("[]")
    for unreadable in (tmp_path / "other.json", tmp_path / "absent.json"):
        assert await main([str(unreadable)]) == 2
    assert await main([]) == 2


@pytest.mark.parametrize("suite", SUITES)
def test_every_rule_stands_in_the_documentation(suite: str) -> None:
    documentation = (ROOT / "docs/policies.md").read_text() + (ROOT / "docs/wire.md").read_text()
    assert [rule for rule in SUITES[suite].RULES if f"`{rule}`" not in documentation] == []
