"""The writer between the refresh loop and the file: nothing that the file does may stop the loop, and little may be lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from load_watcher.history import writer as writer_module
from load_watcher.history.errors import HistoryCorruptError, HistoryFullError
from load_watcher.history.reader import HistoryReader
from load_watcher.history.sqlite import HistoryFile
from load_watcher.history.store import HistoryStore, Retention
from load_watcher.history.window import SampleRing
from load_watcher.history.writer import HistoryWriter
from load_watcher.samples import SampleBatch
from tests.builders import NOW, make_batch
from tests.fakes.watcher import FakeClock

DEADLINE_SECONDS = 30.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def make_writer(path: Path, clock: FakeClock, ring: SampleRing | None = None, source: str = "test") -> HistoryWriter:
    return HistoryWriter(path, ring or SampleRing(), source=source, clock=clock)


async def submit(writer: HistoryWriter, clock: FakeClock, *values: float, source: str = "test") -> None:
    """Hand over a refresh for each value, thirty seconds apart, each after the one before was dealt with."""
    for value in values:
        clock.move(30)
        writer.submit(make_batch({"n": value}, sampled_at=clock.now, source=source), fetched_at=clock.now)
        assert await writer.flush(DEADLINE_SECONDS)


async def values_in(path: Path) -> list[float]:
    async with HistoryReader(path) as reader:
        return [float(refresh.batch.latest["CPU"][0]) async for refresh in reader.load(0)]


async def test_the_ring_is_filled_again_after_a_restart(path: Path, clock: FakeClock) -> None:
    async with make_writer(path, clock) as writer:
        await submit(writer, clock, *range(200))
        status = writer.status
    assert (status.written_refreshes, status.waiting_refreshes, status.lost_refreshes, status.failure) == (200, 0, 0, None)
    assert status.written_at == clock.now
    ring = SampleRing()
    async with make_writer(path, clock, ring) as writer:
        assert writer.status.filled_refreshes == 120, "of the last hour"
        await submit(writer, clock, 0)
        assert writer.status.filled_refreshes == 120, "once"
    clock.move(-30)
    [average] = ring.aggregate(["AVG"], end_at=clock.now)
    # Fifteen minutes are thirty refreshes: 170 to 199.
    assert (average.values.tolist(), average.window_seconds.tolist()) == ([184.5], [900])


async def test_what_is_too_old_or_of_another_source_does_not_fill_the_ring(path: Path, clock: FakeClock) -> None:
    async with make_writer(path, clock) as writer:
        await submit(writer, clock, 1, 2)
        clock.move(3600)
        await submit(writer, clock, 3)
        await submit(writer, clock, 4, source="other")
    ring = SampleRing()
    async with make_writer(path, clock, ring) as writer:
        assert writer.status.filled_refreshes == 1
    assert await values_in(path) == [1, 2, 3, 4]


async def test_leaving_writes_what_waits(path: Path, clock: FakeClock) -> None:
    async with make_writer(path, clock) as writer:
        for value in range(5):
            writer.submit(make_batch({"n": value}, sampled_at=NOW + value), fetched_at=NOW)
    assert await values_in(path) == [0, 1, 2, 3, 4]


async def test_a_locked_file_is_waited_for_and_fills_the_ring_when_it_is_free(path: Path, clock: FakeClock) -> None:
    """As when a new pod starts before the old one has ended."""
    ring = SampleRing()
    with capture_logs() as logs:
        async with HistoryStore(path) as other:
            await other.append(make_batch({"n": 1}, sampled_at=NOW), fetched_at=NOW)
            async with make_writer(path, clock, ring) as writer:
                await submit(writer, clock, 2, 3)
                status = writer.status
                assert status.failure is not None
                assert (status.failure.cause, status.waiting_refreshes, writer.store) == ("locked", 2, None)
                await other.__aexit__(None, None, None)
                await submit(writer, clock, 4)
                assert (writer.status.failure, writer.status.written_refreshes, writer.status.filled_refreshes) == (None, 3, 1)
    assert await values_in(path) == [1, 2, 3, 4]
    assert ring.newest_at == NOW
    assert [(log["log_level"], log.get("cause")) for log in logs] == [("warning", "locked"), ("info", None)]


async def test_a_folder_that_comes_later(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "volume" / "history.db"
    async with make_writer(path, clock) as writer:
        await submit(writer, clock, 1)
        status = writer.status
        assert status.failure is not None
        assert status.failure.cause == "unwritable"
        path.parent.mkdir()
        await submit(writer, clock, 2)
        assert writer.status.failure is None
    assert await values_in(path) == [1, 2]


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_file_that_was_deleted_or_replaced_is_opened_anew(path: Path, clock: FakeClock, is_replaced: bool) -> None:
    async with make_writer(path, clock) as writer:
        await submit(writer, clock, 1)
        path.rename(path.with_suffix(".old"))
        if is_replaced:
            async with make_writer(path.with_suffix(".new"), clock) as other:
                await submit(other, clock, 2)
            path.with_suffix(".new").rename(path)
        await submit(writer, clock, 3, 4)
        assert writer.status.failure is None
    assert await values_in(path) == ([2, 3, 4] if is_replaced else [3, 4])
    assert await values_in(path.with_suffix(".old")) == [1]


async def test_a_refresh_that_says_nothing_new_is_not_written(path: Path, clock: FakeClock) -> None:
    async with make_writer(path, clock) as writer:
        for fetched_at in (NOW, NOW + 30):
            writer.submit(make_batch({"n": 1}), fetched_at=fetched_at)
            await writer.flush(DEADLINE_SECONDS)
        assert (writer.status.written_refreshes, writer.status.written_at) == (1, NOW + 30)


@pytest.mark.parametrize("is_open", [False, True])
async def test_a_damaged_file_is_set_aside_and_a_new_one_begun(
    path: Path, clock: FakeClock, is_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_open:
        path.write_bytes(b"x" * 8192)
    with capture_logs() as logs:
        async with make_writer(path, clock) as writer:
            if is_open:
                await submit(writer, clock, 0)
                damage_the_next_transaction(monkeypatch)
            await submit(writer, clock, 1, 2)
            set_aside = writer.status.set_aside
            assert (writer.status.failure, writer.status.waiting_refreshes) == (None, 0)
    assert set_aside is not None
    assert set_aside.parent == path.parent
    assert await (values_in(set_aside) if is_open else asyncio.to_thread(set_aside.read_bytes)) == ([0] if is_open else b"x" * 8192)
    assert await values_in(path) == [1, 2]
    assert [log["event"] for log in logs] == ["history file set aside, a new one begins"]


def damage_the_next_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the connection find the file damaged, once."""

    def find_damage(file: HistoryFile) -> object:
        monkeypatch.undo()
        raise HistoryCorruptError(f"history {file.path}: malformed")

    monkeypatch.setattr(HistoryFile, "transaction", find_damage)


