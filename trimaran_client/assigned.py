"""Pods that are bound to a node but whose usage the metrics do not show yet."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from trimaran_client.resources import Pod

# How often the metrics agents report; a pod bound this long before the window's end is in the metrics
# (scheduler-plugins, targetloadpacking/handler.go).
METRICS_AGENT_REPORTING_SECONDS = 60


@dataclass(frozen=True, slots=True)
class AssignedPod:
    """A pod and the moment, Unix seconds, when it was seen bound to ``pod.node_name``."""

    pod: Pod
    assigned_at: float


def assigned_pods(pods: Iterable[Pod]) -> tuple[AssignedPod, ...]:
    """
    Select the pods that hold a place and say when they got it: their PodScheduled time decides.

    A pod that has ended, is not bound, or does not say since when, is left out: the metrics show it, or nobody knows.
    """
    return tuple(
        AssignedPod(pod, pod.scheduled_at) for pod in pods if pod.node_name and not pod.is_terminal and not math.isnan(pod.scheduled_at)
    )


def is_unreported(assigned_at: float, window_end_at: float) -> bool:
    """
    Tell whether a pod assigned then is missing from metrics that end there, by the rule of the Go plugin.

    Both instants are cut to whole seconds first, so a pod seen 59.5 s before the end counts as 60 s before and is in the metrics.

    >>> is_unreported(1000.5, 1060.0), is_unreported(1001.0, 1060.0), is_unreported(1061.0, 1060.0)
    (False, True, True)
    """
    return math.floor(window_end_at) - math.floor(assigned_at) < METRICS_AGENT_REPORTING_SECONDS
