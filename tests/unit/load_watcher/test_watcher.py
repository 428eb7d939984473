import asyncio
import gc
import json
from collections.abc import Iterator
from typing import Any

import pytest
import stamina
from structlog.testing import capture_logs

from load_watcher.errors import (
    ProviderAuthError,
    ProviderConfigError,
    ProviderNotInstalledError,
    ProviderReplyError,
    ProviderUnavailableError,
)
from load_watcher.samples import SampleBatch
from load_watcher.snapshot import Snapshot
from load_watcher.telemetry import Telemetry
from load_watcher.timing import Timing
from load_watcher.watcher import Watcher
from tests.builders import NOW, make_batch
from tests.fakes.watcher import Answer, FakeClock, ScriptedProvider, eventually, hang

TIMING = Timing(refresh_seconds=30, fetch_timeout_seconds=5, stale_seconds=300, expired_seconds=900)
DOWN = ProviderUnavailableError("Scripted: connection refused; is it running?")
# One refresh with all its tries.
OUTAGE = (DOWN,) * 4


@pytest.fixture(autouse=True)
def _retry_without_waiting() -> Iterator[None]:
    with stamina.set_testing(True, attempts=4):
        yield


def make_watcher(*answers: Answer, clock: FakeClock | None = None, **arguments: Any) -> tuple[Watcher, ScriptedProvider, FakeClock]:
    clock = clock or FakeClock()
    provider = ScriptedProvider(*answers, health=arguments.pop("health", None))
    arguments.setdefault("timing", TIMING)
    return Watcher(provider, clock=clock, telemetry=Telemetry(clock, version="test"), **arguments), provider, clock


def published(watcher: Watcher) -> Snapshot:
    assert watcher.snapshot is not None
    return watcher.snapshot


def entry(watcher: Watcher, node: str = "n1") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(published(watcher).identity.body)["data"]["NodeMetricsMap"][node]
    return found


def failures(watcher: Watcher) -> dict[str, float]:
    samples = [sample for metric in watcher.telemetry.registry.collect() for sample in metric.samples]
    return {s.labels["cause"]: s.value for s in samples if s.name == "load_watcher_refresh_failures_total" and s.value}


async def test_a_tick_publishes() -> None:
    watcher, provider, clock = make_watcher(make_batch({"n1": 10.0}))
    await watcher.tick()
    assert entry(watcher)["metrics"][0]["value"] == 10.0
    assert published(watcher).made_at == clock.now
    assert provider.fetches == 1


async def test_what_was_published_is_never_changed() -> None:
    watcher, _, clock = make_watcher(make_batch({"n1": 10.0}), make_batch({"n1": 20.0}, sampled_at=NOW + 30))
    await watcher.tick()
    first = published(watcher)
    body = first.identity.body
    clock.move(30)
    await watcher.tick()
    assert published(watcher) is not first
    assert first.identity.body == body


async def test_report_19_no_failure_ever_writes_a_value_that_was_not_measured() -> None:
    garbage = make_batch({"n1": float("inf")}, sampled_at=NOW + 120)
    watcher, _, clock = make_watcher(
        make_batch({"n1": 95.0}), *OUTAGE, ProviderReplyError("Scripted: a matrix"), KeyError("x"), garbage, DOWN
    )
    await watcher.tick()
    for seconds, status in ((30, "late"), (30, "late"), (30, "late"), (30, "late"), (200, "stale")):
        clock.move(seconds)
        await watcher.tick()
        seen = entry(watcher)
        assert (seen["status"], seen["sampledAt"], [m["value"] for m in seen["metrics"]]) == (status, NOW, [95.0])
    assert failures(watcher) == {"unavailable": 2, "reply": 1, "bug": 1}
    # 320 s so far; past 900 s nothing is left to serve, and still nothing is made up.
    clock.move(600)
    await watcher.tick()
    assert json.loads(published(watcher).identity.body)["data"]["NodeMetricsMap"] == {}
    assert published(watcher).withheld["n1"].status == "expired"
    assert {status: count for status, count in published(watcher).status_counts.items() if count} == {"expired": 1}


async def test_after_an_outage_the_new_values_count_at_once() -> None:
    watcher, _, clock = make_watcher(make_batch({"n1": 95.0}), *OUTAGE, make_batch({"n1": 10.0}, sampled_at=NOW + 60))
    for seconds in (0, 30, 30):
        clock.move(seconds)
        await watcher.tick()
    assert (entry(watcher)["status"], entry(watcher)["metrics"][0]["value"]) == ("ok", 10.0)


