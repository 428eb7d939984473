"""
A Kubernetes API server that a test can script.

It keeps collections of objects under their list paths, serves them in pages, and streams every change to the watches, with history, so
that a watch can begin at an older resource version. On top of that a test sets a fixed reply for a path, or what the next watches do.
"""

from __future__ import annotations

import asyncio
import copy
import json
import ssl
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import trustme
import yaml
from aiohttp import web

NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"
NODE_METRICS = "/apis/metrics.k8s.io/v1beta1/nodes"
METRICS_DISCOVERY = "/apis/metrics.k8s.io/v1beta1"

Manifest = dict[str, Any]
# What a test lets one watch do; the stream closes when it returns.
WatchScript = Callable[["WatchStream"], Awaitable[None]]


@dataclass(frozen=True)
class Reply:
    """A fixed answer: a text or bytes as they stand, anything else as JSON; ``None`` as status hangs for ever."""

    status: int | None = 200
    body: object = ""
    content_type: str = "application/json"


@dataclass(frozen=True)
class ReceivedRequest:
    path: str
    query: Mapping[str, str]
    authorization: str | None
    method: str = "GET"
    body: Manifest | None = None

    @property
    def is_watch(self) -> bool:
        return "watch" in self.query


def status_reply(code: int, message: str = "scripted by the test") -> Reply:
    """Make an answer as the API server writes its errors."""
    return Reply(code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code})


def make_node(name: str, *, cpu: object = "4", memory: object = "16Gi", **more: object) -> Manifest:
    """Make a node whose allocatable is its capacity."""
    resources = {"cpu": cpu, "memory": memory}
    return {"metadata": {"name": name}, "status": {"capacity": resources, "allocatable": dict(resources), **more}}


def make_pod(
    name: str,
    *,
    node: str = "",
    nominated: str = "",
    scheduled_at: str = "",
    phase: str = "Pending",
    namespace: str = "default",
    uid: str = "",
    cpu: object = "1",
    **metadata: Any,
) -> Manifest:
    """Make a pod of one container that requests CPU; a bound one says since when it is bound, if that is given."""
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": scheduled_at}] if scheduled_at else []
    status = {"phase": phase, "conditions": conditions} | ({"nominatedNodeName": nominated} if nominated else {})
    spec = {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]} | ({"nodeName": node} if node else {})
    identity = {"name": name, "namespace": namespace, "uid": uid or f"uid-{name}"}
    return {"metadata": identity | metadata, "spec": spec, "status": status}


def make_node_metrics(name: str, *, cpu: object = "1", memory: object = "4Gi", timestamp: object = "2024-01-01T00:00:00Z") -> Manifest:
    return {"metadata": {"name": name}, "timestamp": timestamp, "window": "20s", "usage": {"cpu": cpu, "memory": memory}}


class WatchStream:
    """The server's end of one watch."""

    def __init__(self, response: web.StreamResponse) -> None:
        self._response = response

    async def send(self, kind: str, value: Manifest) -> None:
        await self.send_bytes(json.dumps({"type": kind, "object": value}).encode() + b"\n")

    async def send_bytes(self, data: bytes) -> None:
        await self._response.write(data)

    async def send_gone(self) -> None:
        """Say what the API server says of a version that it no longer remembers."""
        await self.send("ERROR", {"kind": "Status", "status": "Failure", "message": "too old resource version", "code": 410})

    async def bookmark(self, resource_version: str) -> None:
        await self.send("BOOKMARK", {"kind": "Node", "metadata": {"resourceVersion": resource_version}})

    async def hang(self) -> None:
        await asyncio.Event().wait()


@dataclass(frozen=True)
class _Change:
    """One change of an object: what it was before, and what it is now; either may be nothing."""

    version: int
    before: Manifest | None
    now: Manifest | None
    is_metadata_only: bool = False

    def event(self, selector: str) -> tuple[str, Manifest] | None:
        """Make what a watch with a field selector hears: an object that leaves the selection is deleted, one that comes in is added."""
        had, has = (value is not None and _selects(selector, value) for value in (self.before, self.now))
        if self.now is not None and has:
            return "MODIFIED" if had else "ADDED", self.now
        if self.before is None or not had:
            return None
        metadata = self.before["metadata"] | {"resourceVersion": str(self.version)}
        return "DELETED", {"metadata": metadata} if self.is_metadata_only else (self.now or self.before) | {"metadata": metadata}


