"""The application: what is wired together, and the life of the feeds behind it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Final

from aiohttp import web

from trimaran_client import ops
from trimaran_client.assigned import AssignedPods
from trimaran_client.capacities import NodeCapacities
from trimaran_client.cluster import ClusterFeed
from trimaran_client.direct import serving
from trimaran_client.extender.config import ExtenderConfig
from trimaran_client.extender.decider import Decider
from trimaran_client.extender.decisions import DecisionLog
from trimaran_client.extender.events import EventWriter
from trimaran_client.extender.handlers import (
    DECIDER,
    MAX_BODY_BYTES,
    TELLER,
    VERB_PATHS,
    VERBS,
    WARNINGS,
    Verbs,
    Warnings,
    get_decisions,
    get_explain,
    make_teller,
    refuse_quietly,
)
from trimaran_client.extender.health import Health
from trimaran_client.extender.namespaces import Namespaces
from trimaran_client.extender.profiles import Profiles
from trimaran_client.extender.telemetry import Telemetry
from trimaran_client.fetch import SnapshotFeed, WatcherClient
from trimaran_client.kube import KubeClient
from trimaran_client.resources import Pod

# For so long decisions wait to be noted together; who looks for them does not notice.
_PUT_OFF_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class Extender:
    """
    A running extender.

    Args:
        decider: What answers.
        telemetry: Its metrics.
        ready: Says what is missing for good answers.
    """

    decider: Decider
    telemetry: Telemetry
    ready: ops.Probe


@asynccontextmanager
async def running_extender(config: ExtenderConfig, *, clock: Callable[[], float] = time.time) -> AsyncIterator[Extender]:
    """
    Run everything behind the answers: the feeds of load, pods and nodes, and the writer of events.

    Nothing is waited for: until they have something, answers are neutral or fall back.

    Raises:
        KubernetesConfigError: If no access to the cluster is found, and it is to be watched.
        WatcherError: If the load watcher's address is none.
    """
    async with AsyncExitStack() as stack:
        loop = asyncio.get_running_loop()
        log = DecisionLog(config.decisions, put_off=partial(loop.call_later, _PUT_OFF_SECONDS))
        pods = AssignedPods(hold_seconds=config.hold_seconds, assume_seconds=config.assume_seconds)
        pods.is_complete = False
        nodes, feed, namespaces, events = None, None, None, None
        if config.cluster:
            client = await stack.enter_async_context(KubeClient(None if config.kubeconfig is None else Path(config.kubeconfig)))
            nodes = NodeCapacities()
            if config.events:
                events = await stack.enter_async_context(EventWriter(client))
            if config.namespace_overrides:
                namespaces = await stack.enter_async_context(Namespaces(client))

            def note_bound(pod: Pod) -> None:
                decision = log.note_bound(pod)
                if decision is not None and events is not None and not decision.is_shadow:
                    events.submit(decision)

            feed = await stack.enter_async_context(ClusterFeed(client, pods=pods, nodes=nodes, clock=clock, on_bound=note_bound))
        profiles = Profiles(config.profiles, namespace_entries=namespaces.entries if namespaces is not None else _no_entries)
        windows, statistics = profiles.needs()
        watcher = await stack.enter_async_context(WatcherClient(config.watcher, windows=windows, statistics=statistics))
        load: SnapshotFeed = await stack.enter_async_context(watcher.follow())
        health = Health(load, cluster=feed, namespaces=namespaces, clock=clock)
        decider = Decider(
            config,
            load=load,
            pods=pods,
            nodes=nodes,
            profiles=profiles,
            sources=health,
            log=log,
            clock=clock,
            defer=loop.call_soon,  # the answer is written in this turn of the loop
        )
        telemetry = Telemetry(
            decider.counters,
            load=load,
            pods=pods,
            watch_silent_seconds=lambda: 0.0 if feed is None else feed.silent_seconds,
            event_outcomes=events.outcomes if events is not None else {},
            clock=clock,
            is_degraded=lambda: bool(health.problem()),
            version=version("trimaran"),
        )

        yield Extender(decider, telemetry, health.obstacle)


def create_app(extender: Extender) -> web.Application:
    """Make the application that answers from *extender*."""
    app = web.Application(middlewares=[refuse_quietly], client_max_size=MAX_BODY_BYTES)
    warnings = Warnings()
    verbs = Verbs(extender.decider, extender.telemetry, warnings)
    app[DECIDER], app[VERBS], app[WARNINGS], app[TELLER] = extender.decider, verbs, warnings, make_teller()
    for path in VERB_PATHS:
        app.router.add_post(path, verbs.post)
    app.router.add_get("/api/v1/decisions", get_decisions)
    app.router.add_get("/api/v1/explain", get_explain)
    ops.add_probes(app, live=_alive, ready=extender.ready)
    ops.add_metrics(app, extender.telemetry.registry, settle=extender.decider.log.settle)
    return app


def serving_extender(extender: Extender, host: str, port: int, *, shutdown_seconds: float) -> AbstractAsyncContextManager[tuple[str, int]]:
    """Serve *extender*; arguments and errors as of :func:`trimaran_client.direct.serving`."""
    app = create_app(extender)
    return serving(app, host, port, respond=app[VERBS].respond, shutdown_seconds=shutdown_seconds, most_body_bytes=MAX_BODY_BYTES)


def _alive() -> str | None:
    """Answering is the proof."""
    return None


def _no_entries(_: str) -> dict[str, str]:
    return {}
