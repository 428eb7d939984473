"""
From series to a batch: which node each series is about, what to do with several of one node, and what their unit means.

Pure. Every rule gives the same result for the same series in any order, as servers promise none.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, NamedTuple

import numpy as np

from load_watcher.providers.catalogue import CAPACITY_OF, EXPORTED_LABELS, HOST_LABELS, UNITS, CatalogueMetric, Expression
from load_watcher.providers.nodes import AMBIGUOUS_HOST, UNKNOWN_NODE, Match, NodeCapacity, NodeResolver, NoMatch, Strength
from load_watcher.providers.prometheus_vector import NAME, Hosts, PartSeries, VectorReply, parse_number
from load_watcher.samples import PERCENT, Aggregate, Rejection, SampleBatch, Window
from trimaran_client.units import BoolArray, FloatArray, IntArray
from trimaran_client.wire import CPU, LATEST

TIMES: Final = "times"
NOT_FINITE: Final = "not_finite"
UNREADABLE: Final = "unreadable"
CAPACITY_UNKNOWN: Final = "capacity_unknown"
VANISHED: Final = "vanished"
_MAX_EXAMPLES: Final = 3
_GUESSES: Final = frozenset({Strength.SUFFIX, Strength.SHORT_NAME})


class ChosenMetric(NamedTuple):
    """A metric with the expression that is used for it."""

    metric: CatalogueMetric
    expression: Expression


class Column(NamedTuple):
    """What the series of a part are: a metric's key, an operator or :data:`TIMES`, and the window, ``None`` for the newest values."""

    metric_key: str
    operator: str
    window: Window | None = None


@dataclass(frozen=True, slots=True)
class MetricJoin:
    """How many nodes a metric has values of, which series joined to none, and how many nodes are named by an address only."""

    nodes: int
    unmatched: int
    examples: tuple[str, ...]
    addresses: int


@dataclass(frozen=True, slots=True)
class JoinedBatch:
    """The batch, for each metric's key how its series were joined to nodes, and the columns of which there was any series."""

    batch: SampleBatch
    joins: Mapping[str, MetricJoin]
    answered: frozenset[Column]


@dataclass(frozen=True, slots=True)
class Identity:
    """
    How a series names its node.

    Args:
        labels: Label names, in the order in which each series carries its values.
        chosen: The labels that the user chose, the best first; may be empty.
        resolver: What a label's value is.
    """

    labels: tuple[str, ...]
    chosen: tuple[str, ...]
    resolver: NodeResolver

    def find(self, values: Sequence[str], own_labels: Sequence[str]) -> Match | NoMatch:
        """
        Find the node of a series.

        The first chosen label that the series has decides alone: one of *own_labels*, those of the expression, else of the user's. Without
        one, what the exporter itself says (``exported_node``, ``exported_instance``) goes first; then all labels that name a node must name
        the same one. Where the nodes are not known, the first label of :data:`HOST_LABELS` that the series has is taken.
        """
        labels = {label: value for label, value in zip(self.labels, values, strict=True) if value}
        for label in own_labels or self.chosen:
            if label in labels:
                return self.resolver.resolve(labels[label])
        found = [(label, self.resolver.resolve(labels[label])) for label in HOST_LABELS if label in labels]
        matches = [(label, answer) for label, answer in found if isinstance(answer, Match)]
        if matches and (matches[0][0] in EXPORTED_LABELS or not self.resolver.knows_nodes):
            return matches[0][1]
        if len({match.node for _, match in matches}) > 1:
            named = ", ".join(f"{label} names {match.node}" for label, match in matches)
            return NoMatch(AMBIGUOUS_HOST, f"{named}; set LOAD_WATCHER_HOST_LABEL to the right one")
        if matches:
            return min((match for _, match in matches), key=lambda match: match.strength)
        refusals = [answer for _, answer in found if isinstance(answer, NoMatch)]
        for refusal in refusals:
            if refusal.rule == AMBIGUOUS_HOST:
                return refusal
        return NoMatch(UNKNOWN_NODE, f"no label names a node: {_describe(labels)}")


