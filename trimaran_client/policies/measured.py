"""
The mean and deviation of a resource, as the risk policies read them from a reply.

Source: scheduler-plugins at 903da7df, ``pkg/trimaran/resourcestats.go``, ``GetResourceData`` and ``GetMuSigma``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trimaran_client import wire
from trimaran_client.policies.arguments import ANY_METRIC, MetricChoice
from trimaran_client.policies.base import MetricUse, NodeColumns, NodeSelection
from trimaran_client.snapshot import MetricSelector, Selection
from trimaran_client.units import BoolArray, FloatArray

_UNNAMED = ""


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """
    Percent of capacity, shape (nodes,).

    ``is_known`` tells where the node has any metric of the type; there an absent average or deviation counts as 0, as upstream. For the
    default presets see :func:`fresh`.
    """

    average_percent: FloatArray
    deviation_percent: FloatArray
    is_known: BoolArray
    use: MetricUse

    @property
    def selection(self) -> NodeSelection:
        """Answer which metric the average is."""
        return self.use.selection


def read_measured(nodes: NodeColumns, resource: str, metric_type: str, choice: MetricChoice) -> Measured:
    """
    Take the last ``AVG``, else the last ``Latest`` or unnamed value, and the last ``STD``.

    A *choice* of a statistic takes the place of the first two, one of a window holds for all: without that metric a node has none.
    """
    selector = choice.selector(metric_type, (wire.AVERAGE,))
    average = nodes.select(selector)
    if not choice.statistic:
        average = _first_of(average, nodes.select(MetricSelector(metric_type, (wire.LATEST, _UNNAMED))))
        selector = MetricSelector(metric_type, (wire.AVERAGE, wire.LATEST), choice.window)
    deviations = nodes.select(MetricSelector(metric_type, (wire.STANDARD_DEVIATION,), choice.window)).values
    is_known = ~np.isnan(nodes.metric(metric_type, nodes.snapshot.operators_of(metric_type)))
    if choice != ANY_METRIC:
        is_known = ~np.isnan(average.values)
    return Measured(
        average_percent=np.where(np.isnan(average.values), 0.0, average.values),
        deviation_percent=np.where(np.isnan(deviations), 0.0, deviations),
        is_known=is_known,
        use=MetricUse(resource, selector, average),
    )


def _first_of(one: NodeSelection, other: NodeSelection) -> NodeSelection:
    absent = np.isnan(one.values)
    if not absent.any():
        return one
    chosen = Selection(
        np.where(absent, other.values, one.values),
        np.where(absent, other.keys, one.keys),
        np.where(absent, other.positions, one.positions),
    )
    return NodeSelection(chosen)


def fresh(nodes: NodeColumns, measured: Measured, max_age_seconds: float) -> BoolArray:
    """Tell where a measurement counts for the default presets: a mean is there, finite, not negative, and not too old."""
    has_mean = ~np.isnan(measured.selection.values)
    finite = np.isfinite(measured.average_percent) & (measured.average_percent >= 0)
    deviation = np.isfinite(measured.deviation_percent) & (measured.deviation_percent >= 0)
    return measured.is_known & has_mean & finite & deviation & (nodes.age_seconds <= max_age_seconds)


def ratio(part: FloatArray, whole: FloatArray) -> FloatArray:
    """Divide and hold the result in [0, 1]; NaN stays."""
    with np.errstate(all="ignore"):
        return np.clip(np.where(whole > 0, part / whole, math.nan), 0.0, 1.0)
