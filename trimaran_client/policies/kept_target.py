"""The scores of TargetLoadPacking for one kind of pod, kept up to date: a pod that comes or goes changes the score of its node alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from trimaran_client.pod_table import AssignedPod, PodChange
from trimaran_client.policies.base import NodeColumns, Scores
from trimaran_client.policies.in_flight import is_unreported_upstream
from trimaran_client.policies.targets import Target, UtilizationTerms, predict_percent, round_scores, utilization_reasons, utilization_score
from trimaran_client.units import IntArray

# Sums below it are exact, by the steps in which shares are told too, so that what is added and taken away comes back to what it was.
_EXACT_AMOUNT: Final = 2.0**32


class KeptTarget:
    """
    Keep the scores of all nodes by one target.

    Nodes that are scored by their measured load are followed; for others, and for a pod that the metrics show in part, everything is to be
    made anew.

    Args:
        target: The target.
        nodes: All nodes of a snapshot.
        terms: The arithmetic of the target for these.
        scores: What came of it.
        max_age_seconds: Metrics older than this do not count.
    """

    def __init__(self, target: Target, nodes: NodeColumns, terms: UtilizationTerms, scores: Scores, *, max_age_seconds: float) -> None:
        self.values, self.reasons = scores.values.copy(), scores.reasons.copy()
        self._target = target
        self._pod_amount = float(terms.pod_amount)
        _, self._used, self._capacity, counts_from = nodes.derive(target, target.measure)
        self._in_flight = terms.in_flight_amount.copy()
        self._is_followed = terms.is_measured & ~np.isnan(terms.predicted_percent) & (self._in_flight < _EXACT_AMOUNT)
        self._rows = nodes.snapshot.rows
        self._window_end_at = nodes.snapshot.window_end_at
        self._newest_sampled_at = nodes.newest_sampled_at
        self._made_at = nodes.now
        self._counts_from = float(np.minimum.reduce(counts_from, where=terms.is_measured, initial=math.inf))
        self._max_age_seconds = max_age_seconds

    def holds_at(self, now: float) -> bool:
        """Tell whether no metric has become too old since; a clock that was set back is not followed."""
        return self._made_at <= now and not now - self._counts_from > self._max_age_seconds

    def update(self, changes: Sequence[PodChange]) -> IntArray | None:
        """Score the nodes again that pods came to or went from; ``None`` where one of them is not followed."""
        amounts: dict[int, float] = {}
        for sign, node, entry in changes:
            row = self._rows.get(node)
            if row is None:
                continue  # no node of the snapshot
            if not self._is_followed[row]:
                return None
            if entry is None:
                continue  # what it requests does not matter where the load is measured
            share = self._share(entry)
            if share is None:
                return None
            amounts[row] = amounts.get(row, 0.0) + sign * share * self._target.prediction.predict(entry.pod)
        rows = np.fromiter(amounts, dtype=np.int64, count=len(amounts))
        self._in_flight[rows] += np.fromiter(amounts.values(), dtype=np.float64, count=len(amounts))
        in_flight = self._in_flight.take(rows)
        if float(np.maximum.reduce(in_flight, initial=0.0)) >= _EXACT_AMOUNT:
            return None
        with np.errstate(all="ignore"):
            predicted = predict_percent(self._target, self._used.take(rows), self._pod_amount, in_flight, self._capacity.take(rows))
            values = utilization_score(predicted, self._target.target_percent)
            self.values[rows] = round_scores(self._target, values)
            self.reasons[rows] = utilization_reasons(predicted, self._target.target_percent)
        return rows

    def _share(self, entry: AssignedPod) -> float | None:
        """Tell how much of a pod in flight counts, if it is all or nothing; ``None`` where the metrics may show a part of it."""
        if self._target.is_upstream:
            return float(is_unreported_upstream(entry.assigned_at, self._window_end_at))
        return 1.0 if entry.started_at > self._newest_sampled_at else None