def build_batch(
    replies: Sequence[VectorReply],
    columns: Mapping[str, Column],
    chosen: Mapping[str, ChosenMetric],
    *,
    identity: Identity,
    capacities: Mapping[str, NodeCapacity] | None,
    evaluated_at: float,
    go_scaling: bool = False,
) -> JoinedBatch:
    """
    Make the batch.

    Of several series of one metric and one node (the replicas of a highly available pair, the devices of a disk metric), the highest finite
    value counts. A value that is not finite is rejected; so are averages of a node of which the metric has no newest value any more
    (``vanished``): for up to a window they would go on showing what is gone. Series of no node, or of hosts that would become one node by
    guessing, are rejected with their labels.

    Args:
        replies: Their parts have the keys of *columns*; what has another key is left out.
        columns: Key of a part → what its series are.
        chosen: Metric key → its expression, in the order of the catalogue.
        identity: How a series names its node.
        capacities: Node name → capacity, all nodes of the cluster; ``None`` where they are not known.
        evaluated_at: The time of the query, Unix seconds.
        go_scaling: Multiply every value by 100 whatever its unit, as the Go load-watcher does.

    Returns:
        One row for each node of the cluster, or where they are not known for each that a series named. ``sampled_at`` is the time of the
        oldest of a node's metrics.
    """
    series = _Series(replies, columns)
    rejections: list[Rejection] = []

    @cache  # most metrics have the same labels
    def find(code: int, own_labels: tuple[str, ...]) -> Match | NoMatch:
        return identity.find(series.hosts[code], own_labels)

    answers = {
        key: {code: find(code, expression.host_labels) for code in series.list_named(key)} for key, (_, expression) in chosen.items()
    }
    placed = {key: _place(answers[key], series.hosts, metric.metric_type, rejections) for key, (metric, _) in chosen.items()}
    found = sorted({match.node for places in placed.values() for match in places.values()})
    names = tuple(sorted(capacities)) if capacities is not None else tuple(found)
    rows = {name: row for row, name in enumerate(names)}

    latest: dict[str, FloatArray] = {}
    units: dict[str, str] = {}
    aggregates: list[Aggregate] = []
    sampled_at = np.full(len(names), np.nan)
    joins: dict[str, MetricJoin] = {}
    for key, (metric, expression) in chosen.items():
        row_of_host = np.full(len(series.hosts), -1)
        row_of_host[list(placed[key])] = [rows[match.node] for match in placed[key].values()]
        table = _Table(names, metric.metric_type, row_of_host, rejections)
        scale, unit = _find_scale(metric.metric_type, expression.unit, names, capacities, go_scaling=go_scaling)
        has_value = np.zeros(len(names), dtype=np.bool_)
        is_present: BoolArray | None = None
        times = np.full(len(names), evaluated_at)
        parts = series.by_metric[key]
        for column in sorted(parts, key=lambda column: (column.operator != LATEST, str(column.operator), column.window or Window(0))):
            values, present = table.fill(parts[column])
            if column.operator == TIMES:
                times = np.where(np.isnan(values), times, values)
                continue
            if column.operator == LATEST:
                is_present = present
            elif LATEST in metric.operators:
                values = table.drop_vanished(values, np.zeros_like(present) if is_present is None else is_present)
            values = table.scale(values, scale, expression.unit)
            has_value |= ~np.isnan(values)
            if column.operator == LATEST and metric.metric_type not in latest:
                latest[metric.metric_type] = values
                units[metric.metric_type] = unit
            else:
                aggregates.append(Aggregate(expression.name, metric.metric_type, column.operator, column.window, values, unit))
        sampled_at = np.fmin(sampled_at, np.where(has_value, np.minimum(times, evaluated_at), np.nan))
        unmatched = [series.hosts[code] for code in answers[key] if code not in placed[key]]
        joins[key] = _summarize(unmatched, placed[key], identity, int(has_value.sum()))
    batch = SampleBatch(
        source=NAME,
        nodes=names,
        sampled_at=sampled_at,
        latest=latest,
        aggregates=tuple(aggregates),
        infos=() if capacities is None else tuple(capacities[name].info for name in names),
        rejections=tuple(rejections),
        members_known=capacities is not None,
        units=units,
    )
    return JoinedBatch(batch, joins, frozenset(column for each in series.by_metric.values() for column in each))


_Matches = dict[int, Match]


class _Series:
    """
    The series of all replies: by metric and column, with codes that stand for the same labels in all of them.

    The codes are in the order of the labels, so that no rule depends on the order of the series.
    """

    def __init__(self, replies: Sequence[VectorReply], columns: Mapping[str, Column]) -> None:
        self.hosts = sorted({hosts for reply in replies for hosts in reply.hosts})
        self.by_metric: defaultdict[str, dict[Column, list[PartSeries]]] = defaultdict(dict)
        code_of = {hosts: code for code, hosts in enumerate(self.hosts)}
        for reply in replies:
            codes = np.array([code_of[hosts] for hosts in reply.hosts], dtype=np.int64)
            for key, part in reply.parts.items():
                column = columns.get(key)
                if column is not None:
                    recoded = replace(part, host_codes=codes[part.host_codes])
                    self.by_metric[column.metric_key].setdefault(column, []).append(recoded)

    def list_named(self, metric_key: str) -> list[int]:
        """List the codes of the labels of a metric's values, ascending; those of their times alone name nothing."""
        is_named = np.zeros(len(self.hosts), dtype=np.bool_)
        for column, parts in self.by_metric[metric_key].items():
            if column.operator != TIMES:
                for part in parts:
                    is_named[part.host_codes] = True
        return np.flatnonzero(is_named).tolist()


