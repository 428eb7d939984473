import numpy as np
import pytest

from load_watcher.history.errors import WindowNotHeldError
from load_watcher.history.window import SampleRing
from load_watcher.samples import FIVE_MINUTES, Window
from tests.builders import NOW, make_batch


def held(ring: SampleRing, node: str, metric_type: str = "CPU", *, span_seconds: float = 3600, end_at: float = NOW) -> dict[float, float]:
    """Age → value of what the ring holds of a node."""
    samples = ring.columns(metric_type, start_at=end_at - span_seconds, end_at=end_at, nodes=(node,))
    return {
        NOW - at / 1000: value
        for at, value in zip(samples.at_ms[:, 0].tolist(), samples.values[:, 0].tolist(), strict=True)
        if value == value
    }


def test_a_repeated_timestamp_is_one_sample_and_the_first_value_counts() -> None:
    ring = SampleRing()
    assert ring.append(make_batch({"n": 10}, sampled_at=NOW - 60)) == 1
    assert ring.append(make_batch({"n": 11}, sampled_at=NOW - 60)) == 0
    assert ring.append(make_batch({"n": 20}, sampled_at=NOW)) == 1
    assert ring.append(make_batch({"n": 10}, sampled_at=NOW - 60)) == 0
    assert held(ring, "n") == {60.0: 10.0, 0.0: 20.0}


def test_a_time_is_the_same_to_the_millisecond() -> None:
    ring = SampleRing()
    ring.append(make_batch({"n": 10}, sampled_at=NOW))
    assert ring.append(make_batch({"n": 11}, sampled_at=NOW + 0.0004)) == 0
    assert ring.append(make_batch({"n": 11}, sampled_at=NOW + 0.001)) == 1


def test_a_range_is_open_on_the_left_and_closed_on_the_right() -> None:
    ring = SampleRing()
    for age_seconds in (60, 30, 0):
        ring.append(make_batch({"n": age_seconds, "m": 1}, sampled_at={"n": NOW - age_seconds, "m": NOW - 20 - age_seconds}))
    assert held(ring, "n", span_seconds=60) == {30.0: 30.0, 0.0: 0.0}
    assert held(ring, "n", end_at=NOW - 20) == {60.0: 60.0, 30.0: 30.0}
    assert held(ring, "m", span_seconds=50) == {20.0: 1.0}


def test_a_metric_that_was_absent_joins_the_sample_of_the_same_time() -> None:
    ring = SampleRing()
    ring.append(make_batch({"n": 10, "m": 1}, memory_percent={"m": 2}))
    assert ring.append(make_batch({"n": 10, "m": 1}, memory_percent={"n": 50, "m": 3})) == 1
    assert (held(ring, "n", "Memory"), held(ring, "m", "Memory")) == ({0.0: 50.0}, {0.0: 2.0})


def test_a_metric_with_times_of_its_own_is_repeated_by_them() -> None:
    ring = SampleRing()
    ring.append(make_batch({"n": 1}, memory_percent={"n": 10}, sampled_at=NOW - 60))
    for age_seconds, memory in ((30, 20), (30, 21), (60, 22)):
        times = {"Memory": np.array([NOW - age_seconds])}
        ring.append(make_batch({"n": age_seconds}, memory_percent={"n": memory}, sampled_at=NOW, times=times))
    assert held(ring, "n") == {60.0: 1.0, 0.0: 30.0}
    assert held(ring, "n", "Memory") == {60.0: 10.0, 30.0: 20.0}
    ring.append(make_batch({"m": 1}, sampled_at=NOW))
    undated = {"Memory": np.array([np.nan, NOW])}
    assert ring.append(make_batch({"n": 30, "m": 1}, memory_percent={"n": 99, "m": 5}, sampled_at=NOW, times=undated)) == 1
    # Once it had times of its own they go on, from those of the batch where it names none.
    ring.append(make_batch({"n": 2}, memory_percent={"n": 30}, sampled_at=NOW))
    assert held(ring, "n", "Memory") == {60.0: 10.0, 30.0: 20.0, 0.0: 30.0}


def test_a_sample_out_of_order_stands_at_its_own_time() -> None:
    ring = SampleRing()
    for age_seconds, value in ((0, 30), (120, 10), (60, 20)):
        ring.append(make_batch({"n": value}, sampled_at=NOW - age_seconds))
    assert held(ring, "n") == {0.0: 30.0, 120.0: 10.0, 60.0: 20.0}
    [latest] = ring.aggregate(["Latest"], end_at=NOW)
    assert latest.values.tolist() == [30.0]


def test_the_oldest_refresh_is_overwritten() -> None:
    ring = SampleRing(span_seconds=60, step_seconds=30)
    for position in range(5):
        ring.append(make_batch({"n": position}, sampled_at=NOW + 30 * position))
    assert sorted(held(ring, "n", end_at=NOW + 600).values()) == [2.0, 3.0, 4.0]


def test_a_time_that_was_overwritten_is_new_again() -> None:
    ring = SampleRing(span_seconds=30, step_seconds=30)
    for node, second in (("n", 0), ("n", 1), ("m", 2), ("n", 0)):
        assert ring.append(make_batch({node: second}, sampled_at=NOW + second)) == 1
    assert held(ring, "n", span_seconds=1) == {0.0: 0.0}


