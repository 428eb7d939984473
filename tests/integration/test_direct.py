"""Answers that do not pass through aiohttp are those that it would give, whatever comes, and however it comes."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest import mock

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from trimaran_client import direct
from trimaran_client.direct import Answer, DirectConnection, DirectServer, Head, read_head, serving

HEADERS = {"Content-Type": "application/json", "ETag": '"tag"'}
LARGE = b"x" * 16_000_000
MOST_BODY_BYTES = 1000


class Program:
    """Answers ``/ready`` and ``/echo`` in both ways, and ``/large``; counts the requests that did not need aiohttp, and those that did."""

    def __init__(self, *, is_direct: bool = True) -> None:
        self.counts: Counter[str] = Counter()
        self.port = 0
        self._is_direct = is_direct

    def answer(self, method: str, path: str, body: bytes) -> Answer | None:
        known = {
            ("GET", "/ready"): Answer(200, HEADERS, b'{"a":1}'),
            ("GET", "/held"): Answer(304, {"ETag": '"tag"'}, b""),
            ("GET", "/large"): Answer(200, HEADERS, LARGE),
            ("POST", "/echo"): Answer(200, HEADERS, body),
        }
        return known.get((method, path))

    def respond(self, head: Head, body: bytes) -> Answer | None:
        answer = self.answer(head.method, head.target, body) if self._is_direct else None
        self.counts["direct"] += answer is not None
        return answer

    async def handle(self, request: web.Request) -> web.Response:
        self.counts["aiohttp"] += 1
        answer = self.answer("GET" if request.method == "HEAD" else request.method, request.path, await request.read())
        if answer is None:
            raise web.HTTPNotFound
        return web.Response(status=answer.status, headers=answer.headers, body=answer.body)


@asynccontextmanager
async def running(*, is_direct: bool = True) -> AsyncIterator[Program]:
    program, app = Program(is_direct=is_direct), web.Application()
    app.router.add_route("*", "/{path:.*}", program.handle)
    async with serving(app, "127.0.0.1", 0, respond=program.respond, shutdown_seconds=1, most_body_bytes=MOST_BODY_BYTES) as address:
        program.port = address[1]
        yield program


async def ask(port: int, request: bytes) -> tuple[bytes, dict[str, str], bytes]:
    """Answer status line, headers without those of the connection and of the moment, and body; empty where nothing is answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=100_000)
    try:
        writer.write(request)
        async with asyncio.timeout(10):
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                return b"", {}, b""
            status, *lines = head.rstrip().split(b"\r\n")
            headers = dict(line.decode().split(": ", 1) for line in lines)
            length = 0 if request.startswith(b"HEAD") or b" 304 " in status else int(headers.get("Content-Length", 0))
            body = await reader.readexactly(length)
    finally:
        writer.transport.abort()
    assert re.fullmatch(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", headers.pop("Date"))
    headers.pop("Connection", None)
    return status, headers, body


async def open_answered(port: int, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection that was asked, and whose answer has begun: its head is read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1000)
    writer.write(request)
    await reader.readuntil(b"\r\n\r\n")
    return reader, writer


def get(path: str = "/ready", *lines: str, host: str = "Host: a", version: str = "HTTP/1.1") -> bytes:
    return "\r\n".join([f"GET {path} {version}", *filter(None, [host]), *lines, "", ""]).encode("utf-8")


def post(body: bytes, *lines: str, path: str = "/echo") -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: a", *lines, "", ""]).encode() + body


USUAL = {
    "get": get(),
    "not modified": get("/held"),
    "many headers": get("/ready", "User-Agent: curl/8", "Accept: */*", "accept-encoding:  gzip ", "X-Empty:", "Connection: Keep-Alive"),
    "post": post(b"[1]", "Content-Length: 3"),
    "get with a body": get("/ready", "Content-Length: 3") + b"[1]",
    "no length": post(b""),
    "post of nothing": post(b"", "Content-Length: 0"),
    "post of the longest": post(b"x" * MOST_BODY_BYTES, f"Content-Length: {MOST_BODY_BYTES}"),
}
UNUSUAL = {
    "unknown path": get("/else"),
    "head": b"HEAD /ready HTTP/1.1\r\nHost: a\r\n\r\n",
    "other method": b"PUT /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    "old version": get(version="HTTP/1.0"),
    "no host": get(host=""),
    "closing": get("/ready", "Connection: close"),
    "closing for a proxy": get("/ready", "Proxy-Connection: close"),
    "old web socket": get("/ready", "Sec-WebSocket-Key1: a"),
    "upgrade": get("/ready", "Connection: upgrade", "Upgrade: h2c"),
    "header twice": get("/ready", "Accept: a", "Accept: b"),
    "host twice": get("/ready", "Host: b"),
    "not ascii": get("/ready", "X-Name: lín"),
    "folded": get("/ready", "X-Name: a", " b"),
    "space before colon": get("/ready", "X-Name : a"),
    "long head": get("/ready", *(f"X-{number}: {'x' * 100}" for number in range(60))),
    "too long a header": get("/ready", f"X-Name: {'x' * 100_000}"),
    "bare line feeds": b"GET /ready HTTP/1.1\nHost: a\n\n",
    "empty line before": b"\r\n" + get(),
    "absolute target": get("http://a/ready"),
    "no request": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "control character": get("/ready", "X-Name: a\x00b"),
    "length twice": post(b"[1]", "Content-Length: 3", "Content-Length: 3"),
    "length and chunks": post(b"3\r\n[1]\r\n0\r\n\r\n", "Content-Length: 3", "Transfer-Encoding: chunked"),
    "chunks": post(b"3\r\n[1]\r\n0\r\n\r\n", "Transfer-Encoding: chunked"),
    "bad length": post(b"[1]", "Content-Length: +3"),
    "continue": post(b"[1]", "Content-Length: 3", "Expect: nothing"),
    "encoded": post(b"[1]", "Content-Length: 3", "Content-Encoding: identity"),
    "too long a body": post(b"x" * 2000, "Content-Length: 2000"),
    "trailing": get() + b"\x00",
}


@pytest.mark.parametrize("name", [*USUAL, *UNUSUAL])
async def test_what_comes_gets_what_aiohttp_answers(name: str) -> None:
    request = (USUAL | UNUSUAL)[name]
    async with running() as program, running(is_direct=False) as plain:
        assert await ask(program.port, request) == await ask(plain.port, request)
        assert program.counts["direct"] == (name in USUAL)
        assert plain.counts["direct"] == 0


async def test_a_connection_stays_open_and_goes_on_whoever_answers() -> None:
    async with running() as program:
        reader, writer = await asyncio.open_connection("127.0.0.1", program.port)
        for request in (get(), post(b"[1]", "Content-Length: 3"), get(), get("/else"), get(), post(b"[1]", "Content-Length: 3")):
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(re.search(rb"Content-Length: (\d+)", head)[1]))  # type: ignore[index] # all have one
        writer.close()
        await writer.wait_closed()
    assert program.counts == {"direct": 3, "aiohttp": 3}


