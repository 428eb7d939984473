"""
What the history of a big cluster costs: ``python -m tests.benchmarks.bench_history [--hours 24] [--folder FOLDER]``.

Fills a file with refreshes of 5,000 nodes and 6 metrics at 30 s, then times 100 more, each with all that the history does with one: into
the ring, averages and deviations of every node and metric, write, prune. On a shared machine trust CPU times more than wall times.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import numpy as np

from load_watcher.history.columns import MILLISECONDS
from load_watcher.history.reader import AVERAGE_SECONDS
from load_watcher.history.store import HistoryStore, Retention
from load_watcher.history.window import SampleRing
from load_watcher.samples import NodeInfo, SampleBatch
from trimaran_client.units import FloatArray
from trimaran_client.wire import AVERAGE, CPU, MEMORY, STANDARD_DEVIATION, ResourceQuantities

NODES: Final = 5000
STEP_SECONDS: Final = 30
START_AT: Final = 1_699_999_800.0
TIMED: Final = 100
OTHERS: Final = ("Disk", "DiskIO", "Network", "Energy")


class Cluster:
    """Makes refreshes: CPU in whole millicores, memory in pages, the other metrics with every digit."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(1)
        self.nodes = tuple(f"ip-10-{node // 65536}-{node // 256 % 256}-{node % 256}.eu-west-1.compute.internal" for node in range(NODES))
        self._infos = tuple(NodeInfo(ResourceQuantities("16", "64Gi"), ResourceQuantities("15890m", "60Gi")) for _ in self.nodes)
        self._millicores = self._rng.choice([4000, 8000, 16000, 32000], NODES)
        self._pages = self._rng.choice([16, 32, 64, 128], NODES) * 2**18 - self._rng.integers(0, 2**16, NODES)
        self._level = self._rng.uniform(5, 80, NODES)

    def make_refresh(self, number: int) -> tuple[SampleBatch, float]:
        """Make a refresh and the time of its fetch."""
        at = START_AT + STEP_SECONDS * number
        latest: dict[str, FloatArray] = {name: self._draw(5) for name in OTHERS}
        latest[CPU] = np.ceil(self._draw(5) / 100 * self._millicores) / self._millicores * 100
        latest[MEMORY] = np.floor(self._draw(1) / 100 * self._pages) / self._pages * 100
        sampled_at = at - self._rng.integers(0, 15, NODES).astype(np.float64)
        return SampleBatch("bench", self.nodes, sampled_at, latest, infos=self._infos), at + 1

    def _draw(self, spread_percent: float) -> FloatArray:
        values: FloatArray = np.clip(self._level + self._rng.normal(0, spread_percent, NODES), 0.1, 100)
        return values


class LoopWatch:
    """Notes the longest time in which the event loop did nothing else, and the most CPU that its thread took at once."""

    def __init__(self) -> None:
        self.wall_seconds = 0.0
        self.cpu_seconds = 0.0

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            wall, cpu = time.monotonic(), time.thread_time()
            await asyncio.sleep(0)
            self.wall_seconds = max(self.wall_seconds, time.monotonic() - wall)
            self.cpu_seconds = max(self.cpu_seconds, time.thread_time() - cpu)
            await asyncio.sleep(0.001)


def say(what: str, value: object) -> None:
    """Print a row."""
    sys.stdout.write(f"| {what:<78} | {value!s:>18} |\n")
    sys.stdout.flush()


def megabytes(count: float) -> str:
    """Write a number of bytes."""
    return f"{count / 1e6:.1f} MB"


