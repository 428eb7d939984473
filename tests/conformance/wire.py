"""
Suite ``wire``: a source's replies in, ``GET`` replies out, through the real provider, watcher and HTTP server.

Bodies compare key by key, values to 1e-9; extra keys of ours may stand where the Go decoder skips them. The cases of Prometheus are run by
:mod:`tests.conformance.wire_prometheus`. Rules, each decided from the case's data:

- ``drops_non_finite``: NaN and infinities are left out.
- ``rejects_impossible``: so are values below 0 or far over 100 %.
- ``drops_unknown_nodes``: metrics of a node that the node list lacks are left out.
- ``lists_nodes_without_metrics``: a node without metrics has an entry with none.
- ``keeps_good_nodes``: a quantity that does not parse costs its own value, not the whole reply.
- ``says_not_ready``: where the original answers 500 with an empty body, ours is 503 with the JSON error.
- ``errors_are_json``: an unknown host is 404 with the JSON error instead of text.

Rules that only cases of Prometheus need:

- ``serves_every_window``: averages over 10 and 5 minutes stand beside those over 15.
- ``orders_by_type``: metrics stand by type, not all averages first.
- ``finds_the_node``: the node is found by another label than ``instance``, or without its port.
- ``one_value_a_node``: of several series of one node the highest value counts.
- ``states_the_unit``: where a value is not percent, the metric says in which unit it is.
- ``keeps_good_queries``: a query that fails, or a value that does not parse, costs its own values, not the whole window.
- ``asks_history``: ``window`` is a parameter, and without a history there is no other window.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from load_watcher.providers.metrics_server import MetricsServerProvider
from tests.conformance import wire_prometheus
from tests.conformance.cases import Case, Outcome
from tests.conformance.wire_replies import MAX_PERCENT, Answer, Metrics, compare_error, compare_nodes, judge_gets, read_go
from tests.fakes.api_server import NODE_METRICS, NODES, FakeApiServer, Reply
from trimaran_client import Quantity, QuantityError

RULES = (
    "drops_non_finite",
    "rejects_impossible",
    "drops_unknown_nodes",
    "lists_nodes_without_metrics",
    "keeps_good_nodes",
    "says_not_ready",
    "errors_are_json",
    *wire_prometheus.RULES,
)


async def run(case: Case) -> Outcome:
    """Run one case."""
    if case["provider"] == "Prometheus":
        return await wire_prometheus.run(case)
    rules: dict[str, None] = {}
    async with FakeApiServer() as api:
        _fill(api, case["replies"])
        with tempfile.TemporaryDirectory() as folder:
            provider = MetricsServerProvider(api.write_kubeconfig(Path(folder) / "config"), request_timeout_seconds=5)
            now = _newest_sample(case["replies"])
            return await judge_gets(case, provider, now, rules, lambda get, answer: _compare(case, get, answer, rules))


def _fill(api: FakeApiServer, replies: Mapping[str, Any]) -> None:
    for path, reply in replies.items():
        body, status = reply.get("body", ""), reply.get("status", 200)
        if path == NODES and status == 200 and isinstance(body, dict):
            api.put_nodes(*(body.get("items") or []))
        else:
            api.replies[path] = Reply(status, body)
    if NODES not in api.replies and not _items(replies, NODES):
        api.replies[NODES] = Reply(body={"kind": "NodeList", "metadata": {"resourceVersion": "1"}, "items": []})


def _items(replies: Mapping[str, Any], path: str) -> Metrics:
    body = replies.get(path, {}).get("body")
    return (body.get("items") or []) if isinstance(body, dict) else []


def _newest_sample(replies: Mapping[str, Any]) -> float:
    times = [item["timestamp"] for item in _items(replies, NODE_METRICS) if item.get("timestamp")]
    return max((datetime.fromisoformat(time).timestamp() for time in times), default=0.0)


def _compare(case: Case, get: Mapping[str, Any], answer: Answer, rules: dict[str, None]) -> str:
    replies, host = case["replies"], get["path"].partition("?host=")[2]
    listed = [node["metadata"]["name"] for node in _items(replies, NODES)]
    if get["status"] == 200:
        expected = {name: node["metrics"] for name, node in read_go(get["body"])["data"]["NodeMetricsMap"].items()}
    elif _has_bad_quantity(replies):
        rules["keeps_good_nodes"] = None
        expected = _reference(replies)
    elif get["status"] == 404 and host not in listed:
        rules["errors_are_json"] = None
        return compare_error(answer, 404, "unknown_node")
    elif get["status"] == 404:
        expected = {}
    else:
        rules["says_not_ready"] = None
        return compare_error(answer, 503, "not_ready")
    wanted = _apply_rules(expected, [name for name in listed if host in ("", name)], rules)
    return compare_nodes(case, answer, wanted)


def _apply_rules(nodes: Mapping[str, Metrics], listed: list[str], rules: dict[str, None]) -> dict[str, Metrics]:
    wanted: dict[str, Metrics] = {}
    for name, metrics in nodes.items():
        if name not in listed:
            rules["drops_unknown_nodes"] = None
            continue
        finite = [metric for metric in metrics if math.isfinite(metric["value"])]
        possible = [metric for metric in finite if 0 <= metric["value"] <= MAX_PERCENT]
        rules.update(
            dict.fromkeys(["drops_non_finite"] * (len(finite) < len(metrics)) + ["rejects_impossible"] * (len(possible) < len(finite)))
        )
        wanted[name] = possible
    for name in listed:
        if name not in wanted:
            rules["lists_nodes_without_metrics"] = None
            wanted[name] = []
    return wanted


def _has_bad_quantity(replies: Mapping[str, Any]) -> bool:
    amounts = [item.get("usage") or {} for item in _items(replies, NODE_METRICS)]
    amounts += [(item.get("status") or {}).get("capacity") or {} for item in _items(replies, NODES)]
    return any(_parse(value) is None for each in amounts for value in each.values())


def _parse(value: object) -> Quantity | None:
    try:
        return Quantity.parse(value)
    except QuantityError:
        return None


def _reference(replies: Mapping[str, Any]) -> dict[str, Metrics]:
    capacities = {node["metadata"]["name"]: (node.get("status") or {}).get("capacity") or {} for node in _items(replies, NODES)}
    nodes: dict[str, Metrics] = {}
    for item in _items(replies, NODE_METRICS):
        name = item["metadata"]["name"]
        nodes[name] = []
        for resource, metric_type, unit in (("cpu", "CPU", "milli"), ("memory", "Memory", "value")):
            usage, capacity = _parse((item.get("usage") or {}).get(resource)), _parse(capacities.get(name, {}).get(resource))
            if usage is not None and capacity is not None and capacity.nanos > 0:
                value = 100 * getattr(usage, unit) / getattr(capacity, unit)
                nodes[name].append({"name": "", "type": metric_type, "operator": "Latest", "rollup": "", "value": value})
    return nodes
