"""
``/api/v1``: what ``GET /watcher`` has no place for: every node with its state, the past of one, how the service does.

Long answers are bounded and paged: ``limit`` says how many, ``continue`` of an answer where to go on.
"""

from __future__ import annotations

from typing import Final

import msgspec
from aiohttp import web

from load_watcher.history.errors import HistoryError
from load_watcher.samples import Window
from load_watcher.server.errors import bad_parameter, from_history, no_history, unknown_node
from load_watcher.server.handlers import WATCHER
from load_watcher.server.parameters import parse_count, parse_instant, parse_window
from load_watcher.server.views import describe, describe_quality, list_nodes
from trimaran_client.wire import CPU, encode_json

_DEFAULT_NODES: Final = 500
_MAX_NODES: Final = 5000
_DEFAULT_REJECTED: Final = 50
_MAX_REJECTED: Final = 200
_DEFAULT_POINTS: Final = 1000
_MAX_POINTS: Final = 10_000
_DEFAULT_WINDOW: Final = Window(3600)
_DEFAULT_STEP: Final = Window(60)


class Point(msgspec.Struct, frozen=True, array_like=True):
    """The average of one step that ends at ``at``, Unix seconds."""

    at: int
    value: float


class NodeHistory(msgspec.Struct, frozen=True, rename={"next_page": "continue"}):
    """Answer of ``GET /api/v1/nodes/{node}/history``; ``continue`` is where the next page starts, Unix seconds."""

    node: str
    metric: str
    step: str
    start: int
    end: int
    points: list[Point]
    next_page: float | None = None


async def get_nodes(request: web.Request) -> web.Response:
    """Answer every node by name, with its state: also those that ``GET /watcher`` leaves out."""
    limit = parse_count(request, "limit", default=_DEFAULT_NODES, most=_MAX_NODES)
    after = request.query.get("continue", "")
    return _json(list_nodes(request.app[WATCHER], after=after, limit=limit))


async def get_node_history(request: web.Request) -> web.Response:
    """Answer the past of one metric of one node, as averages of equal steps; a step without a sample is left out."""
    watcher = request.app[WATCHER]
    node, metric = request.match_info["node"], request.query.get("metric") or CPU
    window = parse_window(request) or _DEFAULT_WINDOW
    step = parse_window(request, "step") or _DEFAULT_STEP
    limit = parse_count(request, "limit", default=_DEFAULT_POINTS, most=_MAX_POINTS)
    end_at = watcher.now()
    start_at = end_at - window.duration_seconds
    resume_at = parse_instant(request, "continue")
    if step > window:
        raise bad_parameter("step", str(step), f"write at most the window, {window}")
    if watcher.memory is None:
        raise no_history()
    if metric not in watcher.memory.ring.metric_types:
        known = ", ".join(watcher.memory.ring.metric_types) or "none yet"
        raise bad_parameter("metric", metric, f"choose from {known}")
    if watcher.good is None or node not in watcher.good.nodes:
        raise unknown_node(node)
    try:
        page = await watcher.memory.read(
            node,
            metric,
            start_at=max(start_at, resume_at or 0.0),
            end_at=end_at,
            step_seconds=step.duration_seconds,
            limit=limit,
        )
    except HistoryError as error:
        raise from_history(error) from error
    points = [Point(int(at), round(value, 9)) for at, value in zip(page.at.tolist(), page.values.tolist(), strict=True)]
    return _json(NodeHistory(node, metric, str(step), int(start_at), int(end_at), points, page.next_start_at))


async def get_status(request: web.Request) -> web.Response:
    """Answer how the service does: source, refreshes, snapshot, history, quality."""
    return _json(describe(request.app[WATCHER]))


async def get_quality(request: web.Request) -> web.Response:
    """Answer which samples did not count, by which rule and with their value, and which nodes are not trusted."""
    limit = parse_count(request, "limit", default=_DEFAULT_REJECTED, most=_MAX_REJECTED)
    return _json(describe_quality(request.app[WATCHER], limit=limit))


def _json(value: object) -> web.Response:
    return web.Response(body=encode_json(value), content_type="application/json")
