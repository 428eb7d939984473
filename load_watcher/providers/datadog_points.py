"""
Datadog's query language and replies: what is asked for, what it means, and the points of an answer.

Pure: text and bytes, no HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgspec
import numpy as np

from load_watcher.errors import ProviderReplyError
from load_watcher.providers.endpoint import shorten
from load_watcher.providers.points import POINT_SECONDS, NodeView, PointTable, build_batch
from load_watcher.samples import Rejection, SampleBatch, Window
from trimaran_client.units import FloatArray
from trimaran_client.wire import CPU, MEMORY

NAME: Final = "Datadog"

MALFORMED_SERIES: Final = "malformed_series"
UNNAMED_SERIES: Final = "unnamed_series"

_HOST_TAG: Final = "host:"
# What Datadog groups points under that carry no host.
_NO_HOST: Final = "N/A"
# The counters of the Agent are read over an interval of its own clock: a machine at rest can be idle for a little over 100 %.
_MAX_IDLE_OVERSHOOT_PERCENT: Final = 10.0


def _keep(values: FloatArray) -> FloatArray:
    return values


def _complement(idle_percent: FloatArray) -> FloatArray:
    used = 100.0 - idle_percent
    return np.where((used < 0) & (used >= -_MAX_IDLE_OVERSHOOT_PERCENT), 0.0, used)


class Expression(NamedTuple):
    """
    A metric of Datadog, and how it becomes percent of capacity.

    Args:
        metric_type: What it measures.
        aggregator: Over the series of a host and the points of a minute.
        metric: Its name there.
        percent_per_unit: What one unit of it is, where the reply does not say.
        convert: From percent of the metric to percent used.
    """

    metric_type: str
    aggregator: str
    metric: str
    percent_per_unit: float
    convert: Callable[[FloatArray], FloatArray]

    @property
    def name(self) -> str:
        """Answer what is served as the name of the averages."""
        return f"{self.aggregator}:{self.metric}"


# Of one type, those to prefer first: the metrics that the Go load-watcher reads, then what every Agent sends (its System check).
EXPRESSIONS: Final = (
    Expression(CPU, "max", "cpu.utilization", 1.0, _keep),
    Expression(MEMORY, "max", "memory.utilization", 1.0, _keep),
    Expression(CPU, "avg", "system.cpu.idle", 1.0, _complement),
    Expression(MEMORY, "avg", "system.mem.pct_usable", 100.0, _complement),
)
# Units of Datadog's family "percentage".
_PERCENT_PER_UNIT: Final = {"percent": 1.0, "fraction": 100.0}


class Unit(msgspec.Struct, frozen=True):
    """A unit, as far as it is used."""

    name: str | None = None


class Series(msgspec.Struct, frozen=True):
    """What a row of values belongs to."""

    group_tags: list[str] | None = None
    query_index: int | None = None
    unit: list[Unit | None] | None = None


class Attributes(msgspec.Struct, frozen=True):
    """The points: ``values[i]`` is the row of ``series[i]``, over ``times`` in Unix milliseconds; a row is decoded by itself."""

    series: list[Series] | None = None
    times: list[float] | None = None
    values: list[msgspec.Raw] | None = None


class Data(msgspec.Struct, frozen=True):
    """The envelope of the points."""

    attributes: Attributes | None = None


class Reply(msgspec.Struct, frozen=True):
    """The reply of the query; ``errors`` can stand beside data."""

    data: Data | None = None
    errors: str | list[str] | None = None


def build_queries(*, host_suffix: str = "", cluster_name: str = "") -> tuple[str, ...]:
    """
    Write the query of each expression: a point a minute of each host, where nothing is filled in for a gap.

    >>> build_queries(host_suffix="-blue", cluster_name="blue")[2]
    'avg:system.cpu.idle{host:*-blue,cluster_name:blue} by {host}.rollup(avg, 60).fill(null)'
    >>> build_queries()[0]
    'max:cpu.utilization{*} by {host}.rollup(max, 60).fill(null)'
    """
    tags = ([f"host:*{host_suffix}"] if host_suffix else []) + ([f"cluster_name:{cluster_name}"] if cluster_name else [])
    scope = ",".join(tags) or "*"
    return tuple(
        f"{expression.name}{{{scope}}} by {{host}}.rollup({expression.aggregator}, {POINT_SECONDS}).fill(null)"
        for expression in EXPRESSIONS
    )


def build_request(queries: tuple[str, ...], *, window: Window, end_at: float) -> bytes:
    """
    Write the body of the query.

    Args:
        queries: Of :func:`build_queries`.
        window: How far back.
        end_at: The end, Unix seconds.
    """
    start_at = (end_at - window.duration_seconds) // POINT_SECONDS * POINT_SECONDS
    attributes = {
        "from": int(start_at * 1000),
        "to": int(end_at * 1000),
        "interval": POINT_SECONDS * 1000,
        "queries": [{"name": f"q{number}", "data_source": "metrics", "query": query} for number, query in enumerate(queries)],
    }
    return msgspec.json.encode({"data": {"type": "timeseries_request", "attributes": attributes}})


_REPLY_DECODER: Final = msgspec.json.Decoder(Reply)
_ROW_DECODER: Final = msgspec.json.Decoder(list[float | None])


def build_datadog_batch(
    reply: bytes, *, window: Window, end_at: float, view: NodeView, secrets: Iterable[str] = ()
) -> tuple[SampleBatch, str]:
    """
    Make the batch of a reply.

    Args:
        reply: To :func:`build_request`.
        window: The longest window.
        end_at: Its end, Unix seconds.
        view: Which node a host is.
        secrets: What must not be shown, should the reply repeat it.

    Returns:
        The batch, and in short what the reply says is wrong with it; rows that cannot be used are among the rejections.

    Raises:
        msgspec.DecodeError: If it is not the reply of the API.
        ProviderReplyError: If it holds errors only, or its parts do not fit together.
    """
    decoded = _REPLY_DECODER.decode(reply)
    error = shorten("; ".join([decoded.errors] if isinstance(decoded.errors, str) else decoded.errors or []), secrets)
    attributes = decoded.data.attributes if decoded.data is not None else None
    if attributes is None:
        raise ProviderReplyError(f"{NAME}: a reply without data: {error or 'it does not say why'}")
    series, times_ms, rows = attributes.series or [], attributes.times or [], attributes.values or []
    if len(series) != len(rows):
        raise ProviderReplyError(f"{NAME}: {len(rows)} rows of values for {len(series)} series; which is whose cannot be told")
    order = np.argsort(np.array(times_ms, dtype=np.float64), kind="stable")
    times = np.array(times_ms, dtype=np.float64)[order] / 1000
    rejections: list[Rejection] = []
    hosts: dict[int, list[str]] = {number: [] for number in range(len(EXPRESSIONS))}
    values: dict[int, list[FloatArray]] = {number: [] for number in range(len(EXPRESSIONS))}
    for item, row in zip(series, rows, strict=True):
        number, host = item.query_index, _find_host(item)
        metric_type = EXPRESSIONS[number].metric_type if number in hosts else ""
        if number not in hosts or host is None:
            detail = f"tags {shorten(str(item.group_tags))}, query {number}"
            rejections.append(Rejection(host or "", metric_type, UNNAMED_SERIES, detail))
            continue
        points = _decode_row(row)
        if points is None or len(points) != len(times):
            rejections.append(Rejection(host, metric_type, MALFORMED_SERIES, f"not a number or null for each of the {len(times)} times"))
            continue
        expression = EXPRESSIONS[number]
        hosts[number].append(host)
        values[number].append(expression.convert(points[order] * _find_scale(item, expression)))
    tables = [
        PointTable(
            expression.metric_type,
            expression.name,
            tuple(hosts[number]),
            times,
            np.array(values[number]).reshape(len(hosts[number]), len(times)),
        )
        for number, expression in enumerate(EXPRESSIONS)
        if hosts[number]
    ]
    batch = build_batch(NAME, tables, window=window, end_at=end_at, view=view, rejections=rejections)
    return batch, error


def _find_host(series: Series) -> str | None:
    for tag in series.group_tags or ():
        if tag.startswith(_HOST_TAG) and tag.removeprefix(_HOST_TAG) not in {"", _NO_HOST}:
            return tag.removeprefix(_HOST_TAG)
    return None


def _find_scale(series: Series, expression: Expression) -> float:
    """Answer what one unit of the series is in percent: by its own word, else as documented."""
    unit = next((unit.name for unit in series.unit or () if unit is not None), None)
    return _PERCENT_PER_UNIT.get(unit or "", expression.percent_per_unit)


def _decode_row(row: msgspec.Raw) -> FloatArray | None:
    try:
        points = _ROW_DECODER.decode(row)
    except msgspec.DecodeError:
        return None
    return np.array([np.nan if point is None else point for point in points], dtype=np.float64)
