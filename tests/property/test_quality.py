"""Laws of the rules of quality, on generated histories."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from load_watcher.history.columns import NEVER, SampleColumns
from load_watcher.quality import QualityReport, QualityState, Verdict, assess
from load_watcher.quality.report import BadRun, StuckValue
from load_watcher.samples import SampleBatch
from tests.builders import NOW

STEP_MS = 30_000
REFRESHES = 30

levels = st.sampled_from([0.0, 0.3, 1.0, 40.0, 40.25, 41.0, 99.9, 100.0, 105.0, -3.0, 1e9, float("nan"), float("inf")])
series = st.lists(st.one_of(levels, st.floats(0, 100)), min_size=REFRESHES + 1, max_size=REFRESHES + 1)
troubles = st.sampled_from(["none", "stuck", "bad", "served", "quarantined"])


def make_state(names: Sequence[str], kinds: Sequence[str], newest: Sequence[float]) -> QualityState:
    paired = list(zip(names, kinds, newest, strict=True))
    return QualityState(
        served=frozenset(name for name, kind, _ in paired if kind != "none"),
        stuck={(name, "CPU"): StuckValue(value, NOW - 900) for name, kind, value in paired if kind == "stuck"},
        bad_runs={
            name: BadRun(5 if kind == "quarantined" else 2, 0, NOW - 30) for name, kind, _ in paired if kind in {"bad", "quarantined"}
        },
    )


def judge(names: Sequence[str], listed: Sequence[Sequence[float]], state: QualityState) -> QualityReport:
    values = np.array(listed, dtype=np.float64).T
    past = np.where(np.isfinite(values[:-1]) & (values[:-1] >= 0), values[:-1], np.nan)
    at_ms = np.where(np.isnan(past), NEVER, round(NOW * 1000) - STEP_MS * np.arange(REFRESHES, 0, -1)[:, np.newaxis])
    batch = SampleBatch("test", tuple(names), np.full(len(names), NOW), {"CPU": values[-1].copy()})
    return assess(batch, NOW, recent={"CPU": SampleColumns("CPU", batch.nodes, at_ms, past)}, state=state)


@pytest.mark.slow
@given(st.lists(st.tuples(series, troubles), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_no_verdict_depends_on_the_order_of_nodes(listed: list[tuple[list[float], str]], random: object) -> None:
    names = [f"n{row}" for row in range(len(listed))]
    state = make_state(names, [kind for _, kind in listed], [values[-1] for values, _ in listed])
    order = list(range(len(listed)))
    random.shuffle(order)  # type: ignore[attr-defined]
    plain = judge(names, [values for values, _ in listed], state)
    shuffled = judge([names[row] for row in order], [listed[row][0] for row in order], state)
    assert shuffled.verdicts["CPU"].tolist() == plain.verdicts["CPU"][order].tolist()
    assert set(shuffled.rejections) == set(plain.rejections)
    assert set(shuffled.jumps) == set(plain.jumps)
    assert (shuffled.suspicion, shuffled.quarantined) == (plain.suspicion, plain.quarantined)
    assert shuffled.state.stuck == plain.state.stuck


@given(st.lists(st.tuples(series, troubles), min_size=1, max_size=8))
def test_a_verdict_that_rejects_and_a_rejection_and_a_lost_value_are_one(listed: list[tuple[list[float], str]]) -> None:
    names = [f"n{row}" for row in range(len(listed))]
    report = judge(names, [values for values, _ in listed], make_state(names, [kind for _, kind in listed], [0.0] * len(listed)))
    codes = report.verdicts["CPU"]
    rejected = {names[row] for row in np.flatnonzero(codes > Verdict.ABSENT).tolist()}
    assert {each.node for each in report.rejections} == rejected
    assert len(report.rejections) == len(rejected)
    assert np.array_equal(np.isnan(report.batch.latest["CPU"]), codes >= Verdict.ABSENT)
    assert sum(report.verdict_counts.values()) == len(names)


@settings(max_examples=50)
@given(st.floats(2, 90), st.floats(1e-3, 0.3), st.integers(0, 2**32 - 1))
def test_constant_noise_has_no_rejection_and_no_mark(level: float, spread_ratio: float, seed: int) -> None:
    """Uniform noise about a level: the range of thirty samples is nearly the whole of it, so that nothing is three ranges away."""
    noise = np.random.default_rng(seed).uniform(-1, 1, (8, REFRESHES + 1))
    report = judge([f"n{row}" for row in range(8)], (level * (1 + spread_ratio * noise)).tolist(), QualityState())
    assert report.verdict_counts["fresh"] == 8
    assert (report.rejections, report.jumps, report.suspicion) == ((), (), None)


@given(st.floats(0.6, 99.4), st.integers(0, 2**32 - 1))
def test_a_fine_series_that_stops_is_stuck_whatever_its_level(level: float, seed: int) -> None:
    noise = np.random.default_rng(seed).normal(0, 0.02 * min(level, 100 - level), 19)
    values = [*(level + noise).tolist(), *[level] * 12]
    report = judge(["n1"], [values], QualityState())
    assert report.verdicts["CPU"].tolist() == [Verdict.STUCK]
