import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from load_watcher.errors import ProviderConfigError, ProviderReplyError
from load_watcher.providers import recorded
from load_watcher.providers.recorded import RecordedProvider
from load_watcher.samples import FIFTEEN_MINUTES, NodeInfo, SampleBatch, Window
from tests.builders import NOW
from tests.fakes.watcher import FakeClock
from trimaran_client.wire import ResourceQuantities

Write = Callable[..., Path]
# Recorded long ago, at 30 s steps.
AT = 1_600_000_000.0


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_lines(*lines: dict[str, Any] | str) -> Path:
        path = tmp_path / "recording.jsonl"
        path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
        return path

    return write_lines


def line(at: float, cpu: float | None = 10.0, **fields: Any) -> dict[str, Any]:
    return {"at": at, "nodes": ["n1"], "latest": {"CPU": [cpu]}} | fields


async def fetch(path: Path, **arguments: Any) -> SampleBatch:
    return await RecordedProvider(path, clock=FakeClock().time, **arguments).fetch(FIFTEEN_MINUTES)


async def fetch_error(path: Path) -> str:
    with pytest.raises((ProviderReplyError, ProviderConfigError)) as caught:
        await fetch(path)
    return str(caught.value)


async def test_one_line_in_full(write: Write) -> None:
    batch = await fetch(
        write(
            {
                "at": AT,
                "nodes": ["n1", "n2", "n3"],
                "sampled_at": [AT - 5, AT - 6, None],
                "latest": {"CPU": [12.5, None, None], "Memory": [50, 60.5, None]},
                "aggregates": [{"name": "rule", "type": "CPU", "operator": "AVG", "window": "10m", "values": [1, 2, None]}],
                "capacity": [{"cpu": "8", "memory": "32Gi"}, None, {"cpu": "4"}],
                "allocatable": [{"cpu": "7910m", "memory": "30Gi"}, None, None],
            }
        ),
        keep_times=True,
    )
    assert batch.source == "Recorded"
    assert batch.nodes == ("n1", "n2", "n3")
    np.testing.assert_array_equal(batch.sampled_at, [AT - 5, AT - 6, np.nan])
    np.testing.assert_array_equal(batch.latest["CPU"], [12.5, np.nan, np.nan])
    np.testing.assert_array_equal(batch.latest["Memory"], [50.0, 60.5, np.nan])
    (aggregate,) = batch.aggregates
    assert (aggregate.name, aggregate.metric_type, aggregate.operator, aggregate.window) == ("rule", "CPU", "AVG", Window(600))
    np.testing.assert_array_equal(aggregate.values, [1.0, 2.0, np.nan])
    assert batch.infos == (
        NodeInfo(ResourceQuantities("8", "32Gi"), ResourceQuantities("7910m", "30Gi")),
        None,
        NodeInfo(ResourceQuantities("4"), ResourceQuantities()),
    )


async def test_without_sampled_at_samples_are_from_the_time_of_the_batch(write: Write) -> None:
    batch = await fetch(write({"at": AT, "nodes": ["n1", "n2"], "latest": {"CPU": [1.0, None]}}), keep_times=True)
    np.testing.assert_array_equal(batch.sampled_at, [AT, np.nan])


async def replay(path: Path, clock: FakeClock, steps: list[float], *, keep_times: bool) -> list[tuple[float, float]]:
    provider, seen = RecordedProvider(path, keep_times=keep_times, clock=clock.time), []
    for seconds in steps:
        clock.move(seconds)
        batch = await provider.fetch(FIFTEEN_MINUTES)
        seen.append((float(batch.latest["CPU"][0]), float(batch.sampled_at[0])))
    return seen


async def test_batches_come_at_their_pace_moved_to_now_and_start_over(write: Write) -> None:
    path = write(line(AT, 10.0), line(AT + 30, 20.0), line(AT + 60, 30.0))
    seen = await replay(path, FakeClock(), [0, 29, 1, 35, 24, 1, 900, 15], keep_times=False)
    # A round is 90 s: the last line holds as long as the one before it.
    assert seen == [
        (10.0, NOW),
        (10.0, NOW),
        (20.0, NOW + 30),
        (30.0, NOW + 60),
        (30.0, NOW + 60),
        (10.0, NOW + 90),
        (10.0, NOW + 990),
        (10.0, NOW + 990),
    ]


async def test_kept_times_stay_and_the_last_line_lasts(write: Write) -> None:
    path = write(line(AT, 10.0), line(AT + 30, 20.0))
    assert await replay(path, FakeClock(), [0, 30, 9000], keep_times=True) == [(10.0, AT), (20.0, AT + 30), (20.0, AT + 30)]


