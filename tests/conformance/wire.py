"""
Suite ``wire``: a source's replies in, ``GET`` replies out, through the real provider, watcher and HTTP server.

Only cases of providers that the project has are run. Bodies compare key by key, values to 1e-9; extra keys of ours may stand where the Go
decoder skips them. Rules, each decided from the case's data:

- ``drops_non_finite``: NaN and infinities are left out.
- ``rejects_impossible``: so are values below 0 or far over 100 %.
- ``drops_unknown_nodes``: metrics of a node that the node list lacks are left out.
- ``lists_nodes_without_metrics``: a node without metrics has an entry with none.
- ``keeps_good_nodes``: a quantity that does not parse costs its own value, not the whole reply.
- ``says_not_ready``: where the original answers 500 with an empty body, ours is 503 with the JSON error.
- ``errors_are_json``: an unknown host is 404 with the JSON error instead of text.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import stamina
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer

from load_watcher.clock import SystemClock
from load_watcher.providers.metrics_server import MetricsServerProvider
from load_watcher.server.app import create_app
from load_watcher.watcher import Timing, Watcher
from tests.conformance.cases import Case, Outcome
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
)

_MAX_PERCENT = 110.0

Metrics = list[dict[str, Any]]


class _FirstTick(SystemClock):
    """A clock that stands at the samples' time and tells when the first refresh is over."""

    def __init__(self, now: float) -> None:
        self._now = now
        self.is_over = asyncio.Event()

    def time(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        self.is_over.set()
        await asyncio.Event().wait()


async def run(case: Case) -> Outcome | None:
    """Run one case; ``None`` for a provider that the project does not have."""
    if case["provider"] != "KubernetesMetricsServer":
        return None
    rules: dict[str, None] = {}
    problems = []
    stamina.set_testing(testing=True, attempts=1)
    async with FakeApiServer() as api:
        _fill(api, case["replies"])
        with tempfile.TemporaryDirectory() as folder:
            provider = MetricsServerProvider(api.write_kubeconfig(Path(folder) / "config"), request_timeout_seconds=5)
            clock = _FirstTick(_newest_sample(case["replies"]))
            watcher = Watcher(provider, timing=Timing(fetch_timeout_seconds=10), clock=clock)
            async with TestServer(create_app(watcher)) as server, ClientSession() as session:
                async with asyncio.timeout(30):
                    await clock.is_over.wait()
                for get in case["expected"]["gets"]:
                    async with session.get(server.make_url(get["path"])) as response:
                        body = await response.text()
                    problem = _compare(case, get, response.status, response.content_type, body, rules)
                    if problem:
                        problems.append(f"{get['path']}: {problem}")
    stamina.set_testing(testing=False)
    return Outcome(tuple(rules), "; ".join(problems))


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


def _compare(case: Case, get: dict[str, Any], status: int, content_type: str, body: str, rules: dict[str, None]) -> str:
    replies, host = case["replies"], get["path"].partition("?host=")[2]
    listed = [node["metadata"]["name"] for node in _items(replies, NODES)]
    if get["status"] == 200:
        expected = {name: node["metrics"] for name, node in _read_go(get["body"])["data"]["NodeMetricsMap"].items()}
    elif _has_bad_quantity(replies):
        rules["keeps_good_nodes"] = None
        expected = _reference(replies)
    elif get["status"] == 404 and host not in listed:
        rules["errors_are_json"] = None
        return _compare_error(status, body, 404, "unknown_node")
    elif get["status"] == 404:
        expected = {}
    else:
        rules["says_not_ready"] = None
        return _compare_error(status, body, 503, "not_ready")
    wanted = _apply_rules(expected, [name for name in listed if host in ("", name)], rules)
    if status != 200 or content_type != "application/json":
        return f"status {status}, {content_type}, expected 200 and JSON"
    ours = json.loads(body)
    if ours["source"] != case["provider"] or ours["window"]["duration"] != "15m":
        return f"source {ours['source']!r}, window {ours['window']!r}"
    return _compare_nodes(ours["data"]["NodeMetricsMap"], wanted)


def _read_go(text: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(re.sub(r":\+?(-?)Inf\b", r":\1Infinity", text))
    return document


def _compare_error(status: int, body: str, expected_status: int, error: str) -> str:
    answer = json.loads(body)
    if (status, answer.get("status"), answer.get("error")) == (expected_status, expected_status, error) and answer.get("message"):
        return ""
    return f"expected {expected_status} {error}, got {status} {body}"


def _apply_rules(nodes: Mapping[str, Metrics], listed: list[str], rules: dict[str, None]) -> dict[str, Metrics]:
    wanted: dict[str, Metrics] = {}
    for name, metrics in nodes.items():
        if name not in listed:
            rules["drops_unknown_nodes"] = None
            continue
        finite = [metric for metric in metrics if math.isfinite(metric["value"])]
        possible = [metric for metric in finite if 0 <= metric["value"] <= _MAX_PERCENT]
        rules.update(
            dict.fromkeys(["drops_non_finite"] * (len(finite) < len(metrics)) + ["rejects_impossible"] * (len(possible) < len(finite)))
        )
        wanted[name] = possible
    for name in listed:
        if name not in wanted:
            rules["lists_nodes_without_metrics"] = None
            wanted[name] = []
    return wanted


def _compare_nodes(ours: dict[str, Any], wanted: dict[str, Metrics]) -> str:
    if ours.keys() != wanted.keys():
        return f"nodes {sorted(ours)}, expected {sorted(wanted)}"
    for name, metrics in wanted.items():
        node = ours[name]
        if node["tags"] != {} or node["metadata"] != {"dataCenter": ""}:
            return f"{name}: tags {node['tags']}, metadata {node['metadata']}"
        keys = [{key: value for key, value in metric.items() if key != "value"} for metric in metrics]
        our_keys = [{key: metric[key] for key in ("name", "type", "operator", "rollup")} for metric in node["metrics"]]
        values = [metric["value"] for metric in node["metrics"]]
        if our_keys != keys or any(abs(a - b["value"]) > 1e-9 for a, b in zip(values, metrics, strict=True)):
            return f"{name}: {node['metrics']}, expected {metrics}"
    return ""


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
