"""
TargetLoadPacking: pack nodes up to a target utilization, then spread; of CPU, and by choice of other resources too.

Source: KEP 61; scheduler-plugins at 903da7df, ``pkg/trimaran/targetloadpacking``. The ``upstream`` preset computes as that plugin does,
bit for bit; each difference of the default preset is a row of ``docs/policies.md``.
"""

from __future__ import annotations

import reprlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from trimaran_client import wire
from trimaran_client.errors import QuantityError
from trimaran_client.policies.arguments import (
    ABOVE_ZERO,
    ANY_METRIC,
    ANY_NUMBER,
    AT_LEAST_ZERO,
    DEFAULT_MAX_AGE_SECONDS,
    PERCENT,
    WHOLE,
    Fallback,
    MetricChoice,
    Preset,
    common_problems,
    raise_problems,
)
from trimaran_client.policies.base import NodeColumns, Reasoning, Scores
from trimaran_client.policies.go_numbers import parse_go_float
from trimaran_client.policies.kept_scores import KeptScores
from trimaran_client.policies.kept_target import KeptTarget
from trimaran_client.policies.target_reasoning import explain_targets
from trimaran_client.policies.targets import (
    DEFAULT_TARGET_PERCENT,
    LOAD_OPERATORS,
    ResourceTarget,
    Target,
    UtilizationTerms,
    compute_terms,
    make_prediction,
    prediction_problems,
    round_scores,
    score_target,
)
from trimaran_client.prediction import Estimator, PredictionRule
from trimaran_client.resources import CPU, Pod
from trimaran_client.units import FloatArray, IntArray, Quantity

DEFAULT_REQUEST_MILLICORES: Final = 1000
DEFAULT_REQUEST_MULTIPLIER: Final = 1.5
# Go holds the target in 64 bits.
_INTEGER_LIMIT: Final = 2**63
_REQUESTED: Final = ("requested", CPU)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetLoadPackingArgs:
    """
    Parameters of the policy.

    Args:
        target_percent: CPU utilization to pack up to, percent of capacity, above 0 and below 100.
        default_request_millicores: What a container without request and limit is taken to use, >= 0.
        request_multiplier: By how much usage is taken to exceed a request, finite and >= 0.
        prediction: What a container's usage is predicted from: ``limit_first``, ``request_first``, ``max``, or a function of pod and
            resource name that answers millicores; where that fails, ``limit_first``.
        cpu_metric: Which CPU metric counts; by default the average, else the newest value.
        weight: How much CPU weighs beside ``others`` where they are combined by weights, above 0.
        others: Targets of further resources.
        combine: ``minimum``: the least score of the resources counts; ``weights``: their weighted mean.
        fallback: How a node without fresh CPU metrics is scored: ``allocation`` by its requests through the same formula, ``neutral`` 50,
            ``minimum`` 0.
        max_age_seconds: Metrics older than this do not count, above 0.
        preset: ``default``, or ``upstream`` to compute as the Go plugin does, which accepts any target and multiplier and knows neither
            fallback nor age nor other resources.

    Raises:
        PolicyArgumentError: If a value is out of range; the message names each.
    """

    target_percent: float = DEFAULT_TARGET_PERCENT
    default_request_millicores: int = DEFAULT_REQUEST_MILLICORES
    request_multiplier: float = DEFAULT_REQUEST_MULTIPLIER
    prediction: PredictionRule | Estimator = "limit_first"
    cpu_metric: MetricChoice = ANY_METRIC
    weight: float = 1.0
    others: tuple[ResourceTarget, ...] = ()
    combine: Literal["minimum", "weights"] = "minimum"
    fallback: Fallback = "allocation"
    max_age_seconds: float = DEFAULT_MAX_AGE_SECONDS
    preset: Preset = "default"

    def __post_init__(self) -> None:
        is_upstream = self.preset == "upstream"
        problems = [
            *(ANY_NUMBER if is_upstream else PERCENT).problems(target_percent=self.target_percent),
            *(ANY_NUMBER if is_upstream else AT_LEAST_ZERO).problems(request_multiplier=self.request_multiplier),
            *(ANY_NUMBER if is_upstream else WHOLE).problems(default_request_millicores=self.default_request_millicores),
            *ABOVE_ZERO.problems(weight=self.weight),
        ]
        problems += prediction_problems("prediction", self.prediction)
        problems += self.cpu_metric.problems("cpu_metric")
        if self.combine not in ("minimum", "weights"):
            problems.append(f"combine is {self.combine!r}; choose from minimum, weights")
        if self.preset == "upstream" and self.others:
            problems.append("others are given, and the upstream preset knows CPU only; leave them out, or take the default preset")
        names = [CPU, *(each.resource for each in self.others)]
        problems += [f"others: {name!r} stands twice" for name in sorted({name for name in names if names.count(name) > 1})]
        for each in self.others:
            problems += each.problems(f"others[{each.resource}]")
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
        problems: list[str] = []
        target = args.get("targetUtilization")
        target = DEFAULT_TARGET_PERCENT if target is None else target
        if isinstance(target, bool) or not isinstance(target, int | float) or not abs(target) < _INTEGER_LIMIT or target != int(target):
            problems.append(f"targetUtilization is {reprlib.repr(target)}; give a whole number")
            target = DEFAULT_TARGET_PERCENT
        requests = args.get("defaultRequests")
        if requests is not None and not isinstance(requests, Mapping):
            problems.append(f"defaultRequests is {reprlib.repr(requests)}; give a mapping such as {{cpu: 1000m}}")
            requests = None
        default_request = DEFAULT_REQUEST_MILLICORES
        if requests is not None:
            try:
                default_request = Quantity.parse(requests.get(CPU)).milli
            except QuantityError as error:
                problems.append(f"defaultRequests.cpu: {error}")
        multiplier = args.get("defaultRequestsMultiplier")
        try:
            multiplier = DEFAULT_REQUEST_MULTIPLIER if multiplier is None else parse_go_float(multiplier)
        except ValueError as error:
            problems.append(f"defaultRequestsMultiplier: {error}")
            multiplier = DEFAULT_REQUEST_MULTIPLIER
        raise_problems("TargetLoadPacking", problems)
        return cls(
            target_percent=float(target) if target > 0 else DEFAULT_TARGET_PERCENT,
            default_request_millicores=default_request,
            request_multiplier=multiplier,
            preset="upstream",
        )


