"""How much of the pods in flight the metrics of their nodes do not show yet: one decision for every policy."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from trimaran_client import wire
from trimaran_client.assigned import PodsView
from trimaran_client.policies.base import NodeColumns, NodeSelection, PodUse
from trimaran_client.prediction import UsagePrediction
from trimaran_client.resources import Pod
from trimaran_client.snapshot import MetricKey
from trimaran_client.units import FloatArray, parse_span_seconds

# How often the metrics agents report; a pod bound this long before the window's end is in the metrics
# (scheduler-plugins, targetloadpacking/handler.go).
METRICS_AGENT_REPORTING_SECONDS: Final = 60
# What is taken of a sample that does not say over how long it was measured, by the same reason.
_SAMPLE_SECONDS: Final = float(METRICS_AGENT_REPORTING_SECONDS)
# What the Go load-watcher averages over; taken where an average does not name its window.
_WINDOW_SECONDS: Final = 900.0
_MAXIMUM: Final = "MAX"
# Shares are told in these, so that the sum over the pods of a node is exact, whatever their order.
_SHARE_STEPS: Final = 2.0**20
_PERCENTILE = re.compile(r"P([0-9]{1,2})", re.ASCII)


def unreported_upstream(pods: PodsView, window_end_at: float) -> FloatArray:
    """
    Tell which pods in flight count, by the rule of the Go plugin: 1 or 0, shape (pods,).

    Those bound after the window's end, or less than a minute before it. Both instants are cut to whole seconds first, so a pod seen 59.5 s
    before the end counts as 60 s before and is in the metrics.
    """
    return (math.floor(window_end_at) - np.floor(pods.assigned_at) < METRICS_AGENT_REPORTING_SECONDS).astype(np.float64)


def is_unreported_upstream(assigned_at: float, window_end_at: float) -> bool:
    """Tell it of one pod, as :func:`unreported_upstream` does."""
    return bool(math.floor(window_end_at) - np.floor(assigned_at) < METRICS_AGENT_REPORTING_SECONDS)


@dataclass(frozen=True, slots=True, eq=False)
class InFlight:
    """
    What the pods in flight add to the candidates.

    Args:
        amounts: Base units of the resource, shape (nodes,).
        usage: What each pod is taken to use, shape (pods,).
        shares: How much of that counts, 0 to 1, shape (pods,).
    """

    amounts: FloatArray
    usage: FloatArray
    shares: FloatArray

    def use(self, prediction: UsagePrediction, pod: Pod) -> PodUse:
        """Tell it for an explanation, with what the pod itself is taken to use."""
        return PodUse(prediction.resource, prediction.explain(pod), float(prediction.predict(pod)), self.usage, self.shares)


def count_in_flight(nodes: NodeColumns, selection: NodeSelection, prediction: UsagePrediction, *, counts: bool = True) -> InFlight:
    """
    Sum up what the pods in flight are predicted to use beyond what the selected metric shows.

    Args:
        nodes: The candidates.
        selection: The metric that counts for each.
        prediction: What a pod is taken to use.
        counts: Whether they count at all.
    """
    if nodes.pods is None or not nodes.pods.in_flight_count or not counts:
        return InFlight(np.zeros(len(nodes.names)), np.empty(0), np.empty(0))
    usage, shares = nodes.pods.usage(prediction), uncovered_shares(nodes, selection)
    return InFlight(nodes.sum_by_node(usage * shares), usage, shares)


def uncovered_shares(nodes: NodeColumns, selection: NodeSelection) -> FloatArray:
    """
    Tell how much of each pod in flight the selected metric of its node does not show, 0 to 1, shape (pods,).

    With *ran*, the time from when the pod could be measured to the newest sample of its node: an average over *window* shows
    ``ran / window`` of it; an instant and a maximum show all of it once a whole sample was measured since; the percentile q once the pod
    ran for ``(1 - q)`` of the window besides. A pod on a node without the metric, or on none of the candidates, is not shown.
    """
    pods = nodes.pods
    if pods is None or not pods.in_flight_count:
        return np.empty(0)
    if not nodes.names:
        return np.ones(pods.in_flight_count)
    if float(np.minimum.reduce(pods.started_at)) > nodes.newest_sampled_at:  # in a burst all are newer than any sample
        return np.ones(pods.in_flight_count)
    with np.errstate(all="ignore"):
        return _compare_times(nodes, pods, selection)


def _compare_times(nodes: NodeColumns, pods: PodsView, selection: NodeSelection) -> FloatArray:
    candidates = nodes.candidates_of_pods
    # One more at the end, for the index -1 of nodes without the metric.
    lags, spans = np.array([*map(_reach, nodes.snapshot.metrics.key_names), (math.nan, math.nan)]).T
    keys = selection.keys.take(candidates)
    seconds = nodes.sample_seconds.take(candidates)
    spans = spans.take(keys)
    ran = nodes.sampled_at.take(candidates) - pods.started_at
    is_shown = ran >= np.maximum(lags.take(keys), np.where(np.isnan(seconds), _SAMPLE_SECONDS, seconds))
    shares = np.where(spans > 0, 1.0 - ran / spans, ~is_shown)
    is_unknown = (candidates < 0) | np.isnan(ran)
    held = np.minimum(np.maximum(np.where(is_unknown, 1.0, shares), 0.0), 1.0)
    return np.rint(held * _SHARE_STEPS) / _SHARE_STEPS


def _reach(key: MetricKey) -> tuple[float, float]:
    """Answer for how long a pod must run for a metric to show it, and over how long it comes to show all of it, seconds."""
    if key.operator in (wire.LATEST, _MAXIMUM) or not key.operator:
        return 0.0, 0.0
    window_seconds = parse_span_seconds(key.window)
    window_seconds = _WINDOW_SECONDS if math.isnan(window_seconds) else window_seconds
    if percentile := _PERCENTILE.fullmatch(key.operator):
        return (100 - int(percentile[1])) * window_seconds / 100, 0.0
    return 0.0, window_seconds
