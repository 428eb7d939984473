"""
What answers and refreshes cost, as counts that do not depend on the machine: a guard beside the benchmarks, which measure time.

How often Prometheus is asked for a refresh is counted in ``test_prometheus_provider.py``.
"""

import asyncio
import gc
import gzip
import math
import sys
import tracemalloc
from collections.abc import Mapping
from typing import Any
from unittest import mock

import pytest

from load_watcher.server.handlers import make_respond
from load_watcher.watcher import Watcher
from tests.builders import make_batch
from tests.calls import count_calls
from tests.fakes.watcher import FakeClock, ScriptedProvider
from trimaran_client.direct import DirectConnection, DirectServer
from trimaran_client.wire import encode_json

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


class Sink(asyncio.Transport):
    """Takes what is written, and keeps only its size and the status."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0
        self.status = 0

    def write(self, data: Any) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Any) -> None:
        self.size = sum(map(len, list_of_data))
        self.status = int(list_of_data[0][9:12])

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return mock.Mock() if name == "socket" else default


@pytest.fixture
async def watcher() -> Watcher:
    watcher = Watcher(ScriptedProvider(BATCH), clock=FakeClock())
    await watcher.tick()
    return watcher


class Asker:
    """Asks over one connection, as far as what is handed to its transport."""

    def __init__(self, watcher: Watcher, path: str, headers: Mapping[str, str]) -> None:
        snapshot = watcher.snapshot
        assert snapshot is not None
        headers = {"If-None-Match": snapshot.identity.etag} if headers is HELD else headers
        lines = [f"GET {path} HTTP/1.1", "Host: a", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        self._request = "\r\n".join(lines).encode()
        self.sink = Sink()
        self._connection = DirectConnection(DirectServer(mock.Mock(side_effect=AssertionError), make_respond(watcher)))
        self._connection.connection_made(self.sink)

    def ask(self) -> int:
        self._connection.data_received(self._request)
        return self.sink.status


ROWS = [
    pytest.param("/watcher", {}, 36, id="identity"),
    pytest.param("/watcher", GZIP, 36, id="gzip"),
    pytest.param("/watcher", HELD, 38, id="not-modified"),
    pytest.param("/watcher?host=node-0007", {}, 43, id="host"),
]


@pytest.mark.parametrize(("path", "headers", "most"), ROWS)
async def test_calls_of_a_request(watcher: Watcher, path: str, headers: Mapping[str, str], most: int) -> None:
    """Functions called from the bytes of a request to those of its answer, C among them; a fifth above today's 30, 30, 32 and 36."""
    asker = Asker(watcher, path, headers)
    asker.ask()
    calls = count_calls(asker.ask)
    assert 0 < calls.total() <= most, calls


@pytest.mark.parametrize(("path", "headers"), [("/watcher", {}), ("/watcher", GZIP)])
async def test_no_body_is_copied(watcher: Watcher, path: str, headers: Mapping[str, str]) -> None:
    asker = Asker(watcher, path, headers)
    asker.ask()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        asker.ask()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < ALLOCATED_BYTES < asker.sink.size


@pytest.mark.parametrize(("path", "headers", "most"), ROWS)
async def test_nothing_stays_after_an_answer(watcher: Watcher, path: str, headers: Mapping[str, str], most: int) -> None:
    asker = Asker(watcher, path, headers)
    for _ in range(REQUESTS):
        asker.ask()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(REQUESTS):
        asker.ask()
    gc.collect()
    assert (sys.getallocatedblocks() - before) / REQUESTS < KEPT_BLOCKS_PER_REQUEST


async def test_a_publication_is_encoded_and_compressed_once(watcher: Watcher) -> None:
    """
    For the reply for all and for those of its nodes, in both encodings; answers encode nothing.

    Of each node its name and what is no metric; of each of the two metrics, for a thousand nodes at once, what it is and all values; and
    the head.
    """
    encodings = 2 * NODES + 2 * 2 * (NODES // 1000) + 1
    with (
        mock.patch("load_watcher.snapshot.nodes.encode_json", wraps=encode_json) as encoded,
        mock.patch("gzip.compress", wraps=gzip.compress) as compressed,
    ):
        await watcher.tick()
        assert (encoded.call_count, compressed.call_count) == (encodings, 1)
        for path, headers in (("/watcher", {}), ("/watcher", GZIP), ("/watcher", HELD), ("/watcher?host=node-0007", {})):
            assert Asker(watcher, path, headers).ask() in {200, 304}
        assert (encoded.call_count, compressed.call_count) == (encodings, 1)
