"""
What the Go plugins take a pod to request and to be limited to: amounts are rounded per container, and a sidecar is a plain init container.

Source: scheduler-plugins at 903da7df, ``pkg/trimaran/resourcestats.go``; the ``upstream`` presets use it, the default ones
:meth:`trimaran_client.resources.Pod.requested` and ``limited``.
"""

from __future__ import annotations

from collections.abc import Callable

from trimaran_client.resources import CPU, Amounts, Container, Pod
from trimaran_client.units import ZERO, Quantity


def upstream_requested(pod: Pod, resource: str) -> Quantity:
    """Answer the larger of the sum over the containers and each init container, plus the overhead."""
    return _effective(pod, resource, lambda container: container.requests)


def upstream_limited(pod: Pod, resource: str) -> Quantity:
    """Answer the same of the limits, where an absent one is 0, raised to at least the request."""
    return max(_effective(pod, resource, lambda container: container.limits), upstream_requested(pod, resource))


def _effective(pod: Pod, resource: str, amounts_of: Callable[[Container], Amounts]) -> Quantity:
    running = sum((_whole(amounts_of(each), resource) for each in pod.containers), ZERO)
    steps = [_whole(amounts_of(each), resource) for each in pod.init_containers]
    return max([running, *steps]) + _whole(pod.overhead, resource)


def _whole(amounts: Amounts, resource: str) -> Quantity:
    quantity = amounts.get(resource, ZERO)
    return Quantity.from_milli(quantity.milli) if resource == CPU else Quantity.from_value(quantity.value)
