"""The rules that look at a node's recent samples, at the other nodes, and at the refreshes before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from load_watcher.history.columns import SampleColumns
from load_watcher.history.window import SampleRing
from load_watcher.quality import QualityLimits, QualityReport, QualityState, Verdict, assess
from load_watcher.samples import FIFTEEN_MINUTES, Aggregate, SampleBatch
from tests.builders import NOW, make_batch

LIMITS = QualityLimits()
STEP = 30.0
NAN = float("nan")
# Moves in steps of 0.25 between 39 and 41, no neighbors equal.
MOVING = tuple(40 + 0.25 * (position * 2 % 9 - 4) for position in range(60))
BUSY = [f"n{number}" for number in range(8)]


class Stage:
    """Quality with its history and state; each refresh is half a minute after the one before."""

    def __init__(self) -> None:
        self.ring = SampleRing(step_seconds=STEP)
        self.state = QualityState()
        self.now = NOW

    def refresh(self, batch: SampleBatch) -> QualityReport:
        recent = {kind: self.ring.columns(kind, start_at=self.now - 1800, end_at=self.now, nodes=batch.nodes) for kind in batch.latest}
        report = assess(batch, self.now, recent=recent, state=self.state)
        self.state = report.state
        self.ring.append(report.batch)
        self.now += STEP
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


def make_settled_stage() -> Stage:
    stage = Stage()
    for _ in range(20):
        assert stage.refresh(stage.make_busy()).suspicion is None
    return stage


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


@pytest.mark.parametrize("rest", [0.0, 0.25, 99.75, 100.0])
def test_an_idle_or_saturated_node_may_rest(rest: float) -> None:
    stage = Stage()
    stage.play(n1=[value / 4 if rest < 50 else 60 + value / 2 for value in MOVING[:30]])
    assert Verdict.STUCK not in verdicts(stage.play(n1=[rest] * 30))


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


def test_the_third_impossible_sample_in_a_row_means_quarantine_and_the_third_good_one_ends_it() -> None:
    stage = Stage()
    reports = stage.play(n1=[40.0, -1.0, -2.0, -3.0, -4.0, 40.0, 40.5, 40.0])
    assert [bool(each.quarantined) for each in reports] == [False, False, False, True, True, True, True, False]
    assert reports[3].quarantined["n1"].reason == "impossible samples in a row, the last: CPU negative, value -3"
    assert {each.quarantined["n1"].since_at for each in reports[3:7]} == {NOW + 3 * STEP}
    assert reports[-1].state.bad_runs == {}


def test_impossible_samples_that_are_not_in_a_row_are_only_rejected() -> None:
    reports = Stage().play(n1=[-1.0, -1.0, 40.0, -1.0, -1.0, 40.0, -1.0])
    assert not any(each.quarantined for each in reports)
    assert sum(each.counts["negative"] for each in reports) == 5


def test_one_impossible_sample_that_is_served_again_and_again_counts_once() -> None:
    stage = Stage()
    batch = stage.make(n1=-1.0)
    assert not any(stage.refresh(batch).quarantined for _ in range(6))


def test_an_absent_sample_neither_ends_nor_lengthens_a_row_of_impossible_ones() -> None:
    reports = Stage().play(n1=[-1.0, None, -1.0, None, -1.0])
    assert [bool(each.quarantined) for each in reports] == [False, False, False, False, True]


def test_the_quarantine_of_a_node_that_left_the_cluster_is_forgotten() -> None:
    stage = Stage()
    assert stage.play(n1=[-1.0] * 3, n2=[1.0, 2.0, 3.0])[-1].quarantined
    assert stage.refresh(stage.make(n2=4.0)).state.quarantined == {}


def test_the_quarantine_of_a_node_that_the_source_does_not_name_for_a_while_stays() -> None:
    stage = Stage()
    stage.play(n1=[-1.0] * 3, n2=[1.0, 2.0, 3.0])
    for _ in range(int(LIMITS.forget_seconds / STEP) + 1):
        report = stage.refresh(make_batch({"n2": 4.0}, sampled_at=stage.now, members_known=False))
        assert list(report.quarantined) == ["n1"]
    report = stage.refresh(make_batch({"n2": 4.0}, sampled_at=stage.now, members_known=False))
    assert (report.quarantined, report.missing) == ({}, {})


def test_a_node_that_is_no_longer_named_is_missing_only_where_the_members_are_not_known() -> None:
    stage = Stage()
    stage.play(n1=MOVING[:5], n2=MOVING[:5], n3=MOVING[:5])
    gone_at = stage.now
    nodes = {"n1": 40.0, "n2": 40.0}
    assert stage.refresh(make_batch(nodes, sampled_at=stage.now, members_known=False)).missing == {"n3": gone_at}
    assert stage.refresh(make_batch(nodes, sampled_at=stage.now, members_known=False)).missing == {"n3": gone_at}
    assert stage.refresh(make_batch(nodes, sampled_at=stage.now)).missing == {}


@pytest.mark.parametrize("members_known", [True, False])
def test_when_most_nodes_go_away_none_is_taken_for_gone_until_the_grace_is_over(members_known: bool) -> None:
    stage = make_settled_stage()
    few = dict.fromkeys(BUSY[:3], 40.0)
    for _ in range(int(LIMITS.grace_seconds / STEP)):
        report = stage.refresh(make_batch(few, sampled_at=stage.now, members_known=members_known))
        assert report.suspicion is not None
        assert report.suspicion.startswith("5 of 8 nodes have no good value any more, for ")
        assert not report.batch.members_known
        assert list(report.missing) == BUSY[3:]
    report = stage.refresh(make_batch(few, sampled_at=stage.now, members_known=members_known))
    assert report.suspicion is None
    assert report.batch.members_known == members_known


def test_when_half_of_the_nodes_go_away_they_are_gone() -> None:
    stage = make_settled_stage()
    report = stage.refresh(stage.make(**dict.fromkeys(BUSY[:4], 40.0)))
    assert report.suspicion is None
    assert report.batch.members_known


def test_a_list_without_any_node_is_suspect() -> None:
    stage = make_settled_stage()
    report = stage.refresh(SampleBatch("test", (), np.empty(0), {}))
    assert report.suspicion is not None
    assert not report.batch.members_known


def test_two_nodes_may_go_away() -> None:
    stage = Stage()
    stage.play(n1=MOVING[:20], n2=MOVING[:20])
    assert stage.refresh(stage.make(n1=None, n2=None)).suspicion is None


def test_report_19_values_that_are_all_zero_at_once_are_held_back_and_believed_after_the_grace() -> None:
    stage = make_settled_stage()
    since_at = stage.now
    for _ in range(int(LIMITS.grace_seconds / STEP)):
        report = stage.refresh(stage.make_busy(0.0, except_for={"n7": 41.0}))
        assert report.suspicion is not None
        assert report.suspicion.startswith(f"CPU fell to less than a 10th on 7 of 8 nodes, for {stage.now - STEP - since_at:.0f} s")
        assert report.counts == {"collapse": 7}
        assert np.isnan(report.batch.latest["CPU"][:7]).all()
        # What did not fall counts.
        assert report.batch.latest["CPU"][7] == 41.0
        assert report.verdict_counts["suspect"] == 7
    report = stage.refresh(stage.make_busy(0.0, except_for={"n7": 41.0}))
    assert (report.suspicion, report.rejections) == (None, ())
    assert verdicts([report]) == [Verdict.JUMP]
    report = stage.refresh(stage.make_busy(0.1, except_for={"n7": 41.0}))
    assert verdicts([report]) == [Verdict.FRESH]
    assert report.state.collapsed_since_at == {}


def test_the_aggregates_of_a_collapsed_metric_are_held_back_too() -> None:
    stage = make_settled_stage()
    batch = stage.make_busy(0.0)
    averages = tuple(Aggregate("", kind, "AVG", FIFTEEN_MINUTES, np.zeros(8)) for kind in ("CPU", "Memory"))
    report = stage.refresh(SampleBatch("test", batch.nodes, batch.sampled_at, batch.latest, averages))
    assert np.isnan(report.batch.aggregates[0].values).all()
    assert report.batch.aggregates[1].values.tolist() == [0.0] * 8


@pytest.mark.parametrize("fallen", [1, 4])
def test_when_no_more_than_half_fall_they_fell(fallen: int) -> None:
    stage = make_settled_stage()
    report = stage.refresh(stage.make_busy(except_for=dict.fromkeys(BUSY[:fallen], 0.0)))
    assert report.suspicion is None
    assert len(report.jumps) == fallen


def test_a_few_samples_that_come_apart_from_the_others_are_no_collapse() -> None:
    stage = Stage()
    nodes = [f"n{number}" for number in range(50)]
    for _ in range(20):
        batch = stage.make(**{node: MOVING[round((stage.now - NOW) / STEP)] for node in nodes})
        stage.refresh(batch)
    at = {node: stage.now if node in nodes[:4] else stage.now - STEP for node in nodes}
    values = {node: 0.0 if node in nodes[:4] else float(batch.latest["CPU"][0]) for node in nodes}
    report = stage.refresh(make_batch(values, sampled_at=at))
    assert report.suspicion is None
    assert report.verdict_counts["repeated"] == 46


def test_idle_nodes_do_not_collapse() -> None:
    stage = Stage()
    for value in MOVING[:20]:
        stage.refresh(stage.make_busy(value / 100))
    assert stage.refresh(stage.make_busy(0.0)).suspicion is None


def test_while_most_nodes_fail_at_once_none_is_blamed() -> None:
    stage = make_settled_stage()
    bad_refreshes = int(LIMITS.grace_seconds / STEP)
    reports = [stage.refresh(stage.make_busy(-1.0)) for _ in range(bad_refreshes + LIMITS.quarantine_samples)]
    assert not any(each.quarantined for each in reports[:-1])
    assert all(each.suspicion for each in reports[:bad_refreshes])
    assert set(reports[-1].quarantined) == set(BUSY)


def test_a_quarantine_outlasts_a_suspicion() -> None:
    stage = make_settled_stage()
    for _ in range(3):
        stage.refresh(stage.make_busy(except_for={"n0": -1.0}))
    report = stage.refresh(stage.make_busy(None, except_for=dict.fromkeys(BUSY, None)))
    assert report.suspicion is not None
    assert list(report.quarantined) == ["n0"]


def test_when_the_values_come_back_within_the_grace_all_is_as_before() -> None:
    stage = make_settled_stage()
    assert stage.refresh(stage.make_busy(0.0)).suspicion is not None
    report = stage.refresh(stage.make_busy())
    assert (report.suspicion, report.rejections, report.jumps) == (None, (), ())
    assert report.state.collapsed_since_at == {}


def test_the_state_of_a_healthy_cluster_names_no_node_but_those_served() -> None:
    state = make_settled_stage().state
    assert state.served == frozenset(BUSY)
    assert (state.missing, state.stuck, state.bad_runs, state.quarantined) == ({}, {}, {}, {})