async def test_a_disk_that_damages_every_file_is_not_filled_with_them(
    path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def find_damage(*_: object, **__: object) -> bool:
        raise HistoryCorruptError(f"history {path}: malformed")

    async with make_writer(path, clock) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(HistoryStore, "append", find_damage)
            await submit(writer, clock, *range(20))
            assert writer.status.failure is not None
            assert writer.status.failure.cause == "corrupt"
        assert len(list(path.parent.glob("*.bad-*"))) == 1
        clock.move(3600)
        await submit(writer, clock, 20)
        assert writer.status.failure is None


async def test_a_full_disk_keeps_the_last_refreshes_waiting(path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> bool:
        raise HistoryFullError(f"history {path}: full")

    with capture_logs() as logs:
        async with make_writer(path, clock) as writer:
            await submit(writer, clock, 0)
            store = writer.store
            with monkeypatch.context() as patch:
                patch.setattr(HistoryStore, "append", refuse)
                await submit(writer, clock, *range(1, 13))
                status = writer.status
                assert status.failure is not None
                assert (status.failure.cause, status.waiting_refreshes, status.lost_refreshes) == ("full", 10, 2)
            await submit(writer, clock, 13)
            assert writer.store is store, "opening it anew would need space"
            assert (writer.status.failure, writer.status.waiting_refreshes, writer.status.lost_refreshes) == (None, 0, 3)
    assert await values_in(path) == [0, *range(4, 14)]
    assert [log["event"] for log in logs] == ["history is not written, the service goes on from memory", "history is written again"]


async def test_a_disk_that_does_not_answer_stops_nobody(path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    append = HistoryStore.append
    asked, answers = asyncio.Event(), asyncio.Event()

    async def append_late(store: HistoryStore, batch: SampleBatch, *, fetched_at: float) -> bool:
        asked.set()
        await answers.wait()
        return await append(store, batch, fetched_at=fetched_at)

    async with make_writer(path, clock) as writer:
        monkeypatch.setattr(HistoryStore, "append", append_late)
        writer.submit(make_batch({"n": 0}, sampled_at=NOW), fetched_at=NOW)
        await asked.wait()
        for value in range(1, 13):
            writer.submit(make_batch({"n": value}, sampled_at=NOW + value), fetched_at=NOW)
        assert (writer.status.waiting_refreshes, writer.status.lost_refreshes) == (10, 3)
        assert not await writer.flush(0)
        answers.set()
        assert await writer.flush(DEADLINE_SECONDS)
    assert await values_in(path) == [0, *range(3, 13)], "the first was on its way"


async def test_a_service_ends_although_its_disk_does_not_answer(path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "_FLUSH_SECONDS", 0.05)

    async def hang(*_: object, **__: object) -> bool:
        return await asyncio.Event().wait()

    async with make_writer(path, clock) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(HistoryStore, "append", hang)
            writer.submit(make_batch({"n": 1}), fetched_at=NOW)
            await writer.__aexit__(None, None, None)
    assert await values_in(path) == []


async def test_a_file_that_is_slow_to_open_does_not_keep_the_service_from_starting(
    path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter = HistoryStore.__aenter__
    opens = asyncio.Event()

    async def enter_late(store: HistoryStore) -> HistoryStore:
        await opens.wait()
        return await enter(store)

    monkeypatch.setattr(writer_module, "_FILL_SECONDS", 0.05)
    monkeypatch.setattr(HistoryStore, "__aenter__", enter_late)
    with capture_logs() as logs:
        async with make_writer(path, clock) as writer:
            assert writer.store is None
            opens.set()
            await submit(writer, clock, 1)
    assert [log["event"] for log in logs] == ["history is slow to open"]
    assert await values_in(path) == [1]


async def test_the_file_is_pruned_as_it_grows(path: Path, clock: FakeClock) -> None:
    retention = Retention(sample_seconds=600, average_seconds=1200)
    async with HistoryWriter(path, SampleRing(), source="test", clock=clock, retention=retention) as writer:
        await submit(writer, clock, *range(100))
        assert writer.store is not None
        size = await writer.store.measure()
    assert size.refreshes <= 20 + 10 + 3
    assert size.oldest_at is not None
    assert clock.now - size.oldest_at <= 1200 + 300
