"""The answer of ``GET /api/v1/snapshot`` to columns: the same as those of ``GET /watcher``."""

import json
import math
from typing import Any

import numpy as np
import pytest

from trimaran_client import LoadSnapshot, SnapshotDecodeError
from trimaran_client.snapshot import MetricSelector


def answer(**changes: Any) -> dict[str, Any]:
    quantities = {"cpu": ["8", None], "memory": ["1Gi", "x"]}
    return {
        "id": "5f0c",
        "madeAt": 1700000012,
        "source": "s",
        "windowEndAt": 1700000005,
        "nodes": ["n1", "n2"],
        "sampledAt": [1700000005.0, None],
        "sampleSeconds": [20.5, None],
        "statuses": ["ok", "no_metrics"],
        "capacity": quantities,
        "allocatable": quantities,
        "columns": [
            column("Latest", [30.0, None]),
            column("AVG", [0.0, None], "5m"),
            column("AVG", [20.0, 40.0], "15m"),
        ],
        "notHeld": [{"window": "30m", "reason": "held: 5m, 15m"}],
    } | changes


def column(statistic: str, values: list[Any], window: str = "", **more: Any) -> dict[str, Any]:
    return {"type": "CPU", "statistic": statistic, "window": window, "name": "", "values": values} | more


def decode(**changes: Any) -> LoadSnapshot:
    return LoadSnapshot.decode_columns(json.dumps(answer(**changes)))


def test_what_it_says_of_the_nodes() -> None:
    snapshot = decode()
    assert (snapshot.id, snapshot.source, snapshot.made_at, snapshot.window_end_at) == ("5f0c", "s", 1700000012, 1700000005)
    assert (snapshot.nodes, snapshot.statuses) == (("n1", "n2"), ("ok", "no_metrics"))
    assert snapshot.sampled_at.tolist() == pytest.approx([1700000005, math.nan], nan_ok=True)
    assert snapshot.sample_seconds.tolist() == pytest.approx([20.5, math.nan], nan_ok=True)
    assert snapshot.capacity.millicores.tolist() == pytest.approx([8000, math.nan], nan_ok=True)
    assert snapshot.allocatable.bytes.tolist() == pytest.approx([2**30, math.nan], nan_ok=True)


def test_metrics_stand_in_the_order_of_the_columns() -> None:
    snapshot = decode()
    assert snapshot.column("CPU", ("Latest", "AVG")).tolist() == [20.0, 40.0]
    assert snapshot.column("CPU", ("Latest", "AVG"), pick="first").tolist() == [30.0, 40.0]
    assert snapshot.select(MetricSelector("CPU", ("AVG",), "5m")).values.tolist() == pytest.approx([0.0, math.nan], nan_ok=True)


def test_report_32_a_window_that_is_not_held_gives_no_data_and_says_which_are() -> None:
    snapshot = decode()
    assert np.isnan(snapshot.select(MetricSelector("CPU", ("AVG",), "30m")).values).all()
    assert snapshot.not_held == {"30m": "held: 5m, 15m"}


def test_units_and_sources_belong_to_each_value() -> None:
    columns = [column("Latest", [1.0, 2.0], unit="watts", sources=["a", "b"]), column("AVG", [None, 3.0], "5m", sources=[None, "a"])]
    table = decode(columns=columns).metrics
    assert [table.source_names[code] for code in table.sources] == ["a", "b", "a"]
    assert [table.key_names[code].unit for code in table.keys] == ["watts", "watts", ""]


def test_a_cluster_without_nodes_is_empty() -> None:
    none: dict[str, list[Any]] = {"cpu": [], "memory": []}
    snapshot = decode(nodes=[], sampledAt=[], sampleSeconds=[], statuses=[], capacity=none, allocatable=none, columns=[], windowEndAt=0)
    assert snapshot.nodes == ()
    assert snapshot.column("CPU", ("AVG",)).tolist() == []


def test_nothing_of_it_can_be_changed() -> None:
    snapshot = decode()
    for each in (snapshot.sampled_at, snapshot.sample_seconds, snapshot.metrics.values, snapshot.column("CPU", ("AVG",))):
        with pytest.raises(ValueError, match="read-only"):
            each[0] = 1


@pytest.mark.parametrize(
    "changes",
    [
        {"nodes": ["n1"]},
        {"nodes": ["n1", "n1"]},
        {"sampledAt": [1.0]},
        {"sampleSeconds": [1.0, 2.0, 3.0]},
        {"statuses": []},
        {"capacity": {"cpu": ["8"], "memory": [None, None]}},
        {"allocatable": {"cpu": ["8", "8"], "memory": []}},
        {"columns": [column("AVG", [1.0], "5m")]},
        {"columns": [column("AVG", [1.0, 2.0], "5m", sources=["a"])]},
    ],
)
def test_columns_that_disagree_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(SnapshotDecodeError, match="one entry for each node; check the address"):
        decode(**changes)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"{}",
        b"<html>",
        b"\xff",
        json.dumps(answer())[:-1],
        json.dumps(answer(columns=[column("AVG", ["1", 2.0])])),
        json.dumps(answer(nodes=[None, "n2"])),
        json.dumps(answer(nodes={"n1": 0, "n2": 1})),
        json.dumps(answer(capacity={"cpu": ["8", "8"]})),
        json.dumps(answer(allocatable={"cpu": [8, 8], "memory": [None, None]})),
        json.dumps(answer()).encode().replace(b'"n1"', b'"\xff"'),
        json.dumps(answer(madeAt=10**400)),
        json.dumps(answer(columns=None)),
        b"[" * 100_000,
        b'{"data":{"NodeMetricsMap":{}}}',
    ],
)
def test_another_body_is_an_error_of_ours(body: bytes | str) -> None:
    with pytest.raises(SnapshotDecodeError, match="check the address"):
        LoadSnapshot.decode_columns(body)


def test_what_a_reply_repeats_of_another_is_read_once_and_what_it_does_not_anew() -> None:
    first, same = decode(), decode(id="5f0d", columns=[column("AVG", [1.0, 2.0], "5m")])
    assert same.capacity is first.capacity
    assert same.rows is first.rows
    assert same.column("CPU", ("AVG",)).tolist() == [1.0, 2.0]
    other = decode(nodes=["n1", "n3"], capacity={"cpu": ["4", "8"], "memory": [None, None]})
    assert (other.nodes, dict(other.rows), other.capacity.millicores.tolist()) == (("n1", "n3"), {"n1": 0, "n3": 1}, [4000, 8000])
    assert first.nodes == ("n1", "n2")


def test_a_reply_of_the_watcher_has_no_id() -> None:
    assert LoadSnapshot.decode(b'{"data":{"NodeMetricsMap":{}}}').id == ""
    assert LoadSnapshot.empty().id == ""
