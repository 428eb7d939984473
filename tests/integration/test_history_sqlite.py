"""The history file on a real disk: what comes back after a restart, what is kept how long, and what each kind of failure means."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from load_watcher.history import reader as reader_module
from load_watcher.history import store as store_module
from load_watcher.history.errors import (
    HistoryCorruptError,
    HistoryDiskError,
    HistoryForeignError,
    HistoryFullError,
    HistoryLockedError,
    HistoryUnwritableError,
    WindowTooLargeError,
)
from load_watcher.history.reader import HistoryReader
from load_watcher.history.records import StoredRefresh
from load_watcher.history.schema import APPLICATION_ID, MIGRATIONS
from load_watcher.history.sqlite import HistoryFile, set_aside
from load_watcher.history.store import HistoryStore, Retention
from load_watcher.history.window import SampleRing
from load_watcher.samples import NodeInfo, SampleBatch
from tests.builders import NOW, make_batch
from tests.fakes.history_process import make_refresh
from trimaran_client.wire import ResourceQuantities

ROOT = Path(__file__).parents[2]
VERSION_1 = ROOT / "tests/data/history/version-1.db"
INFO = NodeInfo(ResourceQuantities("8", "32Gi"), ResourceQuantities("7910m", "30Gi"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[HistoryStore]:
    async with HistoryStore(path) as store:
        yield store


async def append(store: HistoryStore, *values: float, start_at: float = NOW, step_seconds: float = 30, node: str = "n") -> None:
    for position, value in enumerate(values):
        at = start_at + step_seconds * position
        await store.append(make_batch({node: value}, sampled_at=at), fetched_at=at + 1)


async def load(reader: HistoryReader, start_at: float = 0, end_at: float | None = None, *, averages: bool = False) -> list[StoredRefresh]:
    return [refresh async for refresh in reader.load(start_at, end_at, averages=averages)]


def values_of(refreshes: list[StoredRefresh]) -> list[float]:
    return [float(refresh.batch.latest["CPU"][0]) for refresh in refreshes]


def assert_same(batch: SampleBatch, other: SampleBatch) -> None:
    assert (batch.source, batch.nodes, batch.infos, batch.units) == (other.source, other.nodes, other.infos, other.units)
    assert (sorted(batch.latest), sorted(batch.times)) == (sorted(other.latest), sorted(other.times))
    np.testing.assert_array_equal(batch.sampled_at, other.sampled_at)
    for metric_type, values in batch.latest.items():
        np.testing.assert_array_equal(values, other.latest[metric_type])
        np.testing.assert_array_equal(batch.times_of(metric_type), other.times_of(metric_type))


class TestRestart:
    async def test_refreshes_come_back_bit_for_bit(self, path: Path) -> None:
        rng = np.random.default_rng(1)
        batches = []
        for position in range(70):
            nodes = {f"n{node}": rng.uniform(0, 100) for node in range(3 + position // 20)}
            infos = (INFO, *(None,) * (len(nodes) - 1))
            times = {"Memory": np.array([NOW + 30 * position - 5] * len(nodes))} if position % 2 else {}
            batches.append(
                make_batch(
                    nodes, memory_percent={"n1": 7.0}, sampled_at=NOW + 30 * position, infos=infos, times=times, units={"CPU": "percent"}
                )
            )
        async with HistoryStore(path) as store:
            for batch in batches:
                assert await store.append(batch, fetched_at=NOW)
        async with HistoryStore(path) as store:
            refreshes = await load(store)
        assert len(refreshes) == len(batches)
        for refresh, batch in zip(refreshes, batches, strict=True):
            assert_same(refresh.batch, batch)

    async def test_a_ring_filled_from_the_file_gives_the_same_answers(self, path: Path) -> None:
        before, after = SampleRing(), SampleRing()
        rng = np.random.default_rng(2)
        async with HistoryStore(path) as store:
            for position in range(40):
                sampled_at = {node: NOW + 30 * position - rng.uniform(0, 15) for node in "abc"}
                batch = make_batch({node: rng.uniform(0, 100) for node in "abc"}, sampled_at=sampled_at)
                before.append(batch)
                await store.append(batch, fetched_at=NOW + 30 * position)
        async with HistoryStore(path) as store:
            async for refresh in store.load(NOW - 3600):
                after.append(refresh.batch)
        operators = ["Latest", "AVG", "STD", "P95", "MAX"]
        answers = [ring.aggregate(operators, end_at=NOW + 1200, nodes=("a", "b", "c")) for ring in (before, after)]
        for one, other in zip(*answers, strict=True):
            np.testing.assert_array_equal(one.values, other.values)
            np.testing.assert_array_equal(one.sampled_at, other.sampled_at)

    async def test_what_says_nothing_new_is_not_written(self, store: HistoryStore) -> None:
        batch, without = make_batch({"n": 1, "m": 2}), make_batch({"n": None})
        assert [await store.append(each, fetched_at=NOW) for each in (batch, batch, without, batch)] == [True, False, False, False]
        assert await store.append(make_batch({"m": 2, "n": 1}), fetched_at=NOW), "the same numbers of other nodes"
        assert await store.append(make_batch({"m": 2, "n": 1}, infos=(INFO, None)), fetched_at=NOW)
        assert len(await load(store)) == 3

    async def test_a_range_is_cut_at_both_ends_and_thinned_to_a_coarser_step(self, store: HistoryStore) -> None:
        await append(store, *range(100), step_seconds=10)
        assert values_of(await load(store, NOW + 200, NOW + 230)) == [21, 22, 23]
        assert values_of([each async for each in store.load(NOW - 1, step_seconds=60)]) == list(range(0, 100, 3))

    async def test_a_cancelled_write_leaves_nothing_behind(self, store: HistoryStore) -> None:
        await append(store, 1)
        for steps in range(12):
            task = asyncio.create_task(store.append(make_batch({"n": 2}, sampled_at=NOW + 30 + steps), fetched_at=NOW))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        await append(store, 3, start_at=NOW + 60)
        assert values_of(await load(store))[-1] == 3


class TestReading:
    async def test_pages_put_together_are_the_whole(self, store: HistoryStore) -> None:
        await append(store, *range(200), start_at=NOW)
        whole = await store.read("n", "CPU", start_at=NOW + 100, end_at=NOW + 4000, step_seconds=60)
        assert whole.next_start_at is None
        at: list[float] = []
        values: list[float] = []
        start_at: float | None = NOW + 100
        while start_at is not None:
            page = await store.read("n", "CPU", start_at=start_at, end_at=NOW + 4000, step_seconds=60, limit=7)
            assert len(page.at) <= 7
            at += page.at.tolist()
            values += page.values.tolist()
            start_at = page.next_start_at
        assert (at, values) == (whole.at.tolist(), whole.values.tolist())
        # NOW + 100 is a whole minute: the first step has the samples of NOW + 120 and + 150, 4 and 5.
        assert values[:2] == [4.5, 6.5]

    async def test_a_gap_is_a_gap_and_an_unknown_node_has_no_points(self, store: HistoryStore) -> None:
        await append(store, 1, 2, step_seconds=600)
        await append(store, 9, start_at=NOW + 30, node="other")
        page = await store.read("n", "CPU", start_at=NOW - 60, end_at=NOW + 900, step_seconds=60)
        assert page.values.tolist() == [1.0, 2.0]
        for node, metric_type in (("unknown", "CPU"), ("n", "Memory")):
            assert (await store.read(node, metric_type, start_at=0, end_at=NOW + 900, step_seconds=60)).values.tolist() == []

    async def test_a_sample_that_is_older_than_its_refresh_counts_where_it_was_measured(self, store: HistoryStore) -> None:
        for at in (NOW, NOW + 60):
            await store.append(make_batch({"late": at - NOW, "n": 1}, sampled_at={"late": at - 90, "n": at}), fetched_at=at)
        page = await store.read("late", "CPU", start_at=NOW - 30, end_at=NOW + 600, step_seconds=60)
        assert page.values.tolist() == [], "its samples are of 90 and of 30 s before"
        times = {"Memory": np.array([NOW - 200])}
        await store.append(make_batch({"late": 1}, memory_percent={"late": 7}, sampled_at=NOW + 90, times=times), fetched_at=NOW + 90)
        page = await store.read("late", "Memory", start_at=NOW - 240, end_at=NOW, step_seconds=60)
        assert (page.at.tolist(), page.values.tolist()) == ([NOW - 200], [7.0])
        page = await store.read("late", "CPU", start_at=NOW - 31, end_at=NOW - 30, step_seconds=60)
        assert page.values.tolist() == [60.0]

    async def test_a_long_window_is_that_of_a_ring(self, store: HistoryStore) -> None:
        ring = SampleRing()
        for position in range(100):
            at = NOW + 30 * position
            batch = make_batch({"a": position, **({"b": position} if position % 4 else {})}, sampled_at={"a": at, "b": at - 45})
            ring.append(batch)
            await store.append(batch, fetched_at=at)
        limits = {"start_at": NOW + 600, "end_at": NOW + 2400}
        collected, columns = await store.collect("CPU", **limits), ring.columns("CPU", nodes=("a", "b"), **limits)
        for column in range(2):
            assert sorted(collected.at_ms[:, column][collected.at_ms[:, column] > 0]) == sorted(
                columns.at_ms[:, column][columns.at_ms[:, column] > 0]
            )
            assert np.nansum(collected.values[:, column]) == np.nansum(columns.values[:, column])

    async def test_a_window_with_too_many_samples_is_refused(self, store: HistoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reader_module, "_MAX_COLLECTED", 9)
        await append(store, *range(10))
        with pytest.raises(WindowTooLargeError, match="CPU: 600 s of 1 nodes are more than 9 samples; ask for a shorter window"):
            await store.collect("CPU", start_at=NOW - 1, end_at=NOW + 599)

    async def test_a_running_service_can_be_read_by_another_connection(self, store: HistoryStore, path: Path) -> None:
        await append(store, 1, 2)
        async with HistoryReader(path) as reader:
            assert values_of(await load(reader)) == [1, 2]
            await append(store, 3, start_at=NOW + 60)
            assert values_of(await load(reader)) == [1, 2, 3]


class TestRetention:
    async def test_old_samples_become_averages_and_old_averages_go(self, path: Path) -> None:
        start_at = NOW - NOW % 300
        async with HistoryStore(path, retention=Retention(sample_seconds=600, average_seconds=1800)) as store:
            await append(store, *range(1, 41), start_at=start_at + 30)
            # Samples are kept from the last whole five minutes before 610 s ago on: 10 minutes of averages, 10 minutes of samples.
            assert await store.prune(start_at + 1210) == 20
            refreshes = await load(store, averages=True)
            assert [refresh.span_seconds for refresh in refreshes] == [300] * 2 + [0] * 20
            assert values_of(refreshes)[:3] == [5.5, 15.5, 21]
            assert [float(each.batch.sampled_at[0]) - start_at for each in refreshes[:2]] == [300, 600]
            page = await store.read("n", "CPU", start_at=start_at, end_at=start_at + 1200, step_seconds=300)
            assert page.values.tolist() == [5.5, 15.5, 25.5, 35.5]
            assert await store.prune(start_at + 300 + 1800) == 20 + 1
            assert values_of(await load(store, averages=True)) == [15.5, 25.5, 35.5]

    async def test_averages_take_over_node_sets_and_unused_ones_go(self, path: Path) -> None:
        start_at = NOW - NOW % 300
        async with HistoryStore(path, retention=Retention(sample_seconds=600)) as store:
            for position in range(40):
                batch = make_batch({"a": 1.0, f"n{position // 10}": 2.0}, sampled_at=start_at + 30 * (position + 1))
                await store.append(batch, fetched_at=NOW)
            await store.prune(start_at + 3600)
            refreshes = await load(store, averages=True)
            assert [refresh.batch.nodes for refresh in refreshes] == [("a", "n0"), ("a", "n1"), ("a", "n2"), ("a", "n3")]
            assert await store._file.fetch("SELECT count(*) FROM node_sets") == [(4,)]
            await store.prune(start_at + 40 * 86400)
            assert await store._file.fetch("SELECT count(*) FROM node_sets") == [(0,)]
            await store.append(make_batch({"a": 5, "n3": 2.0}), fetched_at=NOW)
            assert values_of(await load(store, averages=True)) == [5]

    async def test_a_refresh_belongs_to_the_five_minutes_of_its_newest_sample(self, path: Path) -> None:
        start_at = NOW - NOW % 300
        async with HistoryStore(path, retention=Retention(sample_seconds=600)) as store:
            for position, value in enumerate([1.0, 2.0, 9.0]):
                at = start_at + 120 * (position + 1)
                await store.append(make_batch({"n": value, "late": value}, sampled_at={"n": at, "late": at - 90}), fetched_at=at)
            assert await store.prune(start_at + 3600) == 3
            averages = await load(store, averages=True)
        assert values_of(averages) == [1.5, 9.0]
        assert [(each.batch.sampled_at - start_at).tolist() for each in averages] == [[240, 150], [360, 270]]

    async def test_a_file_that_is_too_large_loses_the_oldest(self, path: Path) -> None:
        bound_bytes = 400_000
        rng = np.random.default_rng(3)
        async with HistoryStore(path, retention=Retention(max_bytes=bound_bytes)) as store:
            for position in range(150):
                batch = make_batch(
                    {f"n{node}": value for node, value in enumerate(rng.uniform(0, 100, 500))}, sampled_at=NOW + 30 * position
                )
                await store.append(batch, fetched_at=NOW + 30 * position)
                await store.prune(NOW + 30 * position)
            size = await store.measure()
            refreshes = await load(store)
        assert size.used_bytes <= size.file_bytes <= bound_bytes
        assert path.stat().st_size <= bound_bytes
        assert len(refreshes) > 50
        assert [refresh.fetched_at - NOW for refresh in refreshes] == [30 * position for position in range(150 - len(refreshes), 150)]

    async def test_a_smaller_bound_makes_a_file_smaller(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        rng = np.random.default_rng(4)
        async with HistoryStore(path) as store:
            for position in range(100):
                batch = make_batch(
                    {f"n{node}": value for node, value in enumerate(rng.uniform(0, 100, 500))}, sampled_at=NOW + 30 * position
                )
                await store.append(batch, fetched_at=NOW)
        async with HistoryStore(path, retention=Retention(max_bytes=150_000)) as store:
            monkeypatch.setattr(store_module, "_MAX_VACUUMED_PAGES", 20)
            sizes: list[int] = []
            while not sizes or sizes[-1] > 150_000:
                await store.prune(NOW)
                sizes.append((await store.measure()).file_bytes)
        assert path.stat().st_size <= 150_000
        assert len(sizes) > 1, "bit by bit"


class TestVersions:
    async def test_a_file_of_version_1_is_read(self, path: Path) -> None:
        """The frozen file holds 20 minutes of two, then three nodes; of the first ten there are averages."""
        shutil.copy(VERSION_1, path)
        async with HistoryStore(path) as store:
            refreshes = await load(store, averages=True)
            await append(store, 77, start_at=NOW + 60)
        assert [(each.span_seconds, each.fetched_at - NOW) for each in (refreshes[0], refreshes[-1])] == [(300, -1109.0), (0, -29.0)]
        assert (refreshes[-1].batch.nodes, refreshes[-1].batch.infos) == (("node-a", "node-b", "node-c"), (INFO, None, None))
        np.testing.assert_array_equal(refreshes[-1].batch.latest["CPU"], [39.5, np.nan, 1 / 3])
        np.testing.assert_array_equal(refreshes[-1].batch.latest["Memory"], [50, np.nan, np.nan])
        np.testing.assert_array_equal(refreshes[-1].batch.latest["Power"], [250.5, np.nan, 1 / 7])
        np.testing.assert_array_equal(refreshes[-1].batch.times_of("Power") - NOW, [-37.5, np.nan, -38])
        np.testing.assert_array_equal(refreshes[-1].batch.sampled_at - NOW, [-30, np.nan, -30])
        assert (refreshes[-1].batch.units, refreshes[0].batch.units) == ({"Power": "watts"}, {})

    async def test_a_migration_keeps_what_is_there(self, path: Path) -> None:
        shutil.copy(VERSION_1, path)
        second = ("ALTER TABLE refreshes ADD COLUMN note TEXT NOT NULL DEFAULT 'old'",)
        async with HistoryFile(path, migrations=(*MIGRATIONS, second)) as file:
            assert await file.fetch("PRAGMA user_version") == [(2,)]
            assert await file.fetch("SELECT DISTINCT note FROM refreshes") == [("old",)]
        with pytest.raises(HistoryForeignError, match="it has version 2 and this program knows 1; use the newer program, or give another"):
            async with HistoryStore(path):
                pass

    async def test_a_migration_that_fails_changes_nothing(self, path: Path) -> None:
        shutil.copy(VERSION_1, path)
        with pytest.raises(HistoryDiskError, match="no such table"):
            async with HistoryFile(path, migrations=(*MIGRATIONS, ("ALTER TABLE refreshes ADD COLUMN note TEXT", "DROP TABLE nowhere"))):
                pass
        async with HistoryStore(path) as store:
            assert len(await load(store, averages=True)) > 20
            assert "note" not in str(await store._file.fetch("SELECT sql FROM sqlite_master"))

    @pytest.mark.parametrize("statement", [f"PRAGMA user_version = {len(MIGRATIONS) + 1}", "PRAGMA application_id = 1"])
    async def test_a_newer_file_and_one_of_another_program_are_left_alone(self, path: Path, statement: str) -> None:
        connection = sqlite3.connect(path)
        connection.executescript(f"CREATE TABLE t (x); PRAGMA application_id = {APPLICATION_ID}; {statement}")
        connection.close()
        before = path.read_bytes()
        for reader in (HistoryStore(path), HistoryReader(path)):
            with pytest.raises(HistoryForeignError, match="give another path"):
                async with reader:
                    pass
        assert path.read_bytes() == before

    async def test_a_reader_does_not_migrate(self, path: Path) -> None:
        sqlite3.connect(path).execute(f"PRAGMA application_id = {APPLICATION_ID}").connection.close()
        with pytest.raises(HistoryForeignError, match="version 0 .* start the service on it once"):
            async with HistoryReader(path):
                pass


class TestDamage:
    @pytest.fixture
    async def damaged(self, path: Path) -> Path:
        async with HistoryStore(path) as store:
            for number in range(1, 60):
                batch, fetched_at = make_refresh(number)
                await store.append(batch, fetched_at=fetched_at)
        return path

    @staticmethod
    def overwrite(path: Path, offset: int, data: bytes) -> None:
        content = bytearray(path.read_bytes())
        content[offset : offset + len(data)] = data
        path.write_bytes(content)

    async def read_through(self, path: Path) -> None:
        async with HistoryStore(path) as store:
            await load(store)

    async def test_a_header_that_is_no_longer_one(self, damaged: Path) -> None:
        self.overwrite(damaged, 0, b"x" * 100)
        with pytest.raises(HistoryCorruptError, match="not a database"):
            await self.read_through(damaged)

    async def test_a_file_that_was_cut(self, damaged: Path) -> None:
        damaged.write_bytes(damaged.read_bytes()[: 4096 * 3 + 100])
        with pytest.raises(HistoryCorruptError):
            await self.read_through(damaged)

    async def test_pages_of_garbage(self, damaged: Path) -> None:
        size = damaged.stat().st_size
        self.overwrite(damaged, 4096, b"\xa5" * (size - 4096))
        with pytest.raises(HistoryCorruptError):
            await self.read_through(damaged)

    async def test_one_wrong_byte_in_a_blob(self, damaged: Path) -> None:
        with sqlite3.connect(damaged) as connection:
            [(blob,)] = connection.execute("SELECT data FROM samples WHERE id = 20").fetchall()
            middle = len(blob) // 2
            wrong = blob[:middle] + bytes([blob[middle] ^ 1]) + blob[middle + 1 :]
            connection.execute("UPDATE samples SET data = ? WHERE id = 20", (wrong,))
        connection.close()
        with pytest.raises(HistoryCorruptError, match="damaged"):
            await self.read_through(damaged)

    async def test_a_damaged_file_is_set_aside_whole_and_a_new_one_begins(self, damaged: Path) -> None:
        self.overwrite(damaged, 0, b"x" * 100)
        content = damaged.read_bytes()
        Path(f"{damaged}-wal").write_bytes(b"log")
        target = set_aside(damaged, NOW)
        assert target.name == "history.db.bad-20231114T221320Z"
        assert (target.read_bytes(), Path(f"{target}-wal").read_bytes()) == (content, b"log")
        async with HistoryStore(damaged) as store:
            assert await load(store) == []
        assert set_aside(damaged, NOW).name == "history.db.bad-20231114T221320Z-1"
        assert target.read_bytes() == content


class TestOtherProcesses:
    async def test_a_second_process_is_locked_out_until_the_first_ends(self, path: Path) -> None:
        command = [sys.executable, "-m", "tests.fakes.history_process", "hold", str(path)]
        process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"open\n"
            with pytest.raises(HistoryLockedError, match="another process has it; stop that one, or give each a path of its own"):
                async with HistoryStore(path):
                    pass
            with pytest.raises(HistoryLockedError):
                set_aside(path, NOW)
            async with HistoryReader(path) as reader:
                assert await load(reader) == []
        finally:
            process.kill()
            await process.wait()
        async with HistoryStore(path) as store:
            await append(store, 1)

    async def test_a_second_store_of_the_same_process_is_locked_out_as_well(self, store: HistoryStore, path: Path) -> None:
        with pytest.raises(HistoryLockedError):
            async with HistoryStore(path):
                pass
        await append(store, 1)

    async def test_a_store_that_was_closed_says_so(self, path: Path) -> None:
        async with HistoryStore(path) as store:
            pass
        with pytest.raises(HistoryDiskError, match="was closed"):
            await load(store)
        with pytest.raises(HistoryDiskError, match="was closed"):
            await append(store, 1)


class TestFullDisk:
    async def test_a_full_disk_loses_nothing_that_was_written(self, store: HistoryStore) -> None:
        """As when no page can be added any more, in the connection's own words."""
        await append(store, 1, 2)
        [(pages,)] = await store._file.fetch("PRAGMA page_count")
        await store._file.fetch(f"PRAGMA max_page_count = {pages}")
        large = make_batch({f"n{node}": 1 / (node + 1) for node in range(3000)}, sampled_at=NOW + 60)
        with pytest.raises(HistoryFullError, match="free some space, or set a smaller size for the history"):
            await store.append(large, fetched_at=NOW)
        assert values_of(await load(store)) == [1, 2]
        await store._file.fetch("PRAGMA max_page_count = 1000000")
        assert await store.append(large, fetched_at=NOW)
        assert len(await load(store)) == 3

    async def test_a_limit_on_the_size_of_a_file(self, path: Path) -> None:
        cause, written, _ = run_fill(path, limit_bytes=300_000)
        assert (cause in {"full", "disk"}, written > 5) == (True, True)
        async with HistoryStore(path) as store:
            assert len(await load(store)) == written