async def test_a_client_that_does_not_read_is_waited_for() -> None:
    """The next request is not answered before the answer to the one before it is nearly out, so that none pile up in memory."""
    async with running() as program:
        reader, writer = await open_answered(program.port, get("/large"))
        try:
            writer.write(get("/large"))
            assert await ask(program.port, get()) == await ask(program.port, get())  # by now it could have been read
            assert program.counts["direct"] == 1 + 2
            assert await reader.readexactly(len(LARGE)) == LARGE
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(len(LARGE)) == LARGE
            assert program.counts["direct"] == 2 + 2
        finally:
            writer.transport.abort()


async def test_requests_sent_at_once_are_answered_in_turn() -> None:
    async with running() as program:
        reader, writer = await asyncio.open_connection("127.0.0.1", program.port)
        writer.write(post(b"[1]", "Content-Length: 3") + post(b"[2]", "Content-Length: 3") + get())
        for body in (b"[1]", b"[2]", b'{"a":1}'):
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(len(body)) == body
        writer.transport.abort()


async def test_an_idle_connection_is_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "KEEP_ALIVE_SECONDS", 0.05)
    async with running() as program:
        reader, writer = await open_answered(program.port, get())
        async with asyncio.timeout(10):
            assert await reader.read() == b'{"a":1}'
        writer.close()


