"""What nodes have, in columns that views share until they change."""

import math

import pytest

from tests.builders import make_node
from trimaran_client.capacities import CapacitiesView, NodeCapacities
from trimaran_client.resources import CPU, MEMORY, Node
from trimaran_client.units import Quantity


def amounts(view: CapacitiesView, name: str, resource: str = CPU) -> tuple[float, float]:
    """Answer capacity and allocatable of a node."""
    columns, row = view.columns(resource), view.table.rows[name]
    assert columns is not None
    return float(columns[0][row]), float(columns[1][row])


def test_nodes_are_told_in_base_units_and_what_they_do_not_say_is_unknown() -> None:
    node = Node("n1", {CPU: Quantity.parse("8"), MEMORY: Quantity.parse("1Ki")}, {CPU: Quantity.parse("7900m")})
    view = NodeCapacities.of([node]).view()
    assert amounts(view, "n1") == (8000, 7900)
    capacity, allocatable = amounts(view, "n1", MEMORY)
    assert (capacity, math.isnan(allocatable)) == (1024, True)
    assert view.columns("nvidia.com/gpu") is None


def test_a_view_is_the_same_while_nothing_changes_and_unchanged_afterwards() -> None:
    capacities = NodeCapacities.of([make_node("n1"), make_node("n2")])
    view = capacities.view()
    assert capacities.view() is view
    capacities.update(make_node("n1", "64"))
    capacities.update(make_node("n3"))
    capacities.remove("n2")
    assert {name: amounts(view, name)[0] for name in view.table.rows} == {"n1": 8000, "n2": 8000}
    now = capacities.view()
    assert {name: amounts(now, name)[0] for name in now.table.rows} == {"n1": 64000, "n3": 8000}


def test_columns_of_a_view_are_read_only() -> None:
    columns = NodeCapacities.of([make_node("n1")]).view().columns(CPU)
    assert columns is not None
    with pytest.raises(ValueError, match="read-only"):
        columns[0][0] = 1


def test_an_amount_that_is_no_longer_told_is_unknown_again() -> None:
    capacities = NodeCapacities.of([make_node("n1")])
    capacities.update(Node("n1"))
    assert all(math.isnan(amount) for amount in amounts(capacities.view(), "n1"))


def test_a_name_that_comes_again_has_nothing_of_the_one_before() -> None:
    capacities = NodeCapacities.of([make_node("n1")])
    capacities.remove("n1")
    capacities.remove("n1")
    capacities.update(Node("n2"))
    assert all(math.isnan(amount) for amount in amounts(capacities.view(), "n2"))
    assert "n1" not in capacities


def test_report_38_ten_thousand_names_over_time_leave_nothing_behind() -> None:
    capacities = NodeCapacities()
    for number in range(10_000):
        capacities.update(make_node(f"n{number}"))
        capacities.remove(f"n{number - 10}")
        if number % 100 == 0:
            capacities.view()
    assert len(capacities) == 10
    assert capacities.view().table.values.shape == (4, 11)
    for number in range(10_000):
        capacities.remove(f"n{number}")
    assert (len(capacities), dict(capacities.view().table.rows)) == (0, {})
