"""Points into a batch: which count, which metric serves a node, and what the averages cover."""

import numpy as np
import pytest

from load_watcher.providers.nodes import NodeResolver
from load_watcher.providers.points import MAX_PERCENT, NodeView, PointTable, build_batch, list_windows
from load_watcher.quality import QualityLimits
from load_watcher.samples import FIFTEEN_MINUTES, FIVE_MINUTES, NodeInfo, SampleBatch, Window
from tests.builders import NOW
from trimaran_client.wire import AVERAGE, CPU, MEMORY, STANDARD_DEVIATION, ResourceQuantities

ANY_NODES = NodeView(NodeResolver(None))
GAP = float("nan")


def make_table(rows: dict[str, list[float]], *, metric_type: str = CPU, name: str = "m", end_at: float = NOW) -> PointTable:
    """Make a table of a point a minute, the last one at *end_at*."""
    count = max(len(values) for values in rows.values())
    values = np.array([[GAP] * (count - len(points)) + points for points in rows.values()])
    return PointTable(metric_type, name, tuple(rows), end_at - 60 * np.arange(count, dtype=np.float64)[::-1], values)


def build(*tables: PointTable, window: Window = FIFTEEN_MINUTES, view: NodeView = ANY_NODES) -> SampleBatch:
    return build_batch("test", tables, window=window, end_at=NOW, view=view)


def column(batch: SampleBatch, operator: str, window: Window, name: str = "m") -> list[float]:
    [found] = [item for item in batch.aggregates if (item.operator, item.window, item.name) == (operator, window, name)]
    return [float(value) for value in found.values]


def averages(batch: SampleBatch, window: Window) -> list[float]:
    """Answer the average of each node, whichever table it is from."""
    columns = [item.values for item in batch.aggregates if (item.operator, item.window) == (AVERAGE, window)]
    return [next((float(values[row]) for values in columns if not np.isnan(values[row])), GAP) for row in range(len(batch.nodes))]


def rules(batch: SampleBatch) -> list[tuple[str, str, str]]:
    return [(rejection.node, rejection.metric_type, rejection.rule) for rejection in batch.rejections]


@pytest.mark.parametrize(
    ("points", "latest", "average", "deviation"),
    [
        ([5.8, GAP, 6.2], 6.2, 6.0, 0.2),
        ([GAP, GAP], GAP, GAP, GAP),
        ([6.0], 6.0, 6.0, GAP),  # of a single point nothing is known of how it varies
        ([6.0, 6.0], 6.0, 6.0, 0.0),
        ([0.0, 0.0], 0.0, 0.0, 0.0),
        ([8.0, GAP], 8.0, 8.0, GAP),
    ],
)
def test_report_24_only_real_points_count(points: list[float], latest: float, average: float, deviation: float) -> None:
    batch = build(make_table({"n1": points, "other": [1.0, 2.0, 3.0]}))
    row = batch.nodes.index("n1")
    actual = [batch.latest[CPU][row], column(batch, AVERAGE, FIFTEEN_MINUTES)[row], column(batch, STANDARD_DEVIATION, FIFTEEN_MINUTES)[row]]
    np.testing.assert_allclose(actual, [latest, average, deviation])


def test_no_tables_and_no_points_are_no_data() -> None:
    assert build().nodes == ()
    empty = PointTable(CPU, "m", ("n1",), np.array([]), np.empty((1, 0)))
    batch = build(empty)
    assert batch.nodes == ("n1",)
    assert np.isnan([*batch.latest[CPU], *batch.sampled_at]).all()
    assert batch.aggregates == ()


def test_a_window_covers_what_was_measured_in_it() -> None:
    """A node whose last point is eight minutes old has no average over five minutes, and says how old it is."""
    batch = build(make_table({"n1": [30.0, 10.0], "n2": [50.0]}, end_at=NOW - 480), make_table({"n3": [float(n) for n in range(20)]}))
    # Fifteen points are less than fifteen minutes old: 5 to 19; five: 15 to 19.
    np.testing.assert_allclose(averages(batch, FIFTEEN_MINUTES), [20.0, 50.0, 12.0])
    np.testing.assert_allclose(averages(batch, FIVE_MINUTES), [GAP, GAP, 17.0])
    assert batch.sampled_at.tolist() == [NOW - 480, NOW - 480, NOW]


def test_shorter_windows_come_along() -> None:
    assert [str(window) for window in list_windows(Window.parse("1h"))] == ["1h", "10m", "5m"]
    assert [str(window) for window in list_windows(FIVE_MINUTES)] == ["5m"]
    assert [str(window) for window in list_windows(Window.parse("90s"))] == ["90s"]


def test_report_16_points_that_cannot_be_do_not_count_and_are_named() -> None:
    batch = build(make_table({"n1": [10.0, float("inf"), -2.0, -3.0, 20.0, 1e12]}))
    assert column(batch, AVERAGE, FIFTEEN_MINUTES) == [15.0]
    assert (batch.latest[CPU].tolist(), batch.sampled_at.tolist()) == ([20.0], [NOW - 60])
    assert [(rejection.rule, rejection.detail) for rejection in batch.rejections] == [
        ("not_finite", "1 of 6 points, the last inf"),
        ("negative", "2 of 6 points, the last -3"),
        ("over_capacity", "1 of 6 points, the last 1e+12"),
    ]


