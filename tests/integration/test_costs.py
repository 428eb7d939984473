"""
What answers and refreshes cost, as counts that do not depend on the machine: a guard beside the benchmarks, which measure time.

How often Prometheus is asked for a refresh is counted in ``test_prometheus_provider.py``.
"""

import gc
import gzip
import math
import sys
import tracemalloc
from collections import Counter
from collections.abc import Mapping
from types import FrameType
from typing import Any
from unittest import mock

import pytest
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.test_utils import make_mocked_request

from load_watcher.server.app import create_app
from load_watcher.server.handlers import get_watcher
from load_watcher.watcher import Watcher
from tests.builders import make_batch
from tests.fakes.watcher import FakeClock, ScriptedProvider
from trimaran_client.wire import append_json

NODES = 2000
NAMES = [f"node-{number:04}" for number in range(NODES)]
# Digits that do not compress to nothing.
PERCENTS = {name: 100 * math.sin(number) ** 2 for number, name in enumerate(NAMES)}
BATCH = make_batch(PERCENTS, memory_percent={name: 100 - percent for name, percent in PERCENTS.items()})
GZIP = {"Accept-Encoding": "gzip"}
HELD = {"If-None-Match": "the tag of the reply"}
REQUESTS = 300
# The head of an answer and the objects around it take 3 KB; the body, which must not be copied, takes half a megabyte.
ALLOCATED_BYTES = 16_384
# Of what stays after an answer: nothing, but for what caches and the interpreter hold once.
KEPT_BLOCKS_PER_REQUEST = 0.2


class Sink(AbstractStreamWriter):
    """Takes what is handed to the transport, and keeps only its size."""

    def __init__(self) -> None:
        self.size = 0

    async def write(self, chunk: Any) -> None:
        self.size += len(chunk)

    async def write_eof(self, chunk: bytes = b"") -> None:
        self.size += len(chunk)

    async def drain(self) -> None:
        """Wait for nothing."""

    def enable_compression(self, encoding: str = "deflate", strategy: int | None = None) -> None:
        raise NotImplementedError

    def enable_chunking(self) -> None:
        raise NotImplementedError

    async def write_headers(self, status_line: str, headers: Any) -> None:
        raise NotImplementedError


@pytest.fixture
async def watcher() -> Watcher:
    watcher = Watcher(ScriptedProvider(BATCH), clock=FakeClock())
    await watcher.tick()
    return watcher


class Asker:
    """Asks the handler, as far as what is handed to the transport."""

    def __init__(self, watcher: Watcher, path: str, headers: Mapping[str, str]) -> None:
        self._app = create_app(watcher)
        self._path = path
        snapshot = watcher.snapshot
        assert snapshot is not None
        self._headers = {"If-None-Match": snapshot.identity.etag} if headers is HELD else headers

    def request(self) -> tuple[web.Request, Sink]:
        sink = Sink()
        return make_mocked_request("GET", self._path, headers=self._headers, app=self._app, writer=sink), sink

    async def answer(self, request: web.Request) -> int:
        response = await get_watcher(request)
        await response.prepare(request)
        await response.write_eof()
        return response.status

    async def ask(self) -> int:
        request, _ = self.request()
        return await self.answer(request)


ROWS = [
    pytest.param("/watcher", {}, 50, id="identity"),
    pytest.param("/watcher", GZIP, 50, id="gzip"),
    pytest.param("/watcher", HELD, 45, id="not-modified"),
    pytest.param("/watcher?host=node-0007", {}, 55, id="host"),
]


@pytest.mark.parametrize(("path", "headers", "most"), ROWS)
async def test_calls_of_a_request(watcher: Watcher, path: str, headers: Mapping[str, str], most: int) -> None:
    """Functions called, those written in C among them; a fifth above what was counted with aiohttp 3.14: 40, 40, 37, 43."""
    asker = Asker(watcher, path, headers)
    await asker.ask()
    request, _ = asker.request()
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event in {"call", "c_call"}:
            calls[getattr(argument, "__qualname__", "") or frame.f_code.co_qualname] += 1

    sys.setprofile(count)
    try:
        await asker.answer(request)
    finally:
        sys.setprofile(None)
    assert 0 < calls.total() <= most, calls


@pytest.mark.parametrize(("path", "headers"), [("/watcher", {}), ("/watcher", GZIP)])
async def test_no_body_is_copied(watcher: Watcher, path: str, headers: Mapping[str, str]) -> None:
    asker = Asker(watcher, path, headers)
    await asker.ask()
    request, sink = asker.request()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        await asker.answer(request)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < ALLOCATED_BYTES < sink.size


@pytest.mark.parametrize(("path", "headers", "most"), ROWS)
async def test_nothing_stays_after_an_answer(watcher: Watcher, path: str, headers: Mapping[str, str], most: int) -> None:
    asker = Asker(watcher, path, headers)
    for _ in range(REQUESTS):
        await asker.ask()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(REQUESTS):
        await asker.ask()
    gc.collect()
    assert (sys.getallocatedblocks() - before) / REQUESTS < KEPT_BLOCKS_PER_REQUEST


async def test_a_publication_is_encoded_and_compressed_once(watcher: Watcher) -> None:
    """Each node once, for the reply for all and for its own, in both encodings; answers encode nothing."""
    with (
        mock.patch("load_watcher.snapshot.encoding.append_json", wraps=append_json) as encoded,
        mock.patch("gzip.compress", wraps=gzip.compress) as compressed,
    ):
        await watcher.tick()
        assert (encoded.call_count, compressed.call_count) == (2 * NODES, 1)
        for path, headers in (("/watcher", {}), ("/watcher", GZIP), ("/watcher", HELD), ("/watcher?host=node-0007", {})):
            assert await Asker(watcher, path, headers).ask() in {200, 304}
        assert (encoded.call_count, compressed.call_count) == (2 * NODES, 1)
