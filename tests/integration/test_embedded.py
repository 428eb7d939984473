"""The load watcher inside this process: real providers, no port, as many and as often as one likes."""

import asyncio
import gc
import json
import os
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

import load_watcher
from load_watcher.errors import SettingsError
from load_watcher.library import EmbeddedWatcher
from load_watcher.settings import Settings
from tests.fakes.watcher import eventually
from trimaran_client import LoadSnapshot, Pod, Scorer, TargetLoadPacking

DEADLINE_SECONDS = 30
CAPACITY = [{"cpu": "8"}, {"cpu": "8"}]


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch, no_access: None) -> None:
    for name in list(os.environ):
        if name.startswith(("LOAD_WATCHER_", "METRICS_PROVIDER_")):
            monkeypatch.delenv(name)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "day.jsonl"
    lines = [
        {"at": float(step), "nodes": ["n1", "n2"], "latest": {"CPU": [12.5 + step % 2, 50]}, "capacity": CAPACITY} for step in range(1, 100)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def settings(provider: str, **variables: Any) -> Settings:
    return Settings.model_validate({"METRICS_PROVIDER_NAME": provider, "LOAD_WATCHER_REFRESH_SECONDS": 1, **variables})


def replay(path: Path, **variables: Any) -> Settings:
    return settings("Recorded", METRICS_PROVIDER_ADDRESS=str(path), **variables)


async def next_of(source: EmbeddedWatcher) -> LoadSnapshot:
    async with asyncio.timeout(DEADLINE_SECONDS):
        return await source.wait_newer(source.snapshot)


def listening() -> list[Any]:
    return [each for each in psutil.Process().net_connections("inet") if each.status == psutil.CONN_LISTEN]


async def test_report_57_two_with_different_providers_and_one_that_is_stopped(recording: Path) -> None:
    before = listening()
    async with load_watcher.embedded(settings("Local")) as local:
        async with load_watcher.embedded(replay(recording)) as recorded:
            assert (await next_of(recorded)).nodes == ("n1", "n2")
            assert (await next_of(local)).source == "Local"
            assert listening() == before
        await next_of(local)
        assert local.failure is None
        assert recorded.snapshot.nodes == ("n1", "n2")


async def test_report_93_two_are_stopped_and_made_again(recording: Path) -> None:
    for _ in range(3):
        async with load_watcher.embedded(replay(recording)) as first, load_watcher.embedded(replay(recording)) as second:
            assert (await next_of(first)).nodes == (await next_of(second)).nodes == ("n1", "n2")
    gc.collect()  # an open file or socket would be a warning, and with it a failure
    assert not [task for task in asyncio.all_tasks() if "load-watcher" in task.get_name()]


async def test_it_is_a_source_for_the_scorer(recording: Path) -> None:
    pod = Pod.from_manifest({"spec": {"containers": [{"resources": {"requests": {"cpu": "1"}}}]}})
    async with load_watcher.embedded(replay(recording)) as source:
        snapshot = await next_of(source)
        scores = Scorer(TargetLoadPacking()).score_nodes(pod, source, now=snapshot.made_at).by_node()
        assert scores["n1"] > scores["n2"]  # 25 % with the pod is below the target of 40 %, 62.5 % above it


async def test_history_is_that_of_the_settings(recording: Path, tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    async with load_watcher.embedded(replay(recording, LOAD_WATCHER_HISTORY=str(path)), windows=("5m",)) as source:
        while not (await next_of(source)).operators_of("CPU")[1:]:
            pass
    assert path.exists()
    async with load_watcher.embedded(replay(recording, LOAD_WATCHER_HISTORY=str(path)), windows="5m", statistics="AVG") as source:
        assert (await next_of(source)).operators_of("CPU") == ("Latest", "AVG")  # from the file, at once
    async with load_watcher.embedded(replay(recording, LOAD_WATCHER_HISTORY="off"), windows=("5m",)) as source:
        assert "LOAD_WATCHER_HISTORY is off" in (await next_of(source)).not_held["5m"]


async def test_without_settings_the_environment_counts(recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRICS_PROVIDER_NAME", "Recorded")
    monkeypatch.setenv("METRICS_PROVIDER_ADDRESS", str(recording))
    async with load_watcher.embedded() as source:
        assert (await next_of(source)).source == "Recorded"


async def test_an_outage_is_told(recording: Path) -> None:
    async with load_watcher.embedded(replay(recording)) as source:
        await next_of(source)
        recording.unlink()
        await eventually(lambda: source.failure, DEADLINE_SECONDS)
        assert "set METRICS_PROVIDER_ADDRESS to a file" in str(source.failure)
        assert source.snapshot.nodes == ("n1", "n2")


async def test_what_cannot_be_asked_is_told_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError) as caught:
        async with load_watcher.embedded(settings("Local"), windows=("5m", "soon"), statistics=("AVG", "P42")):
            pytest.fail("it was entered")
    assert len(caught.value.problems) == 2
    assert "'soon' is not a window" in caught.value.problems[0]
    assert "'P42' is none; choose from Latest, AVG" in caught.value.problems[1]
    monkeypatch.setenv("LOAD_WATCHER_REFRESH_SECONDS", "never")
    with pytest.raises(SettingsError, match="LOAD_WATCHER_REFRESH_SECONDS"):
        async with load_watcher.embedded():
            pytest.fail("it was entered")


def test_one_event_loop_after_the_other(recording: Path) -> None:
    async def use() -> tuple[str, ...]:
        async with load_watcher.embedded(replay(recording)) as source:
            return (await next_of(source)).nodes

    before = set(threading.enumerate())
    assert [asyncio.run(use()) for _ in range(2)] == [("n1", "n2")] * 2
    gc.collect()
    left = set(threading.enumerate()) - before
    for thread in left:
        thread.join(10)
    assert [thread.name for thread in left if thread.is_alive()] == []
