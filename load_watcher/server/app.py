"""The application: routes and the life of the watcher behind them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from aiohttp import web

from load_watcher.server.api import get_node_history, get_nodes, get_quality, get_status
from load_watcher.server.handlers import WATCHER, WATCHER_PATH, clean_path, count_requests, get_health, get_watcher
from load_watcher.server.snapshots import get_snapshot, release_waiting
from load_watcher.watcher import Watcher
from trimaran_client import ops


def create_app(watcher: Watcher) -> web.Application:
    """Make the application that serves *watcher*, which it enters at its start and leaves at its end, after the last answer."""
    app = web.Application(middlewares=[count_requests, ops.error_middleware, clean_path])
    app[WATCHER] = watcher
    app.cleanup_ctx.append(_run_watcher)
    app.on_shutdown.append(release_waiting)
    app.router.add_get(WATCHER_PATH, get_watcher)
    app.router.add_get("/watcher/health", get_health)
    app.router.add_get("/api/v1/snapshot", get_snapshot)
    app.router.add_get("/api/v1/nodes", get_nodes)
    app.router.add_get("/api/v1/nodes/{node}/history", get_node_history)
    app.router.add_get("/api/v1/status", get_status)
    app.router.add_get("/api/v1/quality", get_quality)
    ops.add_probes(app, live=watcher.live, ready=watcher.ready)
    ops.add_metrics(app, watcher.telemetry.registry)
    return app


async def _run_watcher(app: web.Application) -> AsyncIterator[None]:
    async with app[WATCHER]:
        yield
