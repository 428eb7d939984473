import random
from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest

from load_watcher.providers.catalogue import HOST_LABELS, CatalogueMetric, Expression
from load_watcher.providers.nodes import NodeCapacity, NodeResolver, Resources
from load_watcher.providers.prometheus_batch import TIMES, ChosenMetric, Column, Identity, JoinedBatch, build_batch
from load_watcher.samples import FIFTEEN_MINUTES, NodeInfo
from tests.builders import NOW
from tests.prometheus_replies import make_reply
from trimaran_client.wire import ResourceQuantities

Series = tuple[Mapping[str, str], str]

LABELS = ("mine", *HOST_LABELS)
NEWEST, AVERAGE, DATES = Column("m", "Latest"), Column("m", "AVG", FIFTEEN_MINUTES), Column("m", TIMES)


def join(
    *series: Series,
    column: Column = NEWEST,
    others: Mapping[Column, list[Series]] | None = None,
    nodes: Mapping[str, tuple[str, ...]] | None = None,
    cores: float | None = 4,
    metric_type: str = "CPU",
    unit: str = "ratio",
    chosen_labels: tuple[str, ...] = (),
    operators: tuple[str, ...] = ("Latest", "AVG", "STD"),
    suffix: str = "",
    go_scaling: bool = False,
) -> JoinedBatch:
    """Join the series of one metric; *nodes* maps names to addresses, and without it the nodes are not known."""
    by_column = {column: list(series), **(others or {})}
    columns = {f"part{number}": each for number, each in enumerate(by_column)}
    printed = [(key, labels, value) for key, each in columns.items() for labels, value in by_column[each]]
    amounts = {} if cores is None else {"CPU": int(cores * 1000), "Memory": 2**30}
    info = NodeInfo(ResourceQuantities(), ResourceQuantities())
    expression = Expression("query", unit, "rule")
    return build_batch(
        [make_reply(printed, LABELS)],
        columns,
        {"m": ChosenMetric(CatalogueMetric("m", metric_type, operators, (expression,)), expression)},
        identity=Identity(LABELS, chosen_labels, NodeResolver(nodes, suffix=suffix)),
        capacities=None if nodes is None else {name: NodeCapacity(amounts, Resources(), info) for name in nodes},
        evaluated_at=NOW,
        go_scaling=go_scaling,
    )


def values(joined: JoinedBatch, metric_type: str = "CPU") -> dict[str, float]:
    """Answer the newest values that are there."""
    column = joined.batch.latest[metric_type]
    return {node: value for node, value in zip(joined.batch.nodes, column.tolist(), strict=True) if value == value}


def rules(joined: JoinedBatch) -> dict[str, int]:
    return Counter(rejection.rule for rejection in joined.batch.rejections)


N1 = {"instance": "n1"}


@pytest.mark.parametrize("labels", [{"node": "debian-fish", "instance": "10.0.0.15:12345"}, {"instance": "debian-fish"}])
@pytest.mark.parametrize("nodes", [None, {"debian-fish": ("10.0.0.15",)}])
def test_report_2_the_node_is_found_whichever_label_holds_it(labels: dict[str, str], nodes: dict[str, tuple[str, ...]] | None) -> None:
    assert values(join((labels, "0.42"), nodes=nodes)) == {"debian-fish": 42.0}


@pytest.mark.parametrize("address", ["10.0.0.1:9100", "[fd00::1]:9100"])
def test_report_1_an_address_becomes_the_node_name(address: str) -> None:
    joined = join(({"instance": address}, "0.42"), nodes={"worker-1": ("10.0.0.1", "fd00::1"), "worker-2": ()})
    assert values(joined) == {"worker-1": 42.0}
    assert joined.batch.nodes == ("worker-1", "worker-2")
    assert joined.batch.members_known


def test_report_1_an_address_that_nothing_resolves_is_served_and_said_to_be_one() -> None:
    joined = join(({"instance": "10.0.0.1:9100"}, "0.42"), ({"instance": "[fd00::1]:9100"}, "0.5"), ({"node": "n1"}, "0.6"))
    assert values(joined) == {"10.0.0.1": 42.0, "fd00::1": 50.0, "n1": 60.0}
    assert joined.joins["m"].addresses == 2
    assert not joined.batch.members_known