def run_fill(path: Path, *, limit_bytes: int | None = None, setup: str | None = None) -> tuple[str, int, str]:
    """Let a process append until that fails; ``setup`` is a shell command in a mount namespace of its own."""
    command = [sys.executable, "-m", "tests.fakes.history_process", "fill", str(path), *([] if limit_bytes is None else [str(limit_bytes)])]
    if setup is not None:
        command = ["unshare", "--mount", "--map-root-user", "sh", "-c", f'{setup} && exec "$@"', "sh", *command]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    cause, written, message = done.stdout.strip().split("\t")
    return cause, int(written), message


class TestMounts:
    """Real mounts, in a namespace of a child process: root writes to any folder whatever its mode."""

    @pytest.fixture(autouse=True)
    def mounting(self) -> None:
        if (
            shutil.which("unshare") is None
            or subprocess.run(
                ["unshare", "--mount", "--map-root-user", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False
            ).returncode
        ):
            pytest.skip("this machine allows no mount in a namespace; the same failures are tested by limits and missing folders")

    def test_a_full_tmpfs(self, tmp_path: Path) -> None:
        cause, written, message = run_fill(tmp_path / "history.db", setup=f"mount -t tmpfs -o size=1m tmpfs {tmp_path}")
        assert (cause, written > 5) == ("full", True), message

    def test_a_read_only_mount(self, tmp_path: Path) -> None:
        cause, written, message = run_fill(tmp_path / "history.db", setup=f"mount -t tmpfs -o ro tmpfs {tmp_path}")
        assert (cause, written) == ("unwritable", 0)
        assert "its folder must be there, and this user must be able to read and write" in message

    async def test_a_file_on_a_mount_that_is_read_only_by_now(self, path: Path) -> None:
        async with HistoryStore(path) as store:
            await append(store, 1)
        cause, written, _ = run_fill(path, setup=f"mount --bind {path.parent} {path.parent} && mount -o remount,ro,bind {path.parent}")
        assert (cause, written) == ("unwritable", 0)
        async with HistoryStore(path) as store:
            assert values_of(await load(store)) == [1]


@pytest.mark.parametrize("place", ["missing/history.db", "file/history.db", "folder"])
async def test_a_place_where_no_file_can_be(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for reader in (HistoryStore(tmp_path / place), HistoryReader(tmp_path / place)):
        with pytest.raises(HistoryUnwritableError, match="its folder must be there, and this user must be able to read and write"):
            async with reader:
                pass
