"""
A stand-in for SignalFlow's API over server-sent events.

The order of the messages is that of a stream recorded from the real service (the tests of SignalFx' JavaScript client, two publish blocks):
at each logical time one data message for each published stream and an empty one; metadata before a series' first point; what the job says
of itself after the first time. The rest is as in "SignalFlow Stream Messages Reference" and "SignalFlow API" of SignalFx' developer
documentation. Of the language it knows what the tests use: ``filter``, ``data``, ``mean(by=[…])``, ``count()``, ``publish``.
"""

from __future__ import annotations

import asyncio
import fnmatch
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

from aiohttp import web

from tests.fakes.hosted import Fault, HostedServer, ReceivedRequest, reply

EXECUTE_PATH = "/v2/signalflow/execute"

_FILTER = re.compile(r"filter\('([^']+)', '([^']*)'\)")
_STATEMENT = re.compile(r"data\('([^']+)'.*?\)((?:\.(?:mean|count)\([^)]*\))?)\.publish\((?:label=)?'([^']*)'\)")


@dataclass
class StoredSeries:
    """A metric time series: points by Unix milliseconds, ``None`` for a gap; a test may store anything as a value."""

    metric: str
    dimensions: Mapping[str, str]
    points: dict[int, object]


@dataclass
class _Published:
    label: str
    ts_id: str
    properties: dict[str, object]
    points: dict[int, object] = field(default_factory=dict)


class EventStream:
    """The server's end of one computation."""

    def __init__(self, request: web.Request, response: web.StreamResponse) -> None:
        self.request = request
        self._response = response

    async def send(self, event: str, payload: object) -> None:
        await self.send_text(f"event: {event}\ndata: {json.dumps(payload)}\n\n")

    async def send_text(self, text: str) -> None:
        await self._response.write(text.encode())

    async def start(self) -> None:
        """Send what every computation begins with."""
        await self.send("control-message", {"event": "STREAM_START", "timestampMs": 1461353198258})
        await self.send("control-message", {"event": "JOB_START", "handle": "C0-iKj6AcAA", "timestampMs": 1461353198263})

    async def end(self) -> None:
        await self.send("control-message", {"event": "END_OF_CHANNEL", "timestampMs": 1461353199000})


StreamScript = Callable[[EventStream], Awaitable[None]]


