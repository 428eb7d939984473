"""What is answered to ``GET /watcher`` and ``GET /watcher/health``: the published snapshot and the provider's health, never a fetch."""

from __future__ import annotations

import posixpath
import re
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from load_watcher.history.errors import HistoryError
from load_watcher.publication import Publication
from load_watcher.server.errors import from_history, no_snapshot, provider_unhealthy, unknown_node, withheld_node
from load_watcher.server.negotiation import is_held, list_accepted, prefers_gzip
from load_watcher.server.parameters import parse_statistics, parse_window
from load_watcher.snapshot import Choice, Encoded, Reply, Snapshot
from load_watcher.telemetry import RequestLabels, label_request
from load_watcher.watcher import Watcher
from trimaran_client.direct import Answer, Head, Respond

# Each is short, but for the two that all share.
_MOST_ANSWERS: Final = 1024
WATCHER_PATH: Final = "/watcher"
_PLAIN_HOST: Final = re.compile(rf"{WATCHER_PATH}\?host=([A-Za-z0-9._-]+)")

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


async def get_watcher(request: web.Request) -> web.Response:
    """
    Answer the metrics of all nodes, or with ``?host=NODE`` of one.

    As in the Go load-watcher the first ``host`` counts, and an empty one means all. ``?window=30m`` and ``?statistic=P90,MAX`` (ours) ask
    for another window or other statistics than the usual.
    """
    watcher = request.app[WATCHER]
    publication = find_publication(watcher)
    snapshot = publication.snapshot
    if not request.rel_url.raw_query_string:
        return answer_reply(request, *choose_encoding(list_accepted(request), snapshot))
    if "window" in request.query or "statistic" in request.query:
        window = parse_window(request)
        choice = Choice.of(() if window is None else (window,), parse_statistics(request, "statistic"))
        try:
            snapshot = await watcher.renderer.render_window(publication, choice)
        except HistoryError as error:
            raise from_history(error) from error
    node = request.query.get("host", "")
    if not node:
        return answer_reply(request, *choose_encoding(list_accepted(request), snapshot))
    reply = snapshot.cut_host(node)
    if reply is None:
        raise withheld_node(node, snapshot.withheld[node]) if node in snapshot.withheld else unknown_node(node)
    return answer_reply(request, reply, "")


def make_respond(watcher: Watcher) -> Respond:
    """
    Make what answers usual requests for the published snapshot; whoever asks for more, or in another way, is left to the handlers.

    Clients are few kinds of programs that send the same again and again: what they were answered stays until the next publication.
    """
    answers: dict[Head, tuple[Answer, RequestLabels]] = {}
    answered: Publication | None = None

    def respond(head: Head, body: bytes) -> Answer | None:  # noqa: ARG001 - those of GET have none
        nonlocal answered
        publication = watcher.publisher.newest
        if publication is not answered or len(answers) >= _MOST_ANSWERS:
            answers.clear()
            answered = publication
        known = answers.get(head)
        if known is None:
            answer = None if publication is None else _find_answer(head, publication.snapshot)
            if answer is None:
                return None
            known = answers[head] = (answer, label_request(WATCHER_PATH, "GET", answer.status))
        answer, labels = known
        watcher.telemetry.count_request(labels)
        return answer

    return respond


def _find_answer(head: Head, snapshot: Snapshot) -> Answer | None:
    if head.method != "GET":
        return None
    if head.target == WATCHER_PATH:
        reply, encoding = choose_encoding(head.headers.get("accept-encoding", ""), snapshot)
    else:
        host = _PLAIN_HOST.fullmatch(head.target)
        cut = None if host is None else snapshot.cut_host(host[1])
        if cut is None:
            return None
        reply, encoding = cut, ""
    return make_answer(reply, encoding, if_none_match=head.headers.get("if-none-match", ""))


def choose_encoding(accepted: str, encoded: Encoded) -> tuple[Reply, str]:
    """Choose the form of a reply for a client that accepts these encodings, and answer how it is encoded; empty for the identity."""
    return (encoded.compressed, "gzip") if prefers_gzip(accepted) else (encoded.identity, "")


def make_answer(reply: Reply, encoding: str, *, if_none_match: str) -> Answer:
    """Answer a reply, or 304 without a body if the client has it already."""
    headers = {"Vary": "Accept-Encoding", "ETag": reply.etag}
    if is_held(if_none_match, reply.etag):
        return Answer(304, headers, b"")
    headers["Content-Type"] = "application/json"
    if encoding:
        headers["Content-Encoding"] = encoding
    return Answer(200, headers, reply.body)


def answer_reply(request: web.Request, reply: Reply, encoding: str) -> web.Response:
    """Answer a reply over aiohttp."""
    answer = make_answer(reply, encoding, if_none_match=request.headers.get("If-None-Match", ""))
    return web.Response(status=answer.status, headers=answer.headers, body=answer.body)


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
    request.app[WATCHER].telemetry.count_request(label_request(route, request.method, response.status))
    return response
