from load_watcher.providers.catalogue import Catalogue, Expression
from load_watcher.providers.promql import Part, combine, write_average, write_deviation, write_newest, write_times
from load_watcher.samples import FIFTEEN_MINUTES

CATALOGUE = Catalogue(())


def make(query: str) -> Expression:
    return Expression(query, "ratio", "name")


def test_a_series_is_averaged_as_it_stands() -> None:
    for query in ("instance:node_cpu:ratio", ":cpu", 'a{b="}",c!~"x"}', "a{b='\"'}"):
        assert write_newest(make(query), CATALOGUE) == query
        assert write_average(make(query), FIFTEEN_MINUTES, CATALOGUE) == f"avg_over_time({query}[15m])"
        assert write_deviation(make(query), FIFTEEN_MINUTES, CATALOGUE) == f"stddev_over_time({query}[15m])"


def test_a_rate_is_taken_over_the_window_and_only_its_deviation_needs_a_subquery() -> None:
    expression = make("sum(rate(x_total[$window]))")
    assert write_newest(expression, CATALOGUE) == "sum(rate(x_total[5m]))"
    assert write_average(expression, FIFTEEN_MINUTES, CATALOGUE) == "sum(rate(x_total[15m]))"
    assert write_deviation(expression, FIFTEEN_MINUTES, CATALOGUE) == "stddev_over_time((sum(rate(x_total[5m])))[15m:1m])"


def test_any_other_expression_needs_subqueries() -> None:
    assert write_average(make("1 - a / b"), FIFTEEN_MINUTES, CATALOGUE) == "avg_over_time((1 - a / b)[15m:1m])"
    assert write_deviation(make("1 - a / b"), FIFTEEN_MINUTES, CATALOGUE) == "stddev_over_time((1 - a / b)[15m:1m])"


def test_times_are_asked_of_the_series_that_tell_them() -> None:
    assert write_times(make("1 - a / b")) == ""
    assert write_times(Expression("1 - a / b", "ratio", "name", dated_by="a")) == "timestamp(a)"


def test_many_parts_nest_only_as_deep_as_a_balanced_tree() -> None:
    query = combine([Part(str(number), "x") for number in range(1000)])
    depth = deepest = 0
    for character in query:
        depth += (character == "(") - (character == ")")
        deepest = max(deepest, depth)
    assert (depth, deepest) == (0, 10)
    assert query.count(" or ") == 999
