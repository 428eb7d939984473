"""The stage of quality with its history and state, one refresh after the other, for unit tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from load_watcher.history.window import SampleRing
from load_watcher.quality import QualityReport, QualityState, Verdict, assess
from load_watcher.samples import SampleBatch
from tests.builders import NOW, make_batch

STEP = 30.0
# Moves in steps of 0.25 between 39 and 41, no neighbors equal.
MOVING = tuple(40 + 0.25 * (position * 2 % 9 - 4) for position in range(60))
BUSY = [f"n{number}" for number in range(8)]


class Stage:
    """Quality with its history and state; each refresh is half a minute after the one before."""

    def __init__(self, step_seconds: float = STEP) -> None:
        self.step_seconds = step_seconds
        self.ring = SampleRing(step_seconds=step_seconds)
        self.state = QualityState()
        self.now = NOW

    def refresh(self, batch: SampleBatch) -> QualityReport:
        start_at = self.now - 60 * self.step_seconds
        recent = {kind: self.ring.columns(kind, start_at=start_at, end_at=self.now, nodes=batch.nodes) for kind in batch.latest}
        report = assess(batch, self.now, recent=recent, state=self.state)
        self.state = report.state
        self.ring.append(report.batch)
        self.now += self.step_seconds
        return report

    def play(self, **series: Sequence[float | None]) -> list[QualityReport]:
        length = len(next(iter(series.values())))
        return [self.refresh(self.make(**{node: values[position] for node, values in series.items()})) for position in range(length)]

    def make(self, **cpu_percent: float | None) -> SampleBatch:
        return make_batch(cpu_percent, sampled_at=self.now)

    def make_busy(self, value: float | None = None, *, except_for: Mapping[str, float | None] | None = None) -> SampleBatch:
        """Eight nodes near 40 %, or all at *value*."""
        moving = MOVING[round((self.now - NOW) / STEP) % 60]
        return self.make(**dict.fromkeys(BUSY, moving if value is None else value) | dict(except_for or {}))


def verdicts(reports: Sequence[QualityReport], row: int = 0) -> list[Verdict]:
    return [Verdict(int(report.verdicts["CPU"][row])) for report in reports]