def _selects(selector: str, value: Manifest) -> bool:
    """Tell whether an object meets a field selector of terms ``a.b!=c``."""
    for term in filter(None, selector.split(",")):
        path, _, unwanted = term.partition("!=")
        found: Any = value
        for name in path.split("."):
            found = found.get(name, "") if isinstance(found, dict) else ""
        if found == unwanted:
            return False
    return True


@dataclass
class _Collection:
    objects: dict[str, Manifest] = field(default_factory=dict)
    events: list[_Change] = field(default_factory=list)
    oldest_version: int = 0  # a watch from before it is gone


class FakeApiServer:
    """
    Serve on a free port of 127.0.0.1 within ``async with``.

    Args:
        tls: Whether to serve https, with a certificate of an own CA.
        token: The token to ask for; ``None`` admits everyone.

    Attributes:
        replies: Path → fixed answer, in place of everything else; a watch gets it too.
        watch_scripts: What the next watches do, first come first served; later ones stream the real changes.
        watch_scripts_of: Path → the same for the watches of that path, which take these first.
        requests: What came in, oldest first.
        open_watches: How many watches are being streamed.
    """

    def __init__(self, *, tls: bool = False, token: str | None = None) -> None:
        self.token = token
        self.replies: dict[str, Reply] = {METRICS_DISCOVERY: Reply(body={"resources": [{"name": "nodes"}, {"name": "pods"}]})}
        self.watch_scripts: deque[WatchScript | Reply] = deque()
        self.watch_scripts_of: defaultdict[str, deque[WatchScript | Reply]] = defaultdict(deque)
        self.requests: list[ReceivedRequest] = []
        self.open_watches = 0
        self.continue_expired = False
        self.address = ""
        self.authority = trustme.CA() if tls else None
        self._version = 100
        self._collections: dict[str, _Collection] = {}
        self._change = asyncio.Event()  # set, and replaced, at each change
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        app.router.add_post("/{path:.*}", self._answer)
        # A watch that hangs must not hold up the end of a test.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        context = None
        if self.authority is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.address = f"{'https' if context else 'http'}://{host}:{port}"
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Close the port and every connection."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    # What a test sets.

    def put(self, path: str, value: Manifest) -> None:
        """Add or change an object; the watches hear of it."""
        collection = self._collections.setdefault(path, _Collection())
        stored = copy.deepcopy(value)
        name = _name_of(stored["metadata"])
        self._version += 1
        stored["metadata"] |= {"resourceVersion": str(self._version)}
        stored["metadata"].setdefault("uid", f"uid-{name}")
        collection.events.append(_Change(self._version, collection.objects.get(name), stored))
        collection.objects[name] = stored
        self._wake()

    def delete(self, path: str, name: str, *, metadata_only: bool = False) -> None:
        """Remove an object, of a namespace by ``namespace/name``; the watches hear of it, as a whole object or by its metadata only."""
        collection = self._collections[path]
        self._version += 1
        collection.events.append(_Change(self._version, collection.objects.pop(name), None, is_metadata_only=metadata_only))
        self._wake()

    def put_nodes(self, *nodes: Manifest) -> None:
        for node in nodes:
            self.put(NODES, node)

    def put_pods(self, *pods: Manifest) -> None:
        for pod in pods:
            self.put(PODS, pod)

    def set_node_metrics(self, *items: Manifest) -> None:
        self.replies[NODE_METRICS] = Reply(body={"kind": "NodeMetricsList", "metadata": {}, "items": items})

    def forget_history(self, path: str) -> None:
        """Compact: a watch from an older version than now gets 410."""
        collection = self._collections[path]
        self._version += 1
        collection.oldest_version = self._version

    def write_kubeconfig(self, path: Path, **user: str) -> Path:
        """
        Write a kubeconfig for this server.

        Args:
            path: Of the file to write.
            user: The fields of its user, for example ``tokenFile``; the server's own token by default.
        """
        cluster = {"server": self.address}
        if self.authority is not None:
            authority_file = path.with_suffix(".ca.pem")
            self.authority.cert_pem.write_to_path(str(authority_file))
            cluster["certificate-authority"] = str(authority_file)
        credentials = user or ({"token": self.token} if self.token else {})
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fake", "cluster": cluster}],
            "users": [{"name": "tester", "user": credentials}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "tester"}}],
            "current-context": "fake",
        }
        path.write_text(yaml.safe_dump(config))
        return path

    # What a test asks.

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until something that requests or watches change comes true; the test sets the deadline."""
        while not condition():
            await self._change.wait()

    def created(self, path: str) -> list[Manifest]:
        """List what was created in a collection, oldest first; nothing becomes of it."""
        return [r.body for r in self.requests if r.path == path and r.body is not None]

    def count(self, path: str, *, watch: bool = False) -> int:
        """Count the requests for a path so far, first pages only."""
        return sum(r.path == path and r.is_watch == watch and "continue" not in r.query for r in self.requests)

    # How it answers.

    def _wake(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.method == "POST" else None
        received = ReceivedRequest(request.path, dict(request.query), request.headers.get("Authorization"), request.method, body)
        self.requests.append(received)
        self._wake()
        if self.token is not None and received.authorization != f"Bearer {self.token}":
            return await _write_reply(status_reply(401, "Unauthorized"))
        if request.path in self.replies:
            return await _write_reply(self.replies[request.path])
        if body is not None:
            return await _write_reply(Reply(201, body))
        if request.path not in self._collections:
            return web.Response(status=404, text="404 page not found\n")
        if received.is_watch:
            return await self._answer_watch(request, self._collections[request.path])
        return await _write_reply(self._list(received, self._collections[request.path]))

    def _list(self, received: ReceivedRequest, collection: _Collection) -> Reply:
        if "continue" in received.query and self.continue_expired:
            return status_reply(410, "The provided continue parameter is too old")
        selector = received.query.get("fieldSelector", "")
        objects = [value for value in collection.objects.values() if _selects(selector, value)]
        start = int(received.query.get("continue", 0))
        end = start + int(received.query.get("limit", len(objects)))
        metadata = {"resourceVersion": str(self._version)} | ({"continue": str(end)} if end < len(objects) else {})
        return Reply(body={"kind": "List", "metadata": metadata, "items": objects[start:end]})

    async def _answer_watch(self, request: web.Request, collection: _Collection) -> web.StreamResponse:
        scripts = self.watch_scripts_of[request.path] or self.watch_scripts
        script = scripts.popleft() if scripts else None
        since = int(request.query["resourceVersion"])
        if isinstance(script, Reply):
            return await _write_reply(script)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        stream = WatchStream(response)
        self.open_watches += 1
        self._wake()
        try:
            if script is not None:
                await script(stream)
            else:
                await self._stream_changes(stream, collection, since, request.query.get("fieldSelector", ""))
        finally:
            self.open_watches -= 1
            self._wake()
        return response

    async def _stream_changes(self, stream: WatchStream, collection: _Collection, since: int, selector: str) -> None:
        if since < collection.oldest_version:
            await stream.send_gone()
            return
        while True:
            change = self._change
            for told in [told for told in collection.events if told.version > since]:
                if (event := told.event(selector)) is not None:
                    await stream.send(*event)
                since = told.version
            await change.wait()


def _name_of(metadata: Manifest) -> str:
    return "/".join(filter(None, (metadata.get("namespace"), metadata["name"])))


async def _write_reply(reply: Reply) -> web.Response:
    if reply.status is None:
        await asyncio.Event().wait()
    body = reply.body.encode() if isinstance(reply.body, str) else reply.body
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    return web.Response(status=reply.status or 200, body=body, content_type=reply.content_type)
