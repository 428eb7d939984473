"""
The least that a Python process can do with a socket: ``python -m tests.benchmarks.bare_server LOOP PORT=FILE …``.

Whatever comes in on a port is answered with the bytes of its file: no parsing, no headers made. What our service reaches is told as a share
of this.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

from trimaran_client.ops import choose_loop


class Answering(asyncio.Protocol):
    """Answer every read with the same bytes; a client that waits for each answer sends one request in each."""

    def __init__(self, reply: bytes) -> None:
        self._reply = reply

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep where to write."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name

    def data_received(self, data: bytes) -> None:
        """Write."""
        self._transport.write(self._reply)


async def serve(replies: dict[int, bytes]) -> None:
    """Serve each reply on its port, for ever."""
    loop = asyncio.get_running_loop()

    def make(reply: bytes) -> Callable[[], Answering]:
        return lambda: Answering(reply)

    for port, reply in replies.items():
        await loop.create_server(make(reply), "127.0.0.1", port)
    await asyncio.Event().wait()


def main() -> None:
    """Run it."""
    kind, *places = sys.argv[1:]
    replies = {int(port): Path(path).read_bytes() for port, _, path in (place.partition("=") for place in places)}
    with asyncio.Runner(loop_factory=choose_loop() if kind == "uvloop" else None) as runner:
        runner.run(serve(replies))


if __name__ == "__main__":
    main()
