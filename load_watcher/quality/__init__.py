"""
A verdict for every sample before it counts.

Pure: the batch, the recent history, the state and the time come in, a report goes out. Nothing is dropped in silence: each sample that does
not count is named with the rule that says so. ``docs/quality.md`` tells the rules and what they reach on real traces.

How the watcher uses it::

    start_at = now - RECENT_REFRESHES * refresh_seconds
    recent = {t: ring.columns(t, start_at=start_at, end_at=now, nodes=batch.nodes) for t in batch.latest}
    report = assess(batch, now, recent=recent, state=state)
    state = report.state
    ring.append(report.batch)
"""

from load_watcher.limits import MAX_AHEAD_SECONDS, RECENT_REFRESHES, QualityLimits
from load_watcher.quality.judge import assess
from load_watcher.quality.report import Jump, QualityReport, QualityState, Quarantine, Recent, Verdict

__all__ = [
    "MAX_AHEAD_SECONDS",
    "RECENT_REFRESHES",
    "Jump",
    "QualityLimits",
    "QualityReport",
    "QualityState",
    "Quarantine",
    "Recent",
    "Verdict",
    "assess",
]
