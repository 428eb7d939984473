import numpy as np

from load_watcher.history.columns import NEVER, Row, stack_rows, to_milliseconds, to_seconds
from tests.builders import NOW


def test_whole_milliseconds_come_back_exactly() -> None:
    at = np.round(NOW + np.arange(1000) / 1000, 3)
    assert (to_milliseconds(at) - round(NOW * 1000)).tolist() == list(range(1000))
    assert to_seconds(to_milliseconds(at)).tolist() == at.tolist()
    assert (to_milliseconds(NOW + np.array([0.0004, 0.0006])) - round(NOW * 1000)).tolist() == [0, 1]


def test_what_is_no_instant_is_never() -> None:
    at_ms = to_milliseconds(np.array([np.nan, np.inf, -1.0, 1e300, 0.0]))
    assert at_ms.tolist() == [NEVER] * 4 + [0]
    np.testing.assert_array_equal(to_seconds(at_ms), [np.nan] * 4 + [0.0])


def test_rows_of_other_nodes_are_put_under_each_other_and_of_a_repeated_time_the_first_counts() -> None:
    samples = stack_rows(
        "CPU",
        [
            Row(("a", "b"), np.array([1, 1]), np.array([10.0, np.nan])),
            Row(("b", "c"), np.array([1, 2]), np.array([20.0, 30.0])),
            Row(("a", "b"), np.array([1, 1]), np.array([11.0, 21.0])),
            Row(("b", "a"), np.array([1, 3]), np.array([22.0, 12.0])),
        ],
    )
    assert samples.nodes == ("a", "b", "c")
    assert samples.at_ms.tolist() == [[1, NEVER, NEVER], [NEVER, 1, 2], [NEVER, NEVER, NEVER], [3, NEVER, NEVER]]
    nan = np.nan
    np.testing.assert_array_equal(samples.values, [[10, nan, nan], [nan, 20, 30], [nan, nan, nan], [12, nan, nan]])
