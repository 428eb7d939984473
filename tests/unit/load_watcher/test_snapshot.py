import gzip
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from load_watcher.last_good import LastGood, carry_over, merge
from load_watcher.quality import assess
from load_watcher.samples import FIFTEEN_MINUTES, FIVE_MINUTES, TEN_MINUTES, Aggregate, NodeInfo, SampleBatch, Window
from load_watcher.snapshot import Snapshot, encode_snapshot
from tests.builders import NOW, make_batch
from trimaran_client.wire import ResourceQuantities, decode_watcher_metrics

STALE, EXPIRED = 300.0, 900.0


def put(batch: SampleBatch, now: float = NOW, previous: LastGood | None = None) -> LastGood:
    return merge(previous, assess(batch, now), now=now, expired_seconds=EXPIRED)


def encode(good: LastGood, now: float = NOW) -> Snapshot:
    return encode_snapshot(good, now=now, stale_seconds=STALE, window=FIFTEEN_MINUTES)


def reply(good: LastGood, now: float = NOW) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(encode(good, now).identity.body, parse_constant=pytest.fail)
    return body


def nodes(good: LastGood, now: float = NOW) -> dict[str, Any]:
    entries: dict[str, Any] = reply(good, now)["data"]["NodeMetricsMap"]
    return entries


def test_the_whole_shape() -> None:
    info = NodeInfo(ResourceQuantities("8", "32Gi"), ResourceQuantities("7910m", "30Gi"))
    batch = make_batch({"n1": 12.5}, memory_percent={"n1": 20.60406804084778}, sampled_at=NOW - 7.5, infos=(info,))
    assert encode(put(batch), NOW + 0.9).identity.body.decode() == (
        '{"timestamp":1700000000,"window":{"duration":"15m","start":1699999092,"end":1699999992},"source":"test","data":{"NodeMetricsMap":'
        '{"n1":{"metrics":[{"name":"","type":"CPU","operator":"Latest","rollup":"","value":12.5},'
        '{"name":"","type":"Memory","operator":"Latest","rollup":"","value":20.604068041}],'
        '"tags":{},"metadata":{"dataCenter":""},"capacity":{"cpu":"8","memory":"32Gi"},"allocatable":{"cpu":"7910m","memory":"30Gi"},'
        '"sampledAt":1699999992,"status":"ok"}}}}'
    )


def test_metrics_stand_by_type_and_then_latest_average_deviation() -> None:
    def aggregate(kind: str, operator: str) -> Aggregate:
        return Aggregate(f"{kind}-{operator}", kind, operator, FIVE_MINUTES, np.array([1.0]))

    aggregates = tuple(aggregate(kind, operator) for kind in ("Energy", "Memory", "CPU") for operator in ("STD", "AVG"))
    batch = make_batch({"n1": 1.0}, aggregates=aggregates, latest={"Memory": np.array([1.0]), "CPU": np.array([1.0])})
    metrics = nodes(put(batch))["n1"]["metrics"]
    assert [(metric["type"], metric["operator"], metric["rollup"], metric["name"]) for metric in metrics] == [
        ("CPU", "Latest", "", ""),
        ("CPU", "AVG", "5m", "CPU-AVG"),
        ("CPU", "STD", "5m", "CPU-STD"),
        ("Memory", "Latest", "", ""),
        ("Memory", "AVG", "5m", "Memory-AVG"),
        ("Memory", "STD", "5m", "Memory-STD"),
        ("Energy", "AVG", "5m", "Energy-AVG"),
        ("Energy", "STD", "5m", "Energy-STD"),
    ]


