"""The source of an embedded watcher, with a clock and a provider that the test moves."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import stamina
from structlog.testing import capture_logs

import load_watcher
from load_watcher.errors import LoadWatcherError, ProviderUnavailableError
from load_watcher.history.memory import Memory
from load_watcher.library import EmbeddedWatcher
from load_watcher.samples import FIVE_MINUTES, Window
from load_watcher.snapshot import Choice
from load_watcher.watcher import Watcher
from tests.builders import NOW, make_batch
from tests.fakes.watcher import Answer, FakeClock, ScriptedProvider, eventually
from trimaran_client import LoadSnapshot, SnapshotSource
from trimaran_client.snapshot import MetricSelector

DEADLINE_SECONDS = 20


class Embedded:
    """An embedded watcher whose refreshes the test makes happen."""

    def __init__(self, *answers: Answer, choice: Choice) -> None:
        self.clock = FakeClock()
        memory = Memory(source="test", clock=self.clock, step_seconds=30)
        self.watcher = Watcher(ScriptedProvider(*answers), memory=memory, clock=self.clock)
        self.source = EmbeddedWatcher(self.watcher, choice)

    async def refresh(self, seconds: float = 0) -> LoadSnapshot:
        before = self.source.snapshot
        self.clock.move(seconds)
        await self.watcher.tick()
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await self.source.wait_newer(before)


@asynccontextmanager
async def run(*answers: Answer, choice: Choice = Choice()) -> AsyncIterator[Embedded]:  # noqa: B008 - a tuple
    made = Embedded(*answers, choice=choice)
    task = asyncio.create_task(made.source.run())
    try:
        with stamina.set_testing(True, attempts=1):
            yield made
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_before_the_first_refresh_nothing_is_known() -> None:
    async with run(make_batch({"n1": 10.0})) as made:
        source: SnapshotSource = made.source
        assert source.snapshot.nodes == ()
        assert made.source.age_seconds(NOW) == math.inf
        assert made.source.failure is None


async def test_each_refresh_is_a_snapshot_with_the_id_of_what_is_published() -> None:
    async with run(make_batch({"n1": 10.0}), make_batch({"n1": 20.0}, sampled_at=NOW + 30)) as made:
        first = await made.refresh()
        second = await made.refresh(30)
        assert [each.column("CPU", ("Latest",)).tolist() for each in (first, second)] == [[10.0], [20.0]]
        assert made.watcher.snapshot is not None
        assert second.id == made.watcher.snapshot.id != first.id


async def test_windows_and_statistics_are_those_asked_for() -> None:
    batches = [make_batch({"n1": float(step)}, sampled_at=NOW + 60 * step) for step in range(8)]
    async with run(*batches, choice=Choice.of((FIVE_MINUTES, Window(1800)), ("MAX",))) as made:
        for step in range(8):
            snapshot = await made.refresh(60 if step else 0)
        assert snapshot.select(MetricSelector("CPU", ("MAX",), "5m")).values.tolist() == [7.0]
        assert list(snapshot.not_held) == ["30m"]


async def test_report_28_an_outage_leaves_the_last_values_tells_why_and_how_old_they_are() -> None:
    async with run(make_batch({"n1": 95.0}), ProviderUnavailableError("Scripted: down")) as made:
        await made.refresh()
        snapshot = await made.refresh(800)
        assert (snapshot.statuses, snapshot.column("CPU", ("Latest",)).tolist()) == (("stale",), [95.0])
        assert str(made.source.failure) == "Scripted: down"
        assert made.source.age_seconds(made.clock.now) == 800


async def test_a_fault_of_our_own_is_told_and_outlived(monkeypatch: pytest.MonkeyPatch) -> None:
    async with run(make_batch({"n1": 10.0})) as made:
        with monkeypatch.context() as patch, capture_logs() as logs:
            patch.setattr(LoadSnapshot, "from_columns", None)
            await made.watcher.tick()
            await eventually(lambda: made.source.failure)
        assert "a fault of our own: TypeError" in str(made.source.failure)
        assert "report this" in logs[0]["event"]
        await made.refresh(30)
        assert made.source.failure is None


async def test_who_waits_when_it_is_left_is_told() -> None:
    async with run(make_batch({"n1": 10.0})) as made:
        waiting = asyncio.create_task(made.source.wait_newer(made.source.snapshot))
        await asyncio.sleep(0)
        made.source.leave()
        async with asyncio.timeout(DEADLINE_SECONDS):
            with pytest.raises(LoadWatcherError, match="was left"):
                await waiting


def test_the_public_name_is_looked_up_when_it_is_asked_for() -> None:
    assert load_watcher.embedded.__doc__
    with pytest.raises(AttributeError, match="no attribute 'embed'"):
        load_watcher.embed  # noqa: B018
