"""
An extender that gives every node the same score, as lean as Python allows: what HTTP and JSON alone cost a scheduler.

``python -m tests.benchmarks.constant_extender PORT``
"""

from __future__ import annotations

import asyncio
import sys

import msgspec
from aiohttp import web

from trimaran_client.direct import Answer, Head, serving
from trimaran_client.ops import choose_loop, settle

_HEADERS = {"Content-Type": "application/json"}


class _Question(msgspec.Struct, frozen=True, rename="pascal"):
    node_names: list[str]


_decoder = msgspec.json.Decoder(_Question)


def respond(head: Head, body: bytes) -> Answer | None:
    """Answer a question; anything else is for aiohttp, which knows nothing."""
    if head.method != "POST":
        return None
    names = _decoder.decode(body).node_names
    return Answer(200, _HEADERS, b'[{"Host":"' + b'","Score":50},{"Host":"'.join([name.encode() for name in names]) + b'","Score":50}]')


async def serve(port: int) -> None:
    """Serve until ended."""
    async with serving(web.Application(), "127.0.0.1", port, respond=respond, shutdown_seconds=0, most_body_bytes=2**24):
        settle()
        await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=choose_loop()) as runner:
        runner.run(serve(int(sys.argv[1])))
