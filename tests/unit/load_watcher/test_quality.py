import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from load_watcher.quality import MAX_AHEAD_SECONDS, QualityLimits, Verdict, assess
from load_watcher.samples import FIFTEEN_MINUTES, Aggregate, Rejection
from tests.builders import NOW, make_batch

INF, NAN = float("inf"), float("nan")
LIMITS = QualityLimits()


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (INF, "not_finite"),
        (-INF, "not_finite"),
        (-0.001, "negative"),
        (LIMITS.max_percent + 0.001, "over_capacity"),
        (1e300, "wrapped"),
    ],
)
def test_report_16_an_impossible_value_is_dropped_counted_and_named(value: float, rule: str) -> None:
    report = assess(make_batch({"n1": value, "n2": 30.0}, memory_percent={"n1": 40.0, "n2": 50.0}), NOW)
    assert np.isnan(report.batch.latest["CPU"][0])
    assert report.counts == {rule: 1}
    (rejection,) = report.rejections
    assert (rejection.node, rejection.metric_type, rejection.rule) == ("n1", "CPU", rule)
    assert rejection.detail.startswith(f"value {value:g}")
    # The node's other metrics and the other nodes stay.
    assert report.batch.latest["Memory"].tolist() == [40.0, 50.0]
    assert report.batch.latest["CPU"][1] == 30.0


@pytest.mark.parametrize("value", [0.0, -0.0, 5e-324, 99.9, 100.0, LIMITS.max_percent])
def test_a_possible_value_counts_unchanged(value: float) -> None:
    report = assess(make_batch({"n1": value}), NOW)
    assert report.batch.latest["CPU"].tolist() == [value]
    assert report.rejections == ()


def test_an_absent_value_is_no_rejection() -> None:
    report = assess(make_batch({"n1": None, "n2": 1.0}), NOW)
    assert report.rejections == ()


def test_other_types_than_percent_may_be_large_but_not_beyond_the_wire() -> None:
    values = np.array([5000.0, LIMITS.max_value * 2])
    batch = make_batch({"n1": 1.0, "n2": 1.0})
    report = assess(make_batch({"n1": 1.0, "n2": 1.0}, latest={**batch.latest, "Energy": values}), NOW)
    assert report.batch.latest["Energy"][0] == 5000.0
    assert report.counts == {"too_large": 1}


def test_the_values_of_aggregates_are_judged_too() -> None:
    aggregate = Aggregate("rule", "CPU", "STD", FIFTEEN_MINUTES, np.array([-1.0, 2.0]))
    report = assess(make_batch({"n1": 1.0, "n2": 1.0}, aggregates=(aggregate,)), NOW)
    (clean,) = report.batch.aggregates
    assert np.isnan(clean.values[0])
    assert clean.values[1] == 2.0
    assert (clean.name, clean.operator, clean.window) == ("rule", "STD", FIFTEEN_MINUTES)


@pytest.mark.parametrize(("ahead_seconds", "counts"), [(MAX_AHEAD_SECONDS, {}), (MAX_AHEAD_SECONDS + 1, {"future": 2})])
def test_a_sample_from_the_future_does_not_count(ahead_seconds: float, counts: dict[str, int]) -> None:
    batch = make_batch({"n1": 1.0, "n2": 2.0}, memory_percent={"n1": 1.0}, sampled_at={"n1": NOW + ahead_seconds, "n2": NOW})
    report = assess(batch, NOW)
    assert report.counts == counts
    assert report.batch.latest["CPU"][1] == 2.0


@pytest.mark.parametrize("sampled_at", [NAN, INF, -INF])
def test_a_value_without_a_time_does_not_count(sampled_at: float) -> None:
    report = assess(make_batch({"n1": 1.0}, sampled_at=sampled_at), NOW)
    assert report.counts == {"undated": 1}
    assert np.isnan(report.batch.latest["CPU"][0])


def test_the_first_rule_that_applies_counts_and_only_that() -> None:
    report = assess(make_batch({"n1": -5.0}, sampled_at=NOW + 999), NOW)
    assert report.counts == {"negative": 1}


def test_the_rejections_of_the_provider_come_first_and_count() -> None:
    own = Rejection("n9", "CPU", "unknown_node", "usage '1'")
    report = assess(make_batch({"n1": -5.0}, rejections=(own,)), NOW)
    assert [rejection.rule for rejection in report.rejections] == ["unknown_node", "negative"]
    assert report.batch.rejections == ()


def test_the_batch_that_came_in_is_not_changed() -> None:
    batch = make_batch({"n1": -5.0})
    assess(batch, NOW)
    assert batch.latest["CPU"].tolist() == [-5.0]


def test_every_sample_has_a_verdict_and_the_counts_name_every_verdict() -> None:
    batch = make_batch({"n1": 1.0, "n2": -1.0, "n3": None, "n4": 1.0}, sampled_at={"n1": NOW, "n2": NOW, "n3": NOW, "n4": NOW - 121})
    report = assess(batch, NOW)
    assert report.verdicts["CPU"].tolist() == [Verdict.FRESH, Verdict.IMPOSSIBLE, Verdict.ABSENT, Verdict.LATE]
    assert report.verdict_counts == {
        "fresh": 1, "late": 1, "repeated": 0, "jump": 0, "absent": 1, "impossible": 1, "stuck": 0, "suspect": 0
    }  # fmt: skip


@given(st.lists(st.tuples(st.floats(), st.floats()), max_size=20))
def test_whatever_comes_in_only_finite_possible_values_go_on(samples: list[tuple[float, float]]) -> None:
    nodes = {f"n{number}": value for number, (value, _) in enumerate(samples)}
    batch = make_batch(nodes, sampled_at={f"n{number}": at for number, (_, at) in enumerate(samples)})
    report = assess(batch, NOW)
    values = report.batch.latest["CPU"]
    present = values[~np.isnan(values)]
    assert np.all((present >= 0) & (present <= LIMITS.max_percent))
    assert len(present) + len(report.rejections) == int((~np.isnan(batch.latest["CPU"])).sum())


def test_limits_can_be_written_as_text() -> None:
    assert QualityLimits.parse("") == LIMITS
    limits = QualityLimits.parse(" grace_seconds = 60,stuck_samples=20, ")
    assert (limits.grace_seconds, limits.stuck_samples, limits.max_percent) == (60.0, 20, LIMITS.max_percent)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grace_second=60", r"'grace_second' is not a limit \(did you mean grace_seconds\?\)"),
        ("stuck_samples=1.5", "stuck_samples: '1.5' is not a whole number; the default is 10"),
        ("max_percent", "max_percent: '' is not a number; the default is 150"),
        ("max_percent=0", "max_percent=0: a limit is a finite number above 0"),
        ("max_percent=nan", "max_percent=nan: a limit is a finite number above 0"),
    ],
)
def test_a_wrong_limit_is_named_with_the_remedy(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        QualityLimits.parse(text)


def test_a_limit_that_was_set_applies() -> None:
    assert assess(make_batch({"n1": 115.0}), NOW, limits=QualityLimits(max_percent=120)).rejections == ()
