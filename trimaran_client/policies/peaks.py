"""
Peaks: prefer the node whose power draw grows least by the pod.

Source: scheduler-plugins at 903da7df, ``pkg/trimaran/peaks``. The ``upstream`` preset computes as that plugin does; each difference of the
default preset is a row of ``docs/policies.md``.
"""

from __future__ import annotations

import itertools
import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from trimaran_client import wire
from trimaran_client.errors import PolicyArgumentError
from trimaran_client.policies.arguments import (
    ANY_METRIC,
    DEFAULT_MAX_AGE_SECONDS,
    MetricChoice,
    Preset,
    common_problems,
    is_number,
    raise_problems,
    upstream_number,
)
from trimaran_client.policies.base import (
    MAX_NODE_SCORE,
    MIN_NODE_SCORE,
    NEUTRAL_NODE_SCORE,
    MetricUse,
    NodeColumns,
    Reason,
    Reasoning,
    Scores,
    to_score,
)
from trimaran_client.policies.in_flight import InFlight, count_in_flight
from trimaran_client.policies.targets import make_prediction, prediction_problems
from trimaran_client.policies.wording import tell_terms
from trimaran_client.prediction import Estimator, PredictionRule
from trimaran_client.resources import CPU, Container, Pod
from trimaran_client.units import ZERO, BoolArray, FloatArray, Quantity

_NAME = "Peaks"
# The plugin keeps raw scores as integers: watts times this.
_RAW_PER_WATT = 1e15


@dataclass(frozen=True, slots=True)
class PowerModel:
    """Power of a node at *x* percent CPU: k0 + k1 * exp(k2 * x), watts."""

    k0: float
    k1: float
    k2: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PeaksArgs:
    """
    Parameters of the policy.

    Args:
        models: Node name → power model, at least one.
        prediction: What the usage of pods is predicted from, as in :class:`TargetLoadPackingArgs`; a request is taken as it stands.
        cpu_metric: Which CPU metric counts; by default the first of the average and the newest value, in reply order.
        max_age_seconds: Metrics older than this do not count, above 0.
        preset: ``default``, or ``upstream`` to compute as the Go plugin does.

    Raises:
        PolicyArgumentError: If there is no model, or a value is out of range; the message names each.
    """

    models: Mapping[str, PowerModel] = field(default_factory=dict)
    prediction: PredictionRule | Estimator = "request_first"
    cpu_metric: MetricChoice = ANY_METRIC
    max_age_seconds: float = DEFAULT_MAX_AGE_SECONDS
    preset: Preset = "default"

    def __post_init__(self) -> None:
        problems = [] if self.models else ["models is empty; give the power model of at least one node"]
        problems += [
            f"the model of node {name!r} has a value that is not finite"
            for name, model in self.models.items()
            if not all(map(is_number, (model.k0, model.k1, model.k2)))
        ]
        problems += prediction_problems("prediction", self.prediction) + self.cpu_metric.problems("cpu_metric")
        problems += common_problems(preset=self.preset, fallback="minimum", max_age_seconds=self.max_age_seconds)
        raise_problems(_NAME, problems)

    @classmethod
    def from_upstream(cls, args: Mapping[str, object]) -> PeaksArgs:
        """
        Read the plugin's own arguments for the ``upstream`` preset.

        Args:
            args: ``nodePowerModel``: node name → ``k0``, ``k1``, ``k2``.

        Raises:
            PolicyArgumentError: If it is empty or not of that form.
        """
        listed = args.get("nodePowerModel")
        if not isinstance(listed, Mapping) or not all(isinstance(model, Mapping) for model in listed.values()):
            told = f"nodePowerModel is {reprlib.repr(listed)}; give a mapping of node names to k0, k1 and k2"
            raise PolicyArgumentError.of(_NAME, [told])
        problems: list[str] = []
        models: dict[str, PowerModel] = {}
        for name, model in listed.items():
            of_model: list[str] = []
            models[str(name)] = PowerModel(*(upstream_number(model, key, 0.0, of_model) for key in ("k0", "k1", "k2")))
            problems += [f"nodePowerModel of node {name!r}: {each}" for each in of_model]
        raise_problems(_NAME, problems)
        return cls(models=models, preset="upstream")


