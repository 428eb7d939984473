import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from load_watcher.last_good import ColumnKey, LastGood, carry_over, merge
from load_watcher.quality import assess
from load_watcher.samples import FIFTEEN_MINUTES, Aggregate, NodeInfo, SampleBatch
from tests.builders import NOW, make_batch
from trimaran_client.wire import ResourceQuantities

EXPIRED = 900.0
CPU = ColumnKey("CPU", "Latest", None, "")
MEMORY = ColumnKey("Memory", "Latest", None, "")


def put(previous: LastGood | None, batch: SampleBatch, now: float = NOW) -> LastGood:
    return merge(previous, assess(batch, now), now=now, expired_seconds=EXPIRED)


def values(good: LastGood, key: ColumnKey = CPU) -> dict[str, float]:
    if key not in good.columns:
        return {}
    column = good.columns[key].values.tolist()
    return {node: value for node, value in zip(good.nodes, column, strict=True) if value == value}


def late(good: LastGood, key: ColumnKey = CPU) -> set[str]:
    column = good.columns[key]
    return {node for node, value, is_new in zip(good.nodes, column.values, column.is_new, strict=True) if value == value and not is_new}


def test_a_new_value_replaces_the_held_one() -> None:
    good = put(put(None, make_batch({"n1": 10.0})), make_batch({"n1": 20.0}, sampled_at=NOW + 30), NOW + 30)
    assert values(good) == {"n1": 20.0}
    assert late(good) == set()


def test_an_absent_value_is_held_with_its_own_time() -> None:
    first = put(None, make_batch({"n1": 10.0, "n2": 11.0}))
    good = put(first, make_batch({"n1": None, "n2": 21.0}, sampled_at=NOW + 30), NOW + 30)
    assert values(good) == {"n1": 10.0, "n2": 21.0}
    assert good.columns[CPU].sampled_at.tolist() == [NOW, NOW + 30]
    assert late(good) == {"n1"}


def test_report_19_a_rejected_value_never_replaces_a_good_one() -> None:
    good = put(put(None, make_batch({"n1": 95.0})), make_batch({"n1": -1.0}, sampled_at=NOW + 30), NOW + 30)
    assert values(good) == {"n1": 95.0}
    assert late(good) == {"n1"}


def test_each_metric_is_held_by_itself() -> None:
    first = put(None, make_batch({"n1": 10.0}, memory_percent={"n1": 50.0}))
    good = put(first, make_batch({"n1": 20.0}, memory_percent={"n1": None}, sampled_at=NOW + 30), NOW + 30)
    assert (values(good), values(good, MEMORY)) == ({"n1": 20.0}, {"n1": 50.0})
    assert good.columns[MEMORY].sampled_at.tolist() == [NOW]


def test_a_metric_that_a_batch_lacks_altogether_is_held() -> None:
    good = put(put(None, make_batch({"n1": 10.0}, memory_percent={"n1": 50.0})), make_batch({"n1": 20.0}, sampled_at=NOW + 30), NOW + 30)
    assert values(good, MEMORY) == {"n1": 50.0}


def test_a_held_value_expires_by_its_own_age() -> None:
    good = put(None, make_batch({"n1": 10.0, "n2": 11.0}))
    at_the_limit = put(good, make_batch({"n1": None, "n2": 21.0}, sampled_at=NOW + EXPIRED), NOW + EXPIRED)
    past = put(at_the_limit, make_batch({"n1": None, "n2": 21.0}, sampled_at=NOW + EXPIRED + 1), NOW + EXPIRED + 1)
    assert values(at_the_limit) == {"n1": 10.0, "n2": 21.0}
    assert values(past) == {"n2": 21.0}
    assert past.nodes == ("n1", "n2")


def test_a_new_sample_that_is_too_old_does_not_count() -> None:
    assert values(put(None, make_batch({"n1": 10.0}, sampled_at=NOW - EXPIRED - 1))) == {}


def test_a_sample_older_than_the_held_one_does_not_replace_it() -> None:
    """Two replicas of a metrics server behind one address can be at different scrapes."""
    good = put(put(None, make_batch({"n1": 10.0})), make_batch({"n1": 5.0}, sampled_at=NOW - 60), NOW + 1)
    assert values(good) == {"n1": 10.0}


def test_the_same_sample_again_is_not_late() -> None:
    good = put(put(None, make_batch({"n1": 10.0})), make_batch({"n1": 10.0}), NOW + 15)
    assert late(good) == set()


def test_after_our_clock_was_set_back_new_samples_count() -> None:
    before = put(None, make_batch({"n1": 10.0}, sampled_at=NOW + 3600), NOW + 3600)
    assert values(put(before, make_batch({"n1": 5.0}), NOW)) == {"n1": 5.0}


def test_report_7_a_node_gone_from_the_cluster_is_gone_at_once() -> None:
    good = put(put(None, make_batch({"n1": 10.0, "gone": 11.0})), make_batch({"n1": 20.0}, sampled_at=NOW + 30), NOW + 30)
    assert good.nodes == ("n1",)
    assert values(good) == {"n1": 20.0}