def test_the_limit_is_that_of_the_quality_stage() -> None:
    assert QualityLimits().max_percent == MAX_PERCENT


def test_the_first_table_with_a_current_point_serves_a_node() -> None:
    preferred = make_table({"n1": [10.0], "n2": [GAP]}, name="preferred")
    other = make_table({"n1": [90.0], "n2": [20.0]}, name="other")
    batch = build(preferred, other)
    assert batch.latest[CPU].tolist() == [10.0, 20.0]
    np.testing.assert_allclose(column(batch, AVERAGE, FIVE_MINUTES, "preferred"), [10.0, GAP])
    np.testing.assert_allclose(column(batch, AVERAGE, FIVE_MINUTES, "other"), [GAP, 20.0])


@pytest.mark.parametrize(("late_seconds", "served"), [(120, [10.0]), (121, [20.0])])
def test_a_preferred_metric_that_stopped_gives_way(late_seconds: float, served: list[float]) -> None:
    batch = build(make_table({"n1": [10.0]}, name="preferred", end_at=NOW - late_seconds), make_table({"n1": [20.0]}, name="other"))
    assert batch.latest[CPU].tolist() == served
    assert batch.rejections == ()


@pytest.mark.parametrize("late_seconds", [60, 600])
def test_a_metric_that_stopped_is_not_served_as_if_it_were_new(late_seconds: float) -> None:
    batch = build(make_table({"n1": [10.0]}), make_table({"n1": [50.0]}, metric_type=MEMORY, end_at=NOW - late_seconds))
    if late_seconds == 60:
        assert (batch.latest[MEMORY].tolist(), batch.sampled_at.tolist(), batch.rejections) == ([50.0], [NOW - 60], ())
        return
    assert np.isnan(batch.latest[MEMORY]).all()
    assert batch.sampled_at.tolist() == [NOW]
    assert {item.metric_type for item in batch.aggregates} == {CPU}
    assert rules(batch) == [("n1", MEMORY, "lagging")]
    assert "600 s older" in batch.rejections[0].detail


def test_hosts_that_would_be_one_node_are_refused() -> None:
    table = make_table({"a": [1.0], "a.example.org": [2.0], "b.example.org": [3.0]})
    batch = build(table, view=NodeView(NodeResolver(None, suffix=".example.org")))
    assert batch.nodes == ("a", "b")
    np.testing.assert_allclose(batch.latest[CPU], [GAP, 3.0])
    assert rules(batch) == [("a", CPU, "ambiguous_host")] * 2


def test_differs_from_upstream_dots_in_node_names_stay() -> None:
    assert build(make_table({"ip-10-0-0-1.ec2.internal": [1.0]})).nodes == ("ip-10-0-0-1.ec2.internal",)


def test_two_series_of_one_host_are_refused_in_either_order() -> None:
    for values in ([[1.0], [2.0]], [[2.0], [1.0]]):
        batch = build(PointTable(CPU, "m", ("a", "a"), np.array([NOW]), np.array(values)))
        assert np.isnan(batch.latest[CPU]).all()
        assert rules(batch) == [("a", CPU, "ambiguous_host")] * 2


def test_report_7_with_a_node_list_its_nodes_are_the_rows() -> None:
    """Hosts join by name, address, suffix or short name; what is no node, or is gone, is left out and named."""
    info = NodeInfo(ResourceQuantities("4", "8Gi"), ResourceQuantities("4", "8Gi"))
    addresses = {"w1": (), "w2": ("10.0.0.2",), "w3": (), "w4.internal": (), "idle": ()}
    view = NodeView(NodeResolver(addresses, suffix="-blue"), dict.fromkeys(addresses, info))
    batch = build(make_table({"w1": [1.0], "10.0.0.2": [2.0], "w3-blue": [3.0], "w4": [4.0], "gone-1": [5.0]}), view=view)
    assert batch.nodes == ("idle", "w1", "w2", "w3", "w4.internal")
    np.testing.assert_allclose(batch.latest[CPU], [GAP, 1.0, 2.0, 3.0, 4.0])
    assert rules(batch) == [("gone-1", CPU, "unknown_node")]
    assert batch.members_known
    assert batch.infos == (info,) * 5


def test_the_surer_of_two_hosts_of_a_node_counts() -> None:
    view = NodeView(NodeResolver({"w1": ()}, suffix="-blue"), {"w1": NodeInfo(ResourceQuantities(), ResourceQuantities())})
    batch = build(make_table({"w1-blue": [9.0], "w1": [1.0]}), view=view)
    assert batch.latest[CPU].tolist() == [1.0]
    assert rules(batch) == [("w1", CPU, "ambiguous_host")]
