"""Whatever Prometheus answers: the batch is what the rules say, series by series and node by node, as a plain reference applies them."""

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from load_watcher.providers.catalogue import CAPACITY_OF, HOST_LABELS, UNITS, CatalogueMetric, Expression
from load_watcher.providers.nodes import Match, NodeCapacity, NodeResolver, NoMatch, Resources, Strength
from load_watcher.providers.prometheus_batch import TIMES, ChosenMetric, Column, Identity, JoinedBatch, build_batch
from load_watcher.samples import FIFTEEN_MINUTES, FIVE_MINUTES, NodeInfo
from tests.builders import NOW
from tests.prometheus_replies import PrintedSeries, make_reply
from trimaran_client.wire import ResourceQuantities

LABELS = ("mine", *HOST_LABELS)
INFO = NodeInfo(ResourceQuantities(), ResourceQuantities())
# Of b the capacity is not known; N1 and n1 are two nodes, which makes short names ambiguous.
ADDRESSES = {"n1": ("10.0.0.1", "fd00::1"), "N1": (), "n2.example.org": ("10.0.0.2",), "n3.example.org": ("10.0.0.2",), "b": ()}
CAPACITIES = {name: NodeCapacity({} if name == "b" else {"CPU": 4000, "Memory": 2**30}, Resources(), INFO) for name in ADDRESSES}
COLUMNS = [
    ("Latest", None),
    (TIMES, None),
    *((operator, window) for operator in ("AVG", "STD") for window in (FIFTEEN_MINUTES, FIVE_MINUTES)),
]


class Case(NamedTuple):
    """All that the join is told."""

    series: Sequence[PrintedSeries]
    chosen: Mapping[str, ChosenMetric]
    identity: Identity
    capacities: Mapping[str, NodeCapacity] | None
    go_scaling: bool

    @property
    def columns(self) -> dict[str, Column]:
        return {f"{key}/{operator}/{window}": Column(key, operator, window) for key in self.chosen for operator, window in COLUMNS}


class Outcome(NamedTuple):
    """What the join says, without its types: values by column and node, rejections in any order."""

    nodes: list[str]
    values: dict[tuple[str, str, str, str], dict[str, float]]
    units: dict[str, str]
    sampled_at: dict[str, float]
    rejections: list[tuple[str, str, str, str]]
    joins: dict[str, tuple[int, int, tuple[str, ...], int]]
    answered: set[Column]


def join_plainly(case: Case) -> Outcome:
    """Apply the rules in the order in which :func:`build_batch` states them, with nothing but loops."""
    reference = _Reference(case)
    for key in case.chosen:
        reference.find_nodes(key)
    for key in case.chosen:
        reference.judge(key)
    return reference.outcome()


