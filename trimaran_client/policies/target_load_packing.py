"""
TargetLoadPacking: pack nodes up to a target CPU utilization, then spread.

Source: KEP 61; scheduler-plugins at 903da7df, ``pkg/trimaran/targetloadpacking``. The ``upstream`` preset computes as that plugin does,
bit for bit; each difference of the default preset is a row of ``docs/policies.md``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trimaran_client import wire
from trimaran_client.assigned import is_unreported
from trimaran_client.errors import PolicyArgumentError, QuantityError
from trimaran_client.policies.arguments import DEFAULT_MAX_AGE_SECONDS, Fallback, Preset, common_problems, number_problems, raise_problems
from trimaran_client.policies.base import MAX_NODE_SCORE, MIN_NODE_SCORE, NodeColumns, Reason, Scores, to_score
from trimaran_client.policies.fallback import score_fallback
from trimaran_client.policies.go_numbers import parse_go_float
from trimaran_client.resources import CPU, Container, Pod
from trimaran_client.units import ZERO, BoolArray, FloatArray, IntArray, Quantity, round_half_away

DEFAULT_TARGET_PERCENT = 40.0
DEFAULT_REQUEST_MILLICORES = 1000
DEFAULT_REQUEST_MULTIPLIER = 1.5
# Go holds the target in 64 bits.
_INTEGER_LIMIT = 2**63
# Beyond any machine; keeps a product of hostile numbers finite.
_LARGEST_PREDICTION = 1e30
_LOAD_OPERATORS = (wire.AVERAGE, wire.LATEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetLoadPackingArgs:
    """
    Parameters of the policy.

    Args:
        target_percent: CPU utilization to pack up to, percent of capacity, above 0 and below 100.
        default_request_millicores: What a container without request and limit is taken to use, >= 0.
        request_multiplier: By how much usage is taken to exceed a request, finite and >= 0.
        fallback: How a node without fresh metrics is scored: ``allocation`` by its requests through the same formula, ``neutral`` 50,
            ``minimum`` 0.
        max_age_seconds: Metrics older than this do not count, above 0.
        preset: ``default``, or ``upstream`` to compute as the Go plugin does, which accepts any target and multiplier and knows neither
            fallback nor age.

    Raises:
        PolicyArgumentError: If a value is out of range; the message names each.
    """

    target_percent: float = DEFAULT_TARGET_PERCENT
    default_request_millicores: int = DEFAULT_REQUEST_MILLICORES
    request_multiplier: float = DEFAULT_REQUEST_MULTIPLIER
    fallback: Fallback = "allocation"
    max_age_seconds: float = DEFAULT_MAX_AGE_SECONDS
    preset: Preset = "default"

    def __post_init__(self) -> None:
        numbers = {
            "target_percent": self.target_percent,
            "request_multiplier": self.request_multiplier,
            "default_request_millicores": self.default_request_millicores,
        }
        problems = number_problems(**numbers)
        if not problems and self.preset == "default":
            if not 0 < self.target_percent < 100:
                problems.append(f"target_percent is {self.target_percent!r}; give a percentage above 0 and below 100")
            if not 0 <= self.request_multiplier < math.inf:
                problems.append(f"request_multiplier is {self.request_multiplier!r}; give a finite number of at least 0")
            if self.default_request_millicores < 0:
                problems.append(f"default_request_millicores is {self.default_request_millicores!r}; give at least 0")
        problems += common_problems(preset=self.preset, fallback=self.fallback, max_age_seconds=self.max_age_seconds)
        raise_problems("TargetLoadPacking", problems)

    @classmethod
    def from_upstream(cls, args: Mapping[str, object]) -> TargetLoadPackingArgs:
        """
        Read the plugin's own arguments, as they stand in a ``KubeSchedulerConfiguration``, for the ``upstream`` preset.

        Args:
            args: ``targetUtilization`` (0 or less means 40), ``defaultRequests`` (without ``cpu`` it means 0),
                ``defaultRequestsMultiplier`` (text that Go reads as a number); an absent one takes the plugin's default.

        Raises:
            PolicyArgumentError: If one cannot be read.
        """
        # An absent or null argument takes the plugin's default.
        target = args.get("targetUtilization")
        target = DEFAULT_TARGET_PERCENT if target is None else target
        if isinstance(target, bool) or not isinstance(target, int | float) or not abs(target) < _INTEGER_LIMIT or target != int(target):
            raise PolicyArgumentError(f"TargetLoadPacking: targetUtilization is {target!r}; give a whole number")
        requests = args.get("defaultRequests")
        if requests is not None and not isinstance(requests, Mapping):
            raise PolicyArgumentError(f"TargetLoadPacking: defaultRequests is {requests!r}; give a mapping such as {{cpu: 1000m}}")
        multiplier = args.get("defaultRequestsMultiplier")
        multiplier = str(DEFAULT_REQUEST_MULTIPLIER) if multiplier is None else multiplier
        try:
            return cls(
                target_percent=float(target) if target > 0 else DEFAULT_TARGET_PERCENT,
                default_request_millicores=DEFAULT_REQUEST_MILLICORES if requests is None else Quantity.parse(requests.get(CPU)).milli,
                request_multiplier=parse_go_float(multiplier),
                preset="upstream",
            )
        except (QuantityError, ValueError) as error:
            if isinstance(error, PolicyArgumentError):
                raise
            raise PolicyArgumentError(f"TargetLoadPacking: {error}") from error


@dataclass(frozen=True, slots=True, eq=False)
class UtilizationTerms:
    """
    The arithmetic of one decision, for explanations; columns have the shape (nodes,).

    ``predicted_percent`` is NaN where the node has no metric that counts, or no capacity.
    """

    pod_millicores: int
    measured_percent: FloatArray
    measured_millicores: FloatArray
    unreported_millicores: FloatArray
    predicted_percent: FloatArray
    is_measured: BoolArray


class TargetLoadPacking:
    """
    Score nodes by their predicted CPU utilization against a target.

    >>> TargetLoadPacking(TargetLoadPackingArgs(target_percent=50)).name
    'TargetLoadPacking'
    """

    name = "TargetLoadPacking"

    def __init__(self, args: TargetLoadPackingArgs | None = None) -> None:
        self.args = args if args is not None else TargetLoadPackingArgs()

    @classmethod
    def upstream(cls, args: Mapping[str, object] | None = None) -> TargetLoadPacking:
        """Make the policy that scores as the Go plugin does; *args* are those of :meth:`TargetLoadPackingArgs.from_upstream`."""
        return cls(TargetLoadPackingArgs.from_upstream(args or {}))

    def predict_pod_millicores(self, pod: Pod) -> int:
        """
        Predict the CPU usage of a pod, millicores.

        Of each container: its limit, else its request times the multiplier, else the default request. The upstream preset adds the
        containers; the default one combines them, sidecars and init steps by the Kubernetes rule. The overhead comes on top.
        """
        if self.args.preset == "upstream":
            return sum(self._predict_container(each).milli for each in pod.containers) + pod.overhead.get(CPU, ZERO).milli
        return pod.total(self._predict_container, CPU).milli

    def _predict_container(self, container: Container) -> Quantity:
        limit, request = container.limits.get(CPU), container.requests.get(CPU)
        if limit is not None:
            millicores = limit.milli
        elif request is not None:
            product = min(request.milli * self.args.request_multiplier, _LARGEST_PREDICTION)
            millicores = int(round_half_away(np.array([product]))[0])
        else:
            millicores = self.args.default_request_millicores
        return Quantity.from_milli(millicores)

    @np.errstate(all="ignore")
    def compute_terms(self, pod: Pod, nodes: NodeColumns) -> UtilizationTerms:
        """
        Compute the predicted utilization of each node with the pod on it.

        ``predicted = 100 * (measured / 100 * capacity + pod + unreported) / capacity``, evaluated in this order.
        """
        pod_millicores = self.predict_pod_millicores(pod)
        unreported = self._unreported_millicores(nodes)
        measured = nodes.metric(wire.CPU, _LOAD_OPERATORS)
        capacity = nodes.cpu.capacity
        if self.args.preset == "upstream":
            is_measured = ~np.isnan(measured)
            capacity = np.where(np.isnan(capacity), 0.0, capacity)
        else:
            is_measured = np.isfinite(measured) & (measured >= 0) & (nodes.age_seconds <= self.args.max_age_seconds)
            capacity = np.where(capacity > 0, capacity, math.nan)
        used = measured / 100.0 * capacity
        predicted = 100.0 * (used + float(pod_millicores) + unreported) / capacity
        if self.args.preset == "upstream":
            predicted = np.where(capacity == 0, 0.0, predicted)
        return UtilizationTerms(
            pod_millicores=pod_millicores,
            measured_percent=measured,
            measured_millicores=used,
            unreported_millicores=unreported,
            predicted_percent=np.where(is_measured, predicted, math.nan),
            is_measured=is_measured,
        )

    @np.errstate(all="ignore")
    def score_nodes(self, pod: Pod, nodes: NodeColumns) -> Scores:
        """
        Score every candidate for *pod*.

        Returns:
            Scores and reasons. A node without (fresh) metrics is scored by ``fallback``; one of unknown capacity gets 0.
        """
        terms = self.compute_terms(pod, nodes)
        target = self.args.target_percent
        values = score_utilization(terms.predicted_percent, target)
        reasons = utilization_reasons(terms.predicted_percent, target)
        if self.args.preset == "upstream":
            values = np.where(terms.is_measured, values, float(MIN_NODE_SCORE))
            reasons = np.where(terms.is_measured, reasons, Reason.NO_METRICS)
            return Scores(nodes.names, to_score(values), reasons)
        offered = nodes.cpu.offered
        allocated_percent = 100.0 * (nodes.cpu.requested + float(pod.requested(CPU).milli)) / offered
        fallback_values, fallback_reasons = score_fallback(
            self.args.fallback,
            score_utilization(allocated_percent, target),
            pods_known=~np.isnan(nodes.cpu.requested),
            capacity_known=~np.isnan(offered),
        )
        has_capacity = nodes.cpu.capacity > 0
        values = np.where(terms.is_measured, np.where(has_capacity, values, float(MIN_NODE_SCORE)), fallback_values)
        reasons = np.where(terms.is_measured, np.where(has_capacity, reasons, Reason.CAPACITY_UNKNOWN), fallback_reasons)
        return Scores(nodes.names, to_score(np.clip(values, MIN_NODE_SCORE, MAX_NODE_SCORE)), reasons)

    def _unreported_millicores(self, nodes: NodeColumns) -> FloatArray:
        column = np.zeros(len(nodes.names))
        row_of = {name: row for row, name in enumerate(nodes.names)}
        for assigned in nodes.assigned:
            row = row_of.get(assigned.pod.node_name)
            if row is not None and is_unreported(assigned.assigned_at, nodes.snapshot.window_end_at):
                column[row] += self.predict_pod_millicores(assigned.pod)
        return column


@np.errstate(all="ignore")
def score_utilization(predicted_percent: FloatArray, target_percent: float) -> FloatArray:
    """
    Score nodes by their utilization after placement, packing up to the target.

    Climbs from *target* at 0 % to 100 at the target, then drops to the target and falls to 0 at 100 %.

    Args:
        predicted_percent: Utilization with the pod on the node, percent of capacity, shape (nodes,); may exceed 100; NaN = unknown.
        target_percent: Where packing turns into spreading, percent.

    Returns:
        Rounded scores, shape (nodes,): 0 to 100 for a target in (0, 100) and a utilization of at least 0; 0 where the node would be over
        capacity; NaN where the utilization is unknown.

    Source: KEP 61, TargetLoadPacking; scheduler-plugins, ``targetloadpacking.go``, ``Score``.

    >>> score_utilization(np.array([30.0, 3.0]), 40.0)  # 3 % gives 44.5; halves go away from zero, as in Go
    array([85., 45.])
    """
    spreading = target_percent * (100.0 - predicted_percent) / (100.0 - target_percent)
    packing = (100.0 - target_percent) * predicted_percent / target_percent + target_percent
    score = round_half_away(np.where(predicted_percent > target_percent, spreading, packing))
    return np.where(predicted_percent > 100.0, 0.0, score)


def utilization_reasons(predicted_percent: FloatArray, target_percent: float) -> IntArray:
    """Name the branch of :func:`score_utilization` that each node takes, as :class:`Reason` codes, shape (nodes,)."""
    above = np.where(predicted_percent > target_percent, Reason.ABOVE_TARGET, Reason.AT_OR_BELOW_TARGET)
    return np.where(predicted_percent > 100.0, Reason.OVER_CAPACITY, above).astype(np.int64)
