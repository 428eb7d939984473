"""
How much of a resource a pod will use, before anybody has measured it.

The rule is a setting, since no single one suits everybody: where default limits are generous, going by limits makes every node look full.
A user's own estimator can take its place; whatever goes wrong in it, the rule answers, and the failure is counted.
"""

from __future__ import annotations

import logging
import math
import reprlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, SupportsFloat

from trimaran_client.resources import CPU, Container, Pod
from trimaran_client.units import ZERO, Quantity, round_number

logger = logging.getLogger(__name__)

PredictionRule = Literal["limit_first", "request_first", "max"]
Estimator = Callable[[Pod, str], float]
"""Answers what a pod will use of a resource, overhead included: millicores of ``cpu``, else whole units (bytes of ``memory``)."""

# Beyond any machine; keeps a product of hostile numbers finite.
LARGEST_PREDICTION = 1e30
# A scheduler waits for it; a kube-scheduler takes 2 ms for a whole decision.
ESTIMATOR_BUDGET_SECONDS = 0.05
ESTIMATOR_REST_SECONDS = 60.0


class GuardedEstimator:
    """
    Call a user's estimator, and survive it.

    An exception and a result that is no finite number of at least 0 are counted, and there is no answer then. A call that takes longer than
    the budget cannot be cut short; it is counted, and the estimator is left alone for a while.

    Args:
        estimate: The user's code.
        budget_seconds: How long one call may take.
        rest_seconds: How long a slow one is left alone.
        monotonic: Seconds that never jump.

    Attributes:
        failures: Cause (``raised``, ``not_a_number``, ``negative``, ``slow``) → count.
        last_error: What it raised last.
    """

    def __init__(
        self,
        estimate: Estimator,
        *,
        budget_seconds: float = ESTIMATOR_BUDGET_SECONDS,
        rest_seconds: float = ESTIMATOR_REST_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.failures: Counter[str] = Counter()
        self.last_error: Exception | None = None
        self._estimate = estimate
        self._budget_seconds = budget_seconds
        self._rest_seconds = rest_seconds
        self._monotonic = monotonic
        self._resting_until = -float("inf")

    def estimate(self, pod: Pod, resource: str) -> int | None:
        """Answer the estimate, rounded to whole units; ``None`` where there is none."""
        started = self._monotonic()
        if started < self._resting_until:
            return None
        try:
            value = self._estimate(pod, resource)
        except Exception as error:  # noqa: BLE001 - anyone's code; whatever it raises is the reason that is told
            self.last_error = error
            self._fail("raised", reprlib.repr(error))
            return None
        finally:
            taken_seconds = self._monotonic() - started
            if taken_seconds > self._budget_seconds:
                self._resting_until = started + taken_seconds + self._rest_seconds
                self._fail("slow", f"{taken_seconds:.3f} s")
        number = _as_number(value)
        if not abs(number) <= LARGEST_PREDICTION:
            self._fail("not_a_number", reprlib.repr(value))
        elif number < 0:
            self._fail("negative", reprlib.repr(value))
        else:
            return round_number(number)
        return None

    def _fail(self, cause: str, detail: str) -> None:
        self.failures[cause] += 1
        if self.failures[cause] == 1:
            logger.warning(
                "the estimator failed (%s: %s); its rule answers instead; later failures of this kind are only counted", cause, detail
            )


def _as_number(value: object) -> float:
    """Read a number of Python or numpy; NaN where it is none."""
    if isinstance(value, bool) or not isinstance(value, SupportsFloat):
        return math.nan
    try:
        return float(value)
    except Exception:  # noqa: BLE001 - anyone's type; a tensor of several elements raises what it likes
        return math.nan


@dataclass(frozen=True, slots=True)
class PredictedPart:
    """
    What one part of a pod is taken to use, and why.

    ``part`` is a container's name, ``pod`` for pod-level resources or an estimate, or ``overhead``; ``kind`` is ``container``, ``sidecar``,
    ``init``, ``pod`` or ``overhead``; ``rule`` what the amount comes from; ``amount`` in millicores of CPU, else whole units.
    """

    part: str
    kind: str
    rule: str
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UsagePrediction:
    """
    Predict the usage of one resource by a pod.

    Args:
        resource: ``cpu``, ``memory`` or any other resource name.
        rule: For each container: its limit, else its request times the multiplier (``limit_first``); the other way round
            (``request_first``); or the larger of both (``max``).
        default_amount: Of a container without limit and request; millicores of CPU, else whole units.
        multiplier: By how much usage is taken to exceed a request.
        combines_steps: Whether sidecars and init steps count, by the Kubernetes rule; upstream adds the containers only.
        estimator: A user's own code, asked first.
    """

    resource: str = CPU
    rule: PredictionRule = "limit_first"
    default_amount: int = 1000
    multiplier: float = 1.5
    combines_steps: bool = True
    estimator: GuardedEstimator | None = None

    def predict(self, pod: Pod) -> int:
        """Predict what the pod will use: millicores of CPU, else whole units; its overhead comes on top of the rule."""
        estimated = None if self.estimator is None else self.estimator.estimate(pod, self.resource)
        return pod.remember(self, self._by_rule) if estimated is None else estimated

    def explain(self, pod: Pod) -> tuple[PredictedPart, ...]:
        """Tell what each part of the pod is taken to use; init steps are told too, though they need not add to the whole."""
        if self.estimator is not None and (estimated := self.estimator.estimate(pod, self.resource)) is not None:
            return (PredictedPart("pod", "pod", "estimator", estimated),)
        parts: list[PredictedPart] = []
        level = pod.pod_level
        if self.combines_steps and level is not None and (self.resource in level.requests or self.resource in level.limits):
            parts.append(self._part(level, "pod", "pod"))
        else:
            steps = pod.init_containers if self.combines_steps else ()
            parts += [self._part(each, each.name, "sidecar" if each.is_sidecar else "init") for each in steps]
            parts += [self._part(each, each.name, "container") for each in pod.containers]
        overhead = self._amount(pod.overhead.get(self.resource, ZERO))
        return (*parts, PredictedPart("overhead", "overhead", "overhead", overhead)) if overhead else tuple(parts)

    def _by_rule(self, pod: Pod) -> int:
        if not self.combines_steps:
            running = sum(self._predict_container(each)[0] for each in pod.containers)
            return self._amount(self._quantity(running + self._amount(pod.overhead.get(self.resource, ZERO))))
        return self._amount(pod.total(lambda container: self._quantity(self._predict_container(container)[0]), self.resource))

    def _part(self, container: Container, name: str, kind: str) -> PredictedPart:
        amount, rule = self._predict_container(container)
        return PredictedPart(name, kind, rule, amount)

    def _predict_container(self, container: Container) -> tuple[int, str]:
        """Answer the amount and the rule that gave it."""
        limit, request = container.limits.get(self.resource), container.requests.get(self.resource)
        by_limit = None if limit is None else (self._amount(limit), "limit")
        by_request = None if request is None else (self._multiply(self._amount(request)), f"request × {self.multiplier:g}")
        default = (self.default_amount, "default")
        if self.rule == "max":
            return max((each for each in (by_limit, by_request) if each is not None), key=lambda each: each[0], default=default)
        first, second = (by_limit, by_request) if self.rule == "limit_first" else (by_request, by_limit)
        return first or second or default

    def _multiply(self, amount: int) -> int:
        return round_number(min(amount * self.multiplier, LARGEST_PREDICTION))

    def _amount(self, quantity: Quantity) -> int:
        return quantity.milli if self.resource == CPU else quantity.value

    def _quantity(self, amount: int) -> Quantity:
        return Quantity.from_milli(amount) if self.resource == CPU else Quantity.from_value(amount)
