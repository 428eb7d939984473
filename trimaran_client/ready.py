"""
An answer whose bytes exist already, sent as they are.

aiohttp copies head and body into one, and makes the headers of every answer anew; of a reply of megabytes the copy costs more than sending
it, and of a short one the headers cost more than everything else. What is not the usual request is left to aiohttp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.helpers import rfc822_formatted_time
from aiohttp.http import SERVER_SOFTWARE, HttpVersion11

# Below this, one write of a copy costs less than two writes.
_COPIED_BYTES: Final = 32768

_STATUS_LINES: Final = {200: "HTTP/1.1 200 OK", 304: "HTTP/1.1 304 Not Modified"}


def is_usual(request: web.BaseRequest) -> bool:
    """Tell whether a request is one that :class:`ReadyResponse` can answer: GET or POST over a connection of HTTP/1.1 that stays open."""
    return request.method in ("GET", "POST") and request.version == HttpVersion11 and request.keep_alive


class ReadyResponse(web.StreamResponse):
    """
    Answer a usual request with a body as it stands.

    Args:
        status: 200 or 304; the latter has neither body nor length.
        headers: Names and values; they are ours, and are not checked.
        body: What is sent.
    """

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(status=status)
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        length = "" if status == 304 else f"Content-Length: {len(body)}\r\n"
        end = f"Date: {rfc822_formatted_time()}\r\nServer: {SERVER_SOFTWARE}\r\n\r\n"
        self._head = f"{_STATUS_LINES[status]}\r\n{lines}{length}{end}".encode()
        self._content = body
        self._writer: AbstractStreamWriter | None = None

    @property
    def keep_alive(self) -> bool:
        """Answer that the connection stays open."""
        return True

    @property
    def prepared(self) -> bool:
        """Tell whether sending has begun."""
        return self._writer is not None

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter:
        """Take where to write; head and body go together."""
        self._writer = request.writer
        return self._writer

    async def write_eof(self, data: bytes = b"") -> None:  # noqa: ARG002 - as aiohttp's own, which passes nothing
        """Send all, and wait while the client reads more slowly than we write."""
        if self._writer is None:
            raise RuntimeError("prepare() comes first")
        if len(self._content) < _COPIED_BYTES:
            await self._writer.write_eof(self._head + self._content)
        else:
            await self._writer.write(self._head)
            await self._writer.write_eof(self._content)
