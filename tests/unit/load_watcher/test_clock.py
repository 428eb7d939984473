"""A step of the clock is not followed at once."""

import pytest

from load_watcher.clock import SteadyClock
from load_watcher.errors import ProviderAuthError
from load_watcher.watcher import Watcher
from tests.builders import NOW, make_batch
from tests.fakes.watcher import FakeClock, ScriptedProvider


@pytest.mark.parametrize("step_seconds", [3600.0, -3600.0, 31.0])
def test_a_step_is_believed_when_it_has_stood_for_a_while(step_seconds: float) -> None:
    clock = FakeClock()
    steady = SteadyClock(clock)
    clock.now += step_seconds
    for elapsed in (0.0, 100.0, 179.0):
        clock.move(elapsed - clock.elapsed)
        assert steady.time() == NOW + elapsed
    clock.move(1)
    assert steady.time() == NOW + 180 + step_seconds


def test_a_step_there_and_back_is_never_seen() -> None:
    clock = FakeClock()
    steady = SteadyClock(clock)
    for step in (3600.0, -3600.0, -86400.0, 86400.0):
        clock.now += step
        clock.move(100)
        assert steady.time() == pytest.approx(NOW + clock.elapsed)


def test_small_corrections_are_followed() -> None:
    clock = FakeClock()
    steady = SteadyClock(clock)
    for _ in range(10):
        clock.now += 20
        clock.move(30)
        assert steady.time() == clock.time()


async def test_a_step_of_our_clock_during_an_outage_costs_no_good_value() -> None:
    clock = FakeClock()
    down = ProviderAuthError("Scripted: 401")
    provider = ScriptedProvider(make_batch({"n1": 95.0}), down, down, make_batch({"n1": 50.0}, sampled_at=NOW + 120))
    watcher = Watcher(provider, clock=clock)
    await watcher.tick()
    for step in (3600.0, -3600.0):
        clock.now += step
        clock.move(30)
        await watcher.tick()
    assert watcher.snapshot is not None
    assert b'"value":95.0' in watcher.snapshot.identity.body
    assert watcher.snapshot.withheld == {}