class _Reference:
    def __init__(self, case: Case) -> None:
        self.case = case
        self.by_column: defaultdict[Column, list[tuple[tuple[str, ...], str]]] = defaultdict(list)
        for part, labels, text in case.series:
            if part in case.columns:
                self.by_column[case.columns[part]].append((tuple(labels.get(name, "") for name in LABELS), text))
        self.node_of: dict[str, dict[tuple[str, ...], Match]] = {}
        self.values: dict[tuple[str, str, str, str], dict[str, float]] = {}
        self.units: dict[str, str] = {}
        self.sampled_at: dict[str, float] = {}
        self.rejections: list[tuple[str, str, str, str]] = []
        self.joins: dict[str, tuple[int, int, tuple[str, ...], int]] = {}

    def find_nodes(self, key: str) -> None:
        """A set of labels names a node; a guess counts only where no other host is as sure to be that node."""
        metric, expression = self.case.chosen[key]
        columns = [column for column in self.by_column if column.metric_key == key and column.operator != TIMES]
        sets = {labels for column in columns for labels, _ in self.by_column[column]}
        answers = {labels: self.case.identity.find(labels, expression.host_labels) for labels in sets}
        for labels, answer in answers.items():
            if isinstance(answer, NoMatch):
                self.rejections.append((next(filter(None, labels), ""), metric.metric_type, answer.rule, answer.detail))
        matches = {labels: answer for labels, answer in answers.items() if isinstance(answer, Match)}
        kept = {}
        for labels, match in matches.items():
            claims = {(other.strength, other.host) for other in matches.values() if other.node == match.node}
            rivals = [claim for claim in claims if claim != (match.strength, match.host) and claim[0] <= match.strength]
            if rivals and match.strength in {Strength.SUFFIX, Strength.SHORT_NAME}:
                named = ", ".join(sorted(host for _, host in claims))
                self.rejections.append(
                    (match.host, metric.metric_type, "ambiguous_host", f"the hosts {named} would be the node {match.node}")
                )
            else:
                kept[labels] = match
        self.node_of[key] = kept
        strangers = sorted(set(answers) - set(kept))
        examples = tuple(_print(labels) for labels in strangers[:3])
        unchecked = {match.node for match in kept.values() if match.strength is Strength.UNCHECKED}
        addresses = {node for node in unchecked if ":" in node or re.fullmatch("[0-9.]*[0-9][0-9.]*", node)}
        self.joins[key] = (0, len(strangers), examples, len(addresses))

    @property
    def nodes(self) -> list[str]:
        if self.case.capacities is not None:
            return sorted(self.case.capacities)
        return sorted({match.node for places in self.node_of.values() for match in places.values()})

    def highest(self, key: str, column: Column) -> dict[str, float]:
        """Of several series of one node the highest finite value counts; all others are refused."""
        metric_type, found = self.case.chosen[key].metric.metric_type, dict[str, float]()
        for labels, text in self.by_column[column]:
            if labels not in self.node_of[key]:
                continue
            node = self.node_of[key][labels].node
            is_number = re.fullmatch(r"NaN|[+-]?Inf|[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?", text)
            if is_number and math.isfinite(float(text)):
                found[node] = max(found.get(node, -math.inf), float(text))
            else:
                self.rejections.append((node, metric_type, "not_finite" if is_number else "unreadable", f"value {text[:40]}"))
        return found

    def judge(self, key: str) -> None:
        """Averages without a newest value, and values without a capacity, do not count; what does is scaled and dated."""
        metric, expression = self.case.chosen[key]
        newest = self.by_column[Column(key, "Latest")]
        present = {self.node_of[key][labels].node for labels, _ in newest if labels in self.node_of[key]}
        dates = self.highest(key, Column(key, TIMES))
        with_value: set[str] = set()
        for operator, window in COLUMNS:
            column = Column(key, operator, window)
            if operator == TIMES or column not in self.by_column or not self.by_column[column]:
                continue
            served = {}
            for node, value in self.highest(key, column).items():
                scale = self.scale(metric, expression, node)
                if operator != "Latest" and "Latest" in metric.operators and node not in present:
                    detail = "there is no newest value any more, only averages over the past"
                    self.rejections.append((node, metric.metric_type, "vanished", detail))
                elif scale is None:
                    detail = f"a value in {expression.unit} needs the capacity of the node, which the API server does not give"
                    self.rejections.append((node, metric.metric_type, "capacity_unknown", detail))
                else:
                    served[node] = value * scale
            with_value |= served.keys()
            if operator == "Latest" and metric.metric_type not in self.units:
                self.units[metric.metric_type] = self.unit(metric, expression)
                self.values["", metric.metric_type, "Latest", "None"] = served
            else:
                self.values[expression.name, metric.metric_type, operator, str(window)] = served
        for node in with_value:
            self.sampled_at[node] = min(self.sampled_at.get(node, math.inf), dates.get(node, NOW), NOW)
        self.joins[key] = (len(with_value), *self.joins[key][1:])

    def unit(self, metric: CatalogueMetric, expression: Expression) -> str:
        if self.case.go_scaling:
            return "percent" if expression.unit == "ratio" else f"{expression.unit}*100"
        return "percent" if (expression.unit, metric.metric_type) in CAPACITY_OF else UNITS[expression.unit][0]

    def scale(self, metric: CatalogueMetric, expression: Expression, node: str) -> float | None:
        if self.case.go_scaling:
            return 100.0
        if (expression.unit, metric.metric_type) not in CAPACITY_OF:
            return UNITS[expression.unit][1]
        capacity = (self.case.capacities or {}).get(node)
        amount = None if capacity is None else capacity.amounts.get(metric.metric_type)
        return None if amount is None else 100.0 * (1000.0 if metric.metric_type == "CPU" else 1.0) / amount

    def outcome(self) -> Outcome:
        answered = {column for column, items in self.by_column.items() if items}
        return Outcome(self.nodes, self.values, self.units, self.sampled_at, sorted(self.rejections), self.joins, answered)


def _print(labels: Sequence[str]) -> str:
    return "{" + ", ".join(f'{name}="{value}"' for name, value in sorted(zip(LABELS, labels, strict=True)) if value) + "}"


