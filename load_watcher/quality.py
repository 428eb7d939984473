"""
A verdict for every sample before it counts.

Pure: the batch and the time come in, a report goes out. Nothing is dropped in silence: each sample that does not count is named with
the rule that says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from load_watcher.samples import Rejection, SampleBatch
from trimaran_client.units import BoolArray, FloatArray
from trimaran_client.wire import CPU, MEMORY

# A rate of usage is a difference of two counters over a difference of two clocks: a busy node reads a little over 100 %.
MAX_PERCENT: Final = 110.0
# The Go client refuses a whole reply for one number beyond 64 bits, and garbles digits from 1e16 on.
MAX_VALUE: Final = 1e15
# Clocks of machines that run NTP agree to far less; a minute also covers a source that stamps the end of its interval.
MAX_AHEAD_SECONDS: Final = 60.0

_PERCENT_TYPES: Final = frozenset({CPU, MEMORY})
_Describe = Callable[[int], str]


@dataclass(frozen=True, slots=True, eq=False)
class QualityReport:
    """The batch with every sample that does not count set to NaN, and those samples: the provider's own rejections first."""

    batch: SampleBatch
    rejections: tuple[Rejection, ...]

    @property
    def counts(self) -> Mapping[str, int]:
        """Answer how many samples each rule rejected."""
        return Counter(rejection.rule for rejection in self.rejections)


def assess(batch: SampleBatch, now: float) -> QualityReport:
    """
    Judge each sample of a batch by itself.

    In this order, and the first rule that applies counts: ``not_finite`` (infinite), ``negative``, ``over_capacity`` (CPU or Memory above
    110 %), ``too_large`` (another type, beyond what the wire can carry), ``undated`` (a value without a time), ``future`` (measured more
    than a minute after *now*).

    Args:
        batch: What the provider handed over.
        now: The instant of the verdict, Unix seconds.
    """
    rejections = list(batch.rejections)
    times = _judge_times(batch.sampled_at, now)
    latest = {
        metric_type: _clean(batch.nodes, metric_type, values, [*_judge_values(metric_type, values), *times], rejections)
        for metric_type, values in batch.latest.items()
    }
    aggregates = tuple(
        replace(
            aggregate,
            values=_clean(
                batch.nodes,
                aggregate.metric_type,
                aggregate.values,
                [*_judge_values(aggregate.metric_type, aggregate.values), *times],
                rejections,
            ),
        )
        for aggregate in batch.aggregates
    )
    return QualityReport(replace(batch, latest=latest, aggregates=aggregates, rejections=()), tuple(rejections))


@dataclass(frozen=True, slots=True, eq=False)
class _Verdict:
    rule: str
    applies: BoolArray
    describe: _Describe


def _judge_values(metric_type: str, values: FloatArray) -> list[_Verdict]:
    def describe(row: int) -> str:
        return f"value {values[row]:g}"

    is_percent = metric_type in _PERCENT_TYPES
    return [
        _Verdict("not_finite", np.isinf(values), describe),
        _Verdict("negative", values < 0, describe),
        _Verdict("over_capacity" if is_percent else "too_large", values > (MAX_PERCENT if is_percent else MAX_VALUE), describe),
    ]


def _judge_times(sampled_at: FloatArray, now: float) -> list[_Verdict]:
    return [
        _Verdict("undated", ~np.isfinite(sampled_at), lambda _: "a value without the time of its measurement"),
        _Verdict("future", sampled_at > now + MAX_AHEAD_SECONDS, lambda row: f"measured {sampled_at[row] - now:.0f} s after now"),
    ]


def _clean(
    nodes: tuple[str, ...], metric_type: str, values: FloatArray, verdicts: list[_Verdict], rejections: list[Rejection]
) -> FloatArray:
    remaining = ~np.isnan(values)
    for verdict in verdicts:
        hit = verdict.applies & remaining
        remaining &= ~hit
        rejections += [
            Rejection(node=nodes[row], metric_type=metric_type, rule=verdict.rule, detail=verdict.describe(row))
            for row in np.flatnonzero(hit).tolist()
        ]
    return np.where(remaining, values, np.nan)
