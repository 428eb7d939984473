"""How the default presets score a node whose metrics are missing or too old: one decision for every policy."""

from __future__ import annotations

import numpy as np

from trimaran_client.policies.arguments import Fallback
from trimaran_client.policies.base import MIN_NODE_SCORE, NEUTRAL_NODE_SCORE, Reason
from trimaran_client.units import BoolArray, FloatArray, IntArray


def score_fallback(
    fallback: Fallback, by_allocation: FloatArray, *, pods_known: BoolArray, capacity_known: BoolArray
) -> tuple[FloatArray, IntArray]:
    """
    Score nodes without fresh metrics.

    Args:
        fallback: ``allocation``, ``neutral`` or ``minimum``.
        by_allocation: What the policy's own formula gives on requests over allocatable, shape (nodes,); NaN where it cannot be told.
        pods_known: Where the pods of the node are known.
        capacity_known: Where what the node offers is known.

    Returns:
        Scores and :class:`Reason` codes, shape (nodes,) each. For ``allocation`` a node of unknown capacity gets 0, one of unknown pods
        50.
    """
    if fallback == "minimum":
        return np.full_like(by_allocation, MIN_NODE_SCORE), np.full(by_allocation.shape, Reason.FALLBACK_MINIMUM, dtype=np.int64)
    if fallback == "neutral":
        return np.full_like(by_allocation, NEUTRAL_NODE_SCORE), np.full(by_allocation.shape, Reason.FALLBACK_NEUTRAL, dtype=np.int64)
    conditions = [~capacity_known, ~pods_known]
    values = np.select(conditions, [float(MIN_NODE_SCORE), float(NEUTRAL_NODE_SCORE)], by_allocation)
    return values, np.select(conditions, [Reason.CAPACITY_UNKNOWN, Reason.PODS_UNKNOWN], Reason.FALLBACK_ALLOCATION).astype(np.int64)
