"""
What every metrics provider must do, whatever its source.

A provider joins with a class of its own that gives two fixtures::

    class TestMine(ProviderContract):
        @pytest.fixture
        def working(self) -> MetricsProvider: ...  # its source answers, with at least one node that has a value

        @pytest.fixture
        def failing(self) -> MetricsProvider: ...  # its source does not answer what it should
"""

import asyncio

import numpy as np
import pytest

from load_watcher.errors import ProviderError
from load_watcher.providers.base import MetricsProvider
from load_watcher.quality import assess
from load_watcher.samples import FIFTEEN_MINUTES, SampleBatch
from tests.fakes.watcher import eventually

DEADLINE_SECONDS = 20.0
# Enough for every fake; a provider that swallows its cancellation takes for ever.
CANCEL_SECONDS = 5.0


async def fetch(provider: MetricsProvider) -> SampleBatch:
    async with asyncio.timeout(DEADLINE_SECONDS):
        return await provider.fetch(FIFTEEN_MINUTES)


class ProviderContract:
    """The suite; see the module."""

    async def test_a_batch_names_its_source_and_has_a_value(self, working: MetricsProvider) -> None:
        async with working:
            batch = await fetch(working)
        assert batch.source == working.name
        assert batch.nodes
        assert any((~np.isnan(values)).any() for values in batch.latest.values())

    async def test_sound_data_has_no_rejection(self, working: MetricsProvider) -> None:
        async with working:
            batch = await fetch(working)
        newest_at = np.nanmax(batch.sampled_at)
        assert assess(batch, float(newest_at)).rejections == ()

    async def test_times_stand_exactly_where_values_do(self, working: MetricsProvider) -> None:
        async with working:
            batch = await fetch(working)
        has_value = np.zeros(len(batch.nodes), dtype=np.bool_)
        for values in (*batch.latest.values(), *(item.values for item in batch.aggregates)):
            has_value |= ~np.isnan(values)
        np.testing.assert_array_equal(~np.isnan(batch.sampled_at), has_value)

    async def test_fetches_that_overlap_each_get_a_whole_batch(self, working: MetricsProvider) -> None:
        async with working:
            batches = await asyncio.gather(*(fetch(working) for _ in range(3)))
        assert len({batch.nodes for batch in batches}) == 1
        assert all((~np.isnan(batch.sampled_at)).any() for batch in batches)

    async def test_a_cancelled_fetch_ends_soon_and_the_next_one_works(self, working: MetricsProvider) -> None:
        async with working:
            task = asyncio.create_task(fetch(working))
            await asyncio.sleep(0)
            task.cancel()
            done, _ = await asyncio.wait([task], timeout=CANCEL_SECONDS)
            assert done
            assert (await fetch(working)).nodes

    async def test_it_can_be_entered_again(self, working: MetricsProvider) -> None:
        for _ in range(2):
            async with working:
                assert (await fetch(working)).nodes

    async def test_a_working_source_is_healthy(self, working: MetricsProvider) -> None:
        async with working, asyncio.timeout(DEADLINE_SECONDS):
            await working.check_health()

    async def test_a_failing_source_is_an_error_of_the_contract_that_names_it(self, failing: MetricsProvider) -> None:
        async with failing:
            with pytest.raises(ProviderError, match=f"^{failing.name}: ") as caught:
                await fetch(failing)
        assert caught.value.cause != "bug"

    async def test_a_failing_source_is_not_healthy(self, failing: MetricsProvider) -> None:
        async with failing, asyncio.timeout(DEADLINE_SECONDS):
            with pytest.raises(ProviderError):
                await failing.check_health()

    async def test_it_leaves_no_task_behind(self, working: MetricsProvider, failing: MetricsProvider) -> None:
        before = asyncio.all_tasks()
        async with working, failing:
            await fetch(working)
        # A stand-in for the source can live in this loop too, and notices a moment later that its connection is closed.
        await eventually(lambda: asyncio.all_tasks() == before)