@dataclass(frozen=True, slots=True, eq=False)
class PowerTerms:
    """The arithmetic of one decision; columns have the shape (nodes,)."""

    pod_millicores: int
    measured_percent: FloatArray
    predicted_percent: FloatArray
    cost_watts: FloatArray
    is_measured: BoolArray
    has_model: BoolArray
    use: MetricUse
    pods: InFlight


class Peaks:
    """Score nodes by how much power the pod would add, relative to the other candidates."""

    name = _NAME
    resources = (CPU,)

    def __init__(self, args: PeaksArgs) -> None:
        self.args = args
        self.prediction = make_prediction(CPU, args.prediction, default_amount=0, multiplier=1.0)
        self._model_of = {name: index for index, name in enumerate(args.models)}
        # One more at the end, for the index -1 of nodes without a model.
        self._coefficients = np.array([*((model.k1, model.k2) for model in args.models.values()), (math.nan, math.nan)], dtype=np.float64).T

    @classmethod
    def upstream(cls, args: Mapping[str, object]) -> Peaks:
        """Make the policy that scores as the Go plugin does; *args* are those of :meth:`PeaksArgs.from_upstream`."""
        return cls(PeaksArgs.from_upstream(args))

    @np.errstate(all="ignore")
    def compute_terms(self, pod: Pod, nodes: NodeColumns) -> PowerTerms:
        """
        Compute what the pod would add to the power of each node.

        ``cost = k1 * (exp(k2 * predicted) - exp(k2 * current))``, watts, NaN where the node has no model; what is current is the
        measured utilization, by default with the pods in flight.
        """
        is_upstream = self.args.preset == "upstream"
        pod_millicores = _upstream_requested(pod).milli if is_upstream else self.prediction.predict(pod)
        selector = self.args.cpu_metric.selector(wire.CPU, (wire.AVERAGE, wire.LATEST), pick="first")
        selection = nodes.select(selector)
        measured = selection.values
        pods = count_in_flight(nodes, selection, self.prediction, counts=not is_upstream)
        is_measured = ~np.isnan(measured)
        capacity = np.where(np.isnan(nodes.cpu.capacity), 0.0, nodes.cpu.capacity)
        if not is_upstream:
            is_measured = np.isfinite(measured) & (measured >= 0) & (nodes.age_seconds <= self.args.max_age_seconds)
        models = np.fromiter(map(self._model_of.get, nodes.names, itertools.repeat(-1)), dtype=np.int64, count=len(nodes.names))
        has_model = models >= 0
        k1, k2 = self._coefficients[:, models]
        used = measured / 100.0 * capacity + pods.amounts
        predicted = np.where(capacity > 0, 100.0 * (used + float(pod_millicores)) / capacity, 0.0 if is_upstream else math.nan)
        current = measured if not pods.usage.size else np.where(pods.amounts > 0, 100.0 * used / capacity, measured)
        cost = k1 * (np.exp(k2 * predicted) - np.exp(k2 * current))
        return PowerTerms(
            pod_millicores=pod_millicores,
            measured_percent=measured,
            predicted_percent=np.where(is_measured, predicted, math.nan),
            cost_watts=cost,
            is_measured=is_measured,
            has_model=has_model,
            use=MetricUse(CPU, selector, selection),
            pods=pods,
        )

    @np.errstate(all="ignore")
    def raw_scores(self, terms: PowerTerms) -> FloatArray:
        """Answer the plugin's raw scores, shape (nodes,): the cost in 1e-15 W, cut to whole numbers; 0 where it has none."""
        counts = terms.is_measured & terms.has_model & ~(terms.predicted_percent > 100.0)
        return np.where(counts, np.trunc(terms.cost_watts * _RAW_PER_WATT), 0.0)

    @np.errstate(all="ignore")
    def score_nodes(self, pod: Pod, nodes: NodeColumns) -> Scores:
        """
        Score every candidate for *pod*: 100 for the least added power, 0 for the most.

        By default a node over capacity or without fresh metrics gets 0, and one without a model the mean of the others.
        """
        terms = self.compute_terms(pod, nodes)
        if self.args.preset == "upstream":
            values = normalize_upstream(self.raw_scores(terms))
            conditions = [~terms.is_measured, ~terms.has_model]
            reasons = np.select(conditions, [Reason.NO_METRICS, Reason.NO_MODEL], Reason.POWER).astype(np.int64)
            return Scores(nodes.names, to_score(values), reasons)
        over, unknown = terms.predicted_percent > 100.0, ~(nodes.cpu.capacity > 0)
        costs = np.where(terms.is_measured & terms.has_model & ~over & ~unknown, terms.cost_watts, math.nan)
        values = normalize(costs)
        without_opinion = terms.is_measured & ~over & ~unknown & ~terms.has_model
        mean = np.nanmean(values) if np.isfinite(values).any() else float(NEUTRAL_NODE_SCORE)
        values = np.where(without_opinion, np.trunc(mean), np.where(np.isnan(values), float(MIN_NODE_SCORE), values))
        reasons = np.select(
            [~terms.is_measured, unknown, over, ~terms.has_model],
            [Reason.NO_METRICS, Reason.CAPACITY_UNKNOWN, Reason.OVER_CAPACITY, Reason.NO_MODEL],
            Reason.POWER,
        ).astype(np.int64)
        return Scores(nodes.names, to_score(values), reasons)

    def explain(self, pod: Pod, nodes: NodeColumns) -> Reasoning:
        """Lay open the utilization and the added power of each node."""
        terms = self.compute_terms(pod, nodes)
        columns = {
            "cpu_measured_percent": terms.measured_percent,
            "cpu_in_flight_millicores": terms.pods.amounts,
            "cpu_pod_millicores": np.full(len(nodes.names), float(terms.pod_millicores)),
            "cpu_predicted_percent": terms.predicted_percent,
            "added_watts": terms.cost_watts,
        }
        formula = "added = k1 × (exp(k2 × predicted) - exp(k2 × current)); score = 100 × (1 - (added - least) / (most - least)), cut"
        return Reasoning(
            metrics=(terms.use,),
            pods=(terms.pods.use(self.prediction, pod),),
            terms=columns,
            sentences=tell_terms(columns, formula, self.score_nodes(pod, nodes).reasons),
        )


