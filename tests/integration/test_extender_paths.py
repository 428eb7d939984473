"""What the extender answers from the bytes of a request is what it answers through aiohttp: status, headers and body."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import pytest
from aiohttp import web

from tests.builders import NOW
from tests.fakes.extender import always, make_load, make_manifest, make_node_manifest, make_question
from tests.fakes.peer import Peer
from tests.fakes.watcher import eventually
from trimaran_client.direct import Answer, Head, Respond, serving
from trimaran_client.extender import app as extender_app
from trimaran_client.extender import handlers
from trimaran_client.extender.app import create_app, running_extender
from trimaran_client.extender.config import parse_config
from trimaran_client.extender.handlers import VERBS

NAMES = [f"n{number}" for number in range(40)]
LOAD = make_load({name: 2.0 * number for number, name in enumerate(NAMES)})
GOOD = make_question(make_manifest(), NAMES)
# Short, so that a longer body takes no time.
MOST_BODY_BYTES = 16 * 1024


@pytest.fixture
async def load() -> AsyncIterator[Peer]:
    peer = Peer()
    await peer.serve(always(LOAD))
    yield peer
    await peer.stop()


class Told(NamedTuple):
    """An answer as it came, without what tells the time."""

    status_line: str
    headers: list[tuple[str, str]]
    body: bytes


def request(method: str, path: str, body: bytes | None = None, *extra: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: a", *extra]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


def chunked(path: str, body: bytes, *, tells_length: bool = False) -> bytes:
    """Write a body in parts; with a length besides, as who smuggles requests past a proxy does."""
    parts = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:100], body[100:]))
    sent = parts + b"0\r\n\r\n"
    length = [f"Content-Length: {len(sent)}"] if tells_length else []
    return request("POST", path, None, "Content-Type: application/json", "Transfer-Encoding: chunked", *length) + sent


async def ask(address: tuple[str, int], sent: bytes) -> Told:
    """Send bytes over a connection of their own, and read one answer."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        async with asyncio.timeout(10):
            writer.write(sent)
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in head[1:-2])]
            length = int(dict(headers).get("Content-Length", "0"))
            return Told(head[0], sorted(each for each in headers if each[0] != "Date"), await reader.readexactly(length))
    finally:
        writer.close()


async def tell(load: Peer, sent: bytes, choose: Callable[[web.Application], Respond]) -> Told:
    """Ask an extender that has decided nothing before, and knows the load."""
    config = parse_config({"watcher": load.address, "cluster": False, "filter": {"enabled": True}})
    async with running_extender(config, clock=lambda: NOW) as extender:
        await eventually(lambda: extender.decider._load.snapshot.nodes)
        app = create_app(extender)
        async with serving(app, "127.0.0.1", 0, respond=choose(app), shutdown_seconds=1, most_body_bytes=MOST_BODY_BYTES) as address:
            return await ask(address, sent)


REQUESTS = [
    pytest.param(request("POST", "/prioritize", GOOD), 200, True, id="names"),
    pytest.param(
        request("POST", "/prioritize", make_question(make_manifest(), nodes=map(make_node_manifest, NAMES))), 200, True, id="whole-nodes"
    ),
    pytest.param(request("POST", "/prioritize", make_question(make_manifest(scheduler="other"), NAMES)), 200, True, id="other-scheduler"),
    pytest.param(request("POST", "/prioritize", b""), 400, True, id="empty"),
    pytest.param(request("POST", "/prioritize"), 400, True, id="no-body"),
    pytest.param(request("POST", "/prioritize", b'{"Pod": '), 400, True, id="bad-json"),
    pytest.param(request("POST", "/prioritize", GOOD + b" " * MOST_BODY_BYTES), 413, False, id="too-large"),
    pytest.param(request("GET", "/prioritize"), 405, False, id="get"),
    pytest.param(request("POST", "/filter", GOOD), 200, True, id="filter"),
    pytest.param(request("POST", "/filter", b"[]"), 400, True, id="filter-bad"),
    pytest.param(request("POST", "/else", GOOD), 404, False, id="else"),
    pytest.param(request("GET", "/livez"), 200, False, id="livez"),
    pytest.param(request("GET", "/else"), 404, False, id="get-else"),
    pytest.param(chunked("/prioritize", GOOD), 200, False, id="chunked"),
    pytest.param(chunked("/prioritize", GOOD, tells_length=True), 400, False, id="chunked-with-length"),
    pytest.param(request("POST", "/prioritize", GOOD, "Connection: close"), 200, False, id="close"),
]


@pytest.mark.parametrize(("sent", "status", "is_direct"), REQUESTS)
async def test_both_paths_answer_the_same(
    load: Peer, sent: bytes, status: int, monkeypatch: pytest.MonkeyPatch, *, is_direct: bool
) -> None:
    """And what is meant to be answered at once is: else two answers of aiohttp would be compared."""
    for module in (extender_app, handlers):
        monkeypatch.setattr(module, "MAX_BODY_BYTES", MOST_BODY_BYTES)
    direct: list[int] = []

    def watched(app: web.Application) -> Respond:
        def respond(head: Head, body: bytes) -> Answer | None:
            answer = app[VERBS].respond(head, body)
            direct.extend([] if answer is None else [answer.status])
            return answer

        return respond

    with_direct = await tell(load, sent, watched)
    without = await tell(load, sent, lambda _: lambda *_: None)
    assert with_direct == without
    assert with_direct.status_line.split()[1] == str(status)
    assert direct == ([status] if is_direct else [])
