"""The rules that look at a node's own recent samples."""

from __future__ import annotations

import numpy as np
import pytest

from load_watcher.history.columns import SampleColumns
from load_watcher.quality import Verdict, assess
from load_watcher.samples import SampleBatch
from tests.builders import NOW, make_batch
from tests.quality_stage import MOVING, STEP, Stage, verdicts

NAN = float("nan")


def test_a_time_that_is_held_is_repeated_and_the_value_stays() -> None:
    stage = Stage()
    batch = stage.make(n1=30.0)
    stage.refresh(batch)
    report = stage.refresh(batch)
    assert verdicts([report]) == [Verdict.REPEATED]
    assert report.batch.latest["CPU"].tolist() == [30.0]


def test_a_sample_before_one_that_is_held_is_late_and_no_jump() -> None:
    stage = Stage()
    stage.play(n1=MOVING[:20])
    report = stage.refresh(make_batch({"n1": 90.0}, sampled_at=stage.now - 45))
    assert verdicts([report]) == [Verdict.LATE]


def test_after_our_clock_was_set_back_a_new_sample_is_not_late() -> None:
    stage = Stage()
    stage.play(n1=MOVING[:5])
    stage.now -= 3600
    recent = {"CPU": stage.ring.columns("CPU", start_at=stage.now - 1800, end_at=stage.now + 7200, nodes=("n1",))}
    report = assess(stage.make(n1=41.0), stage.now, recent=recent)
    assert verdicts([report]) == [Verdict.FRESH]


def test_recent_samples_of_other_nodes_are_refused() -> None:
    columns = SampleColumns("CPU", ("n2",), np.zeros((1, 1), dtype=np.int64), np.zeros((1, 1)))
    with pytest.raises(ValueError, match="ask the history for the nodes of the batch"):
        assess(make_batch({"n1": 1.0}), NOW, recent={"CPU": columns})


def test_a_busy_node_that_stops_moving_is_stuck_after_ten_samples_and_five_minutes() -> None:
    stage = Stage()
    stage.play(n1=MOVING[:30])
    reports = stage.play(n1=[40.1] * 14)
    # Ten equal samples at 30 s are 270 s; the eleventh makes 300 s.
    assert verdicts(reports) == [Verdict.FRESH] * 10 + [Verdict.STUCK] * 4
    assert reports[10].rejections[0].detail == "value 40.1 for 300 s"
    assert np.isnan(reports[10].batch.latest["CPU"][0])
    assert reports[10].quarantined["n1"].reason == "CPU is stuck at 40.1"
    assert reports[13].quarantined["n1"].since_at == NOW + 40 * STEP


def test_a_stuck_node_stays_out_when_its_history_is_used_up_and_returns_with_the_first_move() -> None:
    stage = Stage()
    stage.play(n1=MOVING[:30])
    reports = stage.play(n1=[40.1] * 150)
    assert verdicts(reports[10:]) == [Verdict.STUCK] * 140
    (moved,) = stage.play(n1=[40.2])
    assert verdicts([moved]) == [Verdict.FRESH]
    assert moved.quarantined == {}
    assert moved.state.stuck == {}


def test_a_stuck_node_that_is_absent_for_a_refresh_is_still_stuck() -> None:
    stage = Stage()
    stage.play(n1=MOVING[:30])
    reports = stage.play(n1=[40.1] * 12 + [None, 40.1])
    assert verdicts(reports[-2:]) == [Verdict.ABSENT, Verdict.STUCK]
    assert "n1" in reports[-2].quarantined


def test_nine_equal_samples_are_not_stuck_however_long_they_take() -> None:
    stage = Stage(step_seconds=60)
    stage.play(n1=MOVING[:59])  # 40.0 among them, and not the last
    assert verdicts(stage.play(n1=[40.0] * 10)) == [Verdict.FRESH] * 9 + [Verdict.STUCK]


def test_before_enough_movement_was_seen_nothing_is_stuck() -> None:
    stage = Stage()
    assert Verdict.STUCK not in verdicts(stage.play(n1=[*MOVING[:8], *[40.1] * 40]))


@pytest.mark.parametrize(("rest", "stuck"), [(0.0, False), (0.4, False), (0.6, True), (99.4, True), (99.6, False), (100.0, False)])
def test_an_idle_or_saturated_node_may_rest(rest: float, stuck: bool) -> None:
    stage = Stage()
    stage.play(n1=[abs(rest - value / 1e4) for value in MOVING[:30]])
    assert (Verdict.STUCK in verdicts(stage.play(n1=[rest] * 12))) is stuck


