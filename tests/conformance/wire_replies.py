"""Ask the service what a case of the suite ``wire`` asks, and compare the replies: what the cases of all providers share."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import stamina
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer

from load_watcher.clock import SystemClock
from load_watcher.providers.base import MetricsProvider
from load_watcher.server.app import create_app
from load_watcher.timing import Timing
from load_watcher.watcher import Watcher
from tests.conformance.cases import Case, Outcome

MAX_PERCENT = 150.0

# Of a metric all that is not its value; `unit` is ours.
_KEYS = ("name", "type", "operator", "rollup", "unit")

Metrics = list[dict[str, Any]]


class Answer(NamedTuple):
    """What the service replied."""

    status: int
    content_type: str
    body: str


class FirstTick(SystemClock):
    """A clock that stands at the samples' time and tells when the first refresh is over."""

    def __init__(self, now: float) -> None:
        self._now = now
        self.is_over = asyncio.Event()

    def time(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        self.is_over.set()
        await asyncio.Event().wait()


async def judge_gets(
    case: Case, provider: MetricsProvider, now: float, rules: Mapping[str, None], compare: Callable[[Mapping[str, Any], Answer], str]
) -> Outcome:
    """Serve what the provider gives in its first refresh, send the requests of the case, and compare each reply."""
    problems = []
    stamina.set_testing(testing=True, attempts=1)
    clock = FirstTick(now)
    watcher = Watcher(provider, timing=Timing(fetch_timeout_seconds=10), clock=clock)
    async with TestServer(create_app(watcher)) as server, ClientSession() as session:
        async with asyncio.timeout(30):
            await clock.is_over.wait()
        for get in case["expected"]["gets"]:
            async with session.get(str(server.make_url("")).rstrip("/") + get["path"]) as response:
                answer = Answer(response.status, response.content_type, await response.text())
            problem = compare(get, answer)
            if problem:
                problems.append(f"{get['path']}: {problem}")
    stamina.set_testing(testing=False)
    return Outcome(tuple(rules), "; ".join(problems))


def read_go(text: str) -> dict[str, Any]:
    """Read a body of the original, in which infinities stand bare."""
    document: dict[str, Any] = json.loads(re.sub(r":\+?(-?)Inf\b", r":\1Infinity", text))
    return document


def compare_error(answer: Answer, expected_status: int, error: str) -> str:
    """Expect the JSON error."""
    found = json.loads(answer.body)
    if (answer.status, found.get("status"), found.get("error")) == (expected_status, expected_status, error) and found.get("message"):
        return ""
    return f"expected {expected_status} {error}, got {answer.status} {answer.body}"


def compare_nodes(case: Case, answer: Answer, wanted: Mapping[str, Metrics], *, window: str = "15m") -> str:
    """Expect exactly these nodes with exactly these metrics, in this order, in a reply for *window*."""
    if answer.status != 200 or answer.content_type != "application/json":
        return f"status {answer.status}, {answer.content_type}, expected 200 and JSON"
    document = json.loads(answer.body)
    if document["source"] != case["provider"] or document["window"]["duration"] != window:
        return f"source {document['source']!r}, window {document['window']!r}"
    ours = document["data"]["NodeMetricsMap"]
    if ours.keys() != wanted.keys():
        return f"nodes {sorted(ours)}, expected {sorted(wanted)}"
    for name, metrics in wanted.items():
        node = ours[name]
        if node["tags"] != {} or node["metadata"] != {"dataCenter": ""}:
            return f"{name}: tags {node['tags']}, metadata {node['metadata']}"
        keys, our_keys = ([tuple(metric.get(key) for key in _KEYS) for metric in each] for each in (metrics, node["metrics"]))
        values = [metric["value"] for metric in node["metrics"]]
        if our_keys != keys or any(abs(a - b["value"]) > 1e-9 for a, b in zip(values, metrics, strict=True)):
            return f"{name}: {node['metrics']}, expected {metrics}"
    return ""
