"""What the verdicts say of a node, quarantine, and of the whole source, suspicion."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from load_watcher.quality import QualityLimits, Verdict
from load_watcher.samples import FIFTEEN_MINUTES, Aggregate, SampleBatch
from tests.builders import NOW, make_batch
from tests.quality_stage import BUSY, MOVING, STEP, Stage, verdicts

LIMITS = QualityLimits()


def make_settled_stage() -> Stage:
    stage = Stage()
    for _ in range(20):
        assert stage.refresh(stage.make_busy()).suspicion is None
    return stage


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


def test_a_stuck_value_of_a_node_that_left_the_cluster_is_forgotten() -> None:
    stage = Stage()
    stage.play(n1=MOVING[:30], n2=MOVING[:30])
    assert stage.play(n1=[40.1] * 12, n2=MOVING[30:42])[-1].state.stuck
    assert stage.refresh(stage.make(n2=40.0)).state.stuck == {}


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


def test_idle_nodes_do_not_hide_the_collapse_of_those_that_work() -> None:
    stage = Stage()
    idle = {f"idle{number}": 0.3 for number in range(8)}
    for _ in range(20):
        stage.refresh(stage.make_busy(except_for=idle))
    assert stage.refresh(stage.make_busy(0.0, except_for=idle)).counts == {"collapse": 8}


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


def test_when_all_nodes_stop_moving_at_once_the_source_is_suspect_and_no_node_is_blamed() -> None:
    stage = Stage()
    for _ in range(30):
        stage.refresh(stage.make_busy())
    reports = [stage.refresh(stage.make_busy(40.1)) for _ in range(17)]
    assert [bool(each.suspicion) for each in reports] == [False] * 10 + [True] * 6 + [False]
    assert [len(each.quarantined) for each in reports] == [0] * 16 + [8]


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


def test_after_our_clock_was_set_back_the_grace_begins_anew() -> None:
    stage = make_settled_stage()
    later_at = stage.now + 3600
    stage.state = replace(stage.state, collapsed_since_at={"CPU": later_at})
    assert stage.refresh(stage.make_busy(0.0)).state.collapsed_since_at == {"CPU": stage.now - STEP}
    stage.state = replace(stage.state, lost_since_at=later_at)
    assert stage.refresh(stage.make_busy(-1.0)).state.lost_since_at == stage.now - STEP


def test_the_state_of_a_healthy_cluster_names_no_node_but_those_served() -> None:
    state = make_settled_stage().state
    assert state.served == frozenset(BUSY)
    assert (state.missing, state.stuck, state.bad_runs, state.quarantined) == ({}, {}, {}, {})
