"""What is left of the file when its process, or its machine, dies in the middle of writing."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from load_watcher.history.reader import AVERAGE_SECONDS, HistoryReader
from load_watcher.history.records import StoredRefresh
from load_watcher.history.store import HistoryStore
from tests.fakes.history_process import STEP_SECONDS, make_refresh, number_of, value_of

ROOT = Path(__file__).parents[2]
ROUNDS = 200 if os.environ.get("TRIMARAN_PROVE") else 25
IN_AVERAGE = round(AVERAGE_SECONDS / STEP_SECONDS)

pytestmark = pytest.mark.slow


def check_integrity(path: Path) -> None:
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()


async def load_all(path: Path) -> list[StoredRefresh]:
    async with HistoryReader(path) as reader:
        return [refresh async for refresh in reader.load(0, averages=True)]


def check_refreshes(refreshes: list[StoredRefresh]) -> int:
    """Check that every refresh up to the newest is there, whole, as samples or in an average; answer the newest."""
    expected = 1
    for refresh in refreshes:
        cpu, memory = refresh.batch.latest["CPU"], refresh.batch.latest["Memory"]
        newest = number_of(refresh.batch.sampled_at[0])
        numbers = range(newest - IN_AVERAGE + 1, newest + 1) if refresh.span_seconds else range(newest, newest + 1)
        assert numbers[0] == expected
        expected = numbers[-1] + 1
        value = sum(map(value_of, numbers)) / len(numbers)
        np.testing.assert_allclose(cpu, value + np.arange(len(cpu)), rtol=1e-6)
        np.testing.assert_allclose(memory, value / 3, rtol=1e-6)
    return expected - 1


def write_until_killed(path: Path, rng: np.random.Generator) -> tuple[int, int]:
    """Let a process write to the file, kill it at a random moment; answer the last number it wrote, and the last it had begun."""
    command = [sys.executable, "-m", "tests.fakes.history_process", "write", str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        # Every fifth time before it tells anything: while it starts, opens the file or fills its ring.
        lines = [process.stdout.readline() for _ in range(rng.integers(1, 80) if rng.random() < 0.8 else 0)]
        try:
            process.wait(timeout=rng.uniform(0, 0.02 if lines else 1.0))
        except subprocess.TimeoutExpired:
            process.kill()
        # A line that was cut is one that was not said.
        lines += [line for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        assert process.wait() == -9, (lines, process.stderr.read())
    words = [line.split() for line in lines]
    return (
        max((int(number) for word, number in words if word == "written"), default=0),
        max((int(number) for word, number in words if word == "submit"), default=0),
    )


async def test_a_killed_process_loses_at_most_the_refresh_that_it_was_writing(tmp_path: Path) -> None:
    """One file goes through all the kills, so that each also opens what the ones before left behind."""
    path = tmp_path / "history.db"
    async with HistoryStore(path):
        pass
    rng = np.random.default_rng(5)
    newest = 0
    for round_ in range(ROUNDS):
        written, begun = await asyncio.to_thread(write_until_killed, path, rng)
        found = check_refreshes(await load_all(path))
        check_integrity(path)
        assert max(written, newest) <= found <= max(begun, newest), round_
        newest = found
    assert newest > 10 * ROUNDS


async def test_a_log_that_was_cut_gives_an_earlier_state_of_the_file(tmp_path: Path) -> None:
    """As after a loss of power: of what was not synchronized any part may be missing, or be other bytes."""
    path = tmp_path / "history.db"
    log = Path(f"{path}-wal")
    rng = np.random.default_rng(7)
    states: list[tuple[int, bytes, bytes]] = []
    async with HistoryStore(path) as store:
        for number in range(1, 301):
            batch, fetched_at = make_refresh(number)
            before = path.read_bytes()
            await store.append(batch, fetched_at=fetched_at)
            # After a checkpoint the log was synchronized, and is in the file: no loss of power cuts it.
            if path.read_bytes() == before and number % 10 == 0:
                states.append((number, before, log.read_bytes()))
    sizes = [len(file) for _, file, _ in states]
    assert sizes[-1] > sizes[0], "there was no checkpoint"
    for round_ in range(ROUNDS):
        number, file, logged = states[rng.integers(len(states))]
        kept = int(rng.integers(len(logged)))
        tail = rng.bytes(len(logged) - kept) if round_ % 2 else b""
        folder = tmp_path / str(round_)
        folder.mkdir()
        cut = folder / "history.db"
        cut.write_bytes(file)
        Path(f"{cut}-wal").write_bytes(logged[:kept] + tail)
        async with HistoryStore(cut) as store:
            found = check_refreshes([refresh async for refresh in store.load(0)])
            assert found <= number
            batch, fetched_at = make_refresh(found + 1)
            assert await store.append(batch, fetched_at=fetched_at)
        check_integrity(cut)
        shutil.rmtree(folder)


async def test_a_log_that_lost_what_was_last_synchronized_loses_one_refresh(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    log = Path(f"{path}-wal")
    async with HistoryStore(path) as store:
        for number in range(1, 21):
            synchronized = log.stat().st_size
            batch, fetched_at = make_refresh(number)
            await store.append(batch, fetched_at=fetched_at)
        file, logged = path.read_bytes(), log.read_bytes()
    rng = np.random.default_rng(11)
    for round_ in range(ROUNDS):
        cut = tmp_path / f"{round_}.db"
        cut.write_bytes(file)
        Path(f"{cut}-wal").write_bytes(logged[: rng.integers(synchronized, len(logged))])
        assert check_refreshes(await load_all(cut)) == 19