async def test_only_what_another_try_can_help_is_tried_again() -> None:
    watcher, provider, _ = make_watcher(DOWN, DOWN, make_batch({"n1": 1.0}))
    await watcher.tick()
    assert provider.fetches == 3
    assert failures(watcher) == {}
    for error in (ProviderAuthError("401"), ProviderReplyError("?"), ProviderConfigError("?"), ProviderNotInstalledError("404")):
        watcher, provider, _ = make_watcher(error)
        await watcher.tick()
        assert provider.fetches == 1
        assert failures(watcher) == {error.cause: 1}


async def test_a_source_that_stays_down_is_tried_a_few_times_only() -> None:
    watcher, provider, _ = make_watcher(DOWN)
    await watcher.tick()
    assert provider.fetches == 4
    assert failures(watcher) == {"unavailable": 1}


async def test_report_63_a_refresh_ends_by_its_deadline() -> None:
    watcher, _, _ = make_watcher(make_batch({"n1": 1.0}), hang, timing=Timing(fetch_timeout_seconds=0.02))
    await watcher.tick()
    with capture_logs() as logs:
        async with asyncio.timeout(5):
            await watcher.tick()
    assert failures(watcher) == {"unavailable": 1}
    assert "no answer within 0.02 s" in logs[0]["error"]
    assert entry(watcher)["status"] == "late"


async def test_when_the_deadline_cuts_a_retry_the_error_before_it_is_told() -> None:
    watcher, _, _ = make_watcher(DOWN, hang, timing=Timing(fetch_timeout_seconds=0.02))
    await watcher.tick()
    assert "connection refused" in (watcher.ready() or "")


async def answer_nothing() -> SampleBatch:
    return None  # type: ignore[return-value]


async def answer_with_numbers_as_names() -> SampleBatch:
    return make_batch({"n1": 1.0}, nodes=(object(),))


async def time_out() -> SampleBatch:
    raise TimeoutError("a socket's own")


@pytest.mark.parametrize(
    "answer", [KeyError("x"), answer_nothing, answer_with_numbers_as_names, time_out, ExceptionGroup("g", [OSError()])]
)
async def test_a_bug_of_a_provider_is_counted_and_logged_and_the_loop_goes_on(answer: Answer) -> None:
    watcher, _, _ = make_watcher(answer, make_batch({"n1": 1.0}))
    with capture_logs() as logs:
        await watcher.tick()
    assert failures(watcher) == {"bug": 1}
    assert [(log["log_level"], log["cause"]) for log in logs] == [("warning", "bug")]
    assert logs[0]["exc_info"] is not None
    await watcher.tick()
    assert entry(watcher)["status"] == "ok"


async def test_a_failure_is_logged_once_with_the_remedy_and_so_is_its_end() -> None:
    auth = ProviderAuthError("Scripted: 401; set METRICS_PROVIDER_TOKEN")
    batch = make_batch({"n1": 1.0})
    watcher, _, _ = make_watcher(auth, auth, auth, ProviderReplyError("Scripted: no JSON"), batch, batch, auth, batch)
    with capture_logs() as logs:
        for _ in range(8):
            await watcher.tick()
    assert [(log["event"], log.get("cause"), log.get("failed_refreshes")) for log in logs] == [
        ("refresh failed", "auth", None),
        ("refresh failed", "reply", None),
        ("refresh works again", None, 4),
        ("refresh failed", "auth", None),
        ("refresh works again", None, 1),
    ]
    assert logs[0]["error"] == str(auth)
    assert logs[0]["exc_info"] is None


async def test_rejected_samples_are_counted_each_time_and_logged_when_a_rule_is_new() -> None:
    bad = make_batch({"n1": -1.0, "n2": 5.0})
    worse = make_batch({"n1": -1.0, "n2": 500.0})
    watcher, _, _ = make_watcher(bad, bad, worse, make_batch({"n1": 1.0, "n2": 1.0}), bad)
    with capture_logs() as logs:
        for _ in range(5):
            await watcher.tick()
    assert [log["event"].partition(";")[0] for log in logs] == [
        "samples rejected: negative 1",
        "samples rejected: negative 1, over_capacity 1",
        "samples rejected: negative 1",
    ]
    assert logs[0]["event"].endswith("for example n1, CPU: negative, value -1")
    assert watcher.telemetry.registry.get_sample_value("load_watcher_rejected_samples_total", {"rule": "negative"}) == 4


