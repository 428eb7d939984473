"""The history file on a real disk: what comes back after a restart, how it is read, and what is kept how long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from load_watcher.history import reader as reader_module
from load_watcher.history import store as store_module
from load_watcher.history.errors import (
    WindowTooLargeError,
)
from load_watcher.history.reader import HistoryReader
from load_watcher.history.store import HistoryStore, Retention
from load_watcher.history.window import SampleRing
from load_watcher.samples import NodeInfo, SampleBatch
from tests.builders import NOW, make_batch
from tests.fakes.history import append, load, values_of
from trimaran_client.wire import ResourceQuantities

INFO = NodeInfo(ResourceQuantities("8", "32Gi"), ResourceQuantities("7910m", "30Gi"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[HistoryStore]:
    async with HistoryStore(path) as store:
        yield store


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
            await append(store, 77, start_at=start_at + 300 + 1800)
            assert await store.prune(start_at + 300 + 1800) == 20 + 1
            assert values_of(await load(store, averages=True)) == [15.5, 25.5, 35.5, 77]

    async def test_a_clock_that_runs_ahead_deletes_nothing(self, path: Path) -> None:
        async with HistoryStore(path, retention=Retention(sample_seconds=600, average_seconds=1800)) as store:
            await append(store, *range(20))
            assert await store.prune(NOW + 365 * 86400) == 0
            assert len(await load(store)) == 20

    async def test_averages_take_over_node_sets_and_unused_ones_go(self, path: Path) -> None:
        start_at = NOW - NOW % 300
        async with HistoryStore(path, retention=Retention(sample_seconds=600)) as store:
            for position in range(40):
                batch = make_batch({"a": 1.0, f"n{position // 10}": 2.0}, sampled_at=start_at + 30 * (position + 1))
                await store.append(batch, fetched_at=NOW)
            await append(store, 5, start_at=start_at + 3600, node="z")
            await store.prune(start_at + 3600)
            refreshes = await load(store, averages=True)
            assert [refresh.batch.nodes for refresh in refreshes] == [("a", "n0"), ("a", "n1"), ("a", "n2"), ("a", "n3"), ("z",)]
            assert await store._file.fetch("SELECT count(*) FROM node_sets") == [(5,)]
            await append(store, 6, start_at=start_at + 40 * 86400, node="z")
            await store.prune(start_at + 40 * 86400)
            await store.prune(start_at + 40 * 86400)
            assert await store._file.fetch("SELECT count(*) FROM node_sets") == [(1,)]
            await store.append(make_batch({"a": 7, "n3": 2.0}, sampled_at=start_at + 41 * 86400), fetched_at=NOW)
            assert values_of(await load(store, averages=True)) == [6, 7]

    async def test_a_refresh_belongs_to_the_five_minutes_of_its_newest_sample(self, path: Path) -> None:
        start_at = NOW - NOW % 300
        async with HistoryStore(path, retention=Retention(sample_seconds=600)) as store:
            for position, value in enumerate([1.0, 2.0, 9.0]):
                at = start_at + 120 * (position + 1)
                await store.append(make_batch({"n": value, "late": value}, sampled_at={"n": at, "late": at - 90}), fetched_at=at)
            await append(store, 77, start_at=start_at + 3600)
            assert await store.prune(start_at + 3600) == 3
            averages = (await load(store, averages=True))[:-1]
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
