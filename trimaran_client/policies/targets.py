"""
One resource against its target: predicted utilization, the score for it, and why.

TargetLoadPacking is this for CPU, and by choice for further resources; the formula stands here once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np

from trimaran_client import wire
from trimaran_client.policies.arguments import ABOVE_ZERO, ANY_METRIC, AT_LEAST_ZERO, PERCENT, WHOLE, Fallback, MetricChoice
from trimaran_client.policies.base import (
    MAX_NODE_SCORE,
    MIN_NODE_SCORE,
    NodeColumns,
    NodeSelection,
    Reason,
    to_score,
)
from trimaran_client.policies.fallback import score_fallback
from trimaran_client.policies.in_flight import uncovered_shares, unreported_upstream
from trimaran_client.prediction import Estimator, GuardedEstimator, PredictionRule, UsagePrediction
from trimaran_client.resources import CPU, MEMORY, Pod
from trimaran_client.snapshot import MetricSelector
from trimaran_client.units import BoolArray, FloatArray, IntArray, round_half_away

DEFAULT_TARGET_PERCENT: Final = 40.0
_METRIC_TYPES: Final[Mapping[str, str]] = {CPU: wire.CPU, MEMORY: wire.MEMORY}
LOAD_OPERATORS: Final = (wire.AVERAGE, wire.LATEST)
_OVER_CAPACITY: Final = int(Reason.OVER_CAPACITY)  # a member of an enumeration costs as much as a step of numpy to look up
_PERCENT_UNITS: Final = ("", "percent")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceTarget:
    """
    A target for a further resource.

    Args:
        resource: What pods request, such as ``memory`` or ``nvidia.com/gpu``; a name of your own where they request nothing of it, such as
            ``network``.
        metric_type: The metric's type as the load watcher serves it; by default that of ``memory``.
        target_percent: Utilization to pack up to, above 0 and below 100.
        metric: Which metric of the type counts; by default the average, else the newest value.
        full_amount: What counts as 100 %, in the metric's unit; needed where that is not percent.
        prediction: What a container's usage is predicted from, as in :class:`TargetLoadPackingArgs`.
        default_request: What a container without request and limit is taken to use, whole units (bytes of memory), >= 0.
        request_multiplier: By how much usage is taken to exceed a request, finite and >= 0.
        fallback: How a node without this metric is scored: ``allocation``, ``neutral`` 50, ``minimum`` 0, or ``leave_out``: the other
            resources decide. An allocation that is not known is left out too.
        weight: How much it weighs where resources are combined by weights, above 0.
    """

    resource: str
    metric_type: str = ""
    target_percent: float = DEFAULT_TARGET_PERCENT
    metric: MetricChoice = ANY_METRIC
    full_amount: float | None = None
    prediction: PredictionRule | Estimator = "limit_first"
    default_request: int = 0
    request_multiplier: float = 1.0
    fallback: Fallback | Literal["leave_out"] = "allocation"
    weight: float = 1.0

    def problems(self, name: str) -> list[str]:
        """List what is wrong with it; *name* is what its user calls it."""
        found = [
            *PERCENT.problems(**{f"{name}.target_percent": self.target_percent}),
            *WHOLE.problems(**{f"{name}.default_request": self.default_request}),
            *AT_LEAST_ZERO.problems(**{f"{name}.request_multiplier": self.request_multiplier}),
            *ABOVE_ZERO.problems(**{f"{name}.weight": self.weight}),
        ]
        if self.full_amount is not None:
            found += ABOVE_ZERO.problems(**{f"{name}.full_amount": self.full_amount})
        if not self.resource:
            found.append("a resource target has no resource; name it, for example memory")
        if not self.metric_type and self.resource not in _METRIC_TYPES:
            found.append(f"{name}.metric_type is missing; name the type as the load watcher serves it")
        found += self.metric.problems(f"{name}.metric") + prediction_problems(f"{name}.prediction", self.prediction)
        if self.fallback not in (*get_args(Fallback), "leave_out"):
            found.append(f"{name}.fallback is {self.fallback!r}; choose from {', '.join(get_args(Fallback))}, leave_out")
        return found


def prediction_problems(name: str, prediction: object) -> list[str]:
    """List what is wrong with a choice of prediction."""
    if prediction in get_args(PredictionRule) or callable(prediction):
        return []
    return [f"{name} is {prediction!r}; choose from {', '.join(get_args(PredictionRule))}, or give a function"]


def make_prediction(
    resource: str, prediction: PredictionRule | Estimator, *, default_amount: int, multiplier: float, combines_steps: bool = True
) -> UsagePrediction:
    """Make the prediction of a choice; a function is guarded, and has ``limit_first`` behind it."""
    estimator = None if isinstance(prediction, str) else GuardedEstimator(prediction)
    return UsagePrediction(
        resource=resource,
        rule=prediction if isinstance(prediction, str) else "limit_first",
        default_amount=default_amount,
        multiplier=multiplier,
        combines_steps=combines_steps,
        estimator=estimator,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """
    One resource, ready to be scored: its selector and prediction made, once for the life of the policy.

    ``is_primary`` marks CPU: a node always has a score for it. ``is_upstream`` computes as the Go plugin does.
    """

    resource: str
    target_percent: float
    selector: MetricSelector
    prediction: UsagePrediction
    fallback: Fallback | Literal["leave_out"]
    weight: float = 1.0
    full_amount: float | None = None
    is_primary: bool = False
    is_upstream: bool = False

    @classmethod
    def of(cls, target: ResourceTarget) -> Target:
        """Make the target of what a user configured."""
        metric_type = target.metric_type or _METRIC_TYPES[target.resource]
        return cls(
            resource=target.resource,
            target_percent=target.target_percent,
            selector=target.metric.selector(metric_type, LOAD_OPERATORS),
            prediction=make_prediction(
                target.resource, target.prediction, default_amount=target.default_request, multiplier=target.request_multiplier
            ),
            fallback=target.fallback,
            weight=target.weight,
            full_amount=target.full_amount,
        )

    @np.errstate(all="ignore")
    def measure(self, nodes: NodeColumns) -> FloatArray:
        """
        Answer what does not depend on pods, shape (4, nodes).

        In turn the metric in percent; the amount that is; the capacity; and the time from which on the metric's age counts, Unix seconds,
        NaN where the metric cannot be used at all. Upstream asks for no age.
        """
        measured = _measured_percent(self, nodes, nodes.select(self.selector))
        capacity = nodes.resource(self.resource).capacity
        if self.is_upstream:
            capacity = np.where(np.isnan(capacity), 0.0, capacity)
            counts_from = np.where(np.isnan(measured), math.nan, math.inf)
        else:
            capacity = np.where(capacity > 0, capacity, math.nan)
            counts_from = np.where(np.isfinite(measured) & (measured >= 0), nodes.sampled_at, math.nan)
        return np.stack([measured, measured / 100.0 * capacity, capacity, counts_from])


@dataclass(frozen=True, slots=True, eq=False)
class UtilizationTerms:
    """
    The arithmetic of one resource, amounts in base units (millicores of CPU, else whole units); columns have the shape (nodes,).

    ``predicted_percent`` is NaN where the node has no metric that counts, or no capacity that the pod's amount could be held to.
    ``shares`` tell how much of each pod in flight still counts, shape (pods,).
    """

    pod_amount: int
    measured_percent: FloatArray
    measured_amount: FloatArray
    in_flight_amount: FloatArray
    predicted_percent: FloatArray
    is_measured: BoolArray
    selection: NodeSelection
    shares: FloatArray


def compute_terms(target: Target, pod: Pod, nodes: NodeColumns, *, max_age_seconds: float) -> UtilizationTerms:
    """
    Compute the predicted utilization of each node with the pod on it.

    ``predicted = 100 * (measured / 100 * capacity + pod + in flight) / capacity``, evaluated in this order; where nothing is added,
    ``predicted = measured``, and no capacity is needed.
    """
    pod_amount = target.prediction.predict(pod)
    selection = nodes.select(target.selector)
    measured, used, capacity, counts_from = nodes.derive(target, target.measure)
    shares, in_flight = _in_flight(target, nodes, selection)
    is_measured = nodes.now - counts_from <= max_age_seconds
    predicted = predict_percent(target, used, float(pod_amount), in_flight, capacity)
    if not target.is_primary:
        predicted = np.where(float(pod_amount) + in_flight == 0, measured, predicted)
    return UtilizationTerms(
        pod_amount=pod_amount,
        measured_percent=measured,
        measured_amount=used,
        in_flight_amount=in_flight,
        predicted_percent=np.where(is_measured, predicted, math.nan),
        is_measured=is_measured,
        selection=selection,
        shares=shares,
    )


def predict_percent(target: Target, used: FloatArray, pod_amount: float, in_flight: FloatArray, capacity: FloatArray) -> FloatArray:
    """Predict the utilization of nodes with the pod on them, percent of capacity; amounts in base units, columns of the shape (nodes,)."""
    predicted = 100.0 * (used + pod_amount + in_flight) / capacity  # in the order of the Go plugin, to the last bit
    return np.where(capacity == 0, 0.0, predicted) if target.is_upstream else predicted


def _measured_percent(target: Target, nodes: NodeColumns, selection: NodeSelection) -> FloatArray:
    """Turn the metric into percent; one in another unit counts only where it is known what 100 % of it is."""
    if target.is_primary:
        return selection.values
    if target.full_amount is not None:
        return 100.0 * selection.values / target.full_amount
    is_percent = np.array([*(key.unit in _PERCENT_UNITS for key in nodes.snapshot.metrics.key_names), False])
    return np.where(is_percent[selection.keys], selection.values, math.nan)


def _in_flight(target: Target, nodes: NodeColumns, selection: NodeSelection) -> tuple[FloatArray, FloatArray]:
    """Answer how much of each pod in flight counts, and what they use on each node."""
    if nodes.pods is None or not nodes.pods.in_flight_count:
        return np.empty(0), np.zeros(len(nodes.names))
    window_end_at = nodes.snapshot.window_end_at
    shares = unreported_upstream(nodes.pods, window_end_at) if target.is_upstream else uncovered_shares(nodes, selection)
    return shares, nodes.sum_by_node(nodes.pods.usage(target.prediction) * shares)


def score_target(target: Target, pod: Pod, nodes: NodeColumns, terms: UtilizationTerms) -> tuple[FloatArray, IntArray]:
    """
    Score one resource.

    Returns:
        Scores before rounding, shape (nodes,), NaN where the resource has no say; and :class:`Reason` codes.
    """
    values = utilization_score(terms.predicted_percent, target.target_percent)
    reasons = utilization_reasons(terms.predicted_percent, target.target_percent)
    if target.is_upstream:
        return np.where(terms.is_measured, values, float(MIN_NODE_SCORE)), np.where(terms.is_measured, reasons, Reason.NO_METRICS)
    if not math.isnan(np.minimum.reduce(values, initial=0.0)):  # what is not measured has no prediction, so no score either
        return values, reasons
    if target.is_primary:
        values = np.where(np.isnan(values), float(MIN_NODE_SCORE), values)
        reasons = np.where(np.isnan(terms.predicted_percent), Reason.CAPACITY_UNKNOWN, reasons)
    fallback_values, fallback_reasons = _score_fallback(target, pod, nodes)
    return np.where(terms.is_measured, values, fallback_values), np.where(terms.is_measured, reasons, fallback_reasons)


def _score_fallback(target: Target, pod: Pod, nodes: NodeColumns) -> tuple[FloatArray, IntArray]:
    allocated = allocated_percent(target, pod, nodes)
    by_allocation = utilization_score(allocated, target.target_percent)
    if target.fallback == "leave_out":
        count = len(nodes.names)
        return np.full(count, math.nan), np.full(count, Reason.NO_METRICS, dtype=np.int64)
    columns = nodes.resource(target.resource)
    values, reasons = score_fallback(
        target.fallback, by_allocation, pods_known=~np.isnan(columns.requested), capacity_known=~np.isnan(columns.offered)
    )
    if target.fallback == "allocation" and not target.is_primary:
        values = by_allocation
    return values, reasons


def allocated_percent(target: Target, pod: Pod, nodes: NodeColumns) -> FloatArray:
    """Answer what is requested of each node with the pod on it, percent of what it offers, shape (nodes,); NaN = not known."""
    columns = nodes.resource(target.resource)
    requested = pod.requested(target.resource)
    amount = float(requested.milli if target.resource == CPU else requested.value)
    return 100.0 * (columns.requested + amount) / columns.offered


def utilization_score(predicted_percent: FloatArray, target_percent: float) -> FloatArray:
    """
    Score nodes by their utilization after placement, packing up to the target; not rounded.

    Climbs from *target* at 0 % to 100 at the target, then drops to the target and falls to 0 at 100 %.

    Args:
        predicted_percent: Utilization with the pod on the node, percent of capacity, shape (nodes,); may exceed 100; NaN = unknown.
        target_percent: Where packing turns into spreading, percent.

    Returns:
        Scores, shape (nodes,): 0 to 100 for a target in (0, 100) and a utilization of at least 0; 0 where the node would be over capacity;
        NaN where the utilization is unknown.

    Source: KEP 61, TargetLoadPacking; scheduler-plugins, ``targetloadpacking.go``, ``Score``.
    """
    spreading = target_percent * (100.0 - predicted_percent) / (100.0 - target_percent)
    packing = (100.0 - target_percent) * predicted_percent / target_percent + target_percent
    return np.where(predicted_percent > 100.0, 0.0, np.where(predicted_percent > target_percent, spreading, packing))


@np.errstate(all="ignore")
def score_utilization(predicted_percent: FloatArray, target_percent: float) -> FloatArray:
    """
    Score as :func:`utilization_score`, rounded.

    >>> score_utilization(np.array([30.0, 3.0]), 40.0)  # 3 % gives 44.5; halves go away from zero, as in Go
    array([85., 45.])
    """
    return round_half_away(utilization_score(predicted_percent, target_percent))


def round_scores(target: Target, values: FloatArray) -> IntArray:
    """Round scores of :func:`utilization_score` to integers; upstream's have no bounds."""
    rounded = round_half_away(values)
    return to_score(rounded) if target.is_upstream else to_score(rounded, MIN_NODE_SCORE, MAX_NODE_SCORE)


def utilization_reasons(predicted_percent: FloatArray, target_percent: float) -> IntArray:
    """Name the branch of :func:`utilization_score` that each node takes, as :class:`Reason` codes, shape (nodes,)."""
    # Whether it is above the target is the code itself: 1 is ABOVE_TARGET, 0 AT_OR_BELOW_TARGET.
    return np.where(predicted_percent > 100.0, _OVER_CAPACITY, predicted_percent > target_percent)
