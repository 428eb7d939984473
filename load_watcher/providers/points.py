"""
From points to a batch: the newest value, the averages and the deviations of each node, all from one answer.

For sources that hand out a point a minute. Pure: the points and the end of the window come in, a batch goes out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from load_watcher.providers.nodes import AMBIGUOUS_HOST, ClusterNodes, Match, NodeResolver, Strength
from load_watcher.samples import FIVE_MINUTES, TEN_MINUTES, Aggregate, NodeInfo, Rejection, SampleBatch, Window
from trimaran_client.units import BoolArray, FloatArray
from trimaran_client.wire import AVERAGE, STANDARD_DEVIATION

POINT_SECONDS: Final = 60
# As quality.QualityLimits, which judge what comes out of here: one impossible point must not spoil an average of fifteen.
MAX_PERCENT: Final = 150.0
# A metric whose newest point is that much older than its node's newest has stopped: two points of a minute may be late.
LAG_SECONDS: Final = 2.0 * POINT_SECONDS
# The deviation of a single point is always 0, which says that a node is steady when nothing is known of that.
_MIN_POINTS_OF_DEVIATION: Final = 2

LAGGING: Final = "lagging"


@dataclass(frozen=True, slots=True, eq=False)
class PointTable:
    """
    The points of one metric, one row a host.

    Args:
        metric_type: For example ``CPU``.
        name: What was asked for, served as the name of the averages.
        hosts: What the source calls the nodes.
        times: When the points were measured, Unix seconds, ascending, shape (points,).
        values: Percent of capacity, shape (hosts, points); NaN = a gap.
    """

    metric_type: str
    name: str
    hosts: tuple[str, ...]
    times: FloatArray
    values: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class NodeView:
    """
    What is known of the cluster's nodes at one moment.

    Args:
        resolver: Which node a host is.
        infos: Node → what it has, all nodes; empty where they are not known.
    """

    resolver: NodeResolver
    infos: Mapping[str, NodeInfo] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: ClusterNodes | None, *, host_suffix: str) -> NodeView:
        """Look at the node list, if there is one; *host_suffix* is what the source appends to the names of nodes."""
        known = None if nodes is None else nodes.copy()
        if known is None:
            return cls(NodeResolver(None, suffix=host_suffix))
        capacities, addresses = known
        return cls(NodeResolver(addresses, suffix=host_suffix), {node: capacity.info for node, capacity in capacities.items()})


def list_windows(window: Window) -> tuple[Window, ...]:
    """
    List the windows that the points of *window* give: itself, and 10 and 5 minutes where those are shorter.

    >>> [str(window) for window in list_windows(Window(900))]
    ['15m', '10m', '5m']
    """
    return (window, *(shorter for shorter in (TEN_MINUTES, FIVE_MINUTES) if shorter < window))


def build_batch(
    source: str,
    tables: Sequence[PointTable],
    *,
    window: Window,
    end_at: float,
    view: NodeView,
    rejections: Iterable[Rejection] = (),
) -> SampleBatch:
    """
    Make the batch of a source that hands out points.

    A point that is infinite, negative or above 150 % does not count. Of several tables of one metric type, the first that has a current
    point of a node serves that node; current is what is at most two minutes older than the newest point of the node, so that a metric that
    stopped is not served as if it were new. ``Latest`` is the newest point; ``AVG`` and ``STD`` (of the whole, divisor n, as Prometheus'
    ``stddev_over_time``) cover the points that are there in the window before *end_at*.

    Args:
        source: The provider's name.
        tables: The points; of one metric type, those to prefer first.
        window: The longest window; the shorter ones of :func:`list_windows` come too.
        end_at: The end of the windows, Unix seconds.
        view: Which node a host is. Where hosts collide on a node, the one that was found in the surer way counts, and else none.
        rejections: What the provider itself could not use.

    Returns:
        One row for each node of the cluster, or, where they are not known, for each that the source named; by name. A node without a point
        has no value. ``sampled_at`` is the time of the older one of a node's newest points.
    """
    found = list(rejections)
    nodes, placed = _place(tables, view, found)
    judged = [replace(table, values=_judge(nodes, table, found)) for table in placed]
    newest = [_find_newest(table) for table in judged]
    freshest = np.full(len(nodes), np.nan)
    for _, newest_at in newest:
        freshest = np.fmax(freshest, newest_at)

    sampled_at = np.full(len(nodes), np.nan)
    latest: dict[str, FloatArray] = {}
    taken: defaultdict[str, BoolArray] = defaultdict(lambda: np.zeros(len(nodes), dtype=np.bool_))
    aggregates: list[Aggregate] = []
    for table, (values, newest_at) in zip(judged, newest, strict=True):
        chosen = (newest_at >= freshest - LAG_SECONDS) & ~taken[table.metric_type]
        taken[table.metric_type] |= chosen
        latest[table.metric_type] = np.where(chosen, values, latest.get(table.metric_type, np.nan))
        sampled_at = np.where(chosen, np.fmin(sampled_at, newest_at), sampled_at)
        aggregates += _aggregate(table, chosen, window, end_at)
    found += _list_lagging(nodes, judged, newest, taken, freshest)
    infos = tuple(view.infos.get(node) for node in nodes)
    is_known = view.resolver.knows_nodes
    return SampleBatch(source, nodes, sampled_at, latest, tuple(aggregates), infos, tuple(found), members_known=is_known)


def _place(tables: Sequence[PointTable], view: NodeView, rejections: list[Rejection]) -> tuple[tuple[str, ...], list[PointTable]]:
    """Give all tables the same rows: a node each; what names no node, or the same one as another, is refused."""
    answers = {host: view.resolver.resolve(host) for table in tables for host in table.hosts}
    claims: defaultdict[str, defaultdict[Strength, list[str]]] = defaultdict(lambda: defaultdict(list))
    for host, answer in answers.items():
        if isinstance(answer, Match):
            claims[answer.node][answer.strength].append(host)
    surest = {node: by_strength[min(by_strength)] for node, by_strength in claims.items()}
    nodes = tuple(sorted(view.infos)) if view.resolver.knows_nodes else tuple(sorted(claims))
    row_of = {node: row for row, node in enumerate(nodes)}
    placed = []
    for table in tables:
        counts = Counter(table.hosts)
        values = np.full((len(nodes), len(table.times)), np.nan)
        for row, host in enumerate(table.hosts):
            answer = answers[host]
            if not isinstance(answer, Match):
                rejections.append(Rejection(host, table.metric_type, answer.rule, answer.detail))
            elif surest[answer.node] != [host]:
                detail = f"{host} is not the only host for this node: {', '.join(sorted(surest[answer.node]))}"
                rejections.append(Rejection(answer.node, table.metric_type, AMBIGUOUS_HOST, detail))
            elif counts[host] > 1:
                rejections.append(Rejection(answer.node, table.metric_type, AMBIGUOUS_HOST, f"{counts[host]} series of the host {host}"))
            else:
                values[row_of[answer.node]] = table.values[row]
        placed.append(replace(table, hosts=nodes, values=values))
    return nodes, placed


def _judge(nodes: tuple[str, ...], table: PointTable, rejections: list[Rejection]) -> FloatArray:
    values = table.values
    for rule, applies in (("not_finite", np.isinf(values)), ("negative", values < 0), ("over_capacity", values > MAX_PERCENT)):
        hit = applies & ~np.isnan(values)
        for row in np.flatnonzero(hit.any(axis=1)).tolist():
            points = values[row][hit[row]]
            detail = f"{len(points)} of {len(table.times)} points, the last {points[-1]:g}"
            rejections.append(Rejection(nodes[row], table.metric_type, rule, detail))
        values = np.where(hit, np.nan, values)
    return values


def _find_newest(table: PointTable) -> tuple[FloatArray, FloatArray]:
    """Answer the newest value of each row and its time; NaN without a point."""
    is_point = ~np.isnan(table.values)
    if not table.times.size:
        absent = np.full(len(table.hosts), np.nan)
        return absent, absent
    column = table.times.size - 1 - np.argmax(is_point[:, ::-1], axis=1)
    values = table.values[np.arange(len(table.hosts)), column]
    return values, np.where(np.isnan(values), np.nan, table.times[column])


def _aggregate(table: PointTable, chosen: BoolArray, window: Window, end_at: float) -> list[Aggregate]:
    aggregates = []
    for span in list_windows(window):
        values = table.values[:, table.times > end_at - span.duration_seconds]
        is_point = ~np.isnan(values) & chosen[:, np.newaxis]
        counts = is_point.sum(axis=1)
        divisors = np.maximum(counts, 1)
        averages = np.where(is_point, values, 0.0).sum(axis=1) / divisors
        squares = np.where(is_point, values - averages[:, np.newaxis], 0.0) ** 2
        deviations = np.sqrt(squares.sum(axis=1) / divisors)
        for operator, column, least in ((AVERAGE, averages, 1), (STANDARD_DEVIATION, deviations, _MIN_POINTS_OF_DEVIATION)):
            if (counts >= least).any():
                served = np.where(counts >= least, column, np.nan)
                aggregates.append(Aggregate(table.name, table.metric_type, operator, span, served))
    return aggregates


def _list_lagging(
    nodes: tuple[str, ...],
    tables: Sequence[PointTable],
    newest: Sequence[tuple[FloatArray, FloatArray]],
    taken: defaultdict[str, BoolArray],
    freshest: FloatArray,
) -> list[Rejection]:
    """Name the metrics of nodes that have points, but only old ones."""
    newest_of: dict[str, FloatArray] = {}
    for table, (_, newest_at) in zip(tables, newest, strict=True):
        newest_of[table.metric_type] = np.fmax(newest_of.get(table.metric_type, np.full(len(nodes), np.nan)), newest_at)
    return [
        Rejection(
            nodes[row],
            metric_type,
            LAGGING,
            f"its newest point is {freshest[row] - newest_at[row]:.0f} s older than the node's newest",
        )
        for metric_type, newest_at in newest_of.items()
        for row in np.flatnonzero(~np.isnan(newest_at) & ~taken[metric_type]).tolist()
    ]
