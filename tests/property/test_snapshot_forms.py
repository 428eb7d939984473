"""A published snapshot says the same in both forms: node by node (``/watcher``) and in columns (``/api/v1/snapshot``)."""

import itertools
import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from load_watcher.history.window import SampleRing
from load_watcher.last_good import ColumnKey, LastGood, merge
from load_watcher.quality import assess
from load_watcher.samples import FIFTEEN_MINUTES, FIVE_MINUTES, TEN_MINUTES, Aggregate, NodeInfo, SampleBatch, Window
from load_watcher.snapshot import Choice, build_columns, encode_snapshot, find_withheld
from tests.builders import NOW, make_batch
from trimaran_client import LoadSnapshot
from trimaran_client.snapshot import MetricSelector, Pick
from trimaran_client.wire import AVERAGE, STANDARD_DEVIATION, ResourceQuantities, encode_json

NODES = ("n1", "n2", "n3")
EXPIRED = 900.0
OPERATORS = ("Latest", "AVG", "STD", "P90")
PICKS: tuple[Pick, ...] = ("first", "last")

values = st.none() | st.floats(0, 100, allow_nan=False)
rows = st.lists(values, min_size=len(NODES), max_size=len(NODES))
windows = st.sampled_from([None, FIVE_MINUTES, TEN_MINUTES, FIFTEEN_MINUTES])
aggregates = st.builds(
    lambda kind, operator, window, row, origins: Aggregate(
        f"{kind} {operator}", kind, operator, window, np.array(row, dtype=np.float64), origins=("a", "b", "a") if origins else ()
    ),
    kind=st.sampled_from(["CPU", "Memory", "power"]),
    operator=st.sampled_from(["AVG", "STD", "P90"]),
    window=windows,
    row=rows,
    origins=st.booleans(),
)
choices = st.builds(
    Choice.of,
    st.lists(st.sampled_from([FIVE_MINUTES, TEN_MINUTES, FIFTEEN_MINUTES])),
    st.lists(st.sampled_from(["AVG", "STD", "P90"])),
)
infos = st.sampled_from([None, NodeInfo(ResourceQuantities("8", "32Gi"), ResourceQuantities("7910m"))])


@st.composite
def batches(draw: st.DrawFn) -> list[SampleBatch]:
    """Refreshes one to five minutes apart; the samples of a node may be older than the refresh."""
    made, at = [], NOW
    listed = draw(st.lists(aggregates, max_size=4, unique_by=lambda each: (each.metric_type, each.operator, each.window)))
    for _ in range(draw(st.integers(1, 8))):
        at += draw(st.sampled_from([60, 150, 300]))
        cpu, memory = draw(rows), draw(rows)
        made.append(
            make_batch(
                dict(zip(NODES, cpu, strict=True)),
                memory_percent=dict(zip(NODES, memory, strict=True)),
                sampled_at={node: at - draw(st.sampled_from([0.0, 7.5, 400.0])) for node in NODES},
                aggregates=tuple(listed),
                infos=tuple(draw(infos) for _ in NODES),
                sample_seconds=np.array([draw(st.sampled_from([20.0, 10.062, np.nan])) for _ in NODES]),
                units=draw(st.sampled_from([{}, {"CPU": "percent"}, {"Memory": "bytes"}])),
                origins=draw(st.sampled_from([{}, {"CPU": ("a", "b", "a")}])),
            )
        )
    return made


def serve(refreshes: list[SampleBatch]) -> tuple[LastGood, SampleRing, float]:
    """Answer what is held after these refreshes, and the time."""
    ring, good, now = SampleRing(), None, NOW
    for batch in refreshes:
        now = float(np.nanmax(np.append(batch.sampled_at, now)))
        report = assess(batch, now)
        ring.append(report.batch)
        good = merge(good, report, now=now, expired_seconds=EXPIRED)
    assert good is not None
    return good, ring, now