def test_a_source_that_repeats_itself_often_needs_a_longer_run() -> None:
    stage = Stage()
    # Two of three pairs are equal: 0.67 ** (n - 1) < 1e-8 needs 47 samples.
    stage.play(n1=[MOVING[position // 3] for position in range(60)])
    assert Verdict.STUCK not in verdicts(stage.play(n1=[40.1] * 30))


def test_a_coarse_source_may_rest_on_one_of_its_steps() -> None:
    stage = Stage()
    stage.play(n1=[float(20 + position * 7 % 31) for position in range(40)])  # whole percent, moving all the time
    assert Verdict.STUCK not in verdicts(stage.play(n1=[22.0] * 30))


def test_a_node_that_never_moved_is_not_stuck() -> None:
    stage = Stage()
    assert verdicts(stage.play(n1=[40.0] * 100)) == [Verdict.FRESH] * 100


def test_another_metric_than_cpu_and_memory_can_be_stuck_without_quarantine() -> None:
    stage = Stage()
    for value in [*MOVING[:30], *[40.1] * 12]:
        batch = make_batch({"n1": NAN}, sampled_at=stage.now, latest={"Energy": np.array([value])})
        report = stage.refresh(SampleBatch("test", ("n1",), np.array([stage.now]), batch.latest))
    assert report.counts == {"stuck": 1}
    assert report.quarantined == {}


def test_a_stuck_node_that_is_not_named_for_a_while_is_still_stuck() -> None:
    stage = Stage()
    stage.play(n1=MOVING[:30], n2=MOVING[:30])
    stage.play(n1=[40.1] * 50, n2=(MOVING * 2)[30:80])
    for _ in range(15):
        stage.refresh(make_batch({"n2": 40.0}, sampled_at=stage.now, members_known=False))
    (report,) = stage.play(n1=[40.1], n2=[40.0])
    assert verdicts([report]) == [Verdict.STUCK]


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        (47.1, Verdict.JUMP),  # 41 + 3 * (41 - 39) = 47
        (46.9, Verdict.FRESH),
        (3.8, Verdict.JUMP),  # 39 / 10 = 3.9
        (4.0, Verdict.FRESH),
        (0.0, Verdict.JUMP),
    ],
)
def test_a_value_far_outside_the_nodes_own_range_is_marked_and_kept(value: float, verdict: Verdict) -> None:
    stage = Stage()
    stage.play(n1=MOVING[:20])
    report = stage.refresh(stage.make(n1=value))
    assert verdicts([report]) == [verdict]
    assert report.batch.latest["CPU"].tolist() == [value]
    assert [jump[:3] for jump in report.jumps] == ([("n1", "CPU", value)] if verdict == Verdict.JUMP else [])


def test_a_jump_names_the_range_it_left() -> None:
    stage = Stage()
    stage.play(n1=MOVING[:20])
    (jump,) = stage.refresh(stage.make(n1=90.0)).jumps
    assert (jump.lowest, jump.highest) == (39.0, 41.0)


def test_without_enough_history_nothing_is_a_jump() -> None:
    stage = Stage()
    assert verdicts(stage.play(n1=[*MOVING[:9], 90.0])) == [Verdict.FRESH] * 10
    assert verdicts(stage.play(n2=[*MOVING[:10], 90.0]))[-1] == Verdict.JUMP


@pytest.mark.parametrize(("steady", "value"), [(0.4, 0.0), (20.0, 24.9), (1.0, 5.9)])
def test_a_small_step_of_a_steady_node_is_no_jump(steady: float, value: float) -> None:
    stage = Stage()
    assert verdicts(stage.play(n1=[steady] * 20 + [value]))[-1] == Verdict.FRESH


def test_without_a_scale_a_jump_is_at_least_twice_the_highest() -> None:
    stage = Stage()
    reports = []
    for value in [1000.0] * 10 + [1999.0, 9000.0]:
        latest = {"Bandwidth": np.array([value])}
        reports.append(stage.refresh(SampleBatch("test", ("n1",), np.array([stage.now]), latest)))
    assert [int(each.verdicts["Bandwidth"][0]) for each in reports[-2:]] == [Verdict.FRESH, Verdict.JUMP]
