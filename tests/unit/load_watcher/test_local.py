import socket

import numpy as np
import psutil
import pytest

from load_watcher.errors import ProviderUnavailableError
from load_watcher.providers.local import MIN_SPAN_SECONDS, LocalProvider, Reading, read_machine
from load_watcher.samples import FIFTEEN_MINUTES
from tests.builders import NOW

CORES = 4
GIB = 2**30


class Machine:
    """A machine of four cores, whose counters move as the test says."""

    def __init__(self) -> None:
        self.busy_seconds = 1000.0
        self.total_seconds = 40_000.0
        self.cores = CORES
        self.available_bytes = 6 * GIB
        self.utilization = 0.25
        self.sleeps: list[float] = []

    def read(self) -> Reading:
        return Reading(self.busy_seconds, self.total_seconds, self.cores, 8 * GIB, self.available_bytes)

    def run(self, seconds: float) -> None:
        self.total_seconds += seconds * CORES
        self.busy_seconds += seconds * CORES * self.utilization

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.run(seconds)


def make_provider(machine: Machine) -> LocalProvider:
    return LocalProvider(read=machine.read, sleep=machine.sleep, clock=lambda: NOW, node="laptop")


async def test_the_first_fetch_measures_for_a_second() -> None:
    machine = Machine()
    batch = await make_provider(machine).fetch(FIFTEEN_MINUTES)
    assert machine.sleeps == [MIN_SPAN_SECONDS]
    assert (batch.source, batch.nodes, batch.sampled_at.tolist()) == ("Local", ("laptop",), [NOW])
    assert batch.latest["CPU"].tolist() == [25.0]
    # (8 - 6) / 8 = 25 %
    assert batch.latest["Memory"].tolist() == [25.0]
    assert batch.infos[0] is not None
    assert (batch.infos[0].capacity.cpu, batch.infos[0].capacity.memory) == ("4", str(8 * GIB))


async def test_later_fetches_measure_since_the_previous_one_without_waiting() -> None:
    machine = Machine()
    provider = make_provider(machine)
    await provider.fetch(FIFTEEN_MINUTES)
    machine.utilization = 0.5
    machine.run(30)
    assert (await provider.fetch(FIFTEEN_MINUTES)).latest["CPU"].tolist() == [50.0]
    assert machine.sleeps == [MIN_SPAN_SECONDS]


async def test_a_fetch_right_after_another_waits_for_the_rest_of_half_a_second() -> None:
    machine = Machine()
    provider = make_provider(machine)
    await provider.fetch(FIFTEEN_MINUTES)
    machine.run(0.25)
    await provider.fetch(FIFTEEN_MINUTES)
    assert machine.sleeps[1:] == [0.25]


async def test_counters_that_stand_still_give_no_value_rather_than_zero() -> None:
    machine = Machine()

    async def sleep(seconds: float) -> None:
        pass

    batch = await LocalProvider(read=machine.read, sleep=sleep, clock=lambda: NOW).fetch(FIFTEEN_MINUTES)
    assert np.isnan(batch.latest["CPU"][0])
    assert batch.latest["Memory"].tolist() == [25.0]


@pytest.mark.parametrize("error", [OSError("no /proc"), psutil.AccessDenied()])
async def test_counters_that_cannot_be_read_are_an_error_of_the_contract(error: Exception) -> None:
    def read() -> Reading:
        raise error

    provider = LocalProvider(read=read)
    with pytest.raises(ProviderUnavailableError, match="counters of this machine"):
        await provider.fetch(FIFTEEN_MINUTES)
    with pytest.raises(ProviderUnavailableError):
        await provider.check_health()


async def test_the_node_is_called_as_the_machine() -> None:
    machine = Machine()
    batch = await LocalProvider(read=machine.read, sleep=machine.sleep).fetch(FIFTEEN_MINUTES)
    assert batch.nodes == (socket.gethostname(),)


def test_this_machine_reads_sensibly() -> None:
    reading = read_machine()
    assert 0 <= reading.busy_seconds <= reading.total_seconds
    assert 0 < reading.memory_available_bytes <= reading.memory_total_bytes
    assert reading.logical_cores == psutil.cpu_count()
