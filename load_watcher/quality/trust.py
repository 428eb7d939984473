"""
What the verdicts say of a node, and of the source as a whole.

When most nodes fail at once, the source has failed and not the nodes: the last good values stay for a grace period, and no node is blamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from load_watcher.limits import QualityLimits
from load_watcher.quality.report import BadRun, QualityState, Quarantine, Verdict
from load_watcher.samples import Rejection, SampleBatch
from trimaran_client.units import BoolArray, IntArray
from trimaran_client.wire import CPU, MEMORY

# What policies score by: a node with a bad disk metric can still be placed on.
QUARANTINE_TYPES: Final = (CPU, MEMORY)
# A few samples that come apart from the others do not speak for the cluster.
_MIN_COMPARABLE_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class Suspicion:
    """
    What is not believed for now.

    Args:
        sentence: It, for a person; ``None`` if all is believed.
        collapsed_types: The metric types whose falls do not count.
        served: The nodes that the next batch is compared with.
        lost_since_at: As in :class:`QualityState`.
        collapsed_since_at: As in :class:`QualityState`.
    """

    sentence: str | None
    collapsed_types: frozenset[str]
    served: frozenset[str]
    lost_since_at: float | None
    collapsed_since_at: Mapping[str, float]


def find_suspicion(
    state: QualityState,
    *,
    served: frozenset[str],
    falls: Mapping[str, tuple[BoolArray, BoolArray]],
    now: float,
    limits: QualityLimits,
) -> Suspicion:
    """
    Find whether most nodes lost their values, or most values fell, and whether that is still to be doubted.

    Args:
        state: What the refresh before left.
        served: The nodes that have a good value now.
        falls: Metric type → which values fell, and which could have shown it, both shape (nodes,).
        now: Unix seconds.
        limits: Of ``suspicion_`` and ``grace_``.
    """
    sentences = []
    lost = state.served - served
    lost_since_at = None
    if len(state.served) >= limits.suspicion_nodes and len(lost) > limits.suspicion_share * len(state.served):
        since_at = now if state.lost_since_at is None else min(state.lost_since_at, now)
        if now - since_at < limits.grace_seconds:
            lost_since_at = since_at
            sentences.append(f"{len(lost)} of {len(state.served)} nodes have no good value any more, for {now - since_at:.0f} s")
    collapsed_since_at = {}
    doubted = set()
    for metric_type, (fell, comparable) in falls.items():
        if not _is_most(fell, comparable, limits):
            continue
        collapsed_since_at[metric_type] = since_at = min(state.collapsed_since_at.get(metric_type, now), now)
        if now - since_at < limits.grace_seconds:
            doubted.add(metric_type)
            numbers = f"{np.count_nonzero(fell)} of {np.count_nonzero(comparable)}"
            sentences.append(f"{metric_type} fell to less than a {limits.drop_factor:g}th on {numbers} nodes, for {now - since_at:.0f} s")
    sentence = None
    if sentences:
        sentence = f"{'; '.join(sentences)}; the last good values stay until this has lasted {limits.grace_seconds:g} s; check the source"
    return Suspicion(sentence, frozenset(doubted), served if lost_since_at is None else state.served, lost_since_at, collapsed_since_at)


def _is_most(fell: BoolArray, comparable: BoolArray, limits: QualityLimits) -> bool:
    count = np.count_nonzero(comparable)
    if count < max(limits.suspicion_nodes, _MIN_COMPARABLE_SHARE * len(comparable)):
        return False
    return bool(np.count_nonzero(fell) > limits.suspicion_share * count)


def update_state(
    state: QualityState,
    batch: SampleBatch,
    *,
    verdicts: Mapping[str, IntArray],
    rejections: Iterable[Rejection],
    suspicion: Suspicion,
    now: float,
    limits: QualityLimits,
) -> QualityState:
    """
    Note what the next refresh has to know, and decide which nodes are in quarantine.

    While something is suspect nothing is counted against a node, and no node enters or leaves quarantine.

    Args:
        state: With the stuck values of this batch, else as the refresh before left it.
        batch: As it came.
        verdicts: Metric type → codes, shape (nodes,).
        rejections: Of this batch.
        suspicion: What is not believed.
        now: Unix seconds.
        limits: Of ``quarantine_`` and ``forget_``.
    """
    doubts = suspicion.sentence is not None
    missing = _list_missing(state, batch, now, limits) if doubts or not batch.members_known else {}
    here = frozenset(batch.nodes) | missing.keys()
    bad_runs = state.bad_runs if doubts else _count_runs(state.bad_runs, batch, verdicts, limits)
    after = replace(
        state,
        served=suspicion.served,
        missing=missing,
        lost_since_at=suspicion.lost_since_at,
        collapsed_since_at=suspicion.collapsed_since_at,
        stuck={key: value for key, value in state.stuck.items() if key[0] in here},
        bad_runs={node: run for node, run in bad_runs.items() if node in here},
    )
    if doubts:
        return replace(after, quarantined={node: why for node, why in state.quarantined.items() if node in here})
    return replace(after, quarantined=_list_quarantined(after, rejections, now, limits))


def _list_missing(state: QualityState, batch: SampleBatch, now: float, limits: QualityLimits) -> dict[str, float]:
    absent = (state.served | state.missing.keys() | {node for node, _ in state.stuck} | state.bad_runs.keys()) - frozenset(batch.nodes)
    since_at = {node: min(state.missing.get(node, now), now) for node in sorted(absent)}
    return {node: at for node, at in since_at.items() if now - at <= limits.forget_seconds}


def _count_runs(
    before: Mapping[str, BadRun], batch: SampleBatch, verdicts: Mapping[str, IntArray], limits: QualityLimits
) -> dict[str, BadRun]:
    """Count the impossible and the good samples in a row; one that is seen again counts once, and one that is absent says nothing."""
    listed = frozenset(batch.nodes)
    is_impossible = np.zeros(len(batch.nodes), dtype=np.bool_)
    is_good = np.zeros(len(batch.nodes), dtype=np.bool_)
    for metric_type in QUARANTINE_TYPES:
        if metric_type in verdicts:
            codes = verdicts[metric_type]
            is_impossible |= codes == Verdict.IMPOSSIBLE
            is_good |= (codes == Verdict.FRESH) | (codes == Verdict.LATE) | (codes == Verdict.JUMP)
    rows = is_impossible.copy()
    if before:
        rows |= np.array([node in before for node in batch.nodes], dtype=np.bool_)
    runs = {node: run for node, run in before.items() if node not in listed}
    for row in np.flatnonzero(rows).tolist():
        node, sampled_at = batch.nodes[row], float(batch.sampled_at[row])
        run = before.get(node, BadRun(0, 0, np.nan))
        if sampled_at != run.counted_at:
            if is_impossible[row]:
                run = BadRun(run.impossible + 1, 0, sampled_at)
            elif is_good[row]:
                run = BadRun(run.impossible, run.good + 1, sampled_at)
        needed = limits.quarantine_samples if run.impossible >= limits.quarantine_samples else 1
        if run.good < needed:
            runs[node] = run
    return runs


def _list_quarantined(state: QualityState, rejections: Iterable[Rejection], now: float, limits: QualityLimits) -> dict[str, Quarantine]:
    reasons = {
        node: f"{metric_type} is stuck at {value:g}"
        for (node, metric_type), (value, _) in state.stuck.items()
        if metric_type in QUARANTINE_TYPES
    }
    broken = {node for node, run in state.bad_runs.items() if run.impossible >= limits.quarantine_samples}
    last = {each.node: each for each in rejections if each.node in broken and each.metric_type in QUARANTINE_TYPES} if broken else {}
    for node in broken:
        if node in last:
            reasons[node] = f"impossible samples in a row, the last: {last[node].metric_type} {last[node].rule}, {last[node].detail}"
        else:
            reasons[node] = state.quarantined[node].reason if node in state.quarantined else "impossible samples in a row"
    return {
        node: Quarantine(reason, state.quarantined[node].since_at if node in state.quarantined else now)
        for node, reason in sorted(reasons.items())
    }