@given(batches(), st.booleans(), choices)
def test_both_forms_say_the_same(refreshes: list[SampleBatch], quarantine: bool, choice: Choice) -> None:
    by_node, by_metric = both_forms(*serve(refreshes), {"n2": "not trusted"} if quarantine else {}, choice)
    assert (by_node.source, by_node.made_at, by_node.window_end_at) == (by_metric.source, by_metric.made_at, by_metric.window_end_at)
    assert (by_node.nodes, by_node.statuses) == (by_metric.nodes, by_metric.statuses)
    for name in ("sampled_at", "sample_seconds"):
        np.testing.assert_array_equal(getattr(by_node, name), getattr(by_metric, name))
    for name in ("capacity", "allocatable"):
        np.testing.assert_array_equal(getattr(by_node, name).millicores, getattr(by_metric, name).millicores)
        np.testing.assert_array_equal(getattr(by_node, name).bytes, getattr(by_metric, name).bytes)
    assert set(by_node.metrics.key_names) == set(by_metric.metrics.key_names)
    for kind, size, pick in itertools.product(("CPU", "Memory", "power"), (1, 2, 4), PICKS):
        for operators in itertools.combinations(OPERATORS, size):
            first, second = (each.select(MetricSelector(kind, operators, pick=pick)).values for each in (by_node, by_metric))
            np.testing.assert_array_equal(first, second)
    assert said(by_node) == said(by_metric)


def both_forms(
    good: LastGood, ring: SampleRing, now: float, quarantined: dict[str, str], choice: Choice
) -> tuple[LoadSnapshot, LoadSnapshot]:
    withheld = find_withheld(good, now=now, expired_seconds=EXPIRED, quarantined=quarantined)
    averages = () if ring.newest_at is None else ring.aggregate((AVERAGE, STANDARD_DEVIATION), end_at=ring.newest_at, nodes=good.nodes)
    averaged = {key.metric_type for key in good.columns if key.window is not None}
    own = [each for each in averages if each.metric_type not in averaged]
    snapshot = encode_snapshot(good, now=now, stale_seconds=300, window=FIFTEEN_MINUTES, choice=choice, aggregates=own, withheld=withheld)
    columns = build_columns(good, choice, snapshot_id=snapshot.id, now=now, stale_seconds=300, aggregates=own, withheld=withheld)
    body = encode_json(columns)
    assert json.loads(body)["id"] == snapshot.id
    return LoadSnapshot.decode(snapshot.identity.body), LoadSnapshot.decode_columns(body)


@given(batches())
def test_of_what_the_source_averaged_each_metric_of_a_node_has_the_longest_window(refreshes: list[SampleBatch]) -> None:
    """Of all that is there when every window is asked for, that one and no other."""
    good, _, _ = serve(refreshes)
    every = Choice.of((FIVE_MINUTES, TEN_MINUTES, FIFTEEN_MINUTES), ()).take(good)
    longest: dict[tuple[ColumnKey, int], tuple[Window, float]] = {}
    for key in sorted((key for key in every if key.window is not None), key=lambda key: key.window or Window(0)):
        assert key.window is not None
        for row in np.flatnonzero(~np.isnan(every[key])).tolist():
            longest[key._replace(window=None), row] = key.window, every[key][row]
    usual = Choice().take(good)
    served = [
        ((key._replace(window=None), row), (key.window, values[row]))
        for key, values in usual.items()
        if key.window is not None
        for row in np.flatnonzero(~np.isnan(values)).tolist()
    ]
    assert len(served) == len(longest)
    assert dict(served) == longest
    assert {key for key in usual if key.window is None} == {key for key in good.columns if key.window is None}


def said(snapshot: LoadSnapshot) -> list[list[object]]:
    """Answer for each node every metric in order, with what it is and which source it is from."""
    table = snapshot.metrics
    listed: list[list[object]] = [[] for _ in snapshot.nodes]
    for row, key, value, source in zip(table.rows, table.keys, table.values, table.sources, strict=True):
        listed[row].append((table.key_names[key], float(value), table.source_names[source]))
    return listed