async def start(watcher: Watcher) -> asyncio.Task[None]:
    return asyncio.create_task(watcher.run())


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def test_the_schedule_does_not_drift() -> None:
    clock = FakeClock()

    async def take_two_seconds() -> SampleBatch:
        clock.move(2)
        return make_batch({"n1": 1.0}, sampled_at=clock.now)

    watcher, provider, _ = make_watcher(take_two_seconds, clock=clock)
    task = await start(watcher)
    for turn in range(1, 5):
        await eventually(lambda turn=turn: len(clock.sleeps) == turn)  # type: ignore[misc]
        await clock.wake(28)
    await stop(task)
    assert clock.sleeps[:4] == [28, 28, 28, 28]
    assert provider.fetches >= 4


async def test_a_refresh_that_takes_longer_than_its_turn_skips_turns() -> None:
    clock = FakeClock()

    async def take_seventy_seconds() -> SampleBatch:
        clock.move(70)
        return make_batch({"n1": 1.0}, sampled_at=clock.now)

    watcher, _, _ = make_watcher(take_seventy_seconds, clock=clock)
    task = await start(watcher)
    await eventually(lambda: clock.sleeps)
    await stop(task)
    # It began at 0 and ended at 70: the turns of 30 and 60 are past, the next is at 90.
    assert clock.sleeps == [20]


async def test_report_30_until_the_first_refresh_there_is_no_snapshot_and_it_is_not_ready() -> None:
    release = asyncio.Event()

    async def answer_late() -> SampleBatch:
        await release.wait()
        return make_batch({"n1": 1.0})

    watcher, provider, _ = make_watcher(answer_late)
    assert watcher.live() == "the refresh loop has not started"
    async with watcher:
        await eventually(lambda: provider.fetches)
        assert watcher.snapshot is None
        assert watcher.ready() == "no snapshot yet; the first refresh is under way"
        assert watcher.live() is None
        release.set()
        await eventually(lambda: watcher.snapshot)
        assert watcher.ready() is None


async def test_report_54_an_outage_of_ten_minutes_leaves_it_live_but_not_ready() -> None:
    watcher, _, clock = make_watcher(make_batch({"n1": 1.0}), DOWN)
    await watcher.tick()
    assert (watcher.live(), watcher.ready()) == (None, None)
    for _ in range(20):
        clock.move(30)
        await watcher.tick()
        assert watcher.live() is None
    assert watcher.ready() == f"the newest sample is 600 s old, more than the 300 s allowed; {DOWN}"


async def test_a_loop_that_hangs_is_not_live() -> None:
    watcher, _, clock = make_watcher(make_batch({"n1": 1.0}))
    await watcher.tick()
    clock.move(105)  # three times the 30 s of an interval and the 5 s of a deadline
    assert watcher.live() is None
    clock.move(1)
    assert "no progress for 106 s" in (watcher.live() or "")


async def test_a_failed_first_refresh_says_why_it_is_not_ready() -> None:
    watcher, _, _ = make_watcher(ProviderAuthError("Scripted: 403; grant it"))
    await watcher.tick()
    assert watcher.ready() == "no snapshot yet; the last refresh failed: Scripted: 403; grant it"


async def test_nodes_without_any_metric_are_served_but_do_not_make_it_ready() -> None:
    watcher, _, _ = make_watcher(make_batch({"n1": None}))
    await watcher.tick()
    assert entry(watcher)["status"] == "no_metrics"
    assert "no node has a metric" in (watcher.ready() or "")


async def test_health_is_asked_once_for_all_who_ask_together_and_remembered_for_a_moment() -> None:
    watcher, provider, clock = make_watcher(DOWN, health=ProviderAuthError("Scripted: 401"))
    assert set(await asyncio.gather(*(watcher.check_health() for _ in range(20)))) == {"Scripted: 401"}
    assert provider.health_checks == 1
    provider.health = None
    clock.move(4)
    assert await watcher.check_health() == "Scripted: 401"
    clock.move(2)
    assert await watcher.check_health() is None
    assert await watcher.check_health() is None
    assert provider.health_checks == 2


async def test_an_asker_who_goes_away_does_not_take_the_answer_with_it() -> None:
    watcher, provider, _ = make_watcher(DOWN)
    first = asyncio.create_task(watcher.check_health())
    second = asyncio.create_task(watcher.check_health())
    await eventually(lambda: provider.health_checks)
    first.cancel()
    assert await second is None