async def test_the_end_closes_what_is_open() -> None:
    async with running() as program:
        reader, writer = await open_answered(program.port, get())
    async with asyncio.timeout(10):
        assert await reader.read() == b'{"a":1}'
    writer.close()


@pytest.mark.parametrize("reads", [True, False])
async def test_the_end_waits_until_an_answer_is_out_but_not_for_ever(*, reads: bool) -> None:
    """The server may take a second for its end here; who reads has the whole answer by then."""
    async with running() as program:
        reader, writer = await open_answered(program.port, get("/large"))
        reading = asyncio.create_task(reader.readexactly(len(LARGE))) if reads else None
    if reading is None:
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(len(LARGE))
    else:
        assert await reading == LARGE
    writer.transport.abort()


class Transport(asyncio.Transport):
    """Takes what is written; *handler* is what took the connection over."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.handler: Any = None

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return mock.Mock() if name == "socket" else default

    def set_protocol(self, protocol: Any) -> None:
        self.handler = protocol


class Handler(asyncio.Protocol):
    """Keeps what it is handed."""

    def __init__(self) -> None:
        self.received = b""

    def data_received(self, data: bytes) -> None:
        self.received += data


@given(st.lists(st.sampled_from([*USUAL, "chunks", "closing"]), min_size=1, max_size=4), st.data())
def test_however_it_is_cut(names: list[str], data: st.DataObject) -> None:
    """
    Each request is answered once, in turn, until the first that is not usual; that and all after it are handed over as they came.

    One whose head does not come whole is not usual.
    """
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(_receive_in_pieces(names, data))
    finally:
        loop.close()


async def _receive_in_pieces(names: list[str], data: st.DataObject) -> None:
    program, transport = Program(), Transport()
    connection: Any = DirectConnection(DirectServer(Handler, program.respond, most_body_bytes=MOST_BODY_BYTES))
    connection.connection_made(transport)
    requests = [(USUAL | UNUSUAL)[name] for name in names]
    is_usual = []
    for name, request in zip(names, requests, strict=True):
        cuts = sorted(data.draw(st.sets(st.integers(1, len(request) - 1), max_size=5)))
        is_usual.append(name in USUAL and all(cut >= request.index(b"\r\n\r\n") + 4 for cut in cuts))
        for start, end in zip([0, *cuts], [*cuts, len(request)], strict=True):
            (transport.handler or connection).data_received(request[start:end])
    usual = [*is_usual, False].index(False)
    assert program.counts["direct"] == usual == transport.written.count(b"HTTP/1.1 ")
    assert (b"" if transport.handler is None else transport.handler.received) == b"".join(requests[usual:])
    connection.connection_lost(None)


async def test_a_body_that_was_answered_is_not_kept() -> None:
    """Whole nodes are megabytes, and a scheduler keeps its connections for an hour."""
    connection = DirectConnection(DirectServer(Handler, Program().respond, most_body_bytes=MOST_BODY_BYTES))
    connection.connection_made(Transport())
    request = post(b"x" * 500, "Content-Length: 500")
    connection.data_received(request[:-100])
    assert len(connection._received) == len(request) - 100
    connection.data_received(request[-100:])
    assert len(connection._received) == 0
    connection.connection_lost(None)


async def test_a_connection_that_is_gone_is_forgotten() -> None:
    server = DirectServer(Handler, Program().respond)
    connection = DirectConnection(server)
    connection.connection_made(Transport())
    assert server.connections == {connection}
    connection.connection_lost(None)
    assert server.connections == set()
    assert connection._idle_timer.cancelled()


def test_a_head_with_nothing_but_spaces_is_read_in_no_time() -> None:
    """An expression that tries every way to share them out would take minutes."""
    assert read_head(b"GET / HTTP/1.1\r\n" + b"Host:" + b" " * 4000 + b"\x80\r\n\r\n") is None
    assert read_head(b"GET / HTTP/1.1\r\n" + b"a:\t \r\n" * 600 + b"\x80\r\n\r\n") is None