def test_a_node_that_comes_back_starts_anew() -> None:
    good = put(put(put(None, make_batch({"n1": 10.0, "n2": 11.0})), make_batch({"n1": 10.0})), make_batch({"n2": None, "n1": 10.0}))
    assert values(good) == {"n1": 10.0}


def test_where_members_are_not_known_a_node_stays_until_its_values_expire() -> None:
    good = put(None, make_batch({"n1": 10.0, "quiet": 11.0}, members_known=False))
    good = put(good, make_batch({"n1": 20.0}, sampled_at=NOW + EXPIRED, members_known=False), NOW + EXPIRED)
    assert values(good) == {"n1": 20.0, "quiet": 11.0}
    assert late(good) == {"quiet"}
    good = put(good, make_batch({"n1": 30.0}, sampled_at=NOW + EXPIRED + 1, members_known=False), NOW + EXPIRED + 1)
    assert (good.nodes, good.seen_at.tolist()) == (("n1", "quiet"), [NOW + EXPIRED + 1, NOW])
    assert values(good) == {"n1": 30.0}


def test_nodes_in_another_order_keep_their_own_values() -> None:
    first = put(None, make_batch({"n1": 10.0, "n2": 20.0, "n3": 30.0}))
    good = put(first, make_batch({"n3": None, "n1": None, "n2": 21.0}, sampled_at=NOW + 30), NOW + 30)
    assert values(good) == {"n3": 30.0, "n1": 10.0, "n2": 21.0}


def test_aggregates_are_held_by_type_operator_window_and_name() -> None:
    def batch(average: float, at: float) -> SampleBatch:
        aggregates = (Aggregate("rule", "CPU", "AVG", FIFTEEN_MINUTES, np.array([average])),)
        return make_batch({"n1": 10.0}, sampled_at=at, aggregates=aggregates)

    key = ColumnKey("CPU", "AVG", FIFTEEN_MINUTES, "rule")
    good = put(put(None, batch(40.0, NOW)), batch(float("inf"), NOW + 30), NOW + 30)
    assert values(good, key) == {"n1": 40.0}


def test_what_a_node_has_is_held_while_it_is_not_told() -> None:
    info = NodeInfo(ResourceQuantities("8", "32Gi"), ResourceQuantities("7", "30Gi"))
    first = put(None, make_batch({"n1": 10.0, "n2": 10.0}, infos=(info, None)))
    assert put(first, make_batch({"n2": 10.0, "n1": 10.0})).infos == (None, info)


def test_a_refresh_that_brings_nothing_holds_everything_as_late_and_lets_it_expire() -> None:
    first = put(None, make_batch({"n1": 10.0, "n2": 20.0}, sampled_at={"n1": NOW, "n2": NOW - 600}))
    held = carry_over(first, now=NOW + 400, expired_seconds=EXPIRED)
    assert values(held) == {"n1": 10.0}
    assert late(held) == {"n1"}
    assert held.nodes == ("n1", "n2")


def test_without_known_members_an_expired_node_is_known_for_ten_times_as_long() -> None:
    first = put(None, make_batch({"n1": 10.0}, members_known=False))
    held = carry_over(first, now=NOW + EXPIRED + 1, expired_seconds=EXPIRED)
    assert (held.nodes, held.columns, held.seen_at.tolist()) == (("n1",), {}, [NOW])
    held = carry_over(held, now=NOW + 10 * EXPIRED + 1, expired_seconds=EXPIRED)
    assert (held.nodes, held.infos, held.seen_at.size) == ((), (), 0)


def test_an_empty_cluster_is_an_answer() -> None:
    good = put(put(None, make_batch({"n1": 10.0})), make_batch({}))
    assert (good.nodes, good.columns) == ((), {})


batches = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.none() | st.floats(0, 100), max_size=4)


@given(st.lists(st.tuples(batches, st.booleans(), st.integers(0, 500)), min_size=1, max_size=8))
def test_a_served_value_was_measured_on_that_node_and_has_not_expired(steps: list[tuple[dict[str, float | None], bool, int]]) -> None:
    """Against a plain reference: per node the last present value, dropped when it is too old or the node is gone."""
    now, good = NOW, None
    reference: dict[str, tuple[float, float]] = {}
    for cpu_percent, members_known, seconds in steps:
        now += seconds
        good = put(good, make_batch(cpu_percent, sampled_at=now, members_known=members_known), now)
        reference |= {node: (value, now) for node, value in cpu_percent.items() if value is not None}
        reference = {
            node: (value, at)
            for node, (value, at) in reference.items()
            if now - at <= EXPIRED and (node in cpu_percent or not members_known)
        }
        assert values(good) == {node: value for node, (value, _) in reference.items()}
        assert set(good.nodes) >= set(cpu_percent) | set(reference)
