"""
``GET /api/v1/snapshot``: the published snapshot in columns, with the windows and statistics that are asked for.

A client that names what it has can wait for what comes next: nothing is asked of anybody meanwhile, and an answer is made once for all who
wait for the same.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from load_watcher.publication import Publication, Publisher
from load_watcher.server.handlers import WATCHER, answer_reply, choose_encoding, find_publication
from load_watcher.server.negotiation import is_held, list_accepted
from load_watcher.server.parameters import parse_seconds, parse_statistics, parse_windows
from load_watcher.snapshot import Choice

# Below the idle time of the usual proxies and load balancers.
MAX_WAIT_SECONDS: Final = 60.0
# Each of them is computed and read for every publication.
MAX_WINDOWS: Final = 8


async def get_snapshot(request: web.Request) -> web.Response:
    """
    Answer the snapshot in columns; ``?windows=5m,15m&statistics=AVG,P90`` for others than those of ``GET /watcher``.

    With ``?wait=SECONDS`` and ``If-None-Match`` the answer is held until it is another, or the time is over.
    """
    choice = Choice.of(parse_windows(request, "windows", most=MAX_WINDOWS), parse_statistics(request, "statistics"))
    deadline = asyncio.get_running_loop().time() + parse_seconds(request, "wait", most=MAX_WAIT_SECONDS)
    watcher = request.app[WATCHER]
    publication = find_publication(watcher)
    while True:
        reply, encoding = choose_encoding(list_accepted(request), await watcher.renderer.encode_columns(publication, choice))
        if not is_held(request.headers.get("If-None-Match", ""), reply.etag):
            break
        newer = await _wait_newer(watcher.publisher, publication, deadline)
        if newer is publication:
            break
        publication = newer
    return answer_reply(request, reply, encoding)


async def _wait_newer(publisher: Publisher, publication: Publication, deadline: float) -> Publication:
    try:
        async with asyncio.timeout_at(deadline):
            return await publisher.wait_newer(publication) or publication
    except TimeoutError:
        return publication


async def release_waiting(app: web.Application) -> None:
    """Answer all who wait, so that a service that is told to stop does not wait for them."""
    app[WATCHER].publisher.close()
