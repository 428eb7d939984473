"""
LowRiskOverCommitment: avoid nodes whose pods may use far more than they request, by their limits and by the measured load.

Source: scheduler-plugins at 903da7df, ``pkg/trimaran/lowriskovercommitment``. The ``upstream`` preset computes as that plugin does; each
difference of the default preset is a row of ``docs/policies.md``.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trimaran_client import wire
from trimaran_client.policies.arguments import (
    ANY_METRIC,
    DEFAULT_MAX_AGE_SECONDS,
    SHARE,
    WHOLE_ABOVE_ZERO,
    Fallback,
    MetricChoice,
    Preset,
    common_problems,
    raise_problems,
    upstream_number,
)
from trimaran_client.policies.base import MAX_NODE_SCORE, MIN_NODE_SCORE, NodeColumns, Reason, Reasoning, Scores, to_score
from trimaran_client.policies.beta import beta_cdf, fit_beta
from trimaran_client.policies.fallback import score_fallback
from trimaran_client.policies.in_flight import InFlight, count_in_flight
from trimaran_client.policies.measured import Measured, fresh, read_measured
from trimaran_client.policies.upstream_pods import upstream_limited, upstream_requested
from trimaran_client.policies.wording import BASE_UNITS, tell_terms
from trimaran_client.prediction import UsagePrediction
from trimaran_client.resources import CPU, MEMORY, Pod
from trimaran_client.units import BoolArray, FloatArray, IntArray, round_half_away

_NAME = "LowRiskOverCommitment"
DEFAULT_SMOOTHING_WINDOW = 5
DEFAULT_RISK_LIMIT_WEIGHT = 0.5
# The largest part of mu * (1 - mu) that a variance may be, so that a beta distribution can have it.
MAX_VARIANCE_ALLOWANCE = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRiskOverCommitmentArgs:
    """
    Parameters of the policy.

    Args:
        smoothing_window: How many samples the source averaged: the deviation grows by its square root, at least 1.
        cpu_risk_limit_weight: How much of the risk of CPU is told by limits, in [0, 1]; the rest by measured load.
        memory_risk_limit_weight: The same of memory.
        cpu_metric: Which CPU metric counts for the mean; by default the average, else the newest value.
        memory_metric: The same of memory.
        fallback: How a node without fresh metrics is scored.
        max_age_seconds: Metrics older than this do not count, above 0.
        preset: ``default``, or ``upstream`` to compute as the Go plugin does.

    Raises:
        PolicyArgumentError: If a value is out of range; the message names each.
    """

    smoothing_window: int = DEFAULT_SMOOTHING_WINDOW
    cpu_risk_limit_weight: float = DEFAULT_RISK_LIMIT_WEIGHT
    memory_risk_limit_weight: float = DEFAULT_RISK_LIMIT_WEIGHT
    cpu_metric: MetricChoice = ANY_METRIC
    memory_metric: MetricChoice = ANY_METRIC
    fallback: Fallback = "allocation"
    max_age_seconds: float = DEFAULT_MAX_AGE_SECONDS
    preset: Preset = "default"

    def __post_init__(self) -> None:
        problems = WHOLE_ABOVE_ZERO.problems(smoothing_window=self.smoothing_window) + SHARE.problems(
            cpu_risk_limit_weight=self.cpu_risk_limit_weight, memory_risk_limit_weight=self.memory_risk_limit_weight
        )
        problems += self.cpu_metric.problems("cpu_metric") + self.memory_metric.problems("memory_metric")
        problems += common_problems(preset=self.preset, fallback=self.fallback, max_age_seconds=self.max_age_seconds)
        raise_problems(_NAME, problems)

    @classmethod
    def from_upstream(cls, args: Mapping[str, object]) -> LowRiskOverCommitmentArgs:
        """
        Read the plugin's own arguments for the ``upstream`` preset.

        Args:
            args: ``smoothingWindowSize`` (0 or less means 5) and ``riskLimitWeights`` (resource → weight; one outside 0 to 1 means 0.5).

        Raises:
            PolicyArgumentError: If one is not a number.
        """
        problems: list[str] = []
        window = int(upstream_number(args, "smoothingWindowSize", DEFAULT_SMOOTHING_WINDOW, problems))
        weights = args.get("riskLimitWeights")
        if weights is None:
            weights = {}
        elif not isinstance(weights, Mapping):
            problems.append(f"riskLimitWeights is {reprlib.repr(weights)}; give a mapping such as {{cpu: 0.5, memory: 0.5}}")
            weights = {}
        cpu, memory = (upstream_number(weights, name, DEFAULT_RISK_LIMIT_WEIGHT, problems) for name in (CPU, MEMORY))
        cpu, memory = (each if 0 <= each <= 1 else DEFAULT_RISK_LIMIT_WEIGHT for each in (cpu, memory))
        raise_problems(_NAME, problems)
        return cls(
            smoothing_window=window if window > 0 else DEFAULT_SMOOTHING_WINDOW,
            cpu_risk_limit_weight=cpu,
            memory_risk_limit_weight=memory,
            preset="upstream",
        )


@dataclass(frozen=True, slots=True, eq=False)
class RiskTerms:
    """The arithmetic of one resource; columns have the shape (nodes,)."""

    pod_requested: float
    pod_limited: float
    node_requested: FloatArray
    node_limited: FloatArray
    capacity: FloatArray
    alloc_threshold: FloatArray
    alloc_prob: FloatArray
    risk_limit: FloatArray
    risk_load: FloatArray
    risk: FloatArray
    is_known: BoolArray
    measured: Measured
    pods: InFlight


class LowRiskOverCommitment:
    """Score nodes by the risk that their pods use more than was set aside for them; the worse of CPU and memory counts."""

    name = _NAME
    resources = (CPU, MEMORY)
    predictions = tuple(UsagePrediction(resource=each, rule="request_first", default_amount=0, multiplier=1.0) for each in (CPU, MEMORY))

    def __init__(self, args: LowRiskOverCommitmentArgs | None = None) -> None:
        self.args = args if args is not None else LowRiskOverCommitmentArgs()

    @classmethod
    def upstream(cls, args: Mapping[str, object] | None = None) -> LowRiskOverCommitment:
        """Make the policy that scores as the Go plugin does; *args* are those of :meth:`LowRiskOverCommitmentArgs.from_upstream`."""
        return cls(LowRiskOverCommitmentArgs.from_upstream(args or {}))

    @np.errstate(all="ignore")
    def compute_terms(self, pod: Pod, nodes: NodeColumns) -> tuple[RiskTerms, RiskTerms]:
        """Compute the terms of CPU (millicores) and of memory (bytes), in this order."""
        is_upstream = self.args.preset == "upstream"
        requested, limited = (upstream_requested, upstream_limited) if is_upstream else (Pod.requested, Pod.limited)
        cpu_pod = (float(requested(pod, CPU).milli), float(limited(pod, CPU).milli))
        memory_pod = (float(requested(pod, MEMORY).value), float(limited(pod, MEMORY).value))
        args, (cpu, memory) = self.args, self.predictions
        return (
            self._resource_terms(read_measured(nodes, CPU, wire.CPU, args.cpu_metric), nodes, cpu, cpu_pod, args.cpu_risk_limit_weight),
            self._resource_terms(
                read_measured(nodes, MEMORY, wire.MEMORY, args.memory_metric), nodes, memory, memory_pod, args.memory_risk_limit_weight
            ),
        )

    def _resource_terms(
        self, measured: Measured, nodes: NodeColumns, prediction: UsagePrediction, pod: tuple[float, float], weight: float
    ) -> RiskTerms:
        is_upstream = self.args.preset == "upstream"
        columns = nodes.resource(prediction.resource)
        pods = count_in_flight(nodes, measured.selection, prediction, counts=not is_upstream)
        capacity = columns.offered_upstream if is_upstream else columns.offered
        pod_requested, pod_limited = pod
        node_requested = np.minimum(columns.requested + pod_requested, capacity)
        node_limited = columns.limited + pod_limited
        others_requested = np.minimum(columns.requested, capacity)
        threshold, probability = self._allocation_probability(measured, pods.amounts, others_requested, columns.limited, capacity)
        overcommitted = (node_limited - capacity) / (node_limited - node_requested)
        risk_limit = np.where(node_limited > capacity, overcommitted, 0.0)
        risk_load = 1.0 - probability
        return RiskTerms(
            pod_requested=pod_requested,
            pod_limited=pod_limited,
            node_requested=node_requested,
            node_limited=node_limited,
            capacity=capacity,
            alloc_threshold=threshold,
            alloc_prob=probability,
            risk_limit=risk_limit,
            risk_load=risk_load,
            risk=np.clip(weight * risk_limit + (1.0 - weight) * risk_load, 0.0, 1.0),
            is_known=measured.is_known if is_upstream else fresh(nodes, measured, self.args.max_age_seconds),
            measured=measured,
            pods=pods,
        )

    def _allocation_probability(
        self, measured: Measured, in_flight: FloatArray, others_requested: FloatArray, others_limited: FloatArray, capacity: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Answer the share of the node that the other pods request, and the probability that its load stays within it."""
        used = np.maximum(np.minimum(measured.average_percent * capacity / 100.0 + in_flight, capacity), 0.0)
        deviation = np.maximum(np.minimum(measured.deviation_percent * capacity / 100.0, capacity), 0.0)
        # A node without any of the resource has no load, as upstream has it.
        mu, sigma = (np.where(capacity > 0, np.clip(each / capacity, 0.0, 1.0), 0.0) for each in (used, deviation))
        sigma = sigma * math.sqrt(self.args.smoothing_window)
        sigma = np.minimum(sigma, np.sqrt(mu * (1.0 - mu) * MAX_VARIANCE_ALLOWANCE))
        threshold = np.clip(others_requested / capacity, 0.0, 1.0)
        limit_threshold = others_limited / capacity
        alpha, beta = fit_beta(mu, sigma)
        probability = np.nan_to_num(beta_cdf(alpha, beta, threshold))
        conditional = (others_limited < capacity) & (others_requested <= others_limited)
        limit_probability = np.nan_to_num(beta_cdf(alpha, beta, limit_threshold))
        within_limits = np.clip(probability / limit_probability, 0.0, 1.0)
        probability = np.where(conditional & (limit_probability > 0), within_limits, probability)
        # The special cases of the fit come before the condition on limits, and a limit of 0 leaves no room for risk.
        certain = np.where((mu == 0) | (mu <= threshold), 1.0, 0.0)
        probability = np.where((mu == 0) | (sigma == 0), certain, probability)
        return threshold, np.where(conditional & (limit_threshold == 0), 1.0, probability)

    @np.errstate(all="ignore")
    def score_nodes(self, pod: Pod, nodes: NodeColumns) -> Scores:
        """
        Score every candidate for *pod*.

        A pod without requests and limits scores 0 on each node: nothing can be said of its risk.
        """
        cpu, memory = self.compute_terms(pod, nodes)
        if cpu.pod_limited == 0 and memory.pod_limited == 0:
            count = len(nodes.names)
            return Scores(nodes.names, np.zeros(count, dtype=np.int64), np.full(count, Reason.BEST_EFFORT, dtype=np.int64))
        is_known = cpu.is_known | memory.is_known
        values = round_half_away((1.0 - np.maximum(cpu.risk, memory.risk)) * MAX_NODE_SCORE)
        if self.args.preset == "upstream":
            reasons = np.where(is_known, Reason.RISK, Reason.NO_METRICS)
            return Scores(nodes.names, to_score(np.where(is_known, values, float(MIN_NODE_SCORE))), reasons)
        pods_known = ~np.isnan(nodes.cpu.requested)
        capacity_known = ~np.isnan(cpu.capacity) & ~np.isnan(memory.capacity)
        fallback_values, fallback_reasons = self._score_fallback(cpu, memory, pods_known=pods_known, capacity_known=capacity_known)
        counts = is_known & pods_known & capacity_known
        return Scores(
            nodes.names,
            to_score(np.where(counts, values, fallback_values)),
            np.where(counts, Reason.RISK, fallback_reasons),
        )

    def explain(self, pod: Pod, nodes: NodeColumns) -> Reasoning:
        """Lay open both risks of CPU and memory; the larger one counts."""
        both = self.compute_terms(pod, nodes)
        columns: dict[str, FloatArray] = {}
        for prediction, terms in zip(self.predictions, both, strict=True):
            name, unit = prediction.resource, BASE_UNITS[prediction.resource]
            columns |= {
                f"{name}_measured_percent": np.where(terms.is_known, terms.measured.average_percent, math.nan),
                f"{name}_deviation_percent": np.where(terms.is_known, terms.measured.deviation_percent, math.nan),
                f"{name}_in_flight_{unit}": terms.pods.amounts,
                f"{name}_capacity_{unit}": terms.capacity,
                f"{name}_node_requested_{unit}": terms.node_requested,
                f"{name}_node_limited_{unit}": terms.node_limited,
                f"{name}_risk_limit_ratio": terms.risk_limit,
                f"{name}_risk_load_ratio": terms.risk_load,
                f"{name}_risk_ratio": terms.risk,
            }
        formula = "risk = weight × risk_limit + (1 - weight) × risk_load; score = (1 - the larger of both risks) × 100"
        return Reasoning(
            metrics=tuple(terms.measured.use for terms in both),
            pods=tuple(terms.pods.use(prediction, pod) for prediction, terms in zip(self.predictions, both, strict=True)),
            terms=columns,
            sentences=tell_terms(columns, formula, self.score_nodes(pod, nodes).reasons),
        )

    def _score_fallback(
        self, cpu: RiskTerms, memory: RiskTerms, *, pods_known: BoolArray, capacity_known: BoolArray
    ) -> tuple[FloatArray, IntArray]:
        """Take what the pods request for what they use: then only their limits are a risk."""
        by_limits = np.maximum(self.args.cpu_risk_limit_weight * cpu.risk_limit, self.args.memory_risk_limit_weight * memory.risk_limit)
        values = round_half_away((1.0 - np.clip(by_limits, 0.0, 1.0)) * MAX_NODE_SCORE)
        return score_fallback(self.args.fallback, values, pods_known=pods_known, capacity_known=capacity_known)