class FakeSignalFx(HostedServer):
    """
    Run programs over stored series.

    Args:
        token: The access token to ask for; ``None`` admits everyone.
        tls: As :class:`HostedServer`.
        certificate_names: As :class:`HostedServer`.

    Attributes:
        says_resolution_first: Whether the job says its resolution before the first data, as SignalFx' own test back end for Go does.
        swaps_streams: Whether the last published stream comes first.
        limit: How many series of a metric are read; what is left out is said.
    """

    def __init__(
        self, *, token: str | None = None, tls: bool = True, certificate_names: tuple[str, ...] = ("127.0.0.1", "localhost")
    ) -> None:
        super().__init__(tls=tls, certificate_names=certificate_names)
        self.token = token
        self.series: list[StoredSeries] = []
        self.says_resolution_first = False
        self.swaps_streams = False
        self.limit = 10_000

    def put(self, host: str, metric: str, values: Iterable[object], *, end_at: float, cluster: str = "") -> None:
        """Store a point a minute, the last one in the minute of *end_at*, Unix seconds."""
        points = list(values)
        last_ms = int(end_at) // 60 * 60_000
        start_ms = last_ms - 60_000 * (len(points) - 1)
        dimensions = {"host": host} | ({"cluster": cluster} if cluster else {})
        self.series.append(StoredSeries(metric, dimensions, {start_ms + 60_000 * minute: value for minute, value in enumerate(points)}))

    async def answer(self, request: web.Request, received: ReceivedRequest) -> web.StreamResponse:
        if not request.path.endswith(EXECUTE_PATH):
            return await reply(404, {"message": "HTTP 404 Not Found", "code": 404})(request)
        if self.token is not None and received.headers.get("X-SF-Token") != self.token:
            return await reply(401, {"message": "Unauthorized", "code": 401, "errorType": "INVALID_TOKEN"})(request)
        return await run_script(lambda stream: self._run(stream, received))(request)

    async def _run(self, stream: EventStream, received: ReceivedRequest) -> None:
        published, matched = self._evaluate(received)
        labels = list(dict.fromkeys(item.label for item in published))
        if self.swaps_streams:
            labels.reverse()
        times = sorted({time_ms for item in published for time_ms in item.points})
        await stream.start()
        if self.says_resolution_first:
            await self._describe_job(stream, received, matched)
        for position, time_ms in enumerate(times):
            await stream.send("data", {"data": [], "logicalTimestampMs": time_ms})
            for label in labels:
                items = [item for item in published if item.label == label]
                for item in items if position == 0 else ():
                    await stream.send("metadata", {"tsId": item.ts_id, "properties": item.properties})
                data = [{"tsId": item.ts_id, "value": item.points[time_ms]} for item in items if time_ms in item.points]
                await stream.send("data", {"data": data, "logicalTimestampMs": time_ms})
            if position == 0 and not self.says_resolution_first:
                await self._describe_job(stream, received, matched)
        await stream.end()

    async def _describe_job(self, stream: EventStream, received: ReceivedRequest, matched: int) -> None:
        resolution_ms = int(received.query.get("resolution", 60_000))
        messages: list[dict[str, object]] = [{"messageCode": "FETCH_NUM_TIMESERIES", "numInputTimeSeries": matched}]
        if matched > self.limit:
            contents = {"matchedSize": matched, "limitSize": self.limit}
            messages.append({"messageCode": "FIND_LIMITED_RESULT_SET", "contents": contents})
        messages.insert(0, {"messageCode": "JOB_RUNNING_RESOLUTION", "contents": {"resolutionMs": resolution_ms}})
        for message in messages:
            await stream.send("message", {"logicalTimestampMs": 0, "message": {"messageLevel": "INFO"} | message})

    def _evaluate(self, received: ReceivedRequest) -> tuple[list[_Published], int]:
        """Answer what each statement publishes, and how many series the first matched."""
        start_ms, stop_ms = int(received.query["start"]), int(received.query["stop"])
        filters = _FILTER.findall(received.body)
        published: list[_Published] = []
        counts: list[int] = []
        for metric, method, label in _STATEMENT.findall(received.body):
            matching = [item for item in self.series if item.metric == metric and _passes(item, filters)]
            counts.append(len(matching))
            groups: dict[str, list[StoredSeries]] = {}
            for number, item in enumerate(matching[: self.limit]):
                key = item.dimensions["host"] if method.startswith(".mean") else "" if method else str(number)
                groups.setdefault(key, []).append(item)
            for key, items in groups.items():
                dimensions = {} if method.startswith(".count") else dict(items[0].dimensions)
                properties: dict[str, object] = {"sf_streamLabel": label, "sf_originatingMetric": metric, "sf_type": "MetricTimeSeries"}
                output = _Published(label, f"ts-{label}-{key}", properties | dimensions)
                for time_ms in sorted({time_ms for item in items for time_ms in item.points if start_ms <= time_ms < stop_ms}):
                    values = [item.points.get(time_ms) for item in items]
                    output.points[time_ms] = len(values) if method.startswith(".count") else _mean(values)
                published.append(output)
        return published, max(counts, default=0)


def run_script(script: StreamScript) -> Fault:
    """Answer with an event stream in which the script speaks; it ends as HTTP says when the script does."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream;charset=utf-8"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        await script(EventStream(request, response))
        return response

    return answer


async def say_nothing_more(stream: EventStream) -> None:
    """Begin, then keep the connection open in silence."""
    await stream.start()
    await asyncio.Event().wait()


async def cut_off(stream: EventStream) -> None:
    """Begin, then close the connection in the middle of the body."""
    await stream.start()
    assert stream.request.transport is not None
    stream.request.transport.close()
    await asyncio.Event().wait()


async def end_early(stream: EventStream) -> None:
    """Begin, then end as HTTP says, without END_OF_CHANNEL."""
    await stream.start()


async def chatter(stream: EventStream) -> None:
    """Say something that means nothing again and again, so that no read ever waits for long."""
    await stream.start()
    while True:
        await stream.send_text(":\n\n")
        await asyncio.sleep(0.02)


def _passes(series: StoredSeries, filters: Iterable[tuple[str, str]]) -> bool:
    return all(fnmatch.fnmatchcase(series.dimensions.get(dimension, ""), pattern) for dimension, pattern in filters)


def _mean(values: list[object]) -> object:
    numbers = [value for value in values if isinstance(value, int | float)]
    if len(values) == 1 or not numbers:
        return values[0]
    return sum(numbers) / len(numbers)
