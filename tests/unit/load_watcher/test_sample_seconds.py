"""How long a sample measured, from the source to the wire: a property of each node's newest sample, unknown where nobody says it."""

import json
import math
from typing import Any

import msgspec
import numpy as np
import pytest

from load_watcher.last_good import LastGood, carry_over, merge
from load_watcher.providers.metrics_server import NodeMetricsItem, build_batch, parse_go_duration
from load_watcher.providers.nodes import NodeCapacity, NodeObject, NodeStatus, Resources
from load_watcher.providers.several import merge_batches
from load_watcher.quality import assess
from load_watcher.samples import FIFTEEN_MINUTES, SampleBatch
from load_watcher.snapshot import encode_snapshot
from tests.builders import NOW, make_batch

EXPIRED = 900.0
UNKNOWN = float("nan")


def batch(cpu: dict[str, float | None], *seconds: float, at: float | dict[str, float] = NOW, **fields: Any) -> SampleBatch:
    return make_batch(cpu, sampled_at=at, sample_seconds=np.array(seconds), **fields)


def put(previous: LastGood | None, new: SampleBatch, now: float = NOW) -> LastGood:
    return merge(previous, assess(new, now), now=now, expired_seconds=EXPIRED)


def seconds_of(good: LastGood) -> dict[str, float]:
    return {node: seconds for node, seconds in zip(good.nodes, good.sample_seconds.tolist(), strict=True) if not math.isnan(seconds)}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("20s", 20.0),
        ("10.062s", 10.062),
        ("1m0.5s", 60.5),
        ("1h2m3s", 3723.0),
        ("500ms", 0.5),
        ("1.5µs", 1.5e-6),
        ("250us", 2.5e-4),
        ("7ns", 7e-9),
        ("0s", 0.0),
    ],
)
def test_a_duration_as_go_prints_it(text: str, seconds: float) -> None:
    assert parse_go_duration(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    "text", ["", "20", "s", "-20s", "20 s", "20S", "1e3s", ".s", "nan", "infs", "20s!", "٢s", "9" * 400 + "s", None, 20, {}, "1m0.5"]
)
def test_other_text_is_unknown_and_no_error(text: object) -> None:
    assert math.isnan(parse_go_duration(text))


def test_metrics_server_says_it_of_each_node() -> None:
    items = [{"metadata": {"name": name}, "timestamp": "2024-01-01T00:00:00Z", "usage": {"cpu": "1"}} for name in ("a", "b", "c")]
    items[0]["window"], items[1]["window"] = "10.062s", "soon"
    capacities = dict.fromkeys("abc", NodeCapacity.of(NodeObject(status=NodeStatus(capacity=Resources(cpu="4")))))
    made = build_batch(capacities, msgspec.convert(items, list[NodeMetricsItem]))
    assert made.sample_seconds.tolist() == pytest.approx([10.062, UNKNOWN, UNKNOWN], nan_ok=True)
    assert made.latest["CPU"].tolist() == [25.0, 25.0, 25.0]


def test_it_goes_with_the_newest_sample() -> None:
    first = put(None, batch({"n1": 10.0, "n2": 20.0}, 20.0, 15.0))
    held = put(first, batch({"n1": 11.0, "n2": None}, 30.0, 99.0, at=NOW + 30), NOW + 30)
    assert seconds_of(held) == {"n1": 30.0, "n2": 15.0}
    older = put(held, batch({"n1": 12.0, "n2": 21.0}, 5.0, 5.0, at={"n1": NOW, "n2": NOW + 60}), NOW + 60)
    assert seconds_of(older) == {"n1": 30.0, "n2": 5.0}


def test_a_source_that_does_not_say_it_leaves_it_unknown() -> None:
    first = put(None, batch({"n1": 10.0}, 20.0))
    assert seconds_of(put(first, make_batch({"n1": 11.0}, sampled_at=NOW + 30), NOW + 30)) == {}


def test_it_expires_with_the_sample_and_leaves_with_the_node() -> None:
    good = put(None, batch({"n1": 10.0, "n2": 10.0}, 20.0, 20.0, at={"n1": NOW - 800, "n2": NOW}))
    assert seconds_of(carry_over(good, now=NOW + 200, expired_seconds=EXPIRED)) == {"n2": 20.0}
    assert seconds_of(put(good, batch({"n2": 11.0}, 10.0, at=NOW + 30), NOW + 30)) == {"n2": 10.0}


def test_the_wire_has_it_where_it_is_known() -> None:
    good = put(None, batch({"n1": 10.0, "n2": 20.0, "bare": None}, 10.0620000000001, UNKNOWN, 20.0))
    snapshot = encode_snapshot(good, now=NOW, stale_seconds=300, window=FIFTEEN_MINUTES)
    nodes = json.loads(snapshot.identity.body)["data"]["NodeMetricsMap"]
    assert nodes["n1"]["sampleSeconds"] == 10.062
    assert "sampleSeconds" not in nodes["n2"]
    assert "sampleSeconds" not in nodes["bare"]


def test_of_several_sources_that_of_the_newest_sample_counts() -> None:
    first = batch({"a": 1.0, "b": None, "c": 3.0}, 20.0, 20.0, 20.0)
    second = make_batch({"a": 5.0, "b": 6.0, "c": 7.0}, sampled_at=NOW - 10)
    third = batch({"a": None, "b": None, "c": None, "d": 8.0}, 1.0, 1.0, 1.0, 1.0)
    merged = merge_batches([first, second, third], source="several", now=NOW, fresh_seconds=300)
    assert dict(zip(merged.nodes, merged.sample_seconds.tolist(), strict=True)) == pytest.approx(
        {"a": 20.0, "b": UNKNOWN, "c": 20.0, "d": 1.0}, nan_ok=True
    )
