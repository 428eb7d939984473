from prometheus_client import REGISTRY, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from load_watcher.last_good import merge
from load_watcher.quality import assess
from load_watcher.samples import FIFTEEN_MINUTES
from load_watcher.snapshot import encode_snapshot
from load_watcher.telemetry import Telemetry, label_request
from tests.builders import NOW, make_batch
from tests.fakes.watcher import FakeClock


def make() -> tuple[Telemetry, FakeClock]:
    clock = FakeClock()
    return Telemetry(clock, version="1.2.3"), clock


def publish(telemetry: Telemetry, cpu_percent: dict[str, float | None], sampled_at: float) -> None:
    good = merge(None, assess(make_batch(cpu_percent, sampled_at=sampled_at), NOW), now=NOW, expired_seconds=900)
    telemetry.snapshot = encode_snapshot(good, now=NOW, stale_seconds=300, window=FIFTEEN_MINUTES)


def scrape(telemetry: Telemetry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = generate_latest(telemetry.registry).decode()
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in text_string_to_metric_families(text) for s in family.samples}


def test_ages_are_those_of_the_moment_of_the_scrape() -> None:
    telemetry, clock = make()
    publish(telemetry, {"n1": 1.0, "n2": None}, NOW - 20)
    clock.move(7)
    samples = scrape(telemetry)
    assert samples["load_watcher_snapshot_age_seconds", ()] == 7
    assert samples["load_watcher_newest_sample_age_seconds", ()] == 27
    assert samples["load_watcher_nodes", (("status", "ok"),)] == 1
    assert samples["load_watcher_nodes", (("status", "no_metrics"),)] == 1
    assert samples["load_watcher_nodes", (("status", "stale"),)] == 0


def test_without_a_snapshot_or_a_sample_there_is_no_age() -> None:
    telemetry, _ = make()
    assert not {name for name, _ in scrape(telemetry)} & {"load_watcher_snapshot_age_seconds", "load_watcher_nodes"}
    publish(telemetry, {"n1": None}, NOW)
    names = {name for name, _ in scrape(telemetry)}
    assert "load_watcher_snapshot_age_seconds" in names
    assert "load_watcher_newest_sample_age_seconds" not in names


def test_a_clock_that_was_set_back_gives_no_negative_age() -> None:
    telemetry, clock = make()
    publish(telemetry, {"n1": 1.0}, NOW)
    clock.move(-100)
    samples = scrape(telemetry)
    assert (samples["load_watcher_snapshot_age_seconds", ()], samples["load_watcher_newest_sample_age_seconds", ()]) == (0, 0)


def test_every_cause_of_a_failure_is_there_from_the_start() -> None:
    """A series that begins at 1 shows no increase."""
    telemetry, _ = make()
    causes = {dict(labels)["cause"] for name, labels in scrape(telemetry) if name == "load_watcher_refresh_failures_total"}
    assert causes >= {"unavailable", "auth", "config", "reply", "not_installed", "bug"}


def test_counts() -> None:
    telemetry, _ = make()
    telemetry.observe_refresh(0.3)
    telemetry.count_failure("auth")
    telemetry.count_rejections({"negative": 2, "future": 1})
    telemetry.count_request(label_request("/watcher", "GET", 200))
    telemetry.count_request(label_request("/watcher", "BREW", 405))
    samples = scrape(telemetry)
    assert samples["load_watcher_refresh_duration_seconds_sum", ()] == 0.3
    assert samples["load_watcher_refresh_failures_total", (("cause", "auth"),)] == 1
    assert samples["load_watcher_rejected_samples_total", (("rule", "negative"),)] == 2
    assert samples["load_watcher_requests_total", (("method", "GET"), ("route", "/watcher"), ("status", "200"))] == 1
    assert samples["load_watcher_requests_total", (("method", "other"), ("route", "/watcher"), ("status", "405"))] == 1


def test_build_information_names_the_version() -> None:
    telemetry, _ = make()
    (labels,) = [dict(labels) for name, labels in scrape(telemetry) if name == "load_watcher_build_info"]
    assert labels["version"] == "1.2.3"


def test_report_57_registries_are_separate_and_the_global_one_is_left_alone() -> None:
    before = {metric.name for metric in REGISTRY.collect()}
    one, two = make()[0], make()[0]
    one.count_failure("auth")
    assert scrape(two)["load_watcher_refresh_failures_total", (("cause", "auth"),)] == 0
    assert {metric.name for metric in REGISTRY.collect()} == before
