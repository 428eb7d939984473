"""
A stand-in for Datadog's API: the v2 time series query and the validation of keys.

Shapes, statuses and headers are those of Datadog's API reference ("Query timeseries data across multiple products", "Validate API and
application keys", "Rate limits"). Of the query language it knows what the tests use: ``AGGREGATOR:METRIC{TAG,…} by {host}`` with
``.rollup(…)`` and ``.fill(…)``, which change nothing since there is one point a minute.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aiohttp import web

from tests.fakes.hosted import HostedServer, ReceivedRequest, reply

QUERY_PATH = "/api/v2/query/timeseries"
VALIDATE_PATH = "/api/v2/validate_keys"

PERCENT = {"family": "percentage", "name": "percent", "plural": "percent", "scale_factor": 1.0, "short_name": "%"}
FRACTION = {"family": "percentage", "name": "fraction", "plural": "fractions", "scale_factor": 100.0, "short_name": "fraction"}

_QUERY = re.compile(r"(?:avg|max|min|sum):([\w.]+)\{([^}]*)\} by \{host\}(?:\.rollup\((?:avg|max), 60\))?(?:\.fill\(null\))?")


@dataclass
class StoredSeries:
    metric: str
    tags: Mapping[str, str]
    points: dict[int, object]
    unit: Mapping[str, object] | None


class FakeDatadog(HostedServer):
    """
    Answer queries from stored points.

    Args:
        api_key: The API key to ask for; ``None`` admits everyone.
        app_key: The application key to ask for.
        tls: As :class:`HostedServer`.
        certificate_names: As :class:`HostedServer`.

    Attributes:
        rate_limit: The headers of the allowance, in every reply to a query.
        reverses: Whether series and values come in the opposite order.
        errors: What the reply says beside its data.
    """

    def __init__(
        self,
        *,
        api_key: str | None = None,
        app_key: str | None = None,
        tls: bool = True,
        certificate_names: tuple[str, ...] = ("127.0.0.1", "localhost"),
    ) -> None:
        super().__init__(tls=tls, certificate_names=certificate_names)
        self.api_key = api_key
        self.app_key = app_key
        self.series: list[StoredSeries] = []
        self.rate_limit: dict[str, str] = make_rate_limit(remaining=590, reset_seconds=42)
        self.reverses = False
        self.errors: str | None = None

    def put(
        self,
        host: str | None,
        metric: str,
        values: Iterable[object],
        *,
        end_at: float,
        cluster: str = "",
        unit: Mapping[str, object] | None = None,
    ) -> None:
        """Store a point a minute, the last one in the minute of *end_at*, Unix seconds; without a host, what no host sent."""
        points = list(values)
        start_ms = int(end_at) // 60 * 60_000 - 60_000 * (len(points) - 1)
        tags = {"host": "N/A" if host is None else host} | ({"cluster_name": cluster} if cluster else {})
        self.series.append(StoredSeries(metric, tags, {start_ms + 60_000 * minute: value for minute, value in enumerate(points)}, unit))

    def count_queries(self) -> int:
        return sum(request.path.endswith(QUERY_PATH) for request in self.requests)

    async def answer(self, request: web.Request, received: ReceivedRequest) -> web.StreamResponse:
        for header, key in (("DD-API-KEY", self.api_key), ("DD-APPLICATION-KEY", self.app_key)):
            if key is not None and received.headers.get(header) != key:
                return await reply(403, {"errors": ["Forbidden"]})(request)
        if (request.method, request.path) == ("GET", VALIDATE_PATH):
            return await reply(200, {"status": "ok"})(request)
        if (request.method, request.path) != ("POST", QUERY_PATH):
            return await reply(404, {"errors": ["Not found"]})(request)
        return await reply(200, self._query(json.loads(received.body)["data"]["attributes"]), headers=self.rate_limit)(request)

    def _query(self, attributes: Mapping[str, object]) -> dict[str, object]:
        queries = attributes["queries"]
        start_ms, end_ms = attributes["from"], attributes["to"]
        assert isinstance(queries, list)
        assert isinstance(start_ms, int)
        assert isinstance(end_ms, int)
        found = [(number, series) for number, query in enumerate(queries) for series in self._match(query["query"])]
        times = sorted({time_ms for _, series in found for time_ms in series.points if start_ms <= time_ms < end_ms})
        if self.reverses:
            found.reverse()
        described = [
            {"group_tags": [f"host:{series.tags['host']}"], "query_index": number, "unit": [series.unit, None] if series.unit else None}
            for number, series in found
        ]
        values = [[series.points.get(time_ms) for time_ms in times] for _, series in found]
        data = {"type": "timeseries_response", "attributes": {"series": described, "times": times, "values": values}}
        return {"data": data} | ({"errors": self.errors} if self.errors else {})

    def _match(self, query: str) -> list[StoredSeries]:
        match = _QUERY.fullmatch(query)
        assert match is not None, query
        metric, scope = match.groups()
        tags = [] if scope == "*" else [tag.strip().split(":", 1) for tag in scope.split(",")]
        return [
            series
            for series in self.series
            if series.metric == metric and all(fnmatch.fnmatchcase(series.tags.get(key, ""), pattern) for key, pattern in tags)
        ]


def make_rate_limit(*, remaining: int, reset_seconds: int, period_seconds: int = 3600) -> dict[str, str]:
    """Make the headers in which Datadog says what is left of an allowance."""
    return {
        "X-RateLimit-Limit": "600",
        "X-RateLimit-Name": "query_timeseries",
        "X-RateLimit-Period": str(period_seconds),
        "X-RateLimit-Remaining": str(remaining),
        "X-RateLimit-Reset": str(reset_seconds),
    }