def test_each_metric_of_a_node_has_the_longest_window_that_it_has() -> None:
    """15 minutes, else 10, else 5, by node and by metric; what has no window beside it goes on alone."""

    def averaged(kind: str, operator: str, window: Window, a: float, b: float, c: float, name: str = "") -> Aggregate:
        return Aggregate(name, kind, operator, window, np.array([a, b, c]))

    aggregates = (
        averaged("CPU", "AVG", FIVE_MINUTES, 1.0, 2.0, 3.0),
        averaged("CPU", "AVG", TEN_MINUTES, 4.0, 5.0, np.nan),
        averaged("CPU", "AVG", FIFTEEN_MINUTES, 0.0, np.nan, np.nan),
        averaged("CPU", "STD", FIVE_MINUTES, 0.1, 0.2, np.nan),
        averaged("CPU", "STD", TEN_MINUTES, 0.4, np.nan, np.nan),
        averaged("Bandwidth", "AVG", TEN_MINUTES, 7.0, 8.0, np.nan, "received"),
        averaged("Bandwidth", "AVG", FIFTEEN_MINUTES, 9.0, np.nan, np.nan, "sent"),
    )
    batch = make_batch({"a": 10.0, "b": 20.0, "c": 30.0}, aggregates=aggregates)
    listed = {node: [tuple(metric.values()) for metric in entry["metrics"]] for node, entry in nodes(put(batch)).items()}
    assert listed == {
        "a": [
            ("", "CPU", "Latest", "", 10.0),
            ("", "CPU", "AVG", "15m", 0.0),
            ("", "CPU", "STD", "10m", 0.4),
            ("received", "Bandwidth", "AVG", "10m", 7.0),
            ("sent", "Bandwidth", "AVG", "15m", 9.0),
        ],
        "b": [
            ("", "CPU", "Latest", "", 20.0),
            ("", "CPU", "AVG", "10m", 5.0),
            ("", "CPU", "STD", "5m", 0.2),
            ("received", "Bandwidth", "AVG", "10m", 8.0),
        ],
        "c": [("", "CPU", "Latest", "", 30.0), ("", "CPU", "AVG", "5m", 3.0)],
    }


def test_a_longer_window_that_expired_gives_way_to_a_shorter_one() -> None:
    """The value over 15 minutes came once, that over 5 with each refresh."""

    def averaged(window: Window, value: float) -> Aggregate:
        return Aggregate("", "CPU", "AVG", window, np.array([value]))

    first = put(make_batch({"n1": 1.0}, aggregates=(averaged(FIVE_MINUTES, 5.0), averaged(FIFTEEN_MINUTES, 15.0))))
    rollups = []
    for age_seconds in (EXPIRED, EXPIRED + 1):
        now = NOW + age_seconds
        good = put(make_batch({"n1": 1.0}, sampled_at=now, aggregates=(averaged(FIVE_MINUTES, 5.0),)), now, first)
        rollups.append([metric["rollup"] for metric in nodes(good, now)["n1"]["metrics"]])
    assert rollups == [["", "15m"], ["", "5m"]]


@pytest.mark.parametrize(("value", "text"), [(0.0, "0.0"), (-0.0, "0.0"), (1e-20, "0.0"), (100 / 3, "33.333333333"), (1e-9, "1e-9")])
def test_values_are_written_with_nine_places_and_no_negative_zero(value: float, text: str) -> None:
    """1e-20 as it stands would make the Go client refuse the whole reply."""
    assert f'"value":{text}}}'.encode() in encode(put(make_batch({"n1": value}))).identity.body


def test_report_21_a_node_without_metrics_is_listed_with_what_it_has() -> None:
    info = NodeInfo(ResourceQuantities(cpu="8"), ResourceQuantities())
    entries = nodes(put(make_batch({"n1": 10.0, "bare": None}, infos=(None, info))))
    assert entries["bare"] == {
        "metrics": [],
        "tags": {},
        "metadata": {"dataCenter": ""},
        "capacity": {"cpu": "8"},
        "status": "no_metrics",
    }
    assert entries["n1"]["status"] == "ok"
    assert "capacity" not in entries["n1"]


def test_report_16_no_value_is_left_out_and_never_written_as_null() -> None:
    batch = make_batch({"n1": float("inf"), "n2": 1.0}, memory_percent={"n1": 5.0, "n2": None})
    body = encode(put(batch)).identity.body
    assert b"null" not in body
    assert [metric["type"] for metric in json.loads(body)["data"]["NodeMetricsMap"]["n1"]["metrics"]] == ["Memory"]


def test_statuses() -> None:
    first = put(make_batch({"fresh": 1.0, "late": 1.0, "half": 1.0}, memory_percent={"half": 1.0}))
    second = make_batch({"fresh": 2.0, "late": None, "half": 2.0, "none": None}, sampled_at=NOW + 30, memory_percent={"half": None})
    good = put(second, NOW + 30, first)
    assert {node: entry["status"] for node, entry in nodes(good, NOW + 30).items()} == {
        "fresh": "ok",
        "late": "late",
        "half": "late",
        "none": "no_metrics",
    }


