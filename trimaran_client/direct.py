"""
Usual requests answered from their bytes; everything else, and every doubt, is aiohttp's.

A scheduler waits for each answer, and on its way through aiohttp a short one takes five times as long as it takes to make. So a connection
begins here: while it brings whole, plain requests whose answers are ready, they are answered at once. The first that is not so hands the
connection over to aiohttp for good, with all that was received of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, cast

from aiohttp import web
from aiohttp.helpers import rfc822_formatted_time
from aiohttp.http import SERVER_SOFTWARE

from trimaran_client.ops import BACKLOG, KEEP_ALIVE_SECONDS, make_runner

# What is longer is not usual.
_LONGEST_HEAD_BYTES: Final = 4096
# A copy of a short body costs less than a second buffer.
_JOINED_BYTES: Final = 32768
_HEAD: Final = re.compile(rb"(GET|POST) (/[!-~]*) HTTP/1\.1\r\n((?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[ -~\t]*\r\n)+)\r\n")
_LENGTH: Final = re.compile(r"[0-9]{1,18}")
# What changes how a request is read, or what becomes of its connection.
_UNUSUAL: Final = frozenset(
    {
        "connection",
        "content-encoding",
        "expect",
        "proxy-connection",
        "sec-websocket-key1",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_STATUS_LINES: Final = {
    200: "HTTP/1.1 200 OK\r\n",
    304: "HTTP/1.1 304 Not Modified\r\n",
    400: "HTTP/1.1 400 Bad Request\r\n",
}


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """
    The head of a usual request; the same object for the same bytes, while it is remembered.

    Args:
        method: ``GET`` or ``POST``.
        target: Path and query, as they were sent.
        headers: Name in small letters → value; each stands once.
        body_bytes: How long the body is.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body_bytes: int


