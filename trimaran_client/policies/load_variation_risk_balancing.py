"""
LoadVariationRiskBalancing: prefer nodes whose load is low and steady, by mean plus deviation of CPU and memory.

Source: KEP 61; scheduler-plugins at 903da7df, ``pkg/trimaran/loadvariationriskbalancing``. The ``upstream`` preset computes as that plugin
does; each difference of the default preset is a row of ``docs/policies.md``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trimaran_client import wire
from trimaran_client.policies.arguments import (
    ANY_METRIC,
    ANY_NUMBER,
    AT_LEAST_ZERO,
    DEFAULT_MAX_AGE_SECONDS,
    Fallback,
    MetricChoice,
    Preset,
    common_problems,
    raise_problems,
    upstream_number,
)
from trimaran_client.policies.base import MAX_NODE_SCORE, MIN_NODE_SCORE, NodeColumns, Reason, Reasoning, Scores, to_score
from trimaran_client.policies.fallback import score_fallback
from trimaran_client.policies.in_flight import InFlight, count_in_flight
from trimaran_client.policies.measured import Measured, fresh, read_measured
from trimaran_client.policies.targets import make_prediction, prediction_problems
from trimaran_client.policies.upstream_pods import upstream_requested
from trimaran_client.policies.wording import tell_terms
from trimaran_client.prediction import Estimator, PredictionRule, UsagePrediction
from trimaran_client.resources import CPU, MEMORY, Pod
from trimaran_client.units import BoolArray, FloatArray, IntArray, round_half_away

_NAME = "LoadVariationRiskBalancing"
# The Go plugin computes memory in MiB, and the last bit of a score can depend on it.
_MEBI = 1.0 / 1024.0 / 1024.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadVariationRiskBalancingArgs:
    """
    Parameters of the policy.

    Args:
        margin: By how much a deviation weighs, at least 0.
        sensitivity: The root taken of a deviation as a part of capacity, at least 0: above 1 small deviations weigh more; 0 leaves only a
            deviation as large as the node.
        prediction: What the usage of pods is predicted from, as in :class:`TargetLoadPackingArgs`; a request is taken as it stands.
        cpu_metric: Which CPU metric counts for the mean; by default the average, else the newest value.
        memory_metric: The same of memory.
        fallback: How a node without fresh metrics is scored.
        max_age_seconds: Metrics older than this do not count, above 0.
        preset: ``default``, or ``upstream`` to compute as the Go plugin does, which takes any margin and sensitivity.

    Raises:
        PolicyArgumentError: If a value is out of range; the message names each.
    """

    margin: float = 1.0
    sensitivity: float = 1.0
    prediction: PredictionRule | Estimator = "request_first"
    cpu_metric: MetricChoice = ANY_METRIC
    memory_metric: MetricChoice = ANY_METRIC
    fallback: Fallback = "allocation"
    max_age_seconds: float = DEFAULT_MAX_AGE_SECONDS
    preset: Preset = "default"

    def __post_init__(self) -> None:
        allowed = AT_LEAST_ZERO if self.preset == "default" else ANY_NUMBER
        problems = allowed.problems(margin=self.margin, sensitivity=self.sensitivity)
        problems += prediction_problems("prediction", self.prediction)
        problems += self.cpu_metric.problems("cpu_metric") + self.memory_metric.problems("memory_metric")
        problems += common_problems(preset=self.preset, fallback=self.fallback, max_age_seconds=self.max_age_seconds)
        raise_problems(_NAME, problems)

    @classmethod
    def from_upstream(cls, args: Mapping[str, object], *, defaulting: bool = True) -> LoadVariationRiskBalancingArgs:
        """
        Read the plugin's own arguments for the ``upstream`` preset.

        Args:
            args: ``safeVarianceMargin`` and ``safeVarianceSensitivity``; an absent one is 1.
            defaulting: Whether the scheduler's defaulting has a say: it turns a value below 0 into 1.

        Raises:
            PolicyArgumentError: If one is not a number.
        """
        problems: list[str] = []
        margin, sensitivity = (upstream_number(args, name, 1.0, problems) for name in ("safeVarianceMargin", "safeVarianceSensitivity"))
        raise_problems(_NAME, problems)
        if defaulting:
            margin, sensitivity = (1.0 if value < 0 else value for value in (margin, sensitivity))
        return cls(margin=margin, sensitivity=sensitivity, preset="upstream")


@dataclass(frozen=True, slots=True, eq=False)
class VariationTerms:
    """The arithmetic of one resource, in millicores or MiB; columns have the shape (nodes,)."""

    capacity: FloatArray
    requested: float
    in_flight: FloatArray
    used: FloatArray
    deviation: FloatArray
    mu: FloatArray
    sigma: FloatArray
    score: FloatArray
    is_known: BoolArray
    measured: Measured
    pods: InFlight


class LoadVariationRiskBalancing:
    """Score nodes by the mean and the deviation of their CPU and memory load; the worse of the two counts."""

    name = _NAME
    resources = (CPU, MEMORY)

    def __init__(self, args: LoadVariationRiskBalancingArgs | None = None) -> None:
        self.args = args if args is not None else LoadVariationRiskBalancingArgs()
        self.predictions = tuple(
            make_prediction(resource, self.args.prediction, default_amount=0, multiplier=1.0) for resource in self.resources
        )

    @classmethod
    def upstream(cls, args: Mapping[str, object] | None = None) -> LoadVariationRiskBalancing:
        """Make the policy that scores as the Go plugin does; *args* are those of :meth:`LoadVariationRiskBalancingArgs.from_upstream`."""
        return cls(LoadVariationRiskBalancingArgs.from_upstream(args or {}))

    @np.errstate(all="ignore")
    def compute_terms(self, pod: Pod, nodes: NodeColumns) -> tuple[VariationTerms, VariationTerms]:
        """Compute the terms of CPU and of memory, in this order."""
        cpu, memory = self.predictions
        return (
            self._resource_terms(read_measured(nodes, CPU, wire.CPU, self.args.cpu_metric), nodes, cpu, self._requested(pod, cpu), 1.0),
            self._resource_terms(
                read_measured(nodes, MEMORY, wire.MEMORY, self.args.memory_metric), nodes, memory, self._requested(pod, memory), _MEBI
            ),
        )

    def _requested(self, pod: Pod, prediction: UsagePrediction) -> float:
        if self.args.preset == "default":
            return float(prediction.predict(pod))
        quantity = upstream_requested(pod, prediction.resource)
        return float(quantity.milli if prediction.resource == CPU else quantity.value)

    def _resource_terms(
        self, measured: Measured, nodes: NodeColumns, prediction: UsagePrediction, requested: float, unit: float
    ) -> VariationTerms:
        is_upstream = self.args.preset == "upstream"
        columns = nodes.resource(prediction.resource)
        offered = columns.offered_upstream if is_upstream else columns.offered
        capacity = offered * unit
        pods = count_in_flight(nodes, measured.selection, prediction, counts=not is_upstream)
        in_flight = pods.amounts * unit
        used = measured.average_percent * capacity / 100.0 + in_flight
        deviation = measured.deviation_percent * capacity / 100.0
        mu, sigma, score = self._score_risk(used, deviation, requested * unit, capacity)
        return VariationTerms(
            capacity=capacity,
            requested=requested * unit,
            in_flight=in_flight,
            used=used,
            deviation=deviation,
            mu=mu,
            sigma=sigma,
            score=score,
            is_known=measured.is_known if is_upstream else fresh(nodes, measured, self.args.max_age_seconds),
            measured=measured,
            pods=pods,
        )

    def _score_risk(
        self, used: FloatArray, deviation: FloatArray, requested: float, capacity: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        used, deviation = (np.maximum(np.minimum(each, capacity), 0.0) for each in (used, deviation))
        mu = np.clip((used + max(requested, 0.0)) / capacity, 0.0, 1.0)
        sigma = np.clip(deviation / capacity, 0.0, 1.0)
        if self.args.sensitivity >= 0:
            root = math.inf if self.args.sensitivity == 0 else 1.0 / self.args.sensitivity
            sigma = np.power(sigma, root)
        sigma = np.clip(sigma * self.args.margin, 0.0, 1.0)
        score = (1.0 - (mu + sigma) / 2.0) * MAX_NODE_SCORE
        return mu, sigma, np.where(capacity > 0, score, float(MIN_NODE_SCORE))

    @np.errstate(all="ignore")
    def score_nodes(self, pod: Pod, nodes: NodeColumns) -> Scores:
        """
        Score every candidate for *pod*.

        Both resources known: the smaller score. One: the larger, where the unknown one counts 0. None: the fallback, or 0 upstream.
        """
        cpu, memory = self.compute_terms(pod, nodes)
        cpu_score, memory_score = (np.where(each.is_known, each.score, 0.0) for each in (cpu, memory))
        both = cpu.is_known & memory.is_known
        values = round_half_away(np.where(both, np.minimum(cpu_score, memory_score), np.maximum(cpu_score, memory_score)))
        is_known = cpu.is_known | memory.is_known
        if self.args.preset == "upstream":
            reasons = np.where(is_known, Reason.RISK, Reason.NO_METRICS)
            return Scores(nodes.names, to_score(np.where(is_known, values, float(MIN_NODE_SCORE))), reasons)
        capacity_unknown = (cpu.is_known & np.isnan(cpu.capacity)) | (memory.is_known & np.isnan(memory.capacity))
        fallback_values, fallback_reasons = self._score_fallback(cpu, memory, nodes)
        values = np.where(is_known, np.where(capacity_unknown, float(MIN_NODE_SCORE), values), fallback_values)
        reasons = np.where(is_known, np.where(capacity_unknown, Reason.CAPACITY_UNKNOWN, Reason.RISK), fallback_reasons)
        return Scores(nodes.names, to_score(values), reasons)

    def explain(self, pod: Pod, nodes: NodeColumns) -> Reasoning:
        """Lay open mean, deviation and score of CPU and memory; the smaller score counts."""
        both = self.compute_terms(pod, nodes)
        columns: dict[str, FloatArray] = {}
        for prediction, terms, unit in zip(self.predictions, both, ("millicores", "mebibytes"), strict=True):
            name = prediction.resource
            columns |= {
                f"{name}_capacity_{unit}": terms.capacity,
                f"{name}_pod_{unit}": np.full(len(nodes.names), terms.requested),
                f"{name}_in_flight_{unit}": terms.in_flight,
                f"{name}_used_{unit}": terms.used,
                f"{name}_deviation_{unit}": terms.deviation,
                f"{name}_mu_ratio": terms.mu,
                f"{name}_sigma_ratio": terms.sigma,
                f"{name}_score": np.where(terms.is_known, terms.score, math.nan),
            }
        formula = "mu = (used + pod) / capacity; sigma = deviation / capacity; score = (1 - (mu + sigma) / 2) × 100; the least counts"
        return Reasoning(
            metrics=tuple(terms.measured.use for terms in both),
            pods=tuple(terms.pods.use(prediction, pod) for prediction, terms in zip(self.predictions, both, strict=True)),
            terms=columns,
            sentences=tell_terms(columns, formula, self.score_nodes(pod, nodes).reasons),
        )

    def _score_fallback(self, cpu: VariationTerms, memory: VariationTerms, nodes: NodeColumns) -> tuple[FloatArray, IntArray]:
        """Take what the pods request for what they use, steadily."""
        by_resource = [
            self._score_risk(columns.requested * unit, np.zeros_like(terms.capacity), terms.requested, terms.capacity)[2]
            for terms, columns, unit in ((cpu, nodes.cpu, 1.0), (memory, nodes.memory, _MEBI))
        ]
        return score_fallback(
            self.args.fallback,
            round_half_away(np.minimum(*by_resource)),
            pods_known=~np.isnan(nodes.cpu.requested),
            capacity_known=~np.isnan(cpu.capacity) & ~np.isnan(memory.capacity),
        )