def simplify(joined: JoinedBatch) -> Outcome:
    batch = joined.batch

    def by_node(column: Sequence[float]) -> dict[str, float]:
        return {node: value for node, value in zip(batch.nodes, column, strict=True) if not math.isnan(value)}

    values = {("", metric_type, "Latest", "None"): by_node(column.tolist()) for metric_type, column in batch.latest.items()}
    for item in batch.aggregates:
        values[item.name, item.metric_type, item.operator, str(item.window)] = by_node(item.values.tolist())
    rejections = sorted((item.node, item.metric_type, item.rule, item.detail) for item in batch.rejections)
    joins = {key: (join.nodes, join.unmatched, join.examples, join.addresses) for key, join in joined.joins.items()}
    return Outcome(
        list(batch.nodes), values, dict(batch.units), by_node(batch.sampled_at.tolist()), rejections, joins, set(joined.answered)
    )


hosts = st.sampled_from(
    ["n1", "N1", "n1:9100", "n2", "N2", "n2.example.org", "n3", "n3:9100", "n2.other.net", "b", "stranger", "1234", "", "ü", "a\nb"]
) | st.sampled_from(["10.0.0.1:9100", "10.0.0.2:9100", "10.9.9.9", "[fd00::1]:9100", "FD00:0::1"])
# Of these several would be one node by guessing.
guesses = st.sampled_from(["n2", "N2", "n2:9100", "n2.example.org"])
labels = st.dictionaries(st.sampled_from([*LABELS, "device", "job"]), hosts, max_size=3) | (hosts | guesses).map(
    lambda host: {"instance": host}
)
texts: st.SearchStrategy[str] = (
    st.sampled_from(["0.5", "0.25", "0.5", "-0.1", "0", "1e-3", "+3", "01", "1.", "1E5", "1e999", "NaN", "Inf", "+Inf", "-Inf"])
    | st.sampled_from(
        ["", "abc", "1_0", ".5", " 1", "1\n", "1\n2", "nan", "inf", "+NaN", "٣", "Infinity", "0x10", "1e", "9" * 50, "é" * 50]
    )
    | st.floats(0, 1).map(repr)
)
dates = st.sampled_from([str(NOW), str(NOW - 40), str(NOW + 5), "0", "NaN"])


@st.composite
def metrics(draw: st.DrawFn) -> dict[str, ChosenMetric]:
    chosen = {}
    for key, metric_type in (("cpu", "CPU"), ("memory", "Memory"), ("memory_too", "Memory")):
        unit = draw(st.sampled_from(["ratio", "percent", "cores", "bytes", "microwatts"]))
        own_labels = draw(st.sampled_from([(), (), ("node", "instance")]))
        operators = draw(st.sampled_from([("Latest", "AVG", "STD"), ("AVG",)]))
        expression = Expression("query", unit, f"rule_{key}", own_labels)
        chosen[key] = ChosenMetric(CatalogueMetric(key, metric_type, operators, (expression,)), expression)
    return chosen


@st.composite
def cases(draw: st.DrawFn) -> Case:
    chosen = draw(metrics())
    known = draw(st.booleans())
    chosen_labels = draw(st.sampled_from([(), (), ("mine",)]))
    resolver = NodeResolver(ADDRESSES if known else None, suffix=draw(st.sampled_from(["", ".example.org"])))
    case = Case([], chosen, Identity(LABELS, chosen_labels, resolver), CAPACITIES if known else None, draw(st.booleans()))
    parts = st.sampled_from([*case.columns, *case.columns, "unknown"])
    some = draw(st.lists(st.tuples(parts, labels, texts | dates), max_size=30))
    # Whole rows too, as in a real cluster: each part of the same labels.
    rows = [(part, named, draw(dates if TIMES in part else texts)) for named in draw(st.lists(labels, max_size=3)) for part in case.columns]
    return case._replace(series=draw(st.permutations(some + rows)))


@given(cases(), st.lists(st.integers(0, 60), min_size=2, max_size=2).map(sorted))
def test_the_join_is_what_the_rules_say_of_each_series(case: Case, cuts: list[int]) -> None:
    first, second = cuts
    replies = [make_reply(part, LABELS) for part in (case.series[:first], case.series[first:second], case.series[second:])]
    joined = build_batch(
        replies,
        case.columns,
        case.chosen,
        identity=case.identity,
        capacities=case.capacities,
        evaluated_at=NOW,
        go_scaling=case.go_scaling,
    )
    assert simplify(joined) == join_plainly(case)
