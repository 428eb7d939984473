"""Numbers of nodes by name, frozen at no cost; and what nodes have, kept in them."""

import math
from typing import Any

import numpy as np
import pytest

from tests.builders import make_node
from trimaran_client import Node, NodeCapacities
from trimaran_client.node_table import NodeTable


def test_what_was_frozen_never_changes() -> None:
    table = NodeTable(2)
    table.write("a", 0, 1.0)
    before = table.freeze()
    table.write("a", 0, 2.0)
    table.write("b", 1, 3.0)
    table.discard("a")
    assert dict(before.rows) == {"a": 0}
    assert before.values[0].tolist() == [1.0]
    assert math.isnan(before.values[1, 0])


def test_what_was_frozen_cannot_be_written() -> None:
    table = NodeTable(1)
    table.write("a", 0, 1.0)
    with pytest.raises(ValueError, match="read-only"):
        table.freeze().values[0, 0] = 2.0


def test_freezing_twice_without_a_change_gives_the_same_names_and_values() -> None:
    table = NodeTable(1)
    table.write("a", 0, 1.0)
    one, other = table.freeze(), table.freeze()
    assert one.rows is other.rows
    assert np.shares_memory(one.values, other.values)


def test_a_row_is_used_again_and_starts_anew() -> None:
    table = NodeTable(2, fill=0.0)
    table.write("a", 0, 7.0)
    table.discard("a")
    table.write("b", 1, 1.0)
    frozen = table.freeze()
    assert dict(frozen.rows) == {"b": 0}
    assert frozen.values[:, 0].tolist() == [0.0, 1.0]
    assert "a" not in table


def test_names_that_come_and_go_leave_no_memory_behind() -> None:
    table = NodeTable(1)
    for index in range(10_000):
        table.write(f"n{index}", 0, index)
        table.discard(f"n{index - 3}")
    assert len(table) == 3
    assert table.freeze().values.shape[1] <= 16


def test_it_grows_and_keeps_what_it_held() -> None:
    table = NodeTable(1)
    for index in range(100):
        table.write(f"n{index}", 0, index)
    frozen = table.freeze()
    assert [frozen.values[0, frozen.rows[f"n{index}"]] for index in range(100)] == list(range(100))
    assert [table.row_of(f"n{index}") for index in (0, 99)] == [frozen.rows["n0"], frozen.rows["n99"]]


def test_discarding_a_stranger_is_no_error() -> None:
    table = NodeTable(1)
    table.discard("a")
    assert len(table) == 0


# --- capacities ---


def column(capacities: NodeCapacities, resource: str) -> dict[str, tuple[float, float]]:
    """Answer node → capacity and allocatable."""
    view = capacities.view()
    columns = view.columns(resource)
    assert columns is not None
    return {name: (float(columns[0][row]), float(columns[1][row])) for name, row in view.table.rows.items()}


def test_cpu_is_kept_in_millicores_and_the_rest_in_whole_units() -> None:
    status: dict[str, Any] = {"capacity": {"cpu": "8", "memory": "1Gi", "example.com/gpu": "4"}, "allocatable": {"cpu": "7500m"}}
    node = Node.from_manifest({"metadata": {"name": "n1"}, "status": status})
    capacities = NodeCapacities.of([node], ("cpu", "memory", "example.com/gpu"))
    assert column(capacities, "cpu") == {"n1": (8000, 7500)}
    memory, gpu = column(capacities, "memory")["n1"], column(capacities, "example.com/gpu")["n1"]
    assert (memory[0], gpu[0]) == (2**30, 4)
    assert math.isnan(memory[1])  # not said is not known


def test_a_resource_that_is_not_kept_is_not_known() -> None:
    assert NodeCapacities.of([make_node("n1")]).view().columns("example.com/gpu") is None


def test_a_change_is_seen_in_the_next_view_only() -> None:
    capacities = NodeCapacities.of([make_node("n1", cpu="8")])
    before = capacities.view()
    assert capacities.view() is before
    capacities.update(make_node("n1", cpu="16"))
    capacities.update(make_node("n2", cpu="4"))
    capacities.remove("n3")
    old = before.columns("cpu")
    assert old is not None
    assert old[0].tolist() == [8000]
    assert column(capacities, "cpu") == {"n1": (16000, 16000), "n2": (4000, 4000)}


def test_a_node_that_is_gone_is_forgotten() -> None:
    capacities = NodeCapacities.of([make_node("n1"), make_node("n2")])
    capacities.remove("n1")
    assert ("n1" in capacities, "n2" in capacities, len(capacities)) == (False, True, 1)
    assert set(column(capacities, "cpu")) == {"n2"}
