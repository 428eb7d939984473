"""
Processes that have a history file open, for tests that kill them, lock them out or take their disk away.

``python -m tests.fakes.history_process write PATH`` goes on from the newest refresh of the file for ever, and tells the number of each
before it is submitted and after it is written; ``hold PATH`` has the file open until its input ends; ``fill PATH`` appends until that
fails, and tells the cause and how many refreshes were written before.
"""

from __future__ import annotations

import asyncio
import resource
import signal
import sys
from pathlib import Path

import numpy as np

from load_watcher.history.errors import HistoryFileError
from load_watcher.history.store import HistoryStore, Retention
from load_watcher.history.window import SampleRing
from load_watcher.history.writer import HistoryWriter
from load_watcher.samples import SampleBatch
from tests.fakes.watcher import FakeClock

# A multiple of five minutes, so that the averages begin with refresh 1.
START_AT = 1_699_999_800.0
STEP_SECONDS = 30.0
NODES = tuple(f"node-{row}" for row in range(40))
# Half an hour of samples, so that averaging is under way as well when the process dies.
RETENTION = Retention(sample_seconds=1800)


def make_refresh(number: int) -> tuple[SampleBatch, float]:
    """Make a batch whose every value tells its number, and when it was fetched."""
    at = START_AT + STEP_SECONDS * number
    values = {"CPU": value_of(number) + np.arange(len(NODES)), "Memory": np.full(len(NODES), value_of(number) / 3)}
    return SampleBatch("test", NODES, np.full(len(NODES), at), values), at + 1


def value_of(number: int) -> float:
    """Answer the CPU of the first node at a refresh."""
    return number % 97 + 0.25


def number_of(at: float) -> int:
    """Answer which refresh was sampled then."""
    return round((at - START_AT) / STEP_SECONDS)


def say(*words: object) -> None:
    """Tell the test, on a line."""
    sys.stdout.write("\t".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def _write(path: Path) -> None:
    clock = FakeClock()
    async with HistoryStore(path) as store:
        newest_at = (await store.measure()).newest_at
    number = 0 if newest_at is None else number_of(newest_at)
    clock.now = START_AT + STEP_SECONDS * number
    async with HistoryWriter(path, SampleRing(), source="test", clock=clock, retention=RETENTION) as writer:
        while writer.status.failure is None:
            number += 1
            say("submit", number)
            batch, clock.now = make_refresh(number)
            writer.submit(batch, fetched_at=clock.now)
            await writer.flush(60)
            say("written", number)
        say("failed", writer.status.failure)


async def _hold(path: Path) -> None:
    async with HistoryStore(path):
        say("open")
        await asyncio.to_thread(sys.stdin.read)


async def _fill(path: Path) -> None:
    written = 0
    try:
        async with HistoryStore(path) as store:
            while True:
                batch, fetched_at = make_refresh(written + 1)
                await store.append(batch, fetched_at=fetched_at)
                written += 1
    except HistoryFileError as error:
        say(error.cause, written, error)


def main() -> None:
    """Do what the arguments say; a third is the largest size of a file in bytes."""
    mode, path, *limit = sys.argv[1:]
    if limit:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit[0]), resource.RLIM_INFINITY))
    asyncio.run({"write": _write, "hold": _hold, "fill": _fill}[mode](Path(path)))


if __name__ == "__main__":
    main()
