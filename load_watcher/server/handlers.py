"""What is answered to ``GET /watcher`` and ``GET /watcher/health``: the published snapshot and the provider's health, never a fetch."""

from __future__ import annotations

import posixpath
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from load_watcher.history.errors import HistoryError
from load_watcher.publication import Publication
from load_watcher.server.errors import from_history, no_snapshot, provider_unhealthy, unknown_node, withheld_node
from load_watcher.server.negotiation import is_held, prefers_gzip
from load_watcher.server.parameters import parse_operators, parse_window
from load_watcher.snapshot import Encoded, Reply
from load_watcher.watcher import Watcher
from trimaran_client.ready import ReadyResponse, is_usual

WATCHER: Final = web.AppKey("watcher", Watcher)


def find_publication(watcher: Watcher) -> Publication:
    """
    Answer what is served now.

    Raises:
        HttpError: 503, if there is nothing yet.
    """
    publication = watcher.publisher.newest
    if publication is None:
        raise no_snapshot(watcher.ready() or "no snapshot yet")
    return publication


async def get_watcher(request: web.Request) -> web.StreamResponse:
    """
    Answer the metrics of all nodes, or with ``?host=NODE`` of one.

    As in the Go load-watcher the first ``host`` counts, and an empty one means all. ``?window=30m`` and ``?statistic=P90,MAX`` (ours) ask
    for another window or other statistics than the usual.
    """
    watcher = request.app[WATCHER]
    publication = find_publication(watcher)
    snapshot = publication.snapshot
    if not request.rel_url.raw_query_string:
        return answer_reply(request, *choose_encoding(request, snapshot))
    if "window" in request.query or "statistic" in request.query:
        try:
            snapshot = await watcher.renderer.render_window(publication, parse_window(request), parse_operators(request))
        except HistoryError as error:
            raise from_history(error) from error
    node = request.query.get("host", "")
    if not node:
        return answer_reply(request, *choose_encoding(request, snapshot))
    reply = snapshot.cut_host(node)
    if reply is None:
        raise withheld_node(node, snapshot.withheld[node]) if node in snapshot.withheld else unknown_node(node)
    return answer_reply(request, reply, "")


def choose_encoding(request: web.Request, encoded: Encoded) -> tuple[Reply, str]:
    """Choose the form of a reply that the client wants, and how it is encoded; empty for the identity."""
    if prefers_gzip(",".join(request.headers.getall("Accept-Encoding", ()))):
        return encoded.compressed, "gzip"
    return encoded.identity, ""


def answer_reply(request: web.Request, reply: Reply, encoding: str) -> web.StreamResponse:
    """Answer a reply, or 304 without a body if the client has it already."""
    headers = {"Vary": "Accept-Encoding", "ETag": reply.etag}
    status, body = (304, b"") if is_held(request, reply.etag) else (200, reply.body)
    if status == 200:
        headers["Content-Type"] = "application/json"
        if encoding:
            headers["Content-Encoding"] = encoding
    if is_usual(request):
        return ReadyResponse(status, headers, body)
    return web.Response(status=status, headers=headers, body=body)


async def get_health(request: web.Request) -> web.Response:
    """Answer whether the provider could answer now, as in the Go load-watcher; probes of this process are elsewhere."""
    problem = await request.app[WATCHER].check_health()
    if problem is not None:
        raise provider_unhealthy(problem)
    return web.Response(body=b'{"status":"ok"}', content_type="application/json")


@web.middleware
async def clean_path(request: web.Request, handler: Handler) -> web.StreamResponse:
    """
    Redirect ``//watcher`` to ``/watcher``, as the Go load-watcher does.

    Its client puts the path after whatever address it was given, and that may end in a slash.
    """
    path = request.rel_url.raw_path
    if "//" not in path and "/." not in path:  # as is nearly every one, and then nothing below would change it
        return await handler(request)
    clean = posixpath.normpath("/" + path.lstrip("/"))
    if path.endswith("/") and clean != "/":
        clean += "/"
    if clean == path or not path.startswith("/") or "\\" in path:
        return await handler(request)
    query = request.rel_url.raw_query_string
    return web.Response(status=301, headers={"Location": f"{clean}?{query}" if query else clean})


@web.middleware
async def count_requests(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Count each answer under the pattern that matched, so that no client can make up labels."""
    response = await handler(request)
    resource = request.match_info.route.resource
    route = "unmatched" if resource is None else resource.canonical
    request.app[WATCHER].telemetry.count_request(route, request.method, response.status)
    return response
