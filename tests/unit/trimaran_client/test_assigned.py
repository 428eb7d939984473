"""Pods that hold a place, and which of them are in flight."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.builders import NOW, make_pod
from trimaran_client.assigned import (
    DEFAULT_ASSUME_SECONDS,
    DEFAULT_BOUND_SECONDS,
    DEFAULT_HOLD_SECONDS,
    HOLD_ANNOTATION,
    AssignedPods,
    PodsView,
)
from trimaran_client.prediction import UsagePrediction
from trimaran_client.resources import CPU, MEMORY, Pod

# What a pod bound now lives through as one in flight.
LIFE_SECONDS = DEFAULT_HOLD_SECONDS + DEFAULT_BOUND_SECONDS
CPU_USAGE = UsagePrediction()


def bound(node: str = "n1", *, since: float = NOW, cpu: object = "1", **fields: Any) -> Pod:
    return replace(make_pod(cpu_request=cpu, node_name=node), scheduled_at=since, **fields)


def pending(**fields: Any) -> Pod:
    return replace(make_pod(cpu_request="1"), **fields)


def totals(view: PodsView, node: str) -> tuple[float, float] | None:
    """Answer requests and limits of CPU on a node, millicores."""
    columns = view.total_columns(CPU)
    row = view.totals.rows.get(node)
    return None if columns is None or row is None else (columns[0][row], columns[1][row])


def names_in_flight(pods: AssignedPods, now: float = NOW) -> list[str]:
    return sorted(each.pod.name for each in pods.view(now).in_flight)


def test_a_bound_pod_holds_its_place_and_is_in_flight() -> None:
    pods = AssignedPods()
    pod = bound(cpu="250m")
    pods.update(pod, now=NOW + 1)
    view = pods.view(NOW + 1)
    [each] = view.in_flight
    assert (each.pod, each.node, each.state) == (pod, "n1", "bound")
    assert (each.assigned_at, each.started_at) == (NOW, NOW + DEFAULT_HOLD_SECONDS)
    assert totals(view, "n1") == (250, 250)
    assert view.node_rows.tolist() == [view.totals.rows["n1"]]
    assert (len(pods), pods.in_flight_count, pods.state_of(pod.key)) == (1, 1, "bound")


def test_a_pod_counts_once_however_often_it_is_told() -> None:
    pods = AssignedPods()
    pod = bound()
    pods.assume(pod, "n1", now=NOW)
    for _ in range(3):
        pods.update(pod, now=NOW)
        pods.assign(pod, at=NOW)
        pods.assume(pod, "n1", now=NOW)
    assert (len(pods), pods.in_flight_count) == (1, 1)
    assert totals(pods.view(NOW), "n1") == (1000, 1000)


def test_its_uid_tells_a_pod_from_another_of_its_name() -> None:
    pods = AssignedPods()
    old, new = bound("n1", name="web-0"), bound("n2", name="web-0")
    pods.update(old, now=NOW)
    pods.update(new, now=NOW)
    pods.remove(old.key)
    view = pods.view(NOW)
    assert (totals(view, "n1"), totals(view, "n2")) == (None, (1000, 1000))


def test_without_uid_namespace_and_name_tell_it() -> None:
    pods = AssignedPods()
    for namespace in ("a", "b", "a"):
        pods.update(bound(uid="", namespace=namespace), now=NOW)
    assert len(pods) == 2
    pods.remove("a/p")
    assert pods.state_of("b/p") == "bound"


@pytest.mark.parametrize(
    ("scheduled_at", "created_at", "assigned_at"),
    [(NOW - 5, NOW - 90, NOW - 5), (math.nan, NOW - 90, NOW - 90)],
)
def test_it_counts_from_the_time_when_it_was_scheduled_else_created(scheduled_at: float, created_at: float, assigned_at: float) -> None:
    pods = AssignedPods()
    pods.update(bound(since=scheduled_at, created_at=created_at), now=NOW)
    assert pods.view(NOW).assigned_at.tolist() == [assigned_at]


def test_a_pod_that_says_neither_is_not_new() -> None:
    pods = AssignedPods()
    pods.update(bound(since=math.nan), now=NOW)
    assert (len(pods), pods.in_flight_count) == (1, 0)


@pytest.mark.parametrize("after_end", [False, True])
def test_a_pod_leaves_the_flight_after_the_bound_and_keeps_its_place(*, after_end: bool) -> None:
    pods = AssignedPods()
    pods.update(bound(), now=NOW)
    view = pods.view(NOW + LIFE_SECONDS - (0 if after_end else 1))
    assert len(view.in_flight) == (0 if after_end else 1)
    assert totals(view, "n1") == (1000, 1000)


def test_report_38_what_is_past_the_bound_leaves_nothing_behind() -> None:
    """Three pods on a node, aged past the bound: none is in flight; and once they end, the node is gone."""
    pods = AssignedPods()
    three = [bound("n1", since=NOW - age) for age in (600, 601, 602)]
    for pod in three:
        pods.update(pod, now=NOW)
    assert pods.in_flight_count == 3
    pods.expire(NOW + LIFE_SECONDS)
    assert pods.in_flight_count == 0
    for pod in three:
        pods.remove(pod.key)
    assert "n1" not in pods.view(NOW).totals.rows


def test_a_pod_that_was_old_when_first_told_is_not_in_flight() -> None:
    pods = AssignedPods()
    pods.update(bound(since=NOW - LIFE_SECONDS), now=NOW)
    assert (len(pods), pods.in_flight_count) == (1, 0)


def test_an_old_pod_that_is_told_again_stays_out_of_the_flight() -> None:
    pods = AssignedPods()
    pod = bound()
    pods.update(pod, now=NOW)
    before = pods.view(NOW + LIFE_SECONDS)
    pods.update(pod, now=NOW + LIFE_SECONDS + 1)
    assert pods.view(NOW + LIFE_SECONDS + 1) is before


def test_a_pod_placed_again_after_its_bound_is_in_flight_again() -> None:
    """As a scheduler of its own says of a job that it runs again under its old key."""
    pods = AssignedPods()
    pod = pending()
    pods.assign(pod, "n1", at=NOW)
    pods.expire(NOW + LIFE_SECONDS)
    pods.assign(pod, "n1", at=NOW + LIFE_SECONDS)
    assert pods.view(NOW + LIFE_SECONDS).assigned_at.tolist() == [NOW + LIFE_SECONDS]


@pytest.mark.parametrize("state", ["bound", "nominated", "assumed"])
def test_a_pod_that_ends_leaves_at_once(state: str) -> None:
    pods = AssignedPods()
    pod = pending()
    if state == "assumed":
        pods.assume(pod, "n1", now=NOW)
    else:
        told = replace(pod, node_name="n1") if state == "bound" else replace(pod, nominated_node_name="n1")
        pods.update(replace(told, scheduled_at=NOW), now=NOW)
    assert pods.state_of(pod.key) == state
    pods.update(replace(pod, node_name="n1", is_terminal=True), now=NOW)
    assert (len(pods), pods.in_flight_count, pods.state_of(pod.key)) == (0, 0, None)


@pytest.mark.parametrize("by_key", [False, True])
def test_forget_takes_a_pod_back(*, by_key: bool) -> None:
    pods = AssignedPods()
    pod = pending()
    pods.assign(pod, "n1", at=NOW)
    pods.forget(pod.key if by_key else pod)
    pods.forget(pod)
    assert (len(pods), pods.in_flight_count) == (0, 0)


def test_assign_takes_the_node_of_the_pod_and_asks_for_one() -> None:
    pods = AssignedPods()
    pods.assign(bound("n7", since=math.nan), at=NOW)
    assert pods.view(NOW).in_flight[0].node == "n7"
    with pytest.raises(ValueError, match="default/p is on no node; give the node"):
        pods.assign(pending(), at=NOW)


# Nominated


def test_a_nominated_pod_counts_where_it_is_meant_to_be_from_the_first_time_on() -> None:
    pods = AssignedPods()
    pod = pending(nominated_node_name="n1")
    pods.update(pod, now=NOW)
    pods.update(pod, now=NOW + 50)
    [each] = pods.view(NOW + 50).in_flight
    assert (each.state, each.assigned_at, each.started_at) == ("nominated", NOW, math.inf)


def test_from_nominated_to_bound_it_moves() -> None:
    pods = AssignedPods()
    pod = pending(nominated_node_name="n1")
    pods.update(pod, now=NOW)
    pods.update(replace(pod, node_name="n2", scheduled_at=NOW + 5), now=NOW + 6)
    view = pods.view(NOW + 6)
    [each] = view.in_flight
    assert (each.node, each.state, each.assigned_at) == ("n2", "bound", NOW + 5)
    assert list(view.totals.rows) == ["n2"]


def test_a_nomination_that_is_withdrawn_is_forgotten() -> None:
    pods = AssignedPods()
    pod = pending(nominated_node_name="n1")
    pods.update(pod, now=NOW)
    pods.update(replace(pod, nominated_node_name=""), now=NOW)
    assert len(pods) == 0


def test_a_nomination_leaves_the_flight_after_the_bound_for_good() -> None:
    pods = AssignedPods()
    pod = pending(nominated_node_name="n1")
    pods.update(pod, now=NOW)
    later = NOW + LIFE_SECONDS
    pods.expire(later)
    pods.update(pod, now=later)
    assert (len(pods), pods.in_flight_count) == (1, 0)


# Assumed


def test_an_assumed_pod_counts_at_once_and_is_forgotten_if_no_binding_follows() -> None:
    pods = AssignedPods()
    pods.assume(pending(), "n1", now=NOW)
    [each] = pods.view(NOW).in_flight
    assert (each.state, each.assigned_at, each.started_at) == ("assumed", NOW, math.inf)
    assert totals(pods.view(NOW + DEFAULT_ASSUME_SECONDS - 1), "n1") == (1000, 1000)
    view = pods.view(NOW + DEFAULT_ASSUME_SECONDS)
    assert (len(view.in_flight), dict(view.totals.rows), len(pods)) == (0, {}, 0)


def test_a_pod_that_may_go_to_any_of_several_nodes_counts_on_all_until_it_is_bound() -> None:
    pods = AssignedPods()
    pod = pending()
    pods.assume(pod, "n1", now=NOW, or_on=["n1", "n2", "n3"])
    view = pods.view(NOW)
    assert [(each.node, each.state) for each in view.in_flight] == [("n1", "assumed"), ("n2", "assumed"), ("n3", "assumed")]
    assert (len(pods), pods.state_of(pod.key)) == (1, "assumed")
    assert {name: totals(view, name) for name in view.totals.rows} == {"n1": (1000, 1000), "n2": (1000, 1000), "n3": (1000, 1000)}
    pods.update(replace(pod, node_name="n2"), now=NOW)
    view = pods.view(NOW)
    assert {name: totals(view, name) for name in view.totals.rows} == {"n2": (1000, 1000)}
    assert len(pods) == 1


@pytest.mark.parametrize("how", ["forgotten", "ended", "expired", "assumed again", "nominated"])
def test_what_may_have_gone_elsewhere_leaves_with_its_pod(how: str) -> None:
    pods = AssignedPods()
    pod = pending()
    pods.assume(pod, "n1", now=NOW, or_on=["n2", "n3"])
    later = NOW
    if how == "forgotten":
        pods.forget(pod)
    elif how == "ended":
        pods.update(replace(pod, is_terminal=True), now=NOW)
    elif how == "expired":
        later = NOW + DEFAULT_ASSUME_SECONDS
    elif how == "assumed again":
        pods.assume(pod, "n4", now=NOW)
    else:
        pods.update(replace(pod, nominated_node_name="n4"), now=NOW)
    view = pods.view(later)
    assert list(view.totals.rows) == ([] if how in ("forgotten", "ended", "expired") else ["n4"])
    assert len(pods) == len(view.in_flight) == len(view.totals.rows)


def test_an_assumption_outlives_the_news_that_the_pod_still_waits() -> None:
    pods = AssignedPods()
    pod = pending()
    pods.assume(pod, "n1", now=NOW)
    pods.update(pod, now=NOW + 1)
    assert pods.state_of(pod.key) == "assumed"


def test_assuming_again_begins_its_time_anew() -> None:
    pods = AssignedPods()
    pod = pending()
    pods.assume(pod, "n1", now=NOW)
    pods.assume(pod, "n1", now=NOW + DEFAULT_ASSUME_SECONDS - 1)
    assert names_in_flight(pods, NOW + DEFAULT_ASSUME_SECONDS) == ["p"]
    assert names_in_flight(pods, NOW + 2 * DEFAULT_ASSUME_SECONDS - 1) == []


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_an_assumed_pod_that_is_bound_counts_once_and_where_it_is_bound(node: str) -> None:
    pods = AssignedPods()
    pod = pending()
    pods.assume(pod, "n1", now=NOW)
    pods.update(replace(pod, node_name=node, scheduled_at=NOW + 1), now=NOW + 2)
    view = pods.view(NOW + 2 * DEFAULT_ASSUME_SECONDS)
    [each] = view.in_flight
    assert (each.node, each.state, each.assigned_at) == (node, "bound", NOW + 1)
    assert {name: totals(view, name) for name in view.totals.rows} == {node: (1000, 1000)}


def test_a_bound_pod_is_assumed_nowhere_else() -> None:
    pods = AssignedPods()
    pod = bound("n1")
    pods.update(pod, now=NOW)
    pods.assume(pod, "n2", now=NOW)
    assert [each.node for each in pods.view(NOW).in_flight] == ["n1"]


def test_assumptions_that_may_not_last_do_not_count() -> None:
    pods = AssignedPods(assume_seconds=0)
    pods.assume(pending(), "n1", now=NOW)
    assert (len(pods), pods.in_flight_count) == (0, 0)


# Hold time


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("90", 90),
        ("0", 0),
        ("1.5", 1.5),
        *[(bad, DEFAULT_HOLD_SECONDS) for bad in ("", "soon", "-1", "nan", "inf", "1e9", "90s")],
    ],
)
def test_the_hold_annotation_has_the_last_word_unless_it_is_bad(value: str, expected: float) -> None:
    pods = AssignedPods()
    pods.update(bound(annotations={HOLD_ANNOTATION: value}), now=NOW)
    assert pods.view(NOW).started_at.tolist() == [NOW + expected]


def test_a_hold_annotation_that_changes_counts() -> None:
    pods = AssignedPods()
    pod = bound()
    pods.update(pod, now=NOW)
    pods.update(replace(pod, annotations={HOLD_ANNOTATION: "600"}), now=NOW)
    assert pods.view(NOW).started_at.tolist() == [NOW + 600]


@pytest.mark.parametrize("name", ["hold_seconds", "bound_seconds", "assume_seconds"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf])
def test_times_that_make_no_sense_are_refused(name: str, value: float) -> None:
    arguments: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=f"{name} is {value!r}; give a finite number of at least 0"):
        AssignedPods(**arguments)


# Totals


def test_totals_are_exact_after_a_huge_pod_came_and_went() -> None:
    pods = AssignedPods()
    pods.update(bound(cpu="1m"), now=NOW)
    huge = bound(cpu="9E")
    pods.update(huge, now=NOW)
    pods.remove(huge.key)
    assert totals(pods.view(NOW), "n1") == (1, 1)


def test_totals_follow_a_resize() -> None:
    pods = AssignedPods()
    pod = bound(cpu="1")
    pods.update(pod, now=NOW)
    pods.update(replace(bound(cpu="2"), uid=pod.uid), now=NOW)
    view = pods.view(NOW)
    assert totals(view, "n1") == (2000, 2000)
    assert view.usage(CPU_USAGE).tolist() == [3000]  # 1.5 × the new request


def test_totals_of_resources_that_are_not_kept_are_not_told() -> None:
    view = AssignedPods.of([bound()], now=NOW, resources=(MEMORY,)).view(NOW)
    assert view.total_columns(CPU) is None
    assert view.total_columns(MEMORY) is not None


def test_totals_of_pods_that_were_not_all_told_are_not_told() -> None:
    pods = AssignedPods.of([bound()], now=NOW)
    pods.is_complete = False
    view = pods.view(NOW)
    assert (view.total_columns(CPU), len(view.in_flight)) == (None, 1)
    pods.is_complete = True
    assert totals(pods.view(NOW), "n1") == (1000, 1000)


# Views


def test_a_view_is_the_same_while_nothing_changes() -> None:
    pods = AssignedPods.of([bound()], now=NOW)
    assert pods.view(NOW) is pods.view(NOW + 1)
    pods.remove("nobody")
    assert pods.view(NOW) is pods.view(NOW + 2)


def test_a_view_taken_before_a_change_is_unchanged() -> None:
    first, second = bound("n1", name="first"), bound("n2", name="second")
    pods = AssignedPods.of([first, second], now=NOW)
    view = pods.view(NOW)
    before = _content(view)
    pods.remove(first.key)
    pods.update(replace(second, node_name="n3"), now=NOW)
    pods.update(bound("n1", name="third", cpu="4"), now=NOW)
    pods.expire(NOW + LIFE_SECONDS)
    assert _content(view) == before
    assert _content(pods.view(NOW)) != before


def test_arrays_of_a_view_are_read_only() -> None:
    view = AssignedPods.of([bound()], now=NOW).view(NOW)
    columns = view.total_columns(CPU)
    assert columns is not None
    for array in (view.node_rows, view.assigned_at, view.started_at, view.usage(CPU_USAGE), *columns):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7


def test_usage_is_kept_up_from_view_to_view() -> None:
    """A pod that comes is predicted once; those that were there are not asked again."""
    asked: list[str] = []

    class Asking(UsagePrediction):
        def predict(self, pod: Pod) -> int:
            asked.append(pod.name)
            return super().predict(pod)

    prediction = Asking()
    pods = AssignedPods.of([bound(name="a", cpu="1"), bound(name="b", cpu="2")], now=NOW)
    pods.view(NOW).usage(prediction)
    pods.update(bound(name="c", cpu="3"), now=NOW)
    assert pods.view(NOW).usage(prediction).tolist() == [1500, 3000, 4500]
    assert asked == ["a", "b", "c"]


def test_usage_of_an_old_view_is_that_of_its_own_pods() -> None:
    pod = bound(cpu="1")
    pods = AssignedPods.of([pod], now=NOW)
    view = pods.view(NOW)
    pods.update(bound(cpu="2"), now=NOW)
    assert view.usage(CPU_USAGE).tolist() == [1500]
    assert pods.view(NOW).usage(CPU_USAGE).tolist() == [1500, 3000]


def test_of_ever_new_predictions_only_the_last_are_kept_up() -> None:
    pods = AssignedPods.of([bound(cpu="1")], now=NOW)
    for multiplier in range(100):
        assert pods.view(NOW).usage(UsagePrediction(multiplier=multiplier)).tolist() == [1000 * multiplier]
    assert len(pods._table._usages) <= 16


def _content(view: PodsView) -> tuple[object, ...]:
    return (
        view.in_flight,
        dict(view.totals.rows),
        np.nan_to_num(view.totals.values, nan=-1).tolist(),
        view.node_rows.tolist(),
        view.assigned_at.tolist(),
        view.usage(CPU_USAGE).tolist(),
    )


# Memory


@pytest.mark.slow
def test_report_38_nothing_grows_with_what_has_been() -> None:
    """10,000 node names and 100,000 pods over time, of which 50 at once: entries of the last ones only, and none at the end."""
    pods = AssignedPods()
    prediction = UsagePrediction()
    template = bound()
    alive: list[str] = []
    for number in range(100_000):
        now = NOW + number
        pod = replace(template, uid=f"uid-{number}", node_name=f"node-{number // 10}", scheduled_at=now)
        if number % 7 == 0:
            # Some are decided on and never bound.
            pods.assume(pod, f"node-{number // 10}", now=now, or_on=[f"node-{number // 10 + 1}"])
        else:
            pods.update(pod, now=now)
        alive.append(pod.uid)
        if len(alive) > 50:
            pods.remove(alive.pop(0))
        if number % 1000 == 0:
            pods.view(now).usage(prediction)
    # 51 pods are on 6 or 7 nodes; a row more for a node that comes before another one goes.
    assert len(pods) <= 51
    assert pods.in_flight_count <= 51 + 8  # every seventh of them counts twice
    assert pods._totals.freeze().row_count <= 16
    assert len(pods._table._node_rows) == 64
    for uid in alive:
        pods.remove(uid)
    pods.expire(NOW + 200_000)
    left = (
        pods._held,
        pods._alternatives,
        pods._counts,
        pods._sums,
        pods._totals._rows,
        pods._table._slot_of,
        pods._table._keys,
        pods._table._entries,
    )
    assert [len(each) for each in left] == [0] * 8


def test_a_pod_scheduled_in_the_future_by_a_clock_that_is_wrong_leaves_after_the_bound() -> None:
    pods = AssignedPods(hold_seconds=30.0, bound_seconds=1200.0)
    pods.update(replace(make_pod(node_name="n1"), scheduled_at=NOW + 1e9), now=NOW)
    assert [len(pods.view(NOW + later).in_flight) for later in (0, 1229, 1230)] == [1, 1, 0]
