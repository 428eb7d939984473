import numpy as np

from load_watcher.history.encoding import Members
from load_watcher.history.records import StoredRefresh, average_refreshes, decode_record, encode_record
from load_watcher.samples import NodeInfo, SampleBatch
from tests.builders import NOW, make_batch
from trimaran_client.wire import ResourceQuantities

INFO = NodeInfo(ResourceQuantities("8"), ResourceQuantities("7"))


def make_refresh(batch: SampleBatch, fetched_at: float = NOW) -> StoredRefresh:
    return StoredRefresh(batch, fetched_at, 0)


def test_a_refresh_comes_back_as_it_was() -> None:
    batch = make_batch({"a": 1 / 3, "b": None, "c": 0.0}, memory_percent={"c": 50}, sampled_at={"a": NOW - 60.5, "b": NOW, "c": NOW})
    record = encode_record(make_refresh(batch, NOW + 1.25))
    assert record is not None
    assert (record.oldest_ms, record.newest_ms) == ((NOW - 60.5) * 1000, NOW * 1000)
    back = decode_record(record, Members(batch.nodes, (INFO, None, INFO)))
    assert (back.fetched_at, back.span_seconds, back.batch.source, back.batch.nodes) == (NOW + 1.25, 0, "test", batch.nodes)
    assert back.batch.infos == (INFO, None, INFO)
    np.testing.assert_array_equal(back.batch.sampled_at, batch.sampled_at)
    for metric_type, values in batch.latest.items():
        np.testing.assert_array_equal(back.batch.latest[metric_type], values)


def test_a_metric_without_a_value_and_a_value_without_a_time_are_not_kept() -> None:
    record = encode_record(make_refresh(make_batch({"a": 1, "b": 2}, memory_percent={}, sampled_at={"a": NOW, "b": float("nan")})))
    assert record is not None
    back = decode_record(record, Members(("a", "b")))
    assert list(back.batch.latest) == ["CPU"]
    np.testing.assert_array_equal(back.batch.latest["CPU"], [1.0, np.nan])
    assert encode_record(make_refresh(make_batch({"a": None}))) is None


def test_a_record_repeats_another_only_if_times_and_values_are_the_same() -> None:
    record, later, other_value, other_time = (
        encode_record(refresh)
        for refresh in (
            make_refresh(make_batch({"a": 1.0})),
            make_refresh(make_batch({"a": 1.0}), NOW + 30),
            make_refresh(make_batch({"a": 2.0})),
            make_refresh(make_batch({"a": 1.0}, sampled_at=NOW + 1)),
        )
    )
    assert record
    assert [record.repeats(other) for other in (later, other_value, other_time) if other] == [True, False, False]


def test_an_average_counts_no_sample_twice_and_keeps_the_newest_time_and_info() -> None:
    refreshes = [
        make_refresh(make_batch({"a": 10, "b": 1}, sampled_at=NOW - 60, infos=(None, None))),
        make_refresh(make_batch({"a": 10, "c": None}, sampled_at=NOW - 60)),
        make_refresh(make_batch({"c": 5, "a": 20}, memory_percent={"a": 7}, sampled_at=NOW, infos=(INFO, INFO)), NOW + 2),
    ]
    average = average_refreshes(refreshes, 300)
    assert (average.span_seconds, average.fetched_at, average.batch.nodes) == (300, NOW + 2, ("a", "b", "c"))
    np.testing.assert_array_equal(average.batch.latest["CPU"], [15.0, 1.0, 5.0])
    np.testing.assert_array_equal(average.batch.latest["Memory"], [7.0, np.nan, np.nan])
    assert average.batch.sampled_at.tolist() == [NOW, NOW - 60, NOW]
    assert average.batch.infos == (INFO, None, INFO)


def test_a_metric_with_times_of_its_own_keeps_them() -> None:
    times = {"Memory": np.array([NOW - 90, np.nan])}
    batch = make_batch({"a": 1, "b": None}, memory_percent={"a": 2, "b": 3}, times=times, units={"Memory": "bytes"})
    record = encode_record(make_refresh(batch))
    assert record is not None
    assert (record.oldest_ms, record.newest_ms) == ((NOW - 90) * 1000, NOW * 1000)
    back = decode_record(record, Members(("a", "b"), units={"Memory": "bytes"})).batch
    np.testing.assert_array_equal(back.times_of("Memory"), times["Memory"])
    np.testing.assert_array_equal(back.times_of("CPU"), batch.sampled_at)
    np.testing.assert_array_equal(back.latest["Memory"], [2.0, np.nan])
    average = average_refreshes([make_refresh(batch), make_refresh(make_batch({"a": 3}, sampled_at=NOW + 30))], 300).batch
    assert (average.times_of("CPU")[0], average.times_of("Memory")[0], average.units) == (NOW + 30, NOW - 90, {"Memory": "bytes"})
    ahead = make_batch({"a": 1}, memory_percent={"a": 2}, times={"Memory": np.array([NOW + 5])})
    average = average_refreshes([make_refresh(ahead)], 300).batch
    assert (average.times_of("CPU")[0], average.times_of("Memory")[0]) == (NOW, NOW + 5)
