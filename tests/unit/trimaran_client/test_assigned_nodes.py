"""Nodes that are told of beside the pods on them: they have rows in the totals, and leave none behind."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from tests.builders import NOW, make_pod
from trimaran_client.assigned import AssignedPods, PodsView
from trimaran_client.objects import PodObject, to_pod
from trimaran_client.resources import CPU, Pod
from trimaran_client.units import Quantity


def bound(node: str, *, cpu: object = "1") -> Pod:
    return make_pod(cpu_request=cpu, node_name=node, scheduled_at="2023-11-14T22:13:20Z")


def totals(view: PodsView, node: str) -> tuple[float, float] | None:
    """Answer requests and limits of CPU on a node, millicores; ``None`` where it has no row."""
    columns = view.total_columns(CPU)
    row = view.totals.rows.get(node)
    return None if columns is None or row is None else (columns[0][row], columns[1][row])


def content(view: PodsView) -> tuple[object, ...]:
    return view.in_flight, dict(view.totals.rows), np.nan_to_num(view.totals.values, nan=-1).tolist(), view.node_rows.tolist()


def test_a_node_is_in_the_totals_before_its_first_pod() -> None:
    """Who looked for the rows of all nodes before need not look again when the first pod comes: the rows are the same object."""
    pods = AssignedPods()
    before = pods.view(NOW)
    pods.add_node("n1")
    view = pods.view(NOW)
    assert (dict(before.totals.rows), totals(view, "n1")) == ({}, (0, 0))
    pods.update(bound("n1"), now=NOW)
    after = pods.view(NOW)
    assert after.totals.rows is view.totals.rows
    assert (totals(view, "n1"), totals(after, "n1")) == ((0, 0), (1000, 1000))


def test_a_node_that_is_known_already_changes_nothing() -> None:
    """A watch tells of every node again and again; each must not make a new view."""
    pods = AssignedPods.of([bound("n1")], now=NOW)
    pods.add_node("n2")
    view = pods.view(NOW)
    pods.add_node("n1")
    pods.add_node("n2")
    assert pods.view(NOW) is view


@pytest.mark.parametrize("has_had_pods", [False, True])
def test_a_removed_node_without_pods_leaves_the_totals(*, has_had_pods: bool) -> None:
    pods = AssignedPods()
    pods.add_node("n1")
    if has_had_pods:
        pod = bound("n1")
        pods.update(pod, now=NOW)
        pods.remove(pod.key)
    before = pods.view(NOW)
    pods.remove_node("n1")
    assert (totals(before, "n1"), totals(pods.view(NOW), "n1")) == ((0, 0), None)


def test_a_removed_node_with_pods_stays_until_the_last_of_them_is_gone() -> None:
    """A node object may go before its pods do; until then they count, and afterwards nothing of it is left."""
    pods = AssignedPods()
    pods.add_node("n1")
    first, second = bound("n1"), bound("n1", cpu="250m")
    for pod in (first, second):
        pods.update(pod, now=NOW)
    pods.remove_node("n1")
    assert totals(pods.view(NOW), "n1") == (1250, 1250)
    pods.remove(first.key)
    assert totals(pods.view(NOW), "n1") == (250, 250)
    pods.remove(second.key)
    assert totals(pods.view(NOW), "n1") is None


def test_a_known_node_stays_when_its_last_pod_goes_and_begins_at_zero_again() -> None:
    pods = AssignedPods()
    pods.add_node("n1")
    for cpu in ("9E", "1m"):
        pod = bound("n1", cpu=cpu)
        pods.update(pod, now=NOW)
        pods.remove(pod.key)
        assert totals(pods.view(NOW), "n1") == (0, 0)


def test_removing_a_node_that_is_not_known_is_no_error() -> None:
    pods = AssignedPods.of([bound("n1")], now=NOW)
    pods.remove_node("n2")
    assert list(pods.view(NOW).totals.rows) == ["n1"]


def test_names_of_nodes_that_come_and_go_do_not_pile_up() -> None:
    """A cluster that scales up and down has ever new names; no more rows than there were nodes at once."""
    pods = AssignedPods()
    for number in range(1000):
        pods.add_node(f"n{number}")
        pods.view(NOW)
        if number >= 5:
            pods.remove_node(f"n{number - 5}")
    view = pods.view(NOW)
    assert sorted(view.totals.rows) == [f"n{number}" for number in range(995, 1000)]
    assert view.totals.values.shape[1] == 6
    assert len(pods._nodes) == 5


def test_a_view_is_unchanged_by_nodes_that_come_and_go() -> None:
    pods = AssignedPods.of([bound("n1")], now=NOW)
    pods.add_node("n2")
    view = pods.view(NOW)
    before = content(view)
    pods.remove_node("n2")
    pods.add_node("n3")  # in the row of n2
    pods.add_node("n4")
    pods.update(bound("n3"), now=NOW)
    assert content(view) == before
    assert content(pods.view(NOW)) != before


class ByAnnotation:
    """Amounts as an annotation says; equal to others of its kind, and so not hashable."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByAnnotation)

    __hash__ = None  # type: ignore[assignment] # as that of a plain dataclass

    def __call__(self, pod: Pod, _: str) -> Quantity:
        return Quantity.parse(pod.annotations["trimaran.io/cpu"])


def test_a_rule_of_ones_own_may_look_at_more_than_containers() -> None:
    """Pods of one template share what their containers add up to, but not what a rule makes of them."""
    pods = AssignedPods(resources=("cpu",), requested_of=ByAnnotation(), limited_of=ByAnnotation())
    for name, cpu in (("one", "100m"), ("two", "900m")):
        metadata = {"name": name, "annotations": {"trimaran.io/cpu": cpu}}
        manifest = {"metadata": metadata, "spec": {"nodeName": name, "containers": [{"name": "c"}]}}
        pods.update(to_pod(msgspec.json.decode(msgspec.json.encode(manifest), type=PodObject)), now=NOW)
    totals = pods.view(NOW).totals
    assert [totals.values[0, totals.rows[name]] for name in ("one", "two")] == [100.0, 900.0]
