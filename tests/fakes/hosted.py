"""What the stand-ins of hosted sources have in common: TLS with an own CA, a record of what came in, and faults that a test scripts."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import trustme
from aiohttp import web

# What one request gets in place of the answer.
Fault = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class ReceivedRequest:
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: str


class HostedServer:
    """
    Serve on a free port of 127.0.0.1 within ``async with``.

    Args:
        tls: Whether to serve https, with a certificate of an own CA.
        certificate_names: Whom that certificate is for.

    Attributes:
        faults: What the next requests get, first come first served; later ones are answered.
        requests: What came in, oldest first; nothing arrives here before TLS is agreed on.
        open_requests: How many are being answered.
    """

    def __init__(self, *, tls: bool = True, certificate_names: tuple[str, ...] = ("127.0.0.1", "localhost")) -> None:
        self.faults: deque[Fault] = deque()
        self.requests: list[ReceivedRequest] = []
        self.open_requests = 0
        self.address = ""
        self._authority = trustme.CA() if tls else None
        self._certificate_names = certificate_names
        self._change = asyncio.Event()  # set, and replaced, at each change
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._receive)
        # A request that hangs must not hold up the end of a test.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        context = None
        if self._authority is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._authority.issue_cert(*self._certificate_names).configure_cert(context)
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=context).start()
        port = self._runner.addresses[0][1]
        self.address = f"{'https' if context else 'http'}://127.0.0.1:{port}"
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def write_ca_file(self, folder: Path) -> Path:
        """Write the CA that a client needs to trust this server."""
        assert self._authority is not None
        path = folder / f"ca-{self.address.rpartition(':')[2]}.pem"
        self._authority.cert_pem.write_to_path(str(path))
        return path

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until something that requests change comes true; the test sets the deadline."""
        while not condition():
            await self._change.wait()

    async def answer(self, request: web.Request, received: ReceivedRequest) -> web.StreamResponse:
        """Answer as the source documents."""
        raise NotImplementedError

    async def _receive(self, request: web.Request) -> web.StreamResponse:
        received = ReceivedRequest(request.method, request.path, dict(request.query), dict(request.headers), await request.text())
        self.requests.append(received)
        self.open_requests += 1
        self._wake()
        try:
            return await (self.faults.popleft()(request) if self.faults else self.answer(request, received))
        finally:
            self.open_requests -= 1
            self._wake()

    def _wake(self) -> None:
        self._change.set()
        self._change = asyncio.Event()


class SilentServer:
    """Accept connections within ``async with`` and say nothing, not even in the TLS handshake."""

    def __init__(self) -> None:
        self.connections = 0
        self.address = ""
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"https://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)


def reply(status: int, body: object = "", *, content_type: str = "application/json", headers: Mapping[str, str] | None = None) -> Fault:
    """Make a fixed answer: a text as it stands, anything else as JSON."""

    async def answer(request: web.Request) -> web.Response:
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(status=status, text=text, content_type=content_type, headers=headers)

    return answer


async def hang(request: web.Request) -> web.StreamResponse:
    """Never answer."""
    await asyncio.Event().wait()
    raise AssertionError


async def drop(request: web.Request) -> web.StreamResponse:
    """Close the connection in place of an answer."""
    assert request.transport is not None
    request.transport.close()
    await asyncio.Event().wait()
    raise AssertionError
