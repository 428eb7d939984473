"""A peer of the watcher client on one port: whatever a load watcher, a proxy or a broken machine may do there, one after the other."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.test_utils import TestServer

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Peer:
    """
    A port, and who answers there: nobody, an HTTP handler for every path, or raw bytes.

    ``requests`` has the path and query of each HTTP request.
    """

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self.requests: list[str] = []
        self.connections = 0
        self._server: TestServer | asyncio.Server | None = None
        self._talks: set[asyncio.Task[None]] = set()

    async def serve(self, handler: Handler) -> None:
        """Answer every request by *handler* from now on."""
        await self.stop()

        async def note(request: web.Request) -> web.StreamResponse:
            self.requests.append(request.path_qs)
            return await handler(request)

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", note)
        self._server = TestServer(app, host="127.0.0.1", port=self.port)
        await self._server.start_server(shutdown_timeout=0)

    async def talk(self, talk: Talk) -> None:
        """Let *talk* have every connection from now on."""
        await self.stop()

        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            async def run() -> None:
                try:
                    await talk(reader, writer)
                finally:
                    writer.close()

            self.connections += 1
            self._talks.add(asyncio.create_task(run()))

        self._server = await asyncio.start_server(begin, "127.0.0.1", self.port)

    async def stop(self) -> None:
        """Let nobody answer; connections are cut."""
        server, self._server = self._server, None
        if isinstance(server, TestServer):
            await server.close()
        elif server is not None:
            server.close()
        talks, self._talks = self._talks, set()
        for task in talks:
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)
