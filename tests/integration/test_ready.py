"""Answers that are sent as they stand say the same as those that aiohttp makes, and wait for slow clients."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from load_watcher.server.handlers import answer_reply
from load_watcher.snapshot import Reply

SMALL = Reply(b'{"a":1}', '"tag"')
LARGE = Reply(b"x" * 16_000_000, '"large"')
USUAL = "HTTP/1.1\r\nHost: a"
OTHERS = ("HTTP/1.1\r\nHost: a\r\nConnection: close", "HTTP/1.0", "HTTP/1.0\r\nConnection: keep-alive")


class Server:
    """Answers one reply, and counts the requests that it has begun to answer."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self.requests = 0
        self.port = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        return answer_reply(request, self._reply, "")


@asynccontextmanager
async def serving(reply: Reply) -> AsyncIterator[Server]:
    server, app = Server(reply), web.Application()
    app.router.add_get("/", server.answer)
    async with TestServer(app) as running:
        server.port = running.port or 0
        yield server


async def ask(port: int, request: str) -> tuple[str, dict[str, str], bytes]:
    """Answer the status without the version, the headers without those of the connection and of the moment, and the body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{request}\r\n\r\n".encode())
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    status, *lines = head.rstrip().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    has_body = not request.startswith("HEAD")
    body = await reader.readexactly(int(headers.get("Content-Length", 0)) if has_body else 0)
    writer.close()
    await writer.wait_closed()
    assert re.fullmatch(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", headers.pop("Date"))
    headers.pop("Connection", None)
    return status.partition(" ")[2], headers, body


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("condition", ["", '\r\nIf-None-Match: "tag"', '\r\nIf-None-Match: "else", W/"tag"', "\r\nIf-None-Match: *"])
async def test_the_usual_request_gets_what_aiohttp_would_send(other: str, condition: str) -> None:
    async with serving(SMALL) as server:
        usual = await ask(server.port, f"GET / {USUAL}{condition}")
        assert usual == await ask(server.port, f"GET / {other}{condition}")
    assert usual[0] == ("304 Not Modified" if condition else "200 OK")
    assert usual[2] == (b"" if condition else SMALL.body)


async def test_head_has_the_length_and_no_body() -> None:
    async with serving(SMALL) as server:
        assert await ask(server.port, f"HEAD / {USUAL}") == (*(await ask(server.port, f"GET / {USUAL}"))[:2], b"")


async def test_a_client_that_does_not_read_is_waited_for() -> None:
    """Of requests sent at once the next is not answered before the one before it went out, so that no answers pile up in memory."""
    async with serving(LARGE) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1000)
        try:
            writer.write(f"GET / {USUAL}\r\n\r\n".encode() * 3)
            await reader.readuntil(b"\r\n\r\n")
            assert server.requests == 1
            assert await reader.readexactly(len(LARGE.body)) == LARGE.body
            await reader.readuntil(b"\r\n\r\n")
            assert server.requests == 2
        finally:
            writer.transport.abort()
            await writer.wait_closed()
