from collections.abc import Sequence

import numpy as np
import pytest

from load_watcher.history.aggregate import FALLBACK, OPERATORS, compute_aggregates, compute_means, compute_steps, require_window
from load_watcher.history.columns import NEVER, SampleColumns
from load_watcher.history.errors import WindowNotHeldError
from load_watcher.samples import FIFTEEN_MINUTES, FIVE_MINUTES, TEN_MINUTES, Window
from tests.builders import NOW

Series = Sequence[tuple[float, float]]


def make_columns(*series: Series) -> SampleColumns:
    """One column for each series of (seconds before now, value)."""
    rows = max((len(each) for each in series), default=0)
    at_ms, values = np.full((rows, len(series)), NEVER), np.full((rows, len(series)), np.nan)
    for column, each in enumerate(series):
        for row, (age_seconds, value) in enumerate(each):
            at_ms[row, column], values[row, column] = round((NOW - age_seconds) * 1000), value
    return SampleColumns("CPU", tuple(f"n{column}" for column in range(len(series))), at_ms, values)


def aggregate(samples: SampleColumns, operator: str, windows: Sequence[Window] = FALLBACK) -> tuple[list[float], list[int], list[float]]:
    [answer] = compute_aggregates(samples, operators=[operator], windows=windows, end_at=NOW)
    return answer.values.tolist(), answer.window_seconds.tolist(), (NOW - answer.sampled_at).tolist()


def test_three_samples_a_minute_apart_give_their_mean_and_population_deviation() -> None:
    """User report 31: a Metrics Server that gives 10, 20, 30 %."""
    samples = make_columns([(120, 10), (60, 20), (0, 30)])
    assert aggregate(samples, "AVG") == ([20.0], [300], [0.0])
    # (10² + 0² + 10²) / 3 = 200 / 3
    assert aggregate(samples, "STD")[0] == pytest.approx([(200 / 3) ** 0.5], rel=1e-15)


@pytest.mark.parametrize(
    ("operator", "expected"), [("AVG", 26), ("P50", 10), ("P90", 58), ("P95", 74), ("P99", 86.8), ("MAX", 90), ("Latest", 90)]
)
def test_percentiles_interpolate_linearly(operator: str, expected: float) -> None:
    """User report 33: an average hides the peak of 10, 10, 10, 10, 90. P90: rank 0.9 · 4 = 3.6, 10 + 0.6 · 80 = 58."""
    samples = make_columns([(240, 10), (180, 10), (120, 10), (60, 10), (0, 90)])
    assert aggregate(samples, operator)[0] == pytest.approx([expected])


def test_the_window_is_open_on_the_left_and_closed_on_the_right() -> None:
    """As the range selectors of Prometheus 3."""
    samples = make_columns([(300, 99), (299.999, 10), (150, 20), (0, 30), (-0.001, 99)])
    assert aggregate(samples, "AVG", [FIVE_MINUTES]) == ([20.0], [300], [0.0])


def test_a_constant_has_no_deviation_at_all() -> None:
    samples = make_columns([(60 * minute, 0.1) for minute in range(15)], [(60 * minute, 1e15) for minute in range(15)])
    assert aggregate(samples, "STD")[0] == [0.0, 0.0]
    assert aggregate(samples, "AVG")[0] == [0.1, 1e15]


def test_the_deviation_of_large_values_does_not_cancel() -> None:
    samples = make_columns([(60 * minute, 1e9 + minute % 2) for minute in range(14)])
    assert aggregate(samples, "STD")[0] == [0.5]


def test_each_node_falls_back_to_the_longest_window_that_it_holds() -> None:
    samples = make_columns(
        [(450, 1), (0, 2)],  # spans half of fifteen minutes
        [(449, 1), (300, 2), (0, 3)],  # a second less: half of ten
        [(299, 1), (150, 2), (0, 3)],  # half of five
        [(20, 1), (0, 2)],  # two samples do for five
        [(0, 1)],  # only the newest
        [(600, 1), (500, 2)],  # old, and near each other
        [],
    )
    values, windows, ages = aggregate(samples, "AVG", FALLBACK)
    assert windows == [900, 600, 300, 300, 0, 0, 0]
    assert values[:4] == [1.5, 2.0, 2.0, 1.5]
    assert np.isnan(values[4:]).all()
    assert ages[:4] == [0.0] * 4
    assert np.isnan(ages[4:]).all()


def test_the_newest_sample_needs_no_window_and_has_its_own_age() -> None:
    values, windows, ages = aggregate(make_columns([(30, 5), (90, 7)], []), "Latest")
    assert (values[0], windows, ages[0]) == (5.0, [0, 0], 30.0)
    assert np.isnan([values[1], ages[1]]).all()


def test_only_five_minutes_are_held_by_two_near_samples() -> None:
    samples = make_columns([(1, 1), (0, 2)])
    for window in (Window(240), TEN_MINUTES, FIFTEEN_MINUTES):
        assert np.isnan(aggregate(samples, "AVG", [window])[0]).all(), window


def test_a_gap_is_a_gap() -> None:
    """Nothing is filled in between a sample at 800 s and those of the last minute."""
    assert aggregate(make_columns([(800, 90), (60, 10), (30, 10), (0, 10)]), "AVG")[0] == [30.0]


@pytest.mark.parametrize("operator", OPERATORS)
def test_nothing_comes_of_nothing(operator: str) -> None:
    for samples in (make_columns(), make_columns([], [])):
        values, windows, _ = aggregate(samples, operator)
        assert np.isnan(values).all()
        assert not any(windows)


def test_a_window_that_is_not_held_names_those_that_are() -> None:
    samples = make_columns([(480, 1), (0, 2)])
    require_window([samples], FIFTEEN_MINUTES, end_at=NOW)
    with pytest.raises(WindowNotHeldError, match="window 30m: .*held: 10m, 15m$"):
        require_window([samples], Window(1800), end_at=NOW)
    with pytest.raises(WindowNotHeldError, match="held: none yet"):
        require_window([make_columns([(0, 1)])], FIVE_MINUTES, end_at=NOW)


def test_steps_end_at_multiples_and_leave_out_the_empty() -> None:
    at_ms = np.array([180_001, 60_000, 60_001, 120_000, 60_000])
    ends_at, averages = compute_steps(at_ms, np.array([9.0, 1.0, 2.0, 4.0, 777.0]), step_seconds=60)
    assert ends_at.tolist() == [60.0, 120.0, 240.0]
    assert averages.tolist() == [1.0, 3.0, 9.0]
    assert [each.size for each in compute_steps(at_ms[:0], np.empty(0), step_seconds=60)] == [0, 0]


def test_means_leave_out_what_is_absent() -> None:
    means = compute_means(np.array([[1.0, np.nan, np.nan], [3.0, 5.0, np.nan]]))
    assert means[:2].tolist() == [2.0, 5.0]
    assert np.isnan(means[2])


def test_an_aggregate_cannot_be_changed() -> None:
    [answer] = compute_aggregates(make_columns([(0, 1)]), operators=["Latest"], end_at=NOW)
    with pytest.raises(ValueError, match="read-only"):
        answer.values[0] = 2