def test_report_1_series_that_name_no_node_are_counted_with_samples_of_their_labels() -> None:
    strangers = [({"instance": f"10.9.9.{number}:9100"}, "0.5") for number in range(10)]
    joined = join((N1, "0.5"), *strangers, nodes={"n1": ()})
    assert values(joined) == {"n1": 50.0}
    assert rules(joined) == {"unknown_node": 10}
    assert joined.joins["m"].unmatched == 10
    assert joined.joins["m"].examples == tuple(f'{{instance="10.9.9.{number}:9100"}}' for number in range(3))
    assert joined.batch.rejections[0].detail == 'no label names a node: {instance="10.9.9.0:9100"}'


def test_labels_that_name_different_nodes_are_refused_unless_the_user_chose_one() -> None:
    labels = {"node": "n1", "instance": "10.0.0.2:9100"}
    nodes: dict[str, tuple[str, ...]] = {"n1": (), "n2": ("10.0.0.2",)}
    joined = join((labels, "0.5"), nodes=nodes)
    assert (values(joined), rules(joined)) == ({}, {"ambiguous_host": 1})
    assert "node names n1, instance names n2; set LOAD_WATCHER_HOST_LABEL" in joined.batch.rejections[0].detail
    assert values(join((labels, "0.5"), nodes=nodes, chosen_labels=("instance",))) == {"n2": 50.0}


def test_the_chosen_label_decides_alone_where_a_series_has_it() -> None:
    nodes: dict[str, tuple[str, ...]] = {"n1": (), "n2": ()}
    joined = join(({"mine": "gone", "node": "n1"}, "0.5"), ({"node": "n2"}, "0.4"), nodes=nodes, chosen_labels=("mine",))
    assert (values(joined), rules(joined)) == ({"n2": 40.0}, {"unknown_node": 1})


@pytest.mark.parametrize("labels", [{"exported_instance": "n1", "instance": "n2"}, {"instance": "n1"}])
def test_report_12_energy_with_and_without_exported_instance(labels: dict[str, str]) -> None:
    # 1000 to 1600 joules in 60 s are 10 W.
    joined = join((labels, "10"), metric_type="Energy", unit="watts", nodes={"n1": (), "n2": ()})
    assert values(joined, "Energy") == {"n1": 10.0}
    assert joined.batch.units == {"Energy": "watts"}


@pytest.mark.parametrize("order", [1, -1])
def test_of_a_highly_available_pair_the_higher_finite_value_counts(order: int) -> None:
    series = [(N1, "0.4"), (N1, "NaN"), (N1, "0.5"), (N1, "+Inf"), (N1, "-0.1")]
    joined = join(*series[::order])
    assert values(joined) == {"n1": 50.0}
    assert rules(joined) == {"not_finite": 2}


@pytest.mark.parametrize("order", [1, -1])
def test_report_96_of_several_disks_the_busiest_counts(order: int) -> None:
    joined = join(*[({"instance": "n1"}, "0.1"), ({"instance": "n1"}, "0.9")][::order], metric_type="Storage")
    assert values(joined, "Storage") == {"n1": 90.0}


@pytest.mark.parametrize(
    ("text", "rule"), [("NaN", "not_finite"), ("+Inf", "not_finite"), ("abc", "unreadable"), ("", "unreadable"), ("1_0", "unreadable")]
)
def test_report_16_19_a_value_that_is_none_is_dropped_and_counted(text: str, rule: str) -> None:
    joined = join((N1, text), ({"instance": "n3"}, "0.3"))
    assert values(joined) == {"n3": 30.0}
    assert rules(joined) == {rule: 1}
    assert np.isnan(joined.batch.sampled_at).tolist() == [True, False]


def test_report_7_a_node_that_the_list_lacks_is_left_out() -> None:
    joined = join((N1, "0.5"), others={AVERAGE: [(N1, "0.5"), ({"instance": "gone-1"}, "0.4")]}, nodes={"n1": ()})
    assert joined.batch.nodes == ("n1",)


@pytest.mark.parametrize("nodes", [None, {"n1": (), "gone-1": ()}])
def test_report_7_averages_of_what_has_no_newest_value_are_left_out(nodes: dict[str, tuple[str, ...]] | None) -> None:
    joined = join((N1, "0.5"), others={AVERAGE: [(N1, "0.5"), ({"instance": "gone-1"}, "0.4")]}, nodes=nodes)
    (average,) = joined.batch.aggregates
    assert dict(zip(joined.batch.nodes, np.isnan(average.values).tolist(), strict=True)) == {"gone-1": True, "n1": False}
    assert rules(joined) == {"vanished": 1}


