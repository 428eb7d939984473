"""Several sources at once: who wins, who fills in, and that one that fails costs the others nothing."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from load_watcher.errors import ProviderAuthError, ProviderUnavailableError, SettingsError
from load_watcher.providers.findings import FAILURE, WARNING, Finding
from load_watcher.providers.several import SeveralProvider, merge_batches
from load_watcher.samples import FIFTEEN_MINUTES, Aggregate, SampleBatch
from load_watcher.settings import Settings
from load_watcher.source_settings import load_source_settings
from load_watcher.watcher import Watcher
from tests.builders import NOW, make_batch
from tests.fakes.watcher import FakeClock, ScriptedProvider, hang

DOWN = ProviderUnavailableError("first: connection refused")
Percent = dict[str, float | None]


def batch(cpu: Percent, source: str, *, at: float = NOW, **more: Any) -> SampleBatch:
    made = make_batch(cpu, sampled_at=at, **more)
    return SampleBatch(**{name: getattr(made, name) for name in made.__slots__} | {"source": source})


def merge(*batches: SampleBatch) -> SampleBatch:
    return merge_batches(batches, source="first,second", now=NOW, fresh_seconds=300)


def cpu(merged: SampleBatch) -> dict[str, tuple[float | None, str]]:
    values = [None if np.isnan(value) else value for value in merged.latest["CPU"].tolist()]
    return dict(zip(merged.nodes, zip(values, merged.origins["CPU"], strict=True), strict=True))


def test_the_first_fresh_value_of_a_node_wins_and_the_others_fill_in() -> None:
    merged = merge(batch({"a": 10.0, "b": None, "c": None}, "first"), batch({"a": 90.0, "b": 20.0, "c": None}, "second"))
    assert cpu(merged) == {"a": (10.0, "first"), "b": (20.0, "second"), "c": (None, "")}


def test_an_old_value_gives_way_to_a_fresh_one_and_is_better_than_none() -> None:
    first = batch({"a": 10.0, "b": 11.0}, "first", at=NOW - 301)
    merged = merge(first, batch({"a": 90.0, "b": None}, "second"))
    assert cpu(merged) == {"a": (90.0, "second"), "b": (11.0, "first")}
    assert merged.times_of("CPU").tolist() == [NOW, NOW - 301]


def test_the_list_of_members_decides_who_is_a_node() -> None:
    """A source that knows no list may name more; what it says of strangers is told, not served."""
    merged = merge(batch({"a": 1.0, "gone": 2.0}, "first", members_known=False), batch({"a": None, "b": 3.0}, "second"))
    assert (merged.nodes, merged.members_known) == (("a", "b"), True)
    assert [(each.node, each.rule) for each in merged.rejections] == [("gone", "unknown_node")]
    merged = merge(batch({"a": 1.0}, "first", members_known=False), batch({"b": 3.0}, "second", members_known=False))
    assert (merged.nodes, merged.members_known) == (("a", "b"), False)


def test_averages_of_a_window_come_from_one_source_for_each_node() -> None:
    def averages(source: str, average: list[float], deviation: list[float]) -> SampleBatch:
        columns = (("AVG", average), ("STD", deviation))
        aggregates = tuple(Aggregate(f"{source}-rule", "CPU", name, FIFTEEN_MINUTES, np.array(values)) for name, values in columns)
        return batch({"a": 1.0, "b": 1.0}, source, aggregates=aggregates)

    nan = float("nan")
    merged = merge(averages("first", [10.0, nan], [1.0, nan]), averages("second", [90.0, 20.0], [9.0, 2.0]))
    found = {(each.name, each.operator): each.values.tolist() for each in merged.aggregates}
    assert found[("first-rule", "AVG")] == pytest.approx([10.0, nan], nan_ok=True)
    assert found[("second-rule", "STD")] == pytest.approx([nan, 2.0], nan_ok=True)


def make(*providers: ScriptedProvider, timeout_seconds: float = 5.0) -> SeveralProvider:
    return SeveralProvider(providers, fresh_seconds=300, timeout_seconds=timeout_seconds, clock=FakeClock())


async def test_a_source_that_fails_is_told_and_empties_nobody() -> None:
    several = make(ScriptedProvider(DOWN, name="first"), ScriptedProvider(batch({"a": 5.0}, "second"), name="second"))
    async with several:
        merged = await several.fetch(FIFTEEN_MINUTES)
    assert cpu(merged) == {"a": (5.0, "second")}
    assert [(finding.subject, finding.detail) for finding in several.findings()] == [("first", "first: connection refused")]


class TellingProvider(ScriptedProvider):
    def findings(self) -> tuple[Finding, ...]:
        return (Finding(WARNING, f"of {self.name}", "seen"),)


async def test_what_each_source_says_of_itself_is_passed_on_after_the_failures() -> None:
    telling = TellingProvider(batch({"a": 5.0}, "second"), name="second")
    several = make(ScriptedProvider(DOWN, name="first"), telling)
    async with several:
        await several.fetch(FIFTEEN_MINUTES)
    told = Watcher(several).findings
    assert [(finding.level, finding.subject) for finding in told] == [(FAILURE, "first"), (WARNING, "of second")]
    assert Watcher(ScriptedProvider(DOWN)).findings == ()


@pytest.mark.parametrize("bad", [KeyError("a bug"), hang])
async def test_a_source_that_hangs_or_breaks_delays_and_empties_nobody(bad: Any) -> None:
    several = make(ScriptedProvider(bad, name="first"), ScriptedProvider(batch({"a": 5.0}, "second"), name="second"), timeout_seconds=0.05)
    async with several:
        async with asyncio.timeout(10):
            assert cpu(await several.fetch(FIFTEEN_MINUTES)) == {"a": (5.0, "second")}


async def test_where_none_answers_the_error_names_all() -> None:
    several = make(ScriptedProvider(ProviderAuthError("first: 401"), name="first"), ScriptedProvider(DOWN, name="second"))
    async with several:
        with pytest.raises(ProviderAuthError, match=r"first: 401; .*connection refused"):
            await several.fetch(FIFTEEN_MINUTES)


async def test_it_is_healthy_while_one_source_is() -> None:
    one = ScriptedProvider(batch({}, "x"), name="first", health=ProviderUnavailableError("first is down"))
    other = ScriptedProvider(batch({}, "x"), name="second")
    await make(one, other).check_health()
    other.health = ProviderUnavailableError("second is down")
    with pytest.raises(ProviderUnavailableError, match="first is down; second is down"):
        await make(one, other).check_health()


async def test_what_was_opened_is_closed_where_a_later_source_cannot_be() -> None:
    class Broken(ScriptedProvider):
        async def __aenter__(self) -> Any:
            raise DOWN

    first = ScriptedProvider(batch({}, "x"), name="first")
    with pytest.raises(ProviderUnavailableError):
        async with make(first, Broken(batch({}, "x"), name="second")):
            pass
    assert not first.is_open


async def test_the_reply_says_which_source_each_value_is_from() -> None:
    """Also of a value that is held after its source has failed."""
    first = ScriptedProvider(batch({"a": 10.0, "b": None}, "first"), DOWN, name="first")
    several = make(first, ScriptedProvider(batch({"a": None, "b": 20.0}, "second"), name="second"))
    watcher = Watcher(several, clock=FakeClock())
    async with several:
        for _ in range(2):
            await watcher.tick()
    assert watcher.snapshot is not None
    body = json.loads(watcher.snapshot.identity.body)
    seen = {
        name: (node["status"], [metric["source"] for metric in node["metrics"]]) for name, node in body["data"]["NodeMetricsMap"].items()
    }
    assert (body["source"], seen) == ("first,second", {"a": ("late", ["first"]), "b": ("ok", ["second"])})


def test_each_source_has_the_environment_and_its_own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRICS_PROVIDER_ADDRESS", "http://everyone")
    file = tmp_path / "sources.yaml"
    file.write_text("Prometheus:\n  METRICS_PROVIDER_ADDRESS: http://mine\n")
    monkeypatch.setenv("LOAD_WATCHER_SOURCES", str(file))
    settings = load_source_settings(Settings(), ("Prometheus", "Datadog"))
    assert {name: each.provider_address for name, each in settings.items()} == {"Prometheus": "http://mine", "Datadog": "http://everyone"}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[", "not a YAML file"),
        ("- a", "write a mapping of provider names"),
        ("Graphite: {}", "'Graphite' is not one of the providers"),
        ("Prometheus: {METRICS_PROVIDER_ADRESS: x}", "METRICS_PROVIDER_ADRESS is not a variable.*METRICS_PROVIDER_ADDRESS"),
        ("Prometheus: {LOAD_WATCHER_REFRESH_SECONDS: never}", "LOAD_WATCHER_REFRESH_SECONDS='never'"),
    ],
)
def test_a_file_of_sources_that_cannot_be_used_says_why(text: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sources.yaml").write_text(text)
    monkeypatch.setenv("LOAD_WATCHER_SOURCES", str(tmp_path / "sources.yaml"))
    with pytest.raises(SettingsError, match=named):
        load_source_settings(Settings(), ("Prometheus",))
