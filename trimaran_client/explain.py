"""
Why a node has its score: data for people and programs, built on demand from the columns that were scored.

A policy lays open its own arithmetic (:class:`Reasoning`); what is the same for every policy, the metrics with their age and source, the
pods in flight and hints in plain words, is added here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import msgspec

from trimaran_client import wire
from trimaran_client.pod_table import AssignedPod
from trimaran_client.policies.base import MetricUse, NodeColumns, PodUse, Reason, Reasoning, Scores, ScoringPolicy
from trimaran_client.policies.wording import BASE_UNITS, amount
from trimaran_client.resources import CPU, Pod
from trimaran_client.snapshot import MetricKey

# From here on little more fits, and people wonder why.
_NEARLY_FULL_PERCENT = 90.0


class ExplainedMetric(msgspec.Struct, frozen=True, rename="camel"):
    """The metric that counted; ``value`` is null where there was none. ``source`` only where several sources are read at once."""

    resource: str
    type: str
    statistic: str
    window: str
    value: float | None
    unit: str
    age_seconds: float | None
    source: str


class ExplainedPart(msgspec.Struct, frozen=True, rename="camel"):
    """What one container, or other part, of the pod is taken to use, and by which rule; base units."""

    part: str
    kind: str
    rule: str
    amount: int


class ExplainedPrediction(msgspec.Struct, frozen=True, rename="camel"):
    """What the pod is taken to use of a resource, ``unit`` millicores, bytes or units."""

    resource: str
    unit: str
    amount: float
    parts: list[ExplainedPart]


class ExplainedPodInFlight(msgspec.Struct, frozen=True, rename="camel"):
    """A pod whose usage the metrics do not fully show: what it is taken to use, and the share of it that counts."""

    pod: str
    state: str
    resource: str
    amount: float
    share: float
    age_seconds: float


class ExplainedResource(msgspec.Struct, frozen=True, rename="camel"):
    """What the node has of a resource, and what its pods hold of it, base units; null = not known."""

    resource: str
    unit: str
    capacity: float | None
    allocatable: float | None
    requested: float | None


class ExplainedNode(msgspec.Struct, frozen=True, rename="camel"):
    """One candidate: its score, and everything it was computed from; ``steps`` is the arithmetic in words, ``hints`` what else matters."""

    node: str
    score: int
    reason: str
    status: str
    metrics: list[ExplainedMetric]
    resources: list[ExplainedResource]
    in_flight: list[ExplainedPodInFlight]
    terms: dict[str, float | None]
    steps: list[str]
    hints: list[str]


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    """Why each candidate has its score, best first."""

    pod: str
    policy: str
    preset: str
    arguments: dict[str, object]
    source: str
    snapshot_age_seconds: float | None
    predictions: list[ExplainedPrediction]
    nodes: list[ExplainedNode]
    hints: list[str]


def explain_columns(
    policy: ScoringPolicy, pod: Pod, columns: NodeColumns, scores: Scores, *, only: Sequence[str] | None = None
) -> Explanation:
    """
    Explain scores.

    Args:
        policy: What gave them.
        pod: The pod.
        columns: What they were computed from.
        scores: The scores.
        only: The nodes to tell of; all by default.
    """
    failed = bool(len(scores.names)) and bool((scores.reasons == Reason.POLICY_FAILED).all())
    hints = _general_hints(columns, failed=failed)
    reasoning = Reasoning((), (), {}, [[]] * len(columns.names))
    if not failed:
        try:
            reasoning = policy.explain(pod, columns)
        except Exception as error:  # noqa: BLE001 - anyone's code; what it raises is told
            hints.append(f"the policy cannot explain itself: {error!r}")
    wanted = None if only is None else set(only)
    values, reasons = scores.values.tolist(), scores.reasons.tolist()
    rows = [row for row, name in enumerate(columns.names) if wanted is None or name in wanted]
    rows.sort(key=lambda row: (-values[row], columns.names[row]))
    made_at = columns.snapshot.made_at
    arguments = getattr(policy, "args", None)
    placed: dict[str, list[tuple[int, AssignedPod]]] = {}
    for index, held in enumerate(() if columns.pods is None else columns.pods.in_flight):
        placed.setdefault(held.node, []).append((index, held))
    return Explanation(
        pod=f"{pod.namespace}/{pod.name}",
        policy=policy.name,
        preset=str(getattr(arguments, "preset", "")),
        arguments=_plain(arguments),
        source=columns.snapshot.source,
        snapshot_age_seconds=_number(columns.now - made_at) if made_at else None,
        predictions=[_prediction(use) for use in reasoning.pods],
        nodes=[
            _Node(policy, pod, columns, reasoning, row, placed.get(columns.names[row], ())).explain(values[row], Reason(reasons[row]))
            for row in rows
        ],
        hints=hints,
    )


def _prediction(use: PodUse) -> ExplainedPrediction:
    parts = [ExplainedPart(each.part, each.kind, each.rule, each.amount) for each in use.parts]
    return ExplainedPrediction(use.resource, BASE_UNITS.get(use.resource, "units"), use.amount, parts)


class _Node:
    """One candidate of an explanation."""

    def __init__(
        self,
        policy: ScoringPolicy,
        pod: Pod,
        columns: NodeColumns,
        reasoning: Reasoning,
        row: int,
        placed: Sequence[tuple[int, AssignedPod]],
    ) -> None:
        self._policy = policy
        self._pod = pod
        self._columns = columns
        self._reasoning = reasoning
        self._row = row
        self._placed = placed  # the pods in flight that are on it, with their indexes

    def explain(self, score: int, reason: Reason) -> ExplainedNode:
        columns, row = self._columns, self._row
        name = columns.names[row]
        snapshot_row = columns.snapshot.rows.get(name)
        return ExplainedNode(
            node=name,
            score=score,
            reason=str(reason),
            status="" if snapshot_row is None else columns.snapshot.statuses[snapshot_row],
            metrics=[self._metric(use) for use in self._reasoning.metrics],
            resources=[self._resource(each) for each in self._policy.resources],
            in_flight=[each for use in self._reasoning.pods for each in self._in_flight(use)],
            terms={key: _number(float(column[row])) for key, column in self._reasoning.terms.items()},
            steps=list(self._reasoning.sentences[row]),
            hints=[*self._metric_hints(), *self._fit_hints()],
        )

    def _metric(self, use: MetricUse) -> ExplainedMetric:
        table, position = self._columns.snapshot.metrics, int(use.selection.positions[self._row])
        key = table.key_names[table.keys[position]] if position >= 0 else MetricKey(use.selector.type, "", use.selector.window)
        return ExplainedMetric(
            resource=use.resource,
            type=key.type,
            statistic=key.operator,
            window=key.window,
            value=_number(float(use.selection.values[self._row])),
            unit=key.unit or "percent",
            age_seconds=_number(float(self._columns.age_seconds[self._row])),
            source=table.source_names[table.sources[position]] if position >= 0 else "",
        )

    def _resource(self, name: str) -> ExplainedResource:
        held = self._columns.resource(name)
        capacity, allocatable, requested = (
            _number(float(column[self._row])) for column in (held.capacity, held.allocatable, held.requested)
        )
        return ExplainedResource(name, BASE_UNITS.get(name, "units"), capacity, allocatable, requested)

    def _in_flight(self, use: PodUse) -> list[ExplainedPodInFlight]:
        if not len(use.shares):
            return []
        return [
            ExplainedPodInFlight(
                pod=f"{each.pod.namespace}/{each.pod.name}",
                state=each.state,
                resource=use.resource,
                amount=float(use.in_flight[index]),
                share=round(float(use.shares[index]), 6),
                age_seconds=round(self._columns.now - each.assigned_at, 3),
            )
            for index, each in self._placed
            if use.shares[index] > 0
        ]

    def _metric_hints(self) -> list[str]:
        columns, row = self._columns, self._row
        name = columns.names[row]
        if name not in columns.snapshot.rows:
            return [
                "the load watcher does not know this node: see its /api/v1/nodes, and whether its source calls the node by another name"
            ]
        hints = [
            f"no {use.selector.type} metric {_asked(use)}: {self._served(use.selector.type)}"
            for use in self._reasoning.metrics
            if math.isnan(use.selection.values[row])
        ]
        limit_seconds = getattr(getattr(self._policy, "args", None), "max_age_seconds", math.inf)
        age_seconds = float(columns.age_seconds[row])
        if age_seconds > limit_seconds and getattr(getattr(self._policy, "args", None), "preset", "default") == "default":
            hints.append(
                f"its metrics are {age_seconds:.0f} s old, more than the {limit_seconds:g} s allowed: see whether its agent reports"
            )
        return hints

    def _served(self, metric_type: str) -> str:
        columns, row = self._columns, self._row
        snapshot = columns.snapshot
        table, own = snapshot.metrics, snapshot.rows[columns.names[row]]
        keys = [table.key_names[code] for code in table.keys[table.rows == own].tolist()]
        served = [" ".join(filter(None, (key.operator, key.window))) for key in keys if key.type == metric_type]
        if served:
            return f"the load watcher serves {', '.join(served)} for it"
        if snapshot.keys_of(metric_type):
            return f"the load watcher serves none for this node (status {snapshot.statuses[own] or 'unknown'}), though for others"
        return "the load watcher serves none for any node: its /api/v1/status tells what it looked for"

    def _fit_hints(self) -> list[str]:
        hints: list[str] = []
        for resource in self._policy.resources:
            held = self._columns.resource(resource)
            quantity = self._pod.requested(resource)
            asked = float(quantity.milli if resource == CPU else quantity.value)
            requested, offered = float(held.requested[self._row]), float(held.offered[self._row])
            if not offered > 0 or math.isnan(requested):
                continue
            percent = 100.0 * requested / offered
            if asked and requested + asked > offered:
                hints.append(
                    f"requests already fill {percent:.0f} % of allocatable {resource}, and the pod asks for {amount(asked, resource)}: "
                    "the fit filter will refuse it"
                )
            elif percent >= _NEARLY_FULL_PERCENT:
                hints.append(f"requests already fill {percent:.0f} % of allocatable {resource}: little more will fit")
        return hints


def _asked(use: MetricUse) -> str:
    window = f" over {use.selector.window}" if use.selector.window else ""
    return f"({' or '.join(operator or 'unnamed' for operator in use.selector.operators)}{window})"


def _general_hints(columns: NodeColumns, *, failed: bool) -> list[str]:
    hints: list[str] = []
    if failed:
        hints.append("the policy raised an error: every node has the neutral score; the log shows it")
    if not columns.snapshot.nodes:
        hints.append("there is no snapshot: the load watcher was not reached, or has nothing yet")
    elif not columns.snapshot.keys_of(wire.CPU):
        hints.append("the load watcher serves no CPU metric for any node: its /api/v1/status tells what it looked for")
    if columns.pods is None:
        hints.append("the pods of the cluster are not known: pods in flight do not count, and requests cannot stand in for metrics")
    return hints


def _plain(arguments: object) -> dict[str, object]:
    """Write the arguments of a policy as plain data; a function by its name."""
    if not dataclasses.is_dataclass(arguments) or isinstance(arguments, type):
        return {}
    return {key: _plain_value(value) for key, value in dataclasses.asdict(arguments).items()}


def _plain_value(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): _plain_value(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_value(each) for each in value]
    return value if value is None or isinstance(value, str | int | float | bool) else getattr(value, "__qualname__", type(value).__name__)


def _number(value: float) -> float | None:
    return round(value, 9) if math.isfinite(value) else None
