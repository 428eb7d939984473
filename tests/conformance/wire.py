"""
Suite ``wire``: a source's replies in, ``GET`` replies out, through the real provider, watcher and HTTP server.

Bodies compare key by key, values to 1e-9; extra keys of ours may stand where the Go decoder skips them. The cases of Prometheus are run by
:mod:`tests.conformance.wire_prometheus`. Rules, each decided from the case's data:

- ``drops_non_finite``: NaN and infinities are left out.
- ``rejects_impossible``: so are values below 0 or far over 100 %.
- ``absent_is_not_zero``: a usage that is not there is not 0.
- ``needs_a_time``: values without a time that can be read are left out.
- ``newest_item_counts``: of several items of one node the newest counts.
- ``expires_old_samples``: a node whose sample is far older than the newest is left out.
- ``lists_nodes_without_metrics``: a node without metrics has an entry with none.
- ``needs_a_list``: an answer without items is no empty list, which would lose every node, but an error.
- ``keeps_good_nodes``: a field that does not parse costs its own value, not the whole reply.
- ``says_not_ready``: where the original answers 500 with an empty body, ours is 503 with the JSON error.
- ``errors_are_json``: an unknown host is 404 with the JSON error instead of text.

Rules that only cases of Prometheus need:

- ``falls_back_by_metric``: a metric of a node that lacks the longest window stands over the next, beside others over the longest.
- ``orders_by_type``: metrics stand by type, not all averages first.
- ``drops_unknown_nodes``: a series whose labels name no node is left out.
- ``finds_the_node``: the node is found by another label than ``instance``, or without its port.
- ``one_value_a_node``: of several series of one node the highest value counts.
- ``states_the_unit``: where a value is not percent, the metric says in which unit it is.
- ``keeps_good_queries``: a query that fails, or a value that does not parse, costs its own values, not the whole window.
- ``asks_the_window``: ``window`` is a parameter, and exactly that one is answered.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

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
    "absent_is_not_zero",
    "needs_a_time",
    "newest_item_counts",
    "expires_old_samples",
    "lists_nodes_without_metrics",
    "needs_a_list",
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
        if path == NODES and status == 200 and _items(replies, NODES):
            api.put_nodes(*_items(replies, NODES))
        else:
            api.replies[path] = Reply(status, body)


def _is_list(replies: Mapping[str, Any], path: str) -> bool:
    """Tell whether a reply that claims to be good is a list; others are judged by their status."""
    reply = replies.get(path, {})
    if reply.get("status", 200) != 200 or path not in replies:
        return True
    body = reply.get("body", "")
    try:
        document = json.loads(body) if isinstance(body, str) else body
    except ValueError:
        return False
    return isinstance(document, dict) and "items" in document


def _items(replies: Mapping[str, Any], path: str) -> Metrics:
    body = replies.get(path, {}).get("body")
    if isinstance(body, str):
        try:
            body = json.loads(body)
        except ValueError:
            return []
    items = (body.get("items") or []) if isinstance(body, dict) else []
    return [item for item in items if isinstance(item, dict) and (item.get("metadata") or {}).get("name")]


def _sampled_at(item: Mapping[str, Any]) -> float:
    """Answer when an item was measured; NaN where it does not say so as the API does."""
    try:
        at = datetime.fromisoformat(item["timestamp"])
    except (KeyError, TypeError, ValueError):
        return math.nan
    return at.timestamp() if at.tzinfo is not None else math.nan


def _newest_sample(replies: Mapping[str, Any]) -> float:
    times = [at for item in _items(replies, NODE_METRICS) if not math.isnan(at := _sampled_at(item))]
    return max(times, default=0.0)


def _compare(case: Case, get: Mapping[str, Any], answer: Answer, rules: dict[str, None]) -> str:
    replies = case["replies"]
    url = urlsplit(get["path"])
    if url.path != "/watcher":
        return _compare_other(get, answer, rules)
    if not (_is_list(replies, NODES) and _is_list(replies, NODE_METRICS)):
        rules["needs_a_list"] = None
        return compare_error(answer, 503, "not_ready")
    host = parse_qs(url.query, keep_blank_values=True).get("host", [""])[0]
    listed = [node["metadata"]["name"] for node in _items(replies, NODES)]
    if get["status"] == 404 and host not in listed:
        rules["errors_are_json"] = None
        return compare_error(answer, 404, "unknown_node")
    if get["status"] == 404:
        expected: dict[str, Metrics] = {}
    elif get["status"] == 200:
        expected = {name: node["metrics"] for name, node in read_go(get["body"])["data"]["NodeMetricsMap"].items()}
    elif _items(replies, NODE_METRICS) and all(
        path in replies and replies[path].get("status", 200) == 200 for path in (NODES, NODE_METRICS)
    ):
        rules["keeps_good_nodes"] = None
        expected = {name: metrics for name, metrics in _reference(replies).items() if host in ("", name)}
        if host and host not in listed:
            return compare_error(answer, 404, "unknown_node")
    else:
        rules["says_not_ready"] = None
        return compare_error(answer, 503, "not_ready")
    wanted = _apply_rules(replies, expected, [name for name in listed if host in ("", name)], rules)
    expired = _expired(replies)
    if host and host in expired:
        rules["expires_old_samples"] = None
        return compare_error(answer, 404, "node_expired")
    rules.update(dict.fromkeys(["expires_old_samples"] * bool(expired & wanted.keys())))
    return compare_nodes(case, answer, {name: metrics for name, metrics in wanted.items() if name not in expired})


def _compare_other(get: Mapping[str, Any], answer: Answer, rules: dict[str, None]) -> str:
    if get["status"] == 404:
        rules["errors_are_json"] = None
        return compare_error(answer, 404, "not_found")
    return "" if answer.status == get["status"] else f"status {answer.status}, expected {get['status']}"


def _expired(replies: Mapping[str, Any]) -> set[str]:
    """Find the nodes whose sample is more than a quarter of an hour older than the newest."""
    oldest = _newest_sample(replies) - 900
    newest_of: dict[str, float] = {}
    for item in _items(replies, NODE_METRICS):
        if not math.isnan(at := _sampled_at(item)):
            newest_of[item["metadata"]["name"]] = max(newest_of.get(item["metadata"]["name"], -math.inf), at)
    return {name for name, at in newest_of.items() if at < oldest}


def _apply_rules(replies: Mapping[str, Any], nodes: Mapping[str, Metrics], listed: list[str], rules: dict[str, None]) -> dict[str, Metrics]:
    wanted: dict[str, Metrics] = {}
    items: dict[str, list[dict[str, Any]]] = {}
    for item in _items(replies, NODE_METRICS):
        items.setdefault(item["metadata"]["name"], []).append(item)
    for name, metrics in nodes.items():
        of_node = items.get(name, [])
        if len(of_node) > 1:
            rules["newest_item_counts"] = None
            metrics = _reference(replies).get(name, [])
        dated = [item for item in of_node if not math.isnan(_sampled_at(item))]
        if not dated:
            rules["needs_a_time"] = None
            wanted[name] = []
            continue
        usage = max(dated, key=_sampled_at).get("usage") or {}
        measured = [metric for metric in metrics if usage.get(metric["type"].lower()) is not None]
        finite = [metric for metric in measured if math.isfinite(metric["value"])]
        possible = [metric for metric in finite if 0 <= metric["value"] <= MAX_PERCENT]
        for rule, applied in (
            ("absent_is_not_zero", len(measured) < len(metrics)),
            ("drops_non_finite", len(finite) < len(measured)),
            ("rejects_impossible", len(possible) < len(finite)),
        ):
            rules.update(dict.fromkeys([rule] * applied))
        wanted[name] = possible
    for name in listed:
        if name not in wanted:
            rules["lists_nodes_without_metrics"] = None
            wanted[name] = []
    return wanted


def _parse(value: object) -> Quantity | None:
    try:
        return Quantity.parse(value)
    except QuantityError:
        return None


def _reference(replies: Mapping[str, Any]) -> dict[str, Metrics]:
    """Compute what the newest item of each node says, value by value."""
    capacities = {node["metadata"]["name"]: (node.get("status") or {}).get("capacity") or {} for node in _items(replies, NODES)}
    nodes: dict[str, Metrics] = {}
    for item in sorted(_items(replies, NODE_METRICS), key=lambda each: (not math.isnan(_sampled_at(each)), _sampled_at(each))):
        name = item["metadata"]["name"]
        if name not in capacities:
            continue
        nodes[name] = []
        for resource, metric_type, unit in (("cpu", "CPU", "milli"), ("memory", "Memory", "value")):
            usage, capacity = _parse((item.get("usage") or {}).get(resource)), _parse(capacities[name].get(resource))
            if usage is not None and capacity is not None and capacity.nanos > 0:
                value = 100 * getattr(usage, unit) / getattr(capacity, unit)
                nodes[name].append({"name": "", "type": metric_type, "operator": "Latest", "rollup": "", "value": value})
    return nodes