def _place(answers: Mapping[int, Match | NoMatch], hosts: Sequence[Hosts], metric_type: str, rejections: list[Rejection]) -> _Matches:
    """Keep the node of each distinct set of labels; where hosts collide by guessing, the surer way counts, and else none."""
    matches: _Matches = {}
    for code, answer in answers.items():
        if isinstance(answer, Match):
            matches[code] = answer
        else:
            rejections.append(Rejection(_first(hosts[code]), metric_type, answer.rule, answer.detail))
    guesses = {code: match for code, match in matches.items() if match.strength in _GUESSES}
    claims: defaultdict[str, set[tuple[Strength, str]]] = defaultdict(set)
    if guesses:
        for match in matches.values():
            claims[match.node].add((match.strength, match.host))
    for code, match in guesses.items():
        as_sure = [claim for claim in claims[match.node] if claim[0] <= match.strength]
        if len(as_sure) > 1:
            named = ", ".join(sorted(host for _, host in claims[match.node]))
            detail = f"the hosts {named} would be the node {match.node}"
            rejections.append(Rejection(match.host, metric_type, AMBIGUOUS_HOST, detail))
            del matches[code]
    return matches


@dataclass(frozen=True, slots=True)
class _Table:
    """The columns of one metric; ``row_of_host`` is the row of each code, -1 where it is none."""

    names: tuple[str, ...]
    metric_type: str
    row_of_host: IntArray
    rejections: list[Rejection]

    def fill(self, parts: Sequence[PartSeries]) -> tuple[FloatArray, BoolArray]:
        """Answer the highest finite value of each node, and which nodes have a series at all."""
        values, present = np.full(len(self.names), np.nan), np.zeros(len(self.names), dtype=np.bool_)
        for part in parts:
            rows = self.row_of_host[part.host_codes]
            is_placed = rows >= 0
            present[rows[is_placed]] = True
            np.fmax.at(values, rows[is_placed], part.values[is_placed])
            for series, text in part.odd_texts.items():
                if is_placed[series]:
                    rule = UNREADABLE if parse_number(text) is None else NOT_FINITE
                    self.rejections.append(Rejection(self.names[rows[series]], self.metric_type, rule, f"value {text[:40]}"))
        return values, present

    def drop_vanished(self, values: FloatArray, is_present: BoolArray) -> FloatArray:
        gone = ~np.isnan(values) & ~is_present
        detail = "there is no newest value any more, only averages over the past"
        self.rejections.extend(Rejection(self.names[row], self.metric_type, VANISHED, detail) for row in np.flatnonzero(gone).tolist())
        return np.where(gone, np.nan, values)

    def scale(self, values: FloatArray, scale: FloatArray, unit: str) -> FloatArray:
        unknown = ~np.isnan(values) & np.isnan(scale)
        detail = f"a value in {unit} needs the capacity of the node, which the API server does not give"
        self.rejections.extend(
            Rejection(self.names[row], self.metric_type, CAPACITY_UNKNOWN, detail) for row in np.flatnonzero(unknown).tolist()
        )
        return values * scale


def _find_scale(
    metric_type: str, unit: str, names: tuple[str, ...], capacities: Mapping[str, NodeCapacity] | None, *, go_scaling: bool
) -> tuple[FloatArray, str]:
    """Answer the factor for each node, NaN where its capacity is not known, and the unit that results."""
    served_unit, factor = UNITS[unit]
    if go_scaling:
        return np.full(len(names), 100.0), PERCENT if unit == "ratio" else f"{unit}*100"
    resource = CAPACITY_OF.get((unit, metric_type))
    if resource is None:
        return np.full(len(names), factor), served_unit
    per_unit = 1000.0 if resource == CPU else 1.0  # capacities of CPU are in millicores
    amounts = [(capacities[name].amounts.get(resource, math.nan) if capacities is not None else math.nan) for name in names]
    return 100.0 * per_unit / np.array(amounts, dtype=np.float64), PERCENT


def _summarize(unmatched: Sequence[Hosts], placed: _Matches, identity: Identity, nodes: int) -> MetricJoin:
    examples = [_describe(dict(zip(identity.labels, hosts, strict=True))) for hosts in unmatched[:_MAX_EXAMPLES]]
    addresses = {match.node for match in placed.values() if match.strength is Strength.UNCHECKED and _looks_like_address(match.node)}
    return MetricJoin(nodes, len(unmatched), tuple(examples), len(addresses))


def _looks_like_address(name: str) -> bool:
    return ":" in name or name.replace(".", "").isdigit()


def _first(hosts: Hosts) -> str:
    return next((host for host in hosts if host), "")


def _describe(labels: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'{label}="{value}"' for label, value in sorted(labels.items()) if value) + "}"
