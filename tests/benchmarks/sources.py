"""What both load watchers read in a benchmark: a page that Prometheus scrapes, a proxy that counts, a recording, a history on disk."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import numpy as np
from aiohttp import ClientSession, ClientTimeout, web

from load_watcher.history.store import HistoryStore, Retention
from load_watcher.samples import SampleBatch
from trimaran_client.units import FloatArray

# What the Go load-watcher asks for (its prometheus.go); ours finds the same names in its catalogue.
RULES: Final = {"CPU": "instance:node_cpu:ratio", "Memory": "instance:node_memory_utilisation:ratio"}
_STEP_SECONDS: Final = 30
_TIME: Final = re.compile(rb"(^|&)time=[^&]*")
_PASSED: Final = ("Accept", "Accept-Encoding", "Content-Encoding", "Content-Type")
_PROXY_SECONDS: Final = 60.0


def name_nodes(count: int) -> tuple[str, ...]:
    """Name the nodes of a cluster."""
    return tuple(f"node-{number:05}" for number in range(count))


def draw_ratios(count: int, at: float) -> FloatArray:
    """Draw the utilization of every node at an instant, in 0 to 1: a level of its own, and a slow wave."""
    numbers = np.arange(count)
    return np.asarray(0.5 + 0.3 * np.sin(numbers) + 0.1 * np.sin(at / 7 + numbers), dtype=np.float64)


def write_page(nodes: Sequence[str]) -> str:
    """Write the page of this moment, two series a node."""
    lines = []
    for shift, rule in enumerate(RULES.values()):
        ratios = draw_ratios(len(nodes), time.time() + shift).tolist()
        lines += [f'{rule}{{instance="{node}"}} {ratio}' for node, ratio in zip(nodes, ratios, strict=True)]
    return "\n".join(lines) + "\n"


def write_recording(path: Path, nodes: Sequence[str], *, windows: Sequence[str]) -> None:
    """Write a recording of one batch that has what Prometheus would give: newest values, averages and deviations."""
    columns = {metric: [100 * ratio for ratio in draw_ratios(len(nodes), shift).tolist()] for shift, metric in enumerate(RULES)}
    aggregates = [
        {"name": RULES[metric], "type": metric, "operator": operator, "window": window, "values": values}
        for metric, values in columns.items()
        for operator in ("AVG", "STD")
        for window in windows
    ]
    path.write_text(json.dumps({"at": 1.7e9, "nodes": list(nodes), "latest": columns, "aggregates": aggregates}) + "\n")


async def fill_history(path: Path, nodes: tuple[str, ...], *, source: str, hours: float) -> None:
    """Write the refreshes of the last hours, as a service that ran until now would have."""
    count = math.ceil(hours * 3600 / _STEP_SECONDS)
    async with HistoryStore(path, retention=Retention(sample_seconds=hours * 7200, max_bytes=2**40)) as store:
        for number in range(count):
            at = math.floor(time.time()) - _STEP_SECONDS * (count - number)
            latest = {metric: 100 * draw_ratios(len(nodes), at + shift) for shift, metric in enumerate(RULES)}
            await store.append(SampleBatch(source, nodes, np.full(len(nodes), float(at)), latest), fetched_at=at + 1.0)


class CountingProxy:
    """
    Pass every request on, and count them.

    Args:
        target: The address to ask.
        session: What to ask with.
        remembers: Whether the same question at another time gets the first answer again, so that the source costs nothing.

    Attributes:
        requests: How many there were, without those that wait.
        waiting: How many wait for the end of :meth:`holding`.
        changed_at: When the last one was let through, monotonic seconds.
    """

    def __init__(self, target: str, session: ClientSession, *, remembers: bool) -> None:
        self._target = target
        self._session = session
        self._remembers = remembers
        self._held: dict[tuple[str, bytes], tuple[int, bytes, dict[str, str]]] = {}
        self._open = asyncio.Event()
        self._open.set()
        self.requests = 0
        self.waiting = 0
        self.changed_at = 0.0

    @property
    def questions(self) -> int:
        """Answer how many different questions are remembered."""
        return len(self._held)

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Let requests wait for the time of the context, so that no refresh goes on meanwhile."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Let them through again for the time of the context, within :meth:`holding`."""
        self._open.set()
        try:
            yield
        finally:
            self._open.clear()

    async def answer(self, request: web.Request) -> web.Response:
        """Answer one request with what the source answers."""
        body = await request.read()
        self.waiting += 1
        try:
            await self._open.wait()
        finally:
            self.waiting -= 1
        self.requests += 1
        self.changed_at = time.monotonic()
        key = (f"{request.method} {request.path_qs}", _TIME.sub(b"", body))
        held = self._held.get(key)
        if held is None:
            asked = {name: value for name, value in request.headers.items() if name in _PASSED}
            async with self._session.request(request.method, f"{self._target}{request.path_qs}", data=body, headers=asked) as reply:
                headers = {name: value for name, value in reply.headers.items() if name in _PASSED}
                held = (reply.status, await reply.read(), headers)
            if self._remembers:
                self._held[key] = held
        status, content, headers = held
        return web.Response(status=status, body=content, headers=headers)


@asynccontextmanager
async def counting(target: str, *, remembers: bool = False) -> AsyncIterator[tuple[CountingProxy, str]]:
    """Run a proxy in front of the address *target*; gives also its own."""
    async with ClientSession(auto_decompress=False, timeout=ClientTimeout(total=_PROXY_SECONDS)) as session:
        proxy = CountingProxy(target, session, remembers=remembers)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", proxy.answer)
        runner = web.AppRunner(app, access_log=None, auto_decompress=False)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield proxy, f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()