async def test_a_health_check_that_hangs_or_breaks_is_unhealthy() -> None:
    watcher, provider, clock = make_watcher(DOWN, health=KeyError("x"), timing=Timing(fetch_timeout_seconds=0.02))
    assert "KeyError" in (await watcher.check_health() or "")
    provider.check_health = hang  # type: ignore[method-assign,assignment]
    clock.move(60)
    assert "no answer to the health check within 0.02 s" in (await watcher.check_health() or "")


async def test_report_57_watchers_live_side_by_side_and_can_start_again() -> None:
    one, one_provider, _ = make_watcher(make_batch({"n1": 1.0}))
    two, two_provider, two_clock = make_watcher(make_batch({"n2": 2.0}))
    async with two:
        async with one:
            await eventually(lambda: one.snapshot and two.snapshot)
        assert (one_provider.is_open, two_provider.is_open) == (False, True)
        await two_clock.wake(30)
        await eventually(lambda: two_provider.fetches == 2)
        fetches = one_provider.fetches
        async with one:
            await eventually(lambda: one_provider.fetches > fetches)
        assert entry(two, "n2")["status"] == "ok"
    assert one.telemetry.registry is not two.telemetry.registry


async def test_a_provider_that_cannot_be_entered_leaves_nothing_behind() -> None:
    class Broken(ScriptedProvider):
        async def __aenter__(self) -> "Broken":
            raise ProviderConfigError("Scripted: no address")

    watcher = Watcher(Broken(DOWN), clock=FakeClock())
    with pytest.raises(ProviderConfigError):
        async with watcher:
            pytest.fail("entered")
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("load-watcher")] == []


async def test_report_62_it_stops_in_the_middle_of_a_fetch() -> None:
    watcher, provider, _ = make_watcher(hang)
    async with asyncio.timeout(5):
        async with watcher:
            await eventually(lambda: provider.fetches)
    assert not provider.is_open
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("load-watcher")] == []


async def test_report_62_refreshes_leave_nothing_behind() -> None:
    clock = FakeClock()

    async def answer() -> SampleBatch:
        if clock.sleeps:
            raise DOWN
        return make_batch({f"n{round(clock.elapsed)}": 1.0, "n": 2.0}, sampled_at=clock.now, members_known=False)

    watcher, _, _ = make_watcher(answer, clock=clock, timing=Timing(expired_seconds=100))

    async def refresh(times: int) -> int:
        for _ in range(times):
            clock.move(10)
            await watcher.tick()
        gc.collect()
        return len(gc.get_objects())

    before = await refresh(150)  # a node is known for a thousand seconds here, most of them as expired
    assert await refresh(300) - before < 50
    assert len(published(watcher).withheld) == 90
    assert len(json.loads(published(watcher).identity.body)["data"]["NodeMetricsMap"]) == 12


async def test_a_loop_that_ends_by_a_fault_of_our_own_says_so_and_is_no_longer_live() -> None:
    clock = FakeClock()

    async def break_down(seconds: float) -> None:
        raise RuntimeError("clock")

    clock.sleep = break_down  # type: ignore[method-assign]
    watcher, _, _ = make_watcher(make_batch({"n1": 1.0}), clock=clock)
    with capture_logs() as logs:
        async with watcher:
            await eventually(lambda: logs)
            clock.move(1000)
            assert watcher.live() is not None
    assert [log["log_level"] for log in logs] == ["critical"]


async def test_a_provider_that_is_cancelled_from_inside_is_a_bug_and_not_the_end() -> None:
    async def wait_for_a_cancelled_task() -> SampleBatch:
        inner = asyncio.create_task(asyncio.sleep(60))
        inner.cancel()
        await inner
        raise AssertionError

    watcher, _, _ = make_watcher(wait_for_a_cancelled_task, make_batch({"n1": 10.0}))
    for _ in range(2):
        await watcher.tick()
    assert failures(watcher) == {"bug": 1}
    assert entry(watcher)["status"] == "ok"


async def test_the_loop_outlives_a_fault_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as no memory for the moment: the next refresh publishes again."""
    watcher, provider, clock = make_watcher(make_batch({"n1": 10.0}))
    real, calls = watcher._render, []

    def fail_once(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            raise MemoryError
        return real(*arguments)

    monkeypatch.setattr(watcher, "_render", fail_once)
    monkeypatch.setattr(watcher, "_publish_held", fail_once)
    loop = await start(watcher)
    async with asyncio.timeout(5):
        await eventually(lambda: provider.fetches == 1 and clock.sleeps)
        await clock.wake(30)
        await eventually(lambda: watcher.snapshot)
    assert not loop.done()
    await stop(loop)