@dataclass(slots=True, eq=False)
class Answer:
    """A ready answer: 200, 304 (without a body) or 400; the headers are ours, and are not checked."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    _start: bytes = field(default=b"", init=False, repr=False)

    def start(self) -> bytes:
        """Write what it starts with, all but what tells the time; made once, as an answer can be given many times."""
        if not self._start:
            lines = "".join([f"{name}: {value}\r\n" for name, value in self.headers.items()])
            length = "" if self.status == 304 else f"Content-Length: {len(self.body)}\r\n"
            self._start = f"{_STATUS_LINES[self.status]}{lines}{length}".encode()
        return self._start


Respond = Callable[[Head, bytes], Answer | None]
"""From a request and its body to the answer, at once; ``None`` leaves it to aiohttp. It must not raise."""


@lru_cache(maxsize=512)  # a client sends the same again and again, but for the length of its bodies
def read_head(head: bytes) -> Head | None:
    r"""
    Read the head of a request, its empty line included; ``None`` for one that is not usual.

    >>> read_head(b"GET /watcher?host=a HTTP/1.1\r\nHost: b\r\n\r\n").target
    '/watcher?host=a'
    """
    found = _HEAD.fullmatch(head)
    if found is None:
        return None
    headers: dict[str, str] = {}
    for line in found[3].decode().split("\r\n")[:-1]:
        name, _, value = line.partition(":")
        name, value = name.lower(), value.strip(" \t")
        if name in headers or (name in _UNUSUAL and (name, value.lower()) != ("connection", "keep-alive")):
            return None
        headers[name] = value
    length = headers.get("content-length", "0")
    if "host" not in headers or not _LENGTH.fullmatch(length):
        return None
    return Head(found[1].decode(), found[2].decode(), headers, int(length))


class DirectConnection(asyncio.Protocol):
    """One connection, until aiohttp takes it over."""

    def __init__(self, front: DirectServer) -> None:
        self._front = front
        self._transport: asyncio.Transport
        # Of a request whose body is not whole yet.
        self._head: Head | None = None
        self._body_at = 0
        self._received = bytearray()
        # Whether nothing came since the timer began: an idle connection ends after one to two of its turns.
        self._is_idle = True
        self._idle_timer = front.loop.call_later(KEEP_ALIVE_SECONDS, self._close_idle)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._front.connections.add(self)
        if self._front.is_closing:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's
        """Forget it."""
        self._leave()

    def pause_writing(self) -> None:
        """Take no more requests of a client that does not read its answers."""
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on."""
        self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Answer, once a request is whole; a head that does not come whole, and anything behind a body, are not usual."""
        self._is_idle = False
        head = self._head
        if head is None:
            end = data.find(b"\r\n\r\n") + 4
            head = read_head(data[:end]) if 4 <= end <= _LONGEST_HEAD_BYTES else None
            if head is None or head.body_bytes > self._front.most_body_bytes:
                self._hand_over(data)
                return
            body = data[end:]
            if len(body) < head.body_bytes:
                self._head, self._body_at, self._received = head, end, bytearray(data)
                return
        else:
            self._received += data
            if len(self._received) < self._body_at + head.body_bytes:
                return
            body = bytes(memoryview(self._received)[self._body_at :])
        answer = self._front.respond(head, body) if len(body) == head.body_bytes else None
        if answer is None:
            self._hand_over(data if self._head is None else bytes(self._received))
            return
        if self._head is not None:
            self._head, self._received = None, bytearray()  # of whole nodes it is megabytes
        body, start = answer.body, answer.start() + self._front.write_date()
        if len(body) < _JOINED_BYTES:
            self._transport.write(start + body)
        else:
            self._transport.writelines([start, body])
        if self._front.is_closing:
            self._transport.close()

    def _hand_over(self, received: bytes) -> None:
        self._leave()
        handler = cast("asyncio.Protocol", self._front.make_handler())
        self._transport.set_protocol(handler)
        handler.connection_made(self._transport)
        handler.data_received(received)

    def _close_idle(self) -> None:
        if self._is_idle:
            self._transport.close()
            return
        self._is_idle = True
        self._idle_timer = self._front.loop.call_later(KEEP_ALIVE_SECONDS, self._close_idle)

    def _leave(self) -> None:
        self._idle_timer.cancel()
        self._front.forget(self)

    def close(self) -> None:
        """End it once what was written is out; a request that is under way is answered before."""
        if self._head is None:
            self._transport.close()

    def abort(self) -> None:
        """End it now."""
        self._transport.abort()


class DirectServer:
    """
    What all connections of a server share.

    Args:
        make_handler: Makes the protocol that takes a connection over.
        respond: What answers usual requests.
        most_body_bytes: Requests with a longer body are handed over.
    """

    def __init__(self, make_handler: Callable[[], asyncio.BaseProtocol], respond: Respond, *, most_body_bytes: int = 0) -> None:
        self.loop = asyncio.get_running_loop()
        self.make_handler = make_handler
        self.respond = respond
        self.most_body_bytes = most_body_bytes
        self.connections: set[DirectConnection] = set()
        self.is_closing = False
        self._is_empty = asyncio.Event()
        self._date = ""
        self._date_lines = b""

    def write_date(self) -> bytes:
        """Write the last lines of a head, which tell the time; made once a second."""
        date = rfc822_formatted_time()
        if date is not self._date:
            self._date = date
            self._date_lines = f"Date: {date}\r\nServer: {SERVER_SOFTWARE}\r\n\r\n".encode()
        return self._date_lines

    def connect(self) -> DirectConnection:
        """Make the protocol of a new connection."""
        return DirectConnection(self)

    def forget(self, connection: DirectConnection) -> None:
        """Have one connection less."""
        self.connections.discard(connection)
        if not self.connections:
            self._is_empty.set()

    async def close(self, *, timeout_seconds: float) -> None:
        """End all connections that aiohttp does not have; what is under way is answered and goes out, if that does not take too long."""
        self.is_closing = True
        for each in tuple(self.connections):
            each.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                while self.connections:
                    self._is_empty.clear()
                    await self._is_empty.wait()
        for each in tuple(self.connections):
            each.abort()


@asynccontextmanager
async def serving(
    app: web.Application,
    host: str,
    port: int,
    *,
    respond: Respond,
    shutdown_seconds: float,
    most_body_bytes: int = 0,
    handler_cancellation: bool = False,
) -> AsyncIterator[tuple[str, int]]:
    """
    Serve *app*, with what *respond* answers in front of it.

    Args:
        app: The application.
        host: The address to listen on; empty for all.
        port: Its port; 0 for a free one.
        respond: What answers usual requests at once.
        shutdown_seconds: How long answers that are under way may take at the end.
        most_body_bytes: Requests with a longer body are aiohttp's.
        handler_cancellation: Whether a handler of *app* ends with its connection.

    Yields:
        Address and port, the first of them where there are several.

    Raises:
        OSError: If the address cannot be listened on.
    """
    runner = make_runner(app, shutdown_seconds=shutdown_seconds, handler_cancellation=handler_cancellation)
    try:
        await runner.setup()
        front = DirectServer(cast("web.Server", runner.server), respond, most_body_bytes=most_body_bytes)
        listener = await front.loop.create_server(front.connect, host or None, port, backlog=BACKLOG)
        try:
            yield listener.sockets[0].getsockname()[:2]
        finally:
            listener.close()
            await front.close(timeout_seconds=shutdown_seconds)
    finally:
        await runner.cleanup()