async def bench(path: Path, hours: float) -> None:
    """Fill, time, print."""
    cluster = Cluster()
    ring = SampleRing(step_seconds=STEP_SECONDS)
    refreshes = round(hours * 3600 / STEP_SECONDS)
    batch, _ = cluster.make_refresh(0)
    for number in range(ring.row_count):
        ring.append(SampleBatch(batch.source, batch.nodes, batch.sampled_at + STEP_SECONDS * number, batch.latest))
    say(f"memory of the ring: 1 h of {NODES} nodes and 6 metrics at {STEP_SECONDS} s", megabytes(ring.memory_bytes))
    say("the same with a span of 24 h", megabytes(ring.memory_bytes / ring.row_count * (86400 / STEP_SECONDS + 1)))
    async with HistoryStore(path, retention=Retention(sample_seconds=hours * 3600, max_bytes=2**40)) as store:
        cpu = time.process_time()
        for number in range(1, refreshes + 1):
            batch, fetched_at = cluster.make_refresh(number)
            await store.append(batch, fetched_at=fetched_at)
        say(f"file with {hours:g} h, {refreshes} refreshes", megabytes((await store.measure()).file_bytes))
        say("CPU to fill it, a refresh", f"{(time.process_time() - cpu) / refreshes * 1000:.1f} ms")
        say("write-ahead log beside it", megabytes(Path(f"{path}-wal").stat().st_size))
        await time_refreshes(store, cluster, refreshes)
        size = await store.measure()
        say("file after them, with averages", megabytes(size.file_bytes))
        [(averages, average_bytes)] = await store._file.fetch(
            "SELECT count(DISTINCT refresh), sum(length(data)) FROM samples JOIN refreshes ON refresh = refreshes.id WHERE span_seconds > 0"
        )
        say("a month of averages, from the size of these", megabytes(average_bytes / averages * 30 * 86400 / AVERAGE_SECONDS))
        await time_reads(store, cluster, START_AT + STEP_SECONDS * (refreshes + TIMED))


async def time_refreshes(store: HistoryStore, cluster: Cluster, number: int) -> None:
    """Time refreshes as the service does them, with samples becoming averages all the while."""
    ring = SampleRing(step_seconds=STEP_SECONDS)
    batches = [cluster.make_refresh(number + offset) for offset in range(1, TIMED + 1)]
    watch = LoopWatch()
    task = asyncio.create_task(watch.run())
    await asyncio.sleep(0.2)
    idle, watch.wall_seconds, watch.cpu_seconds = watch.wall_seconds, 0.0, 0.0
    wall, cpu, longest = time.monotonic(), time.process_time(), 0.0
    for batch, fetched_at in batches:
        before = time.process_time()
        await asyncio.to_thread(ring.append, batch)
        await asyncio.to_thread(ring.aggregate, (AVERAGE, STANDARD_DEVIATION), end_at=fetched_at, nodes=cluster.nodes)
        await store.append(batch, fetched_at=fetched_at)
        await store.prune(fetched_at)
        longest = max(longest, time.process_time() - before)
    say(f"CPU of a refresh: ring, AVG and STD, write, prune (mean of {TIMED})", f"{(time.process_time() - cpu) / TIMED * 1000:.1f} ms")
    say("the longest of them", f"{longest * 1000:.1f} ms")
    say("wall time of a refresh (mean)", f"{(time.monotonic() - wall) / TIMED * 1000:.1f} ms")
    say("longest stall of the event loop, wall (before anything was done)", f"{watch.wall_seconds * 1000:.1f} ms ({idle * 1000:.1f})")
    say("most CPU that the loop's thread took at once", f"{watch.cpu_seconds * 1000:.1f} ms")
    task.cancel()


async def time_reads(store: HistoryStore, cluster: Cluster, now: float) -> None:
    """Time what a restart and a question about the past take."""
    ring, cpu = SampleRing(step_seconds=STEP_SECONDS), time.process_time()
    async for refresh in store.load(now - 3600, step_seconds=STEP_SECONDS):
        ring.append(refresh.batch)
    say("CPU to fill the ring with an hour after a restart", f"{(time.process_time() - cpu) * MILLISECONDS:.0f} ms")
    for span_hours in (6, 24):
        cpu = time.process_time()
        page = await store.read(cluster.nodes[7], CPU, start_at=now - span_hours * 3600, end_at=now, step_seconds=60, limit=2000)
        say(
            f"CPU to read {span_hours} h of one node and metric: {len(page.at)} points",
            f"{(time.process_time() - cpu) * MILLISECONDS:.0f} ms",
        )


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--folder", type=Path, help="where to write the file; a temporary folder if not given")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        asyncio.run(bench(Path(folder) / "history.db", arguments.hours))


if __name__ == "__main__":
    main()
