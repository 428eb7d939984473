"""What the last refreshes were worth, kept for whoever asks: bounded, and told in the log only when something new begins or ends."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from load_watcher.quality.report import Jump, QualityReport
from load_watcher.samples import Rejection, SampleBatch

# A screen or two of examples; the counts tell the rest.
_KEPT: Final = 200
_EMPTY: Final = SampleBatch(source="", nodes=(), sampled_at=np.empty(0), latest={})


class Noted(NamedTuple):
    """A rejected sample and when it was judged, Unix seconds."""

    judged_at: float
    rejection: Rejection


class QualityLog:
    """
    Keep the last report, the newest rejected samples and jumps, and the counts since the start.

    Attributes:
        report: The last report; an empty one at first.
        rejected: The newest rejected samples, newest last.
        jumps: The newest marked ones, with the time of the verdict.
        counts: How many samples each rule rejected since the start.
    """

    def __init__(self) -> None:
        self.report = QualityReport(_EMPTY, ())
        self.rejected: deque[Noted] = deque(maxlen=_KEPT)
        self.jumps: deque[tuple[float, Jump]] = deque(maxlen=_KEPT)
        self.counts: Counter[str] = Counter()

    def note(self, report: QualityReport, now: float) -> Iterator[str]:
        """Take a report, and answer a sentence for everything in it that the one before did not have."""
        previous, self.report = self.report, report
        self.counts.update(report.counts)
        self.rejected.extend(Noted(now, rejection) for rejection in report.rejections[-_KEPT:])
        self.jumps.extend((now, jump) for jump in report.jumps[-_KEPT:])
        if report.counts.keys() - previous.counts.keys():
            first = report.rejections[0]
            counts = ", ".join(f"{rule} {count}" for rule, count in sorted(report.counts.items()))
            yield f"samples rejected: {counts}; for example {first.node}, {first.metric_type}: {first.rule}, {first.detail}"
        for node in sorted(report.quarantined.keys() - previous.quarantined.keys()):
            yield f"node {node} is quarantined: {report.quarantined[node].reason}"
        for node in sorted(previous.quarantined.keys() - report.quarantined.keys()):
            yield f"node {node} is no longer quarantined"
        if report.suspicion is not None and previous.suspicion is None:
            yield f"the source is suspect: {report.suspicion}"
        if report.suspicion is None and previous.suspicion is not None:
            yield "the source is no longer suspect"
