from load_watcher.providers.catalogue import Catalogue, CatalogueMetric, Expression
from load_watcher.providers.prometheus_discovery import ASK_AGAIN_SECONDS, Discovery

NOW = 1_700_000_000.0


def make_discovery(**metrics: tuple[str, ...]) -> Discovery:
    return Discovery(
        Catalogue(
            tuple(
                CatalogueMetric(key, "CPU", ("Latest",), tuple(Expression(query, "ratio", query) for query in queries))
                for key, queries in metrics.items()
            )
        )
    )


def keys(discovery: Discovery, now: float = NOW) -> list[str]:
    return [part.key for part in discovery.list_questions(now)]


def chosen(discovery: Discovery) -> dict[str, str]:
    return {key: each.expression.query for key, each in discovery.chosen.items()}


def test_report_8_the_first_expression_that_answers_is_chosen() -> None:
    discovery = make_discovery(cpu=("old", "new", "raw"), memory=("m1", "m2"))
    assert [part.query for part in discovery.list_questions(NOW)] == ["count(old)", "count(new)", "count(raw)", "count(m1)", "count(m2)"]
    discovery.learn({"cpu:1", "cpu:2"}, {"memory:0": "cannot parse"}, NOW)
    assert chosen(discovery) == {"cpu": "new"}
    assert [metric.key for metric in discovery.unanswered] == ["memory"]
    assert discovery.errors == {"memory:0": "cannot parse"}


def test_a_metric_with_one_expression_is_not_asked_about() -> None:
    discovery = make_discovery(cpu=("only",))
    assert keys(discovery) == []
    assert chosen(discovery) == {"cpu": "only"}
    discovery.note_silence({"cpu"})
    assert chosen(discovery) == {"cpu": "only"}


def test_what_nothing_answers_is_asked_again_once_a_minute_and_a_choice_stays() -> None:
    discovery = make_discovery(cpu=("a", "b"), memory=("m1", "m2"))
    discovery.learn({"cpu:1"}, {}, NOW)
    assert keys(discovery, NOW + ASK_AGAIN_SECONDS - 1) == []
    assert keys(discovery, NOW + ASK_AGAIN_SECONDS) == ["memory:0", "memory:1"]
    discovery.learn({"cpu:0", "memory:0"}, {}, NOW + ASK_AGAIN_SECONDS)
    assert chosen(discovery) == {"cpu": "b", "memory": "m1"}


def test_before_anything_answers_every_refresh_asks() -> None:
    discovery = make_discovery(cpu=("a", "b"))
    discovery.learn(set(), {}, NOW)
    assert keys(discovery, NOW + 1) == ["cpu:0", "cpu:1"]


def test_a_choice_that_stops_answering_is_made_anew_at_once() -> None:
    discovery = make_discovery(cpu=("a", "b"), memory=("m1", "m2"))
    discovery.learn({"cpu:0", "memory:0"}, {}, NOW)
    discovery.note_silence({"cpu"})
    assert keys(discovery, NOW + 1) == ["cpu:0", "cpu:1"]
    discovery.learn({"cpu:1"}, {}, NOW + 1)
    assert chosen(discovery) == {"cpu": "b", "memory": "m1"}
    assert keys(discovery, NOW + 2) == []
