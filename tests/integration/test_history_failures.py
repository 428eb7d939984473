"""What a history file does that is of another version, damaged, locked, or on a disk that is full or read-only."""

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

from load_watcher.history.errors import (
    HistoryCorruptError,
    HistoryDiskError,
    HistoryForeignError,
    HistoryFullError,
    HistoryLockedError,
    HistoryUnwritableError,
)
from load_watcher.history.reader import HistoryReader
from load_watcher.history.schema import APPLICATION_ID, MIGRATIONS
from load_watcher.history.sqlite import HistoryFile, set_aside
from load_watcher.history.store import HistoryStore
from load_watcher.samples import NodeInfo
from tests.builders import NOW, make_batch
from tests.fakes.history import append, load, values_of
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
