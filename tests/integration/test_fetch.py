"""The watcher client against a real HTTP server on loopback."""

import asyncio
import gzip
import re
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from trimaran_client import (
    BlockingWatcherClient,
    SnapshotDecodeError,
    WatcherClient,
    WatcherError,
    WatcherNotReadyError,
    WatcherStatusError,
    WatcherUnreachableError,
)
from trimaran_client.fetch import connection

ROOT = Path(__file__).parents[2]
GOOD = b'{"source": "fake", "data": {"NodeMetricsMap": {"n1": {"metrics": [{"type": "CPU", "operator": "AVG", "value": 12.5}]}}}}'

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[[Handler], Awaitable[str]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Serve a handler at /watcher, under a path prefix too, and answer the address."""
    servers: list[TestServer] = []

    async def start(handler: Handler) -> str:
        app = web.Application()
        app.router.add_get("/watcher", handler)
        app.router.add_get("/prefix/watcher", handler)
        server = TestServer(app)
        await server.start_server()
        servers.append(server)
        return str(server.make_url("")).rstrip("/")

    yield start
    for server in servers:
        await server.close()


def answers(*replies: web.Response) -> tuple[Handler, list[int]]:
    """Answer with each reply in turn, the last one for ever; the list counts the requests."""
    count = [0]

    async def handler(request: web.Request) -> web.Response:
        count[0] += 1
        reply = replies[min(count[0], len(replies)) - 1]
        return web.Response(status=reply.status, body=reply.body, headers=reply.headers)

    return handler, count


@pytest.mark.parametrize("suffix", ["", "/", "/prefix", "/prefix///", "/watcher"])
async def test_gets_a_snapshot_from_any_form_of_the_address(serve: Serve, suffix: str) -> None:
    handler, _ = answers(web.Response(body=GOOD))
    async with WatcherClient(await serve(handler) + suffix) as client:
        snapshot = await client.fetch_snapshot()
    assert (snapshot.source, snapshot.column("CPU", ("AVG",)).tolist()) == ("fake", [12.5])


async def test_reads_a_compressed_reply(serve: Serve) -> None:
    handler, _ = answers(web.Response(body=gzip.compress(GOOD), headers={"Content-Encoding": "gzip"}))
    async with WatcherClient(await serve(handler)) as client:
        assert (await client.fetch_snapshot()).nodes == ("n1",)


async def test_what_may_pass_is_tried_again(serve: Serve) -> None:
    handler, count = answers(web.Response(status=503), web.Response(status=500), web.Response(body=GOOD))
    async with WatcherClient(await serve(handler)) as client:
        assert (await client.fetch_snapshot()).nodes == ("n1",)
    assert count == [3]


async def test_report_30_not_ready_is_an_error_of_its_own_after_the_deadline(serve: Serve) -> None:
    handler, count = answers(web.Response(status=503, text='{"error": "not_ready"}'))
    async with WatcherClient(await serve(handler), deadline_seconds=0.5) as client:
        with pytest.raises(WatcherNotReadyError, match="not_ready"):
            await client.fetch_snapshot()
    assert count[0] >= 2


@pytest.mark.parametrize("status", [401, 404, 405])
async def test_report_58_a_bad_status_is_a_typed_error_at_once(serve: Serve, status: int) -> None:
    handler, count = answers(web.Response(status=status, text="no such thing" + "x" * 1000))
    async with WatcherClient(await serve(handler)) as client:
        with pytest.raises(WatcherStatusError, match=f"status {status}: no such thing") as caught:
            await client.fetch_snapshot()
    assert (caught.value.status, len(caught.value.body_start), count) == (status, 200, [1])


@pytest.mark.parametrize("body", [b"<html></html>", b"", b"{}", GOOD[:-9], b'{"data": {}}'])
async def test_report_58_another_service_is_not_a_load_watcher(serve: Serve, body: bytes) -> None:
    handler, count = answers(web.Response(body=body))
    async with WatcherClient(await serve(handler)) as client:
        with pytest.raises(SnapshotDecodeError, match="check the address"):
            await client.fetch_snapshot()
    assert count == [1]


async def test_report_58_a_reply_cut_on_the_way_is_tried_again(serve: Serve) -> None:
    count = [0]

    async def handler(request: web.Request) -> web.StreamResponse:
        count[0] += 1
        if count[0] > 1:
            return web.Response(body=GOOD)
        response = web.StreamResponse(headers={"Content-Length": str(len(GOOD))})
        await response.prepare(request)
        await response.write(GOOD[:20])
        assert request.transport is not None
        request.transport.close()
        return response

    async with WatcherClient(await serve(handler)) as client:
        assert (await client.fetch_snapshot()).nodes == ("n1",)
    assert count == [2]


async def test_a_redirect_is_followed(serve: Serve) -> None:
    async def handler(request: web.Request) -> web.Response:
        if request.path == "/watcher":
            raise web.HTTPMovedPermanently("/prefix/watcher")
        return web.Response(body=GOOD)

    async with WatcherClient(await serve(handler)) as client:
        assert (await client.fetch_snapshot()).nodes == ("n1",)


async def test_a_silent_server_costs_no_more_than_the_deadline(serve: Serve) -> None:
    released = asyncio.Event()

    async def handler(request: web.Request) -> web.Response:
        await released.wait()
        return web.Response(body=GOOD)

    async with WatcherClient(await serve(handler), deadline_seconds=0.3, attempt_seconds=0.1) as client:
        with pytest.raises(WatcherUnreachableError, match="check that the load watcher runs there"):
            await client.fetch_snapshot()
    released.set()


async def test_nobody_there_is_an_error_that_says_where() -> None:
    with socket.socket() as taken:  # bound, never listening: a connection is refused
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        async with WatcherClient(f"http://127.0.0.1:{port}", deadline_seconds=0.3) as client:
            with pytest.raises(WatcherUnreachableError, match=f":{port}/api/v1/snapshot: .*check that the load watcher runs there"):
                await client.fetch_snapshot()


async def test_a_reply_without_end_is_not_read_into_memory(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_REPLY_BYTES", 1000)
    handler, _ = answers(web.Response(body=b" " * 5000))
    async with WatcherClient(await serve(handler)) as client:
        with pytest.raises(SnapshotDecodeError, match="more than 1000 bytes"):
            await client.fetch_snapshot()


@pytest.mark.parametrize("address", ["127.0.0.1:2020", "localhost", "", "ftp://x", "http://", "http://[::1"])
def test_report_53_an_address_that_is_none_is_refused_when_the_client_is_made(address: str) -> None:
    with pytest.raises(WatcherError, match="write for example http://127.0.0.1:2020"):
        WatcherClient(address)


async def test_fetching_before_entering_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match="enter the client first"):
        await WatcherClient("http://127.0.0.1:1").fetch_snapshot()
    with pytest.raises(RuntimeError, match="enter the client first"):
        BlockingWatcherClient("http://127.0.0.1:1").fetch_snapshot()


async def test_the_blocking_client_works_from_threads_and_leaves_none(serve: Serve) -> None:
    handler, count = answers(web.Response(body=GOOD))
    address = await serve(handler)

    def use() -> list[tuple[str, ...]]:
        with BlockingWatcherClient(address) as client:
            return [client.fetch_snapshot().nodes for _ in range(3)]

    assert await asyncio.gather(*(asyncio.to_thread(use) for _ in range(2))) == [[("n1",)] * 3] * 2
    assert count == [6]
    assert "trimaran-watcher-client" not in {thread.name for thread in threading.enumerate()}


async def test_leaving_the_blocking_client_ends_what_another_thread_waits_for(serve: Serve) -> None:
    asked, released = asyncio.Event(), asyncio.Event()

    async def handler(request: web.Request) -> web.Response:
        asked.set()
        await released.wait()
        return web.Response(body=GOOD)

    client = BlockingWatcherClient(await serve(handler), deadline_seconds=60, attempt_seconds=60)
    await asyncio.to_thread(client.__enter__)
    waiting = asyncio.create_task(asyncio.to_thread(client.fetch_snapshot))
    await asked.wait()
    await asyncio.to_thread(client.__exit__, None, None, None)
    async with asyncio.timeout(10):
        with pytest.raises(WatcherUnreachableError):
            await waiting
    released.set()


@pytest.mark.parametrize("deadline", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_deadline_that_is_none_is_refused(deadline: float) -> None:
    with pytest.raises(WatcherError, match="give a number above 0"):
        WatcherClient("http://127.0.0.1:1", deadline_seconds=deadline)


async def test_a_password_in_the_address_is_not_told() -> None:
    async with WatcherClient("http://admin:hunter2@127.0.0.1:1", deadline_seconds=0.2) as client:
        with pytest.raises(WatcherUnreachableError) as caught:
            await client.fetch_snapshot()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        b'{"data":{"NodeMetricsMap":{"a":{"tags":{"x":' + b"[" * 100_000,
        b'{"timestamp": ' + b"9" * 400 + b', "data": {"NodeMetricsMap": {}}}',
    ],
)
async def test_a_hostile_reply_is_an_error_of_ours(serve: Serve, body: bytes) -> None:
    handler, _ = answers(web.Response(body=body))
    async with WatcherClient(await serve(handler)) as client:
        with pytest.raises(SnapshotDecodeError):
            await client.fetch_snapshot()


async def test_the_example_of_the_readme_runs(serve: Serve) -> None:
    handler, _ = answers(web.Response(body=GOOD))
    text = (ROOT / "README.md").read_text()
    [example] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    script = example.replace("http://127.0.0.1:2020", await serve(handler))
    command = [sys.executable, "-W", "error", "-c", script]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    out, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")
    assert b"NodeScore(node='n1'" in out
