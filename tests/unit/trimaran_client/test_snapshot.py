"""Replies to columns."""

import json
import math
from typing import Any

import numpy as np
import pytest

from trimaran_client import LoadSnapshot, SnapshotDecodeError


def reply(nodes: dict[str, Any], **top: Any) -> str:
    return json.dumps(
        {"timestamp": 1700000007, "window": {"duration": "15m", "start": 1, "end": 1700000000}, "source": "s"}
        | top
        | {"data": {"NodeMetricsMap": nodes}}
    )


def cpu(value: float | None, operator: str = "AVG") -> dict[str, Any]:
    return {"type": "CPU", "operator": operator, "value": value}


def test_the_first_or_last_fitting_metric_in_reply_order_counts() -> None:
    metrics = [cpu(5, "STD"), cpu(30, "Latest"), cpu(20), {"type": "Memory", "operator": "AVG", "value": 70}]
    snapshot = LoadSnapshot.decode(reply({"n1": {"metrics": metrics}}))
    assert snapshot.column("CPU", ("AVG", "Latest")).tolist() == [20]
    assert snapshot.column("CPU", ("AVG", "Latest"), pick="first").tolist() == [30]
    assert snapshot.column("Memory", ("AVG",)).tolist() == [70]


def test_absent_is_not_zero() -> None:
    nodes = {
        "zero": {"metrics": [cpu(0)]},
        "null": {"metrics": [cpu(None)]},
        "none": {"metrics": []},
        "nothing": None,
        "other": {"metrics": [None]},
    }
    column = LoadSnapshot.decode(reply(nodes)).column("CPU", ("AVG",))
    assert column[0] == 0
    assert np.isnan(column[1:]).all()


def test_type_and_operator_are_case_sensitive() -> None:
    snapshot = LoadSnapshot.decode(reply({"n1": {"metrics": [{"type": "cpu", "operator": "AVG", "value": 1}, cpu(2, "avg")]}}))
    assert np.isnan(snapshot.column("CPU", ("AVG",))).all()


def test_capacity_comes_from_the_reply_and_what_does_not_parse_is_unknown() -> None:
    nodes = {"a": {"capacity": {"cpu": "8", "memory": "1Gi"}, "allocatable": {"cpu": "x"}}, "b": {"capacity": None}, "c": {}}
    snapshot = LoadSnapshot.decode(reply(nodes))
    assert snapshot.capacity.millicores[0] == 8000
    assert snapshot.capacity.bytes[0] == 2**30
    assert math.isnan(snapshot.allocatable.millicores[0])
    assert np.isnan(snapshot.capacity.millicores[1:]).all()


def test_a_node_was_measured_when_it_says_else_at_the_windows_end() -> None:
    """The Go load-watcher says one time for all; a node without a metric was never measured."""
    nodes = {"ours": {"metrics": [cpu(1)], "sampledAt": 1699999990}, "go": {"metrics": [cpu(1)]}, "none": {"metrics": []}}
    sampled_at = LoadSnapshot.decode(reply(nodes)).sampled_at
    assert sampled_at[:2].tolist() == [1699999990, 1700000000]
    assert math.isnan(sampled_at[2])


def test_nothing_in_a_snapshot_can_be_changed() -> None:
    snapshot = LoadSnapshot.decode(reply({"n1": {"metrics": [cpu(1)]}}))
    with pytest.raises(ValueError, match="read-only"):
        snapshot.column("CPU", ("AVG",))[0] = 2


@pytest.mark.parametrize(
    "body",
    [
        "",
        "<html>",
        "{",
        "null",
        "{}",
        "[]",
        '{"data": {}}',
        '{"data": {"nodeMetricsMap": {}}}',
        '{"data": {"NodeMetricsMap": {"n1": 5}}}',
        '{"data": {"NodeMetricsMap": {"n1": {"metrics": {}}}}}',
        '{"data": {"NodeMetricsMap": {"n1": {"metrics": [{"value": "5"}]}}}}',
        '{"data": {"NodeMetricsMap": {"n1": {"metrics": [{"value": NaN}]}}}}',
        '{"data": {"NodeMetricsMap": {"n1": {"metrics": [{"value": true}]}}}}',
        b"\xff\xfe",
    ],
)
def test_what_is_not_a_reply_is_one_clear_error(body: str | bytes) -> None:
    with pytest.raises(SnapshotDecodeError, match="not a load watcher's reply.*check the address"):
        LoadSnapshot.decode(body)


def test_an_empty_cluster_is_a_reply() -> None:
    assert LoadSnapshot.decode(reply({})).nodes == ()


@pytest.mark.parametrize("window", [None, {}, {"end": None}, {"end": 1700000000.7}])
def test_a_window_may_miss_or_have_a_fraction(window: dict[str, Any] | None) -> None:
    end_at = LoadSnapshot.decode(reply({"n1": {"metrics": [cpu(1)]}}, window=window)).window_end_at
    assert end_at == (1700000000 if window and window.get("end") else 0)
