"""
A server that speaks Prometheus' HTTP API for instant queries, with scripted vectors.

A combined query is taken apart, and each expression is answered by itself, before they are put together again: a test says what
``avg_over_time(rule[15m])`` gives, not what the provider happens to send.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs

from aiohttp import web

from tests.fakes.hosted import HostedServer, ReceivedRequest

_PART = re.compile(r'label_replace\((.*?), "load_watcher_part", "([^"]*)", "", ""\)', re.DOTALL)
_WRAPPED = re.compile(r"(count|timestamp)\((.*)\)", re.DOTALL)

Labels = Mapping[str, str]
Vector = Sequence[tuple[Labels, object]]


class PrometheusServer(HostedServer):
    """
    Serve within ``async with``.

    Args:
        tls: Whether to serve https.
        prefix: The path before ``/api/v1``.
        certificate_names: Whom the certificate is for.

    Attributes:
        vectors: Expression → its series with their values. ``count(…)`` and ``timestamp(…)`` of an expression that is there follow from it.
        errors: Expression → status and error type, with which every query that holds it is refused.
        warnings: What goes with every answer.
        measured_at: What ``timestamp(…)`` says; ``None`` for the time of the query.
        token: The bearer token to ask for; ``None`` admits everyone.
        basic: User and password to ask for, with a colon between; ``None`` for none.
        refuses_post: Whether POST is answered by 405.
        wants_whole_seconds: Whether a time with a fraction finds nothing.
    """

    def __init__(self, *, tls: bool = False, prefix: str = "", certificate_names: tuple[str, ...] = ("127.0.0.1", "localhost")) -> None:
        super().__init__(tls=tls, certificate_names=certificate_names)
        self.prefix = prefix
        self.vectors: dict[str, Vector] = {}
        self.errors: dict[str, tuple[int, str]] = {}
        self.warnings: list[str] = []
        self.measured_at: float | None = None
        self.token: str | None = None
        self.basic: str | None = None
        self.refuses_post = False
        self.wants_whole_seconds = False
        self.queries: list[str] = []

    @property
    def url(self) -> str:
        """Answer the address with the prefix."""
        return self.address + self.prefix

    async def answer(self, request: web.Request, received: ReceivedRequest) -> web.StreamResponse:
        authorization = received.headers.get("Authorization", "")
        if self.token is not None and authorization != f"Bearer {self.token}":
            return web.Response(status=401, text=f"Unauthorized: {authorization}")
        if self.basic is not None and authorization != "Basic " + base64.b64encode(self.basic.encode()).decode():
            return web.Response(status=401, text="Unauthorized")
        if received.path != f"{self.prefix}/api/v1/query":
            return web.Response(status=404, text="404 page not found")
        if received.method not in {"GET", "POST"} or (received.method == "POST" and self.refuses_post):
            return web.Response(status=405, text="Method Not Allowed")
        fields = {name: values[0] for name, values in parse_qs(received.body).items()} | dict(received.query)
        return self._evaluate(fields["query"], fields["time"])

    def _evaluate(self, query: str, time: str) -> web.Response:
        self.queries.append(query)
        parts = [(match[2], match[1]) for match in _PART.finditer(query)] or [("", query)]
        result: list[dict[str, Any]] = []
        for key, expression in parts:
            vector = self.evaluate_part(expression, float(time))
            if isinstance(vector, web.Response):
                return vector
            for labels, value in vector:
                metric = {**labels, "load_watcher_part": key} if key else labels
                result.append({"metric": metric, "value": [float(time), str(value)]})
        if self.wants_whole_seconds and "." in time:
            result = []
        body: dict[str, Any] = {"status": "success", "data": {"resultType": "vector", "result": result}}
        if self.warnings:
            body["warnings"] = self.warnings
        return web.Response(text=json.dumps(body), content_type="application/json")

    def evaluate_part(self, expression: str, time: float) -> Vector | web.Response:
        """Answer one expression: its series, or the refusal that every query that holds it gets."""
        if expression in self.vectors:
            return self.vectors[expression]
        if expression == "vector(1)":
            return [({}, 1)]
        wrapped = _WRAPPED.fullmatch(expression)
        for each in (expression, wrapped[2] if wrapped else ""):
            if each in self.errors:
                status, kind = self.errors[each]
                return web.json_response({"status": "error", "errorType": kind, "error": f"cannot evaluate {each}"}, status=status)
        inner = self.vectors.get(wrapped[2], []) if wrapped else []
        if not inner or wrapped is None:
            return []
        if wrapped[1] == "count":
            return [({}, len(inner))]
        return [(labels, time if self.measured_at is None else self.measured_at) for labels, _ in inner]
