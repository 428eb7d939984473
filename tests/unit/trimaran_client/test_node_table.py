"""Numbers of nodes by name, frozen at no cost; and what nodes have, kept in them."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import make_node
from trimaran_client import Node, NodeCapacities
from trimaran_client.node_table import FrozenNodeTable, NodeTable


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


@pytest.mark.parametrize("count", [16, 17, 255, 256, 257, 512, 1000])
def test_it_grows_and_keeps_what_it_held(count: int) -> None:
    table = NodeTable(2, fill=0.0)
    for index in range(count):
        table.write(f"n{index}", 1, index)
        if index % 100 == 0:
            table.freeze()
    frozen = table.freeze()
    assert frozen.row_count == count
    assert frozen.values.shape == (2, count)
    assert [frozen.values[1, frozen.rows[f"n{index}"]] for index in range(count)] == list(range(count))
    assert not frozen.values[0].any()
    assert [table.row_of(name) for name in ("n0", f"n{count - 1}")] == [frozen.rows["n0"], frozen.rows[f"n{count - 1}"]]


def test_a_change_among_thousands_copies_the_numbers_near_it_only() -> None:
    table = NodeTable(4, fill=0.0)
    for index in range(5000):
        table.write(f"n{index}", 0, index)
    before = table.freeze()
    assert table.freeze() is before
    for column in range(4):
        table.write("n3000", column, -1.0)
    after = table.freeze()
    copied = [one is not other for one, other in zip(before._blocks, after._blocks, strict=True)]
    assert (len(copied), sum(copied)) == (20, 1)
    assert (before.values[0, 3000], after.values[0, 3000]) == (3000.0, -1.0)
    assert np.array_equal(np.delete(before.values, 3000, axis=1), np.delete(after.values, 3000, axis=1))


@given(
    st.lists(
        st.one_of(st.tuples(st.just("write"), st.integers(0, 600)), st.tuples(st.sampled_from(["discard", "freeze"]), st.integers(0, 600))),
        max_size=60,
    )
)
def test_whatever_happens_what_was_frozen_stays(steps: list[tuple[str, int]]) -> None:
    table = NodeTable(1, fill=0.0)
    for index in range(0, 600, 3):
        table.write(f"n{index}", 0, index)
    held: list[tuple[FrozenNodeTable, dict[str, float]]] = []
    expected = {f"n{index}": float(index) for index in range(0, 600, 3)}
    for number, (step, index) in enumerate(steps):
        if step == "write":
            table.write(f"n{index}", 0, number)
            expected[f"n{index}"] = float(number)
        elif step == "discard":
            table.discard(f"n{index}")
            expected.pop(f"n{index}", None)
        else:
            held.append((table.freeze(), dict(expected)))
    held.append((table.freeze(), expected))
    for frozen, told in held:
        assert {name: float(frozen.values[0, row]) for name, row in frozen.rows.items()} == told


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