def test_averages_alone_stay_where_no_newest_values_are_asked_for() -> None:
    joined = join((N1, "0.5"), column=AVERAGE, operators=("AVG",))
    assert joined.batch.aggregates[0].values.tolist() == [50.0]
    assert joined.batch.sampled_at.tolist() == [NOW]


def test_a_value_is_dated_by_its_own_sample_and_never_later_than_the_query() -> None:
    dates: list[Series] = [(N1, str(NOW - 40)), ({"instance": "n2"}, str(NOW + 5))]
    joined = join((N1, "0.5"), ({"instance": "n2"}, "0.5"), ({"instance": "n3"}, "0.5"), others={DATES: dates})
    assert joined.batch.sampled_at.tolist() == [NOW - 40, NOW, NOW]


@pytest.mark.parametrize(
    ("metric_type", "unit", "text", "served", "served_unit"),
    [
        ("CPU", "ratio", "0.29", 28.999999999999996, "percent"),
        ("CPU", "percent", "29", 29.0, "percent"),
        ("CPU", "cores", "1", 25.0, "percent"),
        ("Memory", "bytes", str(2**28), 25.0, "percent"),
        ("Storage", "bytes", "1000", 1000.0, "bytes"),
        ("Bandwidth", "bits_per_second", "8000", 1000.0, "bytes_per_second"),
        ("Energy", "microwatts", "2500000", 2.5, "watts"),
    ],
)
def test_values_are_converted_by_their_unit(metric_type: str, unit: str, text: str, served: float, served_unit: str) -> None:
    joined = join((N1, text), nodes={"n1": ()}, metric_type=metric_type, unit=unit)
    assert values(joined, metric_type) == pytest.approx({"n1": served}, rel=1e-15)
    assert joined.batch.units == {metric_type: served_unit}


@pytest.mark.parametrize(("nodes", "cores"), [(None, 4), ({"n1": ()}, None)])
def test_cores_of_a_node_of_unknown_capacity_are_refused_not_called_percent(
    nodes: dict[str, tuple[str, ...]] | None, cores: float | None
) -> None:
    joined = join((N1, "1"), nodes=nodes, cores=cores, unit="cores")
    assert (values(joined), rules(joined)) == ({}, {"capacity_unknown": 1})


@pytest.mark.parametrize(("unit", "served_unit"), [("ratio", "percent"), ("bytes_per_second", "bytes_per_second*100")])
def test_go_scaling_multiplies_everything_and_says_so(unit: str, served_unit: str) -> None:
    joined = join((N1, "3"), unit=unit, go_scaling=True, metric_type="Bandwidth")
    assert (values(joined, "Bandwidth"), joined.batch.units) == ({"n1": 300.0}, {"Bandwidth": served_unit})


def test_hosts_that_guessing_would_make_one_node_are_refused_and_named() -> None:
    nodes: dict[str, tuple[str, ...]] = {"n1.example.org": ()}
    joined = join(({"instance": "n1"}, "0.5"), ({"instance": "N1"}, "0.4"), nodes=nodes)
    assert (values(joined), rules(joined)) == ({}, {"ambiguous_host": 2})
    assert joined.batch.rejections[0].detail == "the hosts N1, n1 would be the node n1.example.org"


def test_a_full_name_counts_before_a_guess() -> None:
    nodes: dict[str, tuple[str, ...]] = {"n1.example.org": ()}
    joined = join(({"instance": "n1"}, "0.9"), ({"instance": "n1.example.org"}, "0.4"), nodes=nodes)
    assert (values(joined), rules(joined)) == ({"n1.example.org": 40.0}, {"ambiguous_host": 1})


def test_the_order_of_the_series_makes_no_difference() -> None:
    generator = random.Random(1)  # noqa: S311 - a test
    series = [
        ({label: host}, str(generator.random()))
        for host in ("n1", "n1:9100", "10.0.0.1:9100", "n2", "stranger", "n3.a", "n3.b")
        for label in ("node", "instance")
    ]
    nodes: dict[str, tuple[str, ...]] = {"n1": ("10.0.0.1",), "n2.example.org": (), "n3": ()}
    first = join(*series, nodes=nodes)
    for _ in range(20):
        generator.shuffle(series)
        again = join(*series, nodes=nodes)
        assert values(again) == values(first)
        assert (again.batch.rejections, again.joins) == (first.batch.rejections, first.joins)
