import socket
from collections import namedtuple
from collections.abc import Iterator

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


async def test_the_first_fetch_measures_for_half_a_second() -> None:
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


Times = namedtuple("Times", "user nice system idle iowait irq softirq steal guest guest_nice")


async def test_an_idle_span_is_zero_whatever_the_counters_add_up_to(monkeypatch: pytest.MonkeyPatch) -> None:
    # Total less idle, in floating point, would fall by 2e-11 s here: a negative load, which does not count.
    before = Times(2817.82, 11937.07, 17771.97, 16824.71, 16017.51, 1323.44, 5349.18, 2472.93, 0.0, 0.0)
    counters: Iterator[Times] = iter([before, before._replace(idle=16826.34)])
    monkeypatch.setattr(psutil, "cpu_times", lambda: next(counters))
    monkeypatch.setattr(psutil, "cpu_count", lambda: 1)
    provider = LocalProvider(sleep=Machine().sleep, clock=lambda: NOW)
    batch = await provider.fetch(FIFTEEN_MINUTES)
    assert batch.latest["CPU"].tolist() == [0.0]


async def test_guest_time_counts_once_and_waiting_for_a_disk_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Times(100.0, 10.0, 20.0, 500.0, 50.0, 1.0, 1.0, 1.0, 30.0, 5.0)
    after = before._replace(user=102.0, guest=32.0, nice=11.0, guest_nice=6.0, idle=504.0, iowait=51.0)
    counters: Iterator[Times] = iter([before, after])
    monkeypatch.setattr(psutil, "cpu_times", lambda: next(counters))
    monkeypatch.setattr(psutil, "cpu_count", lambda: 1)
    batch = await LocalProvider(sleep=Machine().sleep, clock=lambda: NOW).fetch(FIFTEEN_MINUTES)
    assert batch.latest["CPU"].tolist() == [37.5]


def test_this_machine_reads_sensibly() -> None:
    reading = read_machine()
    assert 0 <= reading.busy_seconds <= reading.total_seconds
    assert 0 < reading.memory_available_bytes <= reading.memory_total_bytes
    assert reading.logical_cores == psutil.cpu_count()