@pytest.mark.parametrize(("age_seconds", "status"), [(0, "late"), (STALE, "late"), (STALE + 1, "stale"), (EXPIRED, "stale")])
def test_report_19_values_that_are_held_grow_old_in_the_open(age_seconds: float, status: str) -> None:
    now = NOW + age_seconds
    good = carry_over(put(make_batch({"n1": 95.0})), now=now, expired_seconds=EXPIRED)
    entry = nodes(good, now)["n1"]
    assert (entry["status"], entry["sampledAt"], entry["metrics"][0]["value"]) == (status, NOW, 95.0)


def test_an_expired_node_is_listed_without_metrics() -> None:
    now = NOW + EXPIRED + 1
    good = put(make_batch({"n1": 95.0, "n2": 5.0}, sampled_at={"n1": NOW, "n2": NOW + 30}))
    entries = nodes(carry_over(good, now=now, expired_seconds=EXPIRED), now)
    assert (entries["n1"]["status"], entries["n1"]["metrics"]) == ("no_metrics", [])
    assert "sampledAt" not in entries["n1"]
    assert entries["n2"]["status"] == "stale"


def test_the_newest_sample_of_a_node_decides_whether_it_is_stale() -> None:
    first = put(make_batch({"n1": 1.0}, memory_percent={"n1": 1.0}))
    good = put(make_batch({"n1": 2.0}, memory_percent={"n1": None}, sampled_at=NOW + 600), NOW + 600, first)
    entry = nodes(good, NOW + 600)["n1"]
    assert (entry["status"], entry["sampledAt"]) == ("late", NOW + 600)


def test_the_window_ends_at_the_newest_sample_of_all() -> None:
    window = reply(put(make_batch({"n1": 1.0, "n2": 1.0}, sampled_at={"n1": NOW - 50.5, "n2": NOW - 20.5})))["window"]
    assert window == {"duration": "15m", "start": int(NOW) - 921, "end": int(NOW) - 21}


def test_without_any_sample_the_window_has_no_times() -> None:
    assert reply(put(make_batch({"n1": None})))["window"] == {"duration": "15m", "start": 0, "end": 0}


def test_no_nodes_is_an_empty_object() -> None:
    assert reply(put(make_batch({})))["data"] == {"NodeMetricsMap": {}}


def test_counts_by_status_name_every_status() -> None:
    snapshot = encode(put(make_batch({"n1": 1.0, "n2": None})))
    assert snapshot.status_counts == {"ok": 1, "late": 0, "stale": 0, "no_metrics": 1, "expired": 0, "quarantined": 0}
    assert snapshot.newest_sampled_at == NOW


def test_gzip_holds_the_same_bytes() -> None:
    snapshot = encode(put(make_batch({"n1": 1.0})))
    assert gzip.decompress(snapshot.compressed.body) == snapshot.identity.body


def test_tags_name_bytes() -> None:
    one, same, other = (encode(put(make_batch({"n1": value}))) for value in (1.0, 1.0, 2.0))
    assert one.identity.etag == same.identity.etag
    assert len({one.identity.etag, one.compressed.etag, other.identity.etag, other.compressed.etag}) == 4
    assert one.identity.etag.startswith('"')


NAMES = ["n1", "ip-10-0-0-1.eu", 'quote"d', "ünïcode", "back\\slash", ""]


def test_the_reply_for_one_node_is_cut_from_the_whole() -> None:
    good = put(make_batch({name: float(row) for row, name in enumerate(NAMES)}))
    snapshot, whole = encode(good), reply(good)
    for name in NAMES:
        cut = snapshot.cut_host(name)
        assert cut is not None
        assert json.loads(cut.body) == whole | {"data": {"NodeMetricsMap": {name: whole["data"]["NodeMetricsMap"][name]}}}
    assert len({snapshot.cut_host(name) for name in NAMES}) == len(NAMES)
    assert snapshot.cut_host("n2") is None


@given(st.dictionaries(st.text(max_size=5), st.none() | st.floats(), max_size=5), st.floats(0, 2e9))
def test_whatever_is_measured_the_reply_is_json_of_finite_numbers(cpu_percent: dict[str, float | None], now: float) -> None:
    cpu_percent = {name: value for name, value in cpu_percent.items() if name.isprintable()}
    snapshot = encode(put(make_batch(cpu_percent, sampled_at=now), now), now)
    body = json.loads(snapshot.identity.body, parse_constant=pytest.fail)
    entries = body["data"]["NodeMetricsMap"]
    assert set(entries) == set(cpu_percent)
    assert all(math.isfinite(metric["value"]) for entry in entries.values() for metric in entry["metrics"])
    assert decode_watcher_metrics(snapshot.identity.body).timestamp == int(now)
