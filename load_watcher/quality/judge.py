"""The stage itself: the rules over every column of a batch, then what the verdicts say of the nodes and of the whole source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from load_watcher.limits import DEFAULT_LIMITS, QualityLimits
from load_watcher.quality.report import Jump, QualityReport, QualityState, Recent, StuckValue, Verdict
from load_watcher.quality.rules import (
    Column,
    History,
    Hit,
    find_drops,
    find_impossible,
    find_rises,
    find_stuck,
    is_in_percent,
    judge_times,
    read_history,
)
from load_watcher.quality.trust import find_suspicion, update_state
from load_watcher.samples import Rejection, SampleBatch
from trimaran_client.units import BoolArray, FloatArray, IntArray, freeze

NO_RECENT: Final[Recent] = {}
NO_STATE: Final = QualityState()


@dataclass(frozen=True, slots=True, eq=False)
class _Judged:
    """A column with its verdicts, before it is known whether its fall is believed."""

    column: Column
    history: History
    codes: IntArray
    hits: tuple[Hit, ...]
    drops: BoolArray
    stuck_since_at: FloatArray


def assess(
    batch: SampleBatch,
    now: float,
    *,
    recent: Recent = NO_RECENT,
    state: QualityState = NO_STATE,
    limits: QualityLimits = DEFAULT_LIMITS,
) -> QualityReport:
    """
    Give every sample of a batch a verdict, and reject those that do not count.

    Of several rules that apply to a sample, the first counts: impossible (by itself, see :func:`rules.find_impossible`), stuck, one of
    most that fell at once, repeated, jump, late. Aggregates of the source are judged by themselves, and fall with the samples of their
    type. Nothing is kept but what is returned.

    Args:
        batch: What the provider handed over.
        now: The instant of the verdict, Unix seconds.
        recent: Metric type → the clean samples of the last ``RECENT_REFRESHES`` refreshes, a column for each node of the batch in its
            order, as ``SampleRing.columns(..., nodes=batch.nodes)`` gives them. Without them, only the rules that need none apply.
        state: What the report before left; empty at first.
        limits: The limits of the rules.

    Raises:
        ValueError: If *recent* is of other nodes than the batch.
    """
    judged = {
        metric_type: _judge_column(_make_column(batch, metric_type, values, recent), state, batch.nodes, now, limits)
        for metric_type, values in batch.latest.items()
    }
    aggregates = [
        Column(item.metric_type, is_in_percent(item.metric_type, item.unit), item.values, batch.sampled_at) for item in batch.aggregates
    ]
    aggregate_hits = [find_impossible(column, now, limits) for column in aggregates]
    suspicion = find_suspicion(
        state,
        served=_find_served(batch, judged.values(), aggregates, aggregate_hits),
        falls={metric_type: (each.drops, _find_comparable(each, limits)) for metric_type, each in judged.items()},
        now=now,
        limits=limits,
    )
    rejections = list(batch.rejections)
    latest: dict[str, FloatArray] = {}
    verdicts: dict[str, IntArray] = {}
    jumps: list[Jump] = []
    for metric_type, each in judged.items():
        codes, hits = each.codes, each.hits
        if metric_type in suspicion.collapsed_types:
            codes = np.where(each.drops, Verdict.SUSPECT, codes)
            hits += (_tell_collapse(each),)
        latest[metric_type] = _reject(batch.nodes, each.column, hits, rejections)
        freeze(codes)
        verdicts[metric_type] = codes
        jumps += _list_jumps(batch.nodes, each, codes)
    clean_aggregates = []
    for item, column, found in zip(batch.aggregates, aggregates, aggregate_hits, strict=True):
        if item.metric_type in suspicion.collapsed_types:
            found.append(_tell_collapse(judged[item.metric_type]))
        clean_aggregates.append(replace(item, values=_reject(batch.nodes, column, found, rejections)))
    clean = replace(
        batch,
        latest=latest,
        aggregates=tuple(clean_aggregates),
        rejections=(),
        members_known=batch.members_known and suspicion.sentence is None,
    )
    next_state = update_state(
        replace(state, stuck=_list_stuck(batch.nodes, judged, state)),
        batch,
        verdicts=verdicts,
        rejections=rejections[len(batch.rejections) :],
        suspicion=suspicion,
        now=now,
        limits=limits,
    )
    return QualityReport(clean, tuple(rejections), verdicts, tuple(jumps), suspicion.sentence, next_state)


def _make_column(batch: SampleBatch, metric_type: str, values: FloatArray, recent: Recent) -> Column:
    samples = recent.get(metric_type)
    if samples is not None and samples.nodes != batch.nodes:
        raise ValueError(
            f"the recent samples of {metric_type} are of other nodes than the batch; ask the history for the nodes of the batch"
        )
    return Column(metric_type, is_in_percent(metric_type, batch.units.get(metric_type, "")), values, batch.times_of(metric_type), samples)


def _judge_column(column: Column, state: QualityState, nodes: tuple[str, ...], now: float, limits: QualityLimits) -> _Judged:
    history = read_history(column, now, limits)
    codes = judge_times(column, history, now, limits)
    hits = find_impossible(column, now, limits)
    is_possible = codes != Verdict.ABSENT
    for hit in hits:
        is_possible &= ~hit.rows
    # Out of order or dated like one that is held, a sample says nothing about what comes after the held ones.
    is_next = is_possible & (codes != Verdict.REPEATED) & (column.at_ms > history.newest_ms)
    stuck_since_at = find_stuck(column, is_next, limits)
    for row, held in _find_held(column, state, nodes):
        if is_possible[row] and column.values[row] == held.value:
            stuck_since_at[row] = held.since_at
    is_stuck = ~np.isnan(stuck_since_at)
    hits.append(Hit("stuck", Verdict.STUCK, is_stuck, lambda row: f"value {column.values[row]:g} for {now - stuck_since_at[row]:.0f} s"))
    drops = is_next & find_drops(column, history, limits)
    codes[drops | (is_next & find_rises(column, history, limits))] = Verdict.JUMP
    for hit in hits:
        codes[hit.rows & (codes != Verdict.ABSENT)] = hit.verdict
    return _Judged(column, history, codes, tuple(hits), drops, stuck_since_at)


def _find_held(column: Column, state: QualityState, nodes: tuple[str, ...]) -> list[tuple[int, StuckValue]]:
    held = {node: value for (node, metric_type), value in state.stuck.items() if metric_type == column.metric_type}
    return [(row, held[node]) for row, node in enumerate(nodes) if node in held] if held else []


def _find_comparable(judged: _Judged, limits: QualityLimits) -> BoolArray:
    """Answer which samples could have shown a fall: new, of a node that is known and not idle."""
    is_new = (judged.codes == Verdict.FRESH) | (judged.codes == Verdict.LATE) | (judged.codes == Verdict.JUMP)
    floor = limits.negligible_percent if judged.column.is_percent else 0.0
    is_comparable: BoolArray = is_new & judged.history.is_known & (judged.history.lowest > floor)
    return is_comparable


def _find_served(
    batch: SampleBatch, judged: Iterable[_Judged], aggregates: Sequence[Column], hits: Sequence[Sequence[Hit]]
) -> frozenset[str]:
    """Answer which nodes bring a value that is good but for a common fall."""
    is_served = np.zeros(len(batch.nodes), dtype=np.bool_)
    for each in judged:
        is_served |= each.codes < Verdict.ABSENT
    for column, found in zip(aggregates, hits, strict=True):
        is_good = ~np.isnan(column.values)
        for hit in found:
            is_good &= ~hit.rows
        is_served |= is_good
    return frozenset(batch.nodes if is_served.all() else (batch.nodes[row] for row in np.flatnonzero(is_served).tolist()))


def _tell_collapse(judged: _Judged) -> Hit:
    values, lowest = judged.column.values, judged.history.lowest
    return Hit(
        "collapse", Verdict.SUSPECT, judged.drops, lambda row: f"value {values[row]:g} after {lowest[row]:g} or more, with most other nodes"
    )


def _reject(nodes: tuple[str, ...], column: Column, hits: Iterable[Hit], rejections: list[Rejection]) -> FloatArray:
    """Set what the hits apply to to NaN, and name each with the first rule that applies."""
    remaining = ~np.isnan(column.values)
    for hit in hits:
        rows = hit.rows & remaining
        remaining &= ~rows
        rejections += [Rejection(nodes[row], column.metric_type, hit.rule, hit.describe(row)) for row in np.flatnonzero(rows).tolist()]
    return np.where(remaining, column.values, np.nan)


def _list_jumps(nodes: tuple[str, ...], judged: _Judged, codes: IntArray) -> list[Jump]:
    values, history = judged.column.values, judged.history
    return [
        Jump(nodes[row], judged.column.metric_type, float(values[row]), float(history.lowest[row]), float(history.highest[row]))
        for row in np.flatnonzero(codes == Verdict.JUMP).tolist()
    ]


def _list_stuck(nodes: tuple[str, ...], judged: Mapping[str, _Judged], state: QualityState) -> dict[tuple[str, str], StuckValue]:
    """List the stuck values; one that the batch says nothing about stays."""
    stuck = {}
    for metric_type, each in judged.items():
        for row in np.flatnonzero(~np.isnan(each.stuck_since_at)).tolist():
            stuck[nodes[row], metric_type] = StuckValue(float(each.column.values[row]), float(each.stuck_since_at[row]))
    if state.stuck:
        row_of = {node: row for row, node in enumerate(nodes)}
        for (node, metric_type), held in state.stuck.items():
            is_judged = node in row_of and metric_type in judged
            if not is_judged or judged[metric_type].codes[row_of[node]] in (Verdict.ABSENT, Verdict.IMPOSSIBLE):
                stuck[node, metric_type] = held
    return stuck