def normalize_upstream(raw: FloatArray) -> FloatArray:
    """
    Bring raw scores to 0 to 100 as the plugin does: all zero stay zero, all equal get 100, else the least gets 100.

    >>> normalize_upstream(np.array([0.0, 50.0, 200.0]))
    array([100.,  75.,   0.])
    """
    if not len(raw) or not raw.any():
        return raw
    low, high = float(raw.min()), float(raw.max())
    if low == high:
        return np.full_like(raw, MAX_NODE_SCORE)
    return MAX_NODE_SCORE - np.trunc(MAX_NODE_SCORE * (raw - low) / (high - low))


@np.errstate(all="ignore")
def normalize(costs: FloatArray) -> FloatArray:
    """Bring costs to 0 to 100, the least gets 100; NaN stays, and is no candidate for least or most."""
    known = np.isfinite(costs)
    if not known.any():
        return np.full_like(costs, math.nan)
    low, high = float(costs[known].min()), float(costs[known].max())
    if low == high:
        return np.where(known, float(MAX_NODE_SCORE), math.nan)
    # Halved first, so that costs at both ends of the range of a double do not overflow.
    return np.where(known, MAX_NODE_SCORE - np.trunc(MAX_NODE_SCORE * ((costs / 2 - low / 2) / (high / 2 - low / 2))), math.nan)


def _upstream_requested(pod: Pod) -> Quantity:
    """Sum requests exactly; pod-level resources, of whatever kind, replace those of the containers; no overhead on nothing."""

    def request(container: Container) -> Quantity:
        return container.requests.get(CPU, ZERO)

    bare = Pod(containers=pod.containers, init_containers=pod.init_containers)
    total = request(pod.pod_level) if pod.pod_level is not None else bare.total(request, CPU)
    return total + pod.overhead.get(CPU, ZERO) if total.nanos else total
