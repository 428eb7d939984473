"""The statistics and the ring against plain Python: dictionaries, ``statistics`` and sorted lists."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from load_watcher.history.aggregate import FALLBACK, OPERATORS, PERCENTILES, compute_aggregates
from load_watcher.history.window import SampleRing
from load_watcher.samples import FIVE_MINUTES, SampleBatch, Window
from tests.builders import NOW

# Ages in milliseconds that meet the borders of the windows often.
BORDERS = [0, 150_000, 300_000, 450_000, 600_000, 900_000]
ages_ms = st.one_of(st.sampled_from(BORDERS), st.builds(lambda border, off: border + off, st.sampled_from(BORDERS), st.integers(-1, 1)))
ages_ms |= st.integers(-5_000, 1_000_000)
values = st.one_of(st.floats(0, 100), st.sampled_from([0.0, 0.1, 100.0]), st.floats(0, 1e15))
samples = st.lists(st.tuples(ages_ms, values), max_size=12)

Series = Mapping[int, float]


def first_of_each(listed: Sequence[tuple[int, float]]) -> Series:
    series: dict[int, float] = {}
    for age, value in listed:
        series.setdefault(age, value)
    return series


def take_window(series: Series, window_ms: int) -> Series:
    return {age: value for age, value in series.items() if 0 <= age < window_ms}


def choose_window(series: Series, windows: Sequence[Window]) -> Window | None:
    for window in windows:
        inside = take_window(series, window.duration_seconds * 1000)
        if inside and max(inside) - min(inside) >= window.duration_seconds * 500:
            return window
        if window == FIVE_MINUTES and len(inside) >= 2:
            return window
    return None


def summarize(operator: str, inside: Series) -> float:
    ordered = sorted(inside.values())
    if operator in PERCENTILES:
        rank = PERCENTILES[operator] * (len(ordered) - 1)
        below = math.floor(rank)
        above = min(below + 1, len(ordered) - 1)
        return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)
    if operator == "MAX":
        return ordered[-1]
    return statistics.fmean(ordered) if operator == "AVG" else statistics.pstdev(ordered)


def make_ring(nodes: Sequence[Sequence[tuple[int, float]]]) -> SampleRing:
    """One refresh for each position of the lists; a node without one at a position is absent from that refresh."""
    ring = SampleRing(span_seconds=3600, step_seconds=30)
    for position in range(max(map(len, nodes))):
        present = [node for node in range(len(nodes)) if position < len(nodes[node])]
        ring.append(
            SampleBatch(
                "test",
                tuple(f"n{node}" for node in present),
                np.array([NOW - nodes[node][position][0] / 1000 for node in present]),
                {"CPU": np.array([nodes[node][position][1] for node in present])},
            )
        )
    return ring


@given(st.lists(samples, min_size=1, max_size=4), st.permutations(FALLBACK))
def test_every_statistic_is_that_of_the_plain_reference(nodes: list[list[tuple[int, float]]], windows: Sequence[Window]) -> None:
    ring = make_ring(nodes)
    names = tuple(f"n{node}" for node in range(len(nodes)))
    columns = ring.columns("CPU", start_at=NOW - 3600, end_at=NOW + 60, nodes=names)
    for aggregate in compute_aggregates(columns, operators=OPERATORS, windows=windows, end_at=NOW):
        for row, listed in enumerate(nodes):
            series = first_of_each(listed)
            past = {age: value for age, value in series.items() if age >= 0}
            window = choose_window(series, windows)
            value, window_seconds = float(aggregate.values[row]), int(aggregate.window_seconds[row])
            if aggregate.operator == "Latest":
                expected = past[min(past)] if past else math.nan
                assert window_seconds == 0
            else:
                assert window_seconds == (window.duration_seconds if window else 0)
                expected = summarize(aggregate.operator, take_window(series, window_seconds * 1000)) if window else math.nan
            assert value == pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True)
            newest = NOW - min(past) / 1000 if past and not math.isnan(expected) else math.nan
            assert float(aggregate.sampled_at[row]) == pytest.approx(newest, abs=1e-6, nan_ok=True)


@given(st.floats(0, 1e15), st.lists(st.integers(0, 899_999), min_size=2, max_size=60, unique=True))
def test_a_constant_has_exactly_its_value_and_no_deviation(value: float, ages: list[int]) -> None:
    ring = make_ring([[(age, value) for age in ages]])
    for aggregate in ring.aggregate(OPERATORS, end_at=NOW):
        if aggregate.window_seconds[0] or aggregate.operator == "Latest":
            assert aggregate.values[0] == (0.0 if aggregate.operator == "STD" else value)


cells = st.tuples(st.integers(0, 40), st.none() | values, st.none() | values, st.integers(0, 40))
refreshes = st.lists(st.tuples(st.dictionaries(st.sampled_from("abcdefgh"), cells, max_size=8), st.booleans()), max_size=40)


@dataclass
class PlainRow:
    """One refresh: what dates a metric → node → second, and metric → node → value."""

    times: dict[str, dict[str, int]]
    values: dict[str, dict[str, float]]


@given(refreshes, st.integers(1, 10))
def test_the_ring_holds_the_last_refreshes_that_brought_something(
    listed: list[tuple[dict[str, tuple[int, float | None, float | None, int]], bool]], rows: int
) -> None:
    """Memory gets times of its own at some refresh, and keeps them."""
    ring = SampleRing(span_seconds=30 * (rows - 1), step_seconds=30)
    held: list[PlainRow] = []
    is_apart = False
    for refresh, has_times in listed:
        nodes = tuple(refresh)
        columns = {
            metric_type: np.array([refresh[node][field] for node in nodes], dtype=np.float64)
            for field, metric_type in ((1, "CPU"), (2, "Memory"))
        }
        seconds = np.array([NOW + refresh[node][0] for node in nodes])
        memory_seconds = np.array([NOW + refresh[node][3] for node in nodes])
        taken = ring.append(SampleBatch("test", nodes, seconds, columns, times={"Memory": memory_seconds} if has_times else {}))
        if has_times and not is_apart and any(cpu is not None or memory is not None for _, cpu, memory, _ in refresh.values()):
            is_apart = True
            for row in held:
                row.times["Memory"] = dict(row.times["both"])
        new = PlainRow({"both": {}, "Memory": {}}, {"CPU": {}, "Memory": {}})
        expected = 0
        for node, (second, cpu, memory, memory_second) in refresh.items():
            sample = {name: value for name, value in (("CPU", cpu), ("Memory", memory)) if value is not None}
            apart = {name: value for name, value in sample.items() if is_apart and name == "Memory"}
            together = {name: value for name, value in sample.items() if name not in apart}
            for dated_by, at, part in (("both", second, together), ("Memory", memory_second if has_times else second, apart)):
                if part:
                    known = next((row for row in held if row.times[dated_by].get(node) == at), None)
                    target = new if known is None else known
                    target.times[dated_by][node] = at
                    for name, value in part.items():
                        expected += node not in target.values[name]
                        target.values[name].setdefault(node, value)
        held = [*held, new][-rows:] if new.times["both"] or new.times["Memory"] else held
        assert taken == expected
    for metric_type in ("CPU", "Memory"):
        dated_by = "Memory" if is_apart and metric_type == "Memory" else "both"
        samples = ring.columns(metric_type, start_at=NOW - 1, end_at=NOW + 100, nodes=tuple("abcdefgh"))
        found = {
            ("abcdefgh"[column], round(samples.at_ms[row, column] / 1000 - NOW)): float(samples.values[row, column])
            for row, column in np.argwhere(~np.isnan(samples.values)).tolist()
        }
        assert found == {(node, row.times[dated_by][node]): value for row in held for node, value in row.values[metric_type].items()}