class TargetLoadPacking:
    """
    Score nodes by their predicted utilization against a target.

    >>> TargetLoadPacking(TargetLoadPackingArgs(target_percent=50)).name
    'TargetLoadPacking'
    """

    name = "TargetLoadPacking"

    def __init__(self, args: TargetLoadPackingArgs | None = None) -> None:
        self.args = args if args is not None else TargetLoadPackingArgs()
        self.targets = (_cpu_target(self.args), *(Target.of(each) for each in self.args.others))
        self._resources = tuple(each.resource for each in self.targets)

    @classmethod
    def upstream(cls, args: Mapping[str, object] | None = None) -> TargetLoadPacking:
        """Make the policy that scores as the Go plugin does; *args* are those of :meth:`TargetLoadPackingArgs.from_upstream`."""
        return cls(TargetLoadPackingArgs.from_upstream(args or {}))

    @property
    def resources(self) -> tuple[str, ...]:
        """Answer the resources that have a target."""
        return self._resources

    def predict_pod_millicores(self, pod: Pod) -> int:
        """
        Predict the CPU usage of a pod, millicores.

        Of each container: its limit, else its request times the multiplier, else the default request, or as ``prediction`` says. The
        upstream preset adds the containers; the default one combines them, sidecars and init steps by the Kubernetes rule. The overhead
        comes on top.
        """
        return self.targets[0].prediction.predict(pod)

    @np.errstate(all="ignore")
    def compute_terms(self, pod: Pod, nodes: NodeColumns) -> UtilizationTerms:
        """Compute the arithmetic of CPU; see :func:`trimaran_client.policies.targets.compute_terms`."""
        return compute_terms(self.targets[0], pod, nodes, max_age_seconds=self.args.max_age_seconds)

    @np.errstate(all="ignore")
    def score_nodes(self, pod: Pod, nodes: NodeColumns) -> Scores:
        """
        Score every candidate for *pod*.

        Returns:
            Scores and reasons. A node without (fresh) metrics of a resource is scored by its fallback; one of unknown CPU capacity gets 0.
        """
        cpu, *others = [
            score_target(each, pod, nodes, compute_terms(each, pod, nodes, max_age_seconds=self.args.max_age_seconds))
            for each in self.targets
        ]
        values, reasons = self._combine([cpu, *others]) if others else cpu
        return Scores(nodes.names, round_scores(self.targets[0], values), reasons)

    def kind_of(self, pod: Pod) -> Hashable | None:
        """Answer what is predicted and what is requested of a pod; nothing where other resources or an estimator have a say."""
        prediction = self.targets[0].prediction
        if len(self.targets) > 1 or prediction.estimator is not None:
            return None
        return prediction.predict(pod), pod.remember(_REQUESTED, _requested_millicores)

    @np.errstate(all="ignore")
    def keep_scores(self, pod: Pod, nodes: NodeColumns) -> KeptScores:
        """Score all nodes of a snapshot, to be kept while pods come and go."""
        max_age_seconds = self.args.max_age_seconds
        terms = compute_terms(self.targets[0], pod, nodes, max_age_seconds=max_age_seconds)
        return KeptTarget(self.targets[0], nodes, terms, self.score_nodes(pod, nodes), max_age_seconds=max_age_seconds)

    def explain(self, pod: Pod, nodes: NodeColumns) -> Reasoning:
        """Lay open the arithmetic of every resource."""
        return explain_targets(self.targets, pod, nodes, max_age_seconds=self.args.max_age_seconds)

    def _combine(self, scored: list[tuple[FloatArray, IntArray]]) -> tuple[FloatArray, IntArray]:
        """Combine the resources that have a say; CPU always has one."""
        values = np.stack([each for each, _ in scored])
        reasons = np.stack([each for _, each in scored])
        if self.args.combine == "minimum":
            least = np.argmin(np.where(np.isnan(values), np.inf, values), axis=0)
            columns = np.arange(values.shape[1])
            return values[least, columns], reasons[least, columns]
        heaviest = max(each.weight for each in self.targets)  # so that the sum of large weights stays finite
        weights = np.where(np.isnan(values), 0.0, np.array([[each.weight / heaviest] for each in self.targets]))
        return (weights * np.nan_to_num(values)).sum(axis=0) / weights.sum(axis=0), reasons[0]


def _requested_millicores(pod: Pod) -> int:
    return pod.requested(CPU).milli


def _cpu_target(args: TargetLoadPackingArgs) -> Target:
    is_upstream = args.preset == "upstream"
    return Target(
        resource=CPU,
        target_percent=args.target_percent,
        selector=args.cpu_metric.selector(wire.CPU, LOAD_OPERATORS),
        prediction=make_prediction(
            CPU,
            args.prediction,
            default_amount=args.default_request_millicores,
            multiplier=args.request_multiplier,
            combines_steps=not is_upstream,
        ),
        fallback=args.fallback,
        weight=args.weight,
        is_primary=True,
        is_upstream=is_upstream,
    )