async def test_a_single_line_stays_fresh_when_times_are_shifted(write: Write) -> None:
    assert (await replay(write(line(AT, 10.0)), FakeClock(), [0, 500], keep_times=False))[1] == (10.0, NOW + 500)


async def test_a_clock_that_is_set_back_gives_the_first_batch(write: Write) -> None:
    path = write(line(AT, 10.0), line(AT + 30, 20.0))
    assert await replay(path, FakeClock(), [0, -3600], keep_times=False) == [(10.0, NOW), (10.0, NOW)]


async def test_blank_lines_do_not_count_but_keep_the_numbers(write: Write) -> None:
    assert "line 3: " in await fetch_error(write(line(AT), "", "{}"))


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (["not json"], "line 1: JSON is malformed"),
        (["[]"], "line 1: Expected `object`"),
        (['{"nodes":[]}'], "line 1: Object missing required field `at`"),
        ([json.dumps(line(AT, nodes=None))], "line 1: Expected `array`, got `null` - at `$.nodes`"),
        ([json.dumps(line(AT, lastest={}))], "line 1: Object contains unknown field `lastest`"),
        ([json.dumps(line(AT, latest={"CPU": [1, 2]}))], "line 1: CPU has 2 values for 1 nodes"),
        ([json.dumps(line(AT, latest={"CPU": ["10"]}))], "line 1: Expected `float | null`, got `str`"),
        (['{"at":1,"nodes":["n1"],"latest":{"CPU":[NaN]}}'], "line 1: JSON is malformed"),
        (['{"at":1,"nodes":["n1"],"latest":{"CPU":[1e999]}}'], "line 1: Number out of range"),
        ([json.dumps(line(AT, nodes=["n1", "n1"], latest={}))], "line 1: a node name stands twice"),
        ([json.dumps(line(AT, sampled_at=[]))], "line 1: sampled_at has 0 values for 1 nodes"),
        ([json.dumps(line(AT, capacity=[]))], "line 1: capacity has 0 values for 1 nodes"),
        ([json.dumps(line(AT, allocatable=[{"cpu": "8 cores"}]))], "line 1: '8 cores' is not a quantity"),
        ([json.dumps(line(AT, capacity=[{"cpu": "8", "memory": "32GB"}]))], "line 1: '32GB' is not a quantity"),
        (
            [json.dumps(line(AT, aggregates=[{"type": "CPU", "operator": "AVG", "window": "15", "values": [1]}]))],
            "line 1: '15' is not a window",
        ),
        ([json.dumps(line(AT)), json.dumps(line(AT))], "line 2: its time 1600000000 is not after 1600000000"),
        ([], "holds no batch"),
    ],
)
async def test_a_bad_line_is_named_with_file_number_and_cause(write: Write, lines: list[str], cause: str) -> None:
    path = write(*lines)
    message = await fetch_error(path)
    assert str(path) in message
    assert cause in message


async def test_text_that_is_not_utf_8_is_a_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b'{"at":1,"nodes":["\xe9"]}\n')
    assert "line 1: " in await fetch_error(path)


async def test_a_missing_file_says_which_variable(tmp_path: Path) -> None:
    assert "set METRICS_PROVIDER_ADDRESS to a file" in await fetch_error(tmp_path / "none.jsonl")


async def test_a_file_beyond_the_bound_is_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "MAX_FILE_BYTES", 10)
    assert "more than 10; split it" in await fetch_error(write(line(AT)))


async def test_a_line_beyond_the_bound_is_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "MAX_LINE_BYTES", 10)
    assert "line 1: it is longer than 10 bytes" in await fetch_error(write(line(AT)))


async def test_a_file_that_changes_is_read_anew(write: Write) -> None:
    clock = FakeClock()
    provider = RecordedProvider(write(line(AT, 10.0)), clock=clock.time)
    await provider.fetch(FIFTEEN_MINUTES)
    write(line(AT, 55.0), line(AT + 30, 66.0))
    clock.move(30)
    assert (await provider.fetch(FIFTEEN_MINUTES)).latest["CPU"].tolist() == [66.0]


async def test_health_is_whether_the_file_is_a_recording(write: Write) -> None:
    await RecordedProvider(write(line(AT))).check_health()
    with pytest.raises(ProviderReplyError, match="line 1"):
        await RecordedProvider(write("x")).check_health()
