"""
The mean and deviation of a resource, as the risk policies read them from a reply.

Source: scheduler-plugins at 903da7df, ``pkg/trimaran/resourcestats.go``, ``GetResourceData`` and ``GetMuSigma``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trimaran_client import wire
from trimaran_client.policies.base import NodeColumns
from trimaran_client.units import BoolArray, FloatArray

_UNNAMED = ""


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """
    Percent of capacity, shape (nodes,).

    ``is_known`` tells where the node has any metric of the type; there an absent average or deviation counts as 0, as upstream.
    """

    average_percent: FloatArray
    deviation_percent: FloatArray
    is_known: BoolArray


def read_measured(nodes: NodeColumns, metric_type: str) -> Measured:
    """Take the last ``AVG``, else the last ``Latest`` or unnamed value, and the last ``STD``."""
    averages = nodes.metric(metric_type, (wire.AVERAGE,))
    instants = nodes.metric(metric_type, (wire.LATEST, _UNNAMED))
    deviations = nodes.metric(metric_type, (wire.STANDARD_DEVIATION,))
    any_of_type = nodes.metric(metric_type, nodes.snapshot.operators_of(metric_type))
    average = np.where(np.isnan(averages), instants, averages)
    return Measured(
        average_percent=np.where(np.isnan(average), 0.0, average),
        deviation_percent=np.where(np.isnan(deviations), 0.0, deviations),
        is_known=~np.isnan(any_of_type),
    )


def fresh(nodes: NodeColumns, measured: Measured, max_age_seconds: float) -> BoolArray:
    """Tell where a measurement counts for the default presets: known, finite, not negative, and not too old."""
    finite = np.isfinite(measured.average_percent) & (measured.average_percent >= 0)
    deviation = np.isfinite(measured.deviation_percent) & (measured.deviation_percent >= 0)
    return measured.is_known & finite & deviation & (nodes.age_seconds <= max_age_seconds)


def ratio(part: FloatArray, whole: FloatArray) -> FloatArray:
    """Divide and hold the result in [0, 1]; NaN stays."""
    with np.errstate(all="ignore"):
        return np.clip(np.where(whole > 0, part / whole, math.nan), 0.0, 1.0)