def test_a_source_that_repeats_itself_uses_up_nothing() -> None:
    ring = SampleRing(span_seconds=60, step_seconds=30)
    for minute in range(3):
        for _ in range(4):
            ring.append(make_batch({"n": minute}, sampled_at=NOW + 60 * minute))
    assert sorted(held(ring, "n", end_at=NOW + 600).values()) == [0.0, 1.0, 2.0]


def test_a_node_that_left_keeps_its_samples_until_they_are_overwritten_and_its_column_is_used_again() -> None:
    ring = SampleRing(span_seconds=60, step_seconds=30)
    ring.append(make_batch({"gone": 99, "stays": 1}))
    bytes_before = ring.memory_bytes
    for position in range(1, 4):
        assert held(ring, "gone") == {0.0: 99.0}, position
        ring.append(make_batch({"stays": 1}, sampled_at=NOW + 30 * position))
    assert held(ring, "gone") == {}
    ring.append(make_batch({"stays": 1, "new": 2}, sampled_at=NOW + 120))
    assert ring.columns("CPU", start_at=0, end_at=2 * NOW).nodes == ("stays", "new")
    assert held(ring, "new", end_at=NOW + 3600) == {-120.0: 2.0}
    assert ring.memory_bytes == bytes_before


def test_memory_is_bounded_when_every_refresh_brings_other_nodes() -> None:
    ring = SampleRing(span_seconds=3600, step_seconds=30)
    for position in range(50):
        ring.append(make_batch({f"n{position}-{node}": 1.0 for node in range(100)}, sampled_at=NOW + 30 * position))
    # Two columns a node and an eighth; 121 rows of times and one metric, eight bytes each.
    assert ring.memory_bytes <= 225 * 121 * 2 * 8
    # The oldest of those that left made room; the newest are there.
    assert held(ring, "n49-0", end_at=NOW + 3600)
    assert held(ring, "n48-0", end_at=NOW + 3600)
    assert not held(ring, "n0-0", end_at=NOW + 3600)


def test_a_refresh_that_lacks_most_nodes_drops_none() -> None:
    ring = SampleRing()
    ring.append(make_batch({f"n{node}": 1.0 for node in range(500)}))
    ring.append(make_batch({"n0": 1.0, "new": 1.0}, sampled_at=NOW + 30))
    assert len(ring.columns("CPU", start_at=0, end_at=2 * NOW).nodes) == 501


def test_a_cluster_that_shrank_gives_its_memory_back() -> None:
    ring = SampleRing(span_seconds=60, step_seconds=30)
    ring.append(make_batch({f"n{node}": 1.0 for node in range(2000)}))
    bytes_before = ring.memory_bytes
    for position in range(1, 6):
        ring.append(make_batch({f"n{node}": float(position) for node in range(100)}, sampled_at=NOW + 30 * position))
    assert ring.memory_bytes < bytes_before / 10
    assert sorted(held(ring, "n99", end_at=NOW + 3600).values()) == [3.0, 4.0, 5.0]


def test_a_metric_that_is_no_longer_there_is_forgotten_with_its_last_sample() -> None:
    ring = SampleRing(span_seconds=60, step_seconds=30)
    ring.append(make_batch({"n": 1}))
    bytes_before = ring.memory_bytes
    ring.append(make_batch({"n": 1}, memory_percent={"n": 1}, sampled_at=NOW + 1, times={"Memory": np.array([NOW - 1])}))
    for position in range(1, 4):
        assert ring.metric_types == ("CPU", "Memory")
        ring.append(make_batch({"n": 1}, sampled_at=NOW + 30 * position))
    assert (ring.metric_types, ring.memory_bytes) == (("CPU",), bytes_before)


def test_what_has_no_value_or_no_time_is_not_there() -> None:
    ring = SampleRing()
    undated = make_batch({"n": 1}, sampled_at=float("nan"))
    assert [ring.append(each) for each in (make_batch({}), make_batch({"n": None}), undated)] == [0, 0, 0]
    assert (ring.newest_at, ring.metric_types, held(ring, "n")) == (None, (), {})
    assert ring.aggregate(["AVG"], end_at=NOW) == ()


def test_answers_come_in_the_order_of_the_nodes_that_were_asked_for() -> None:
    ring = SampleRing()
    ring.append(make_batch({"a": 1, "b": 2}))
    [latest] = ring.aggregate(["Latest"], end_at=NOW, nodes=("b", "unknown", "a"))
    np.testing.assert_array_equal(latest.values, [2.0, np.nan, 1.0])
    assert ring.newest_at == NOW


def test_a_window_longer_than_the_ring_is_refused() -> None:
    """Half of two hours could be held by a ring of one, and would be called two hours."""
    ring = SampleRing()
    for minute in range(61):
        ring.append(make_batch({"n": 1}, sampled_at=NOW - 60 * minute))
    ring.check_window(Window(3600), end_at=NOW)
    for refuse in (lambda: ring.check_window(Window(7200), end_at=NOW), lambda: ring.aggregate(["AVG"], [Window(7200)], end_at=NOW)):
        with pytest.raises(WindowNotHeldError, match="window 2h: memory holds the samples of 1h"):
            refuse()


def test_a_window_that_is_not_held_yet_names_those_that_are() -> None:
    ring = SampleRing()
    for minute in range(3):
        ring.append(make_batch({"n": 1}, sampled_at=NOW - 60 * minute))
    ring.check_window(FIVE_MINUTES, end_at=NOW)
    with pytest.raises(WindowNotHeldError, match="window 30m: .*held: 5m$"):
        ring.check_window(Window(1800), end_at=NOW)
