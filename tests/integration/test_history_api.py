"""Windows, the past, and the state of the service, through the real server: from samples in to JSON out."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from aiohttp.test_utils import TestClient, TestServer

from load_watcher.export import export_history
from load_watcher.history.memory import Memory
from load_watcher.providers.metrics_server import MetricsServerProvider
from load_watcher.providers.recorded import RecordedProvider
from load_watcher.samples import FIFTEEN_MINUTES, FIVE_MINUTES, Aggregate, SampleBatch, Window
from load_watcher.server.app import create_app
from load_watcher.watcher import Watcher
from tests.builders import NOW, make_batch
from tests.fakes.api_server import FakeApiServer, make_node, make_node_metrics
from tests.fakes.service import Service
from tests.fakes.watcher import FakeClock, ScriptedProvider, eventually


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with Service() as started:
        yield started


async def test_report_31_a_metrics_server_of_instants_serves_windows(tmp_path: Path) -> None:
    """10, 20, 30 % at 60 s steps, asked every 30 s: each counts once; population deviation of the three."""
    async with FakeApiServer() as api:
        api.put_nodes(make_node("n1", cpu="4"))
        provider = MetricsServerProvider(api.write_kubeconfig(tmp_path / "config"), request_timeout_seconds=5)
        clock = FakeClock()
        watcher = Watcher(provider, memory=Memory(source=provider.name, clock=clock, step_seconds=30), clock=clock)
        async with TestClient(TestServer(create_app(watcher))) as client:
            for usage in ("400m", "800m", "1200m"):
                sampled = datetime.fromtimestamp(clock.now, UTC).isoformat()
                api.set_node_metrics(make_node_metrics("n1", cpu=usage, timestamp=sampled))
                for _ in range(2):
                    await watcher.tick()
                    clock.move(30)
            body = await (await client.get("/watcher")).json()
    metrics = body["data"]["NodeMetricsMap"]["n1"]["metrics"]
    cpu = [(metric["operator"], metric["rollup"], metric["value"]) for metric in metrics if metric["type"] == "CPU"]
    assert cpu == [("Latest", "", 30.0), ("AVG", "5m", 20.0), ("STD", "5m", round(float(np.std([10.0, 20.0, 30.0])), 9))]


async def test_each_node_has_the_longest_window_that_it_holds(service: Service) -> None:
    """`rollup` says which: half of it must be covered; a new node has its newest value only."""
    for step in range(16):
        await service.refresh(make_batch({"old": 10.0, **({"new": 50.0} if step == 15 else {})}, sampled_at=service.clock.now + 30))
    assert await service.metrics(node="old") == {"Latest": (10.0, ""), "AVG": (10.0, "15m"), "STD": (0.0, "15m")}
    assert await service.metrics(node="new") == {"Latest": (50.0, "")}


async def test_report_33_other_statistics_on_request(service: Service) -> None:
    for value in (10.0, 10.0, 10.0, 10.0, 90.0):
        await service.refresh(make_batch({"n1": value}, sampled_at=service.clock.now + 60), seconds=60)
    metrics = await service.metrics("/watcher?statistic=AVG,P99&statistic=MAX&window=5m")
    assert metrics["AVG"] == (26.0, "5m")
    assert metrics["MAX"] == (90.0, "5m")
    assert metrics["P99"][0] == pytest.approx(86.8)  # between the fourth and fifth of five, 0.96 of the way
    assert "STD" not in metrics


def averaged_by_source(service: Service, *averages: tuple[str, Window, float]) -> SampleBatch:
    """Make a batch of n1 with CPU 10 % and Memory 20 %, of which the source averaged CPU."""
    aggregates = tuple(Aggregate("", "CPU", operator, window, np.array([value])) for operator, window, value in averages)
    return make_batch({"n1": 10.0}, memory_percent={"n1": 20.0}, aggregates=aggregates, sampled_at=service.clock.now + 30)


async def test_a_source_that_averages_itself_is_asked_for_its_own_window(service: Service) -> None:
    """Exactly the window, and of what the source has not averaged over it our own history's."""
    averages = (("AVG", FIFTEEN_MINUTES, 70.0), ("AVG", FIVE_MINUTES, 50.0), ("STD", FIVE_MINUTES, 5.0))
    for _ in range(16):
        await service.refresh(averaged_by_source(service, *averages))
    assert await service.metrics("/watcher?window=5m") == {"Latest": (10.0, ""), "AVG": (50.0, "5m"), "STD": (5.0, "5m")}
    assert await service.metrics("/watcher?window=15m") == {"Latest": (10.0, ""), "AVG": (70.0, "15m"), "STD": (0.0, "15m")}
    assert await service.metrics("/watcher?window=7m") == {"Latest": (10.0, ""), "AVG": (10.0, "7m"), "STD": (0.0, "7m")}
    assert await service.metrics("/watcher?window=5m&statistic=AVG,MAX") == {
        "Latest": (10.0, ""),
        "AVG": (50.0, "5m"),
        "MAX": (10.0, "5m"),
    }
    assert await service.metrics("/watcher?statistic=AVG,MAX") == {"Latest": (10.0, ""), "AVG": (70.0, "15m"), "MAX": (10.0, "15m")}
    _, body = await service.get("/watcher?window=5m")
    assert (body["window"]["duration"], body["window"]["end"] - body["window"]["start"]) == ("5m", 300)
    memory = [(each["operator"], each["rollup"], each["value"]) for each in body["data"]["NodeMetricsMap"]["n1"]["metrics"][3:]]
    assert memory == [("Latest", "", 20.0), ("AVG", "5m", 20.0), ("STD", "5m", 0.0)]


async def test_without_history_the_source_answers_what_it_averaged_and_the_rest_is_refused() -> None:
    async with Service(history=False) as service:
        await service.refresh(averaged_by_source(service, ("AVG", FIFTEEN_MINUTES, 70.0), ("AVG", FIVE_MINUTES, 50.0)))
        assert await service.metrics("/watcher?window=5m") == {"Latest": (10.0, ""), "AVG": (50.0, "5m")}
        assert await service.metrics("/watcher?window=5m&statistic=AVG,Latest") == {"Latest": (10.0, ""), "AVG": (50.0, "5m")}
        assert await service.metrics("/watcher?statistic=AVG") == {"Latest": (10.0, ""), "AVG": (70.0, "15m")}
        for query in ("window=10m", "window=5m&statistic=AVG,P90", "window=5m&statistic=STD", "statistic=MAX"):
            status, body = await service.get(f"/watcher?{query}")
            assert (status, body["error"]) == (404, "window_not_held"), query
            assert "LOAD_WATCHER_HISTORY is off" in body["message"]


async def test_before_the_first_sample_no_window_is_held(service: Service) -> None:
    status, body = await service.get("/watcher?window=5m")
    assert (status, body["error"]) == (404, "window_not_held")


async def test_the_newest_values_stand_once_also_where_they_are_asked_for(service: Service) -> None:
    await service.refresh(make_batch({"n1": 10.0}, sampled_at=service.clock.now + 30))
    _, body = await service.get("/watcher?statistic=Latest")
    assert [(each["operator"], each["value"]) for each in body["data"]["NodeMetricsMap"]["n1"]["metrics"]] == [("Latest", 10.0)]


async def test_report_32_a_window_that_is_not_held_names_those_that_are(service: Service) -> None:
    for _ in range(8):
        await service.refresh(make_batch({"n1": 10.0}, sampled_at=service.clock.now + 30))
    status, body = await service.get("/watcher?window=30m")
    assert (status, body["error"]) == (404, "window_not_held")
    assert "held: 5m" in body["message"]
    status, body = await service.get("/watcher?window=6h")
    assert (status, body["error"]) == (404, "window_not_held")
    assert "LOAD_WATCHER_HISTORY" in body["message"]


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/watcher?window=soon", "window='soon'"),
        ("/watcher?statistic=P42", "choose from Latest, AVG, STD"),
        ("/api/v1/nodes?limit=0", "limit='0'"),
        ("/api/v1/nodes/n1/history?step=x", "step='x'"),
        ("/api/v1/nodes/n1/history?step=2h&window=1h", "at most the window, 1h"),
        ("/api/v1/nodes/n1/history?metric=GPU", "choose from CPU"),
        ("/api/v1/nodes/n1/history?continue=yesterday", "Unix seconds"),
    ],
)
async def test_a_parameter_that_cannot_be_used_is_named(service: Service, path: str, named: str) -> None:
    await service.refresh(make_batch({"n1": 10.0}, sampled_at=service.clock.now + 30))
    status, body = await service.get(path)
    assert (status, body["error"]) == (400, "bad_parameter")
    assert named in body["message"]


async def test_report_28_an_expired_node_is_left_out_with_the_reason_and_still_listed(service: Service) -> None:
    await service.refresh(make_batch({"n1": 95.0, "n2": 5.0}, sampled_at=NOW))
    for minutes in range(6):
        await service.refresh(make_batch({"n1": None, "n2": 5.0}, sampled_at={"n1": NOW, "n2": NOW + 180 * minutes}), seconds=180)
    status, body = await service.get("/watcher?host=n1")
    assert (status, body["error"]) == (404, "node_expired")
    assert "s old, more than the 900 s allowed" in body["message"]
    _, body = await service.get("/watcher")
    assert list(body["data"]["NodeMetricsMap"]) == ["n2"]
    _, body = await service.get("/api/v1/nodes")
    assert [(node["name"], node["status"], node["sampledAt"]) for node in body["nodes"]] == [
        ("n1", "expired", NOW),
        ("n2", "ok", NOW + 900),
    ]
    await service.refresh(make_batch({"n1": 40.0, "n2": 5.0}, sampled_at=service.clock.now + 30))
    assert (await service.get("/watcher?host=n1"))[0] == 200


async def test_a_node_that_cannot_be_trusted_is_left_out_with_the_reason_and_returns_by_itself(service: Service) -> None:
    """Three impossible values in a row; each is shown with its rule and value; three good ones end it."""
    for value in (40.0, 41.0, -1.0, -2.0, -3.0):
        await service.refresh(make_batch({"n1": value, "n2": 5.0}, sampled_at=service.clock.now + 30))
    status, body = await service.get("/watcher?host=n1")
    assert (status, body["error"]) == (404, "node_quarantined")
    assert "impossible" in body["message"]
    _, nodes = await service.get("/api/v1/nodes")
    assert [(node["name"], node["status"]) for node in nodes["nodes"]] == [("n1", "quarantined"), ("n2", "ok")]
    _, quality = await service.get("/api/v1/quality?limit=2")
    assert quality["rejectedTotal"] == {"negative": 3}
    assert [(each["node"], each["rule"], each["detail"]) for each in quality["rejected"]] == [
        ("n1", "negative", "value -3"),
        ("n1", "negative", "value -2"),
    ]
    assert [each["node"] for each in quality["quarantined"]] == ["n1"]
    for value in (42.0, 43.0, 44.0):
        await service.refresh(make_batch({"n1": value, "n2": 5.0}, sampled_at=service.clock.now + 30))
    assert (await service.metrics())["Latest"] == (44.0, "")


async def test_the_loss_of_most_nodes_at_once_is_not_believed_at_first(service: Service) -> None:
    """The last good values stay, with their age, until the grace is over; then the nodes are gone."""
    everything = {f"n{index}": 50.0 for index in range(10)}
    for _ in range(3):
        await service.refresh(make_batch(everything, sampled_at=service.clock.now + 30))
    await service.refresh(make_batch({"n0": 50.0}, sampled_at=service.clock.now + 30))
    _, body = await service.get("/watcher")
    statuses = {node["status"] for name, node in body["data"]["NodeMetricsMap"].items() if name != "n0"}
    assert (len(body["data"]["NodeMetricsMap"]), statuses) == (10, {"late"})
    _, quality = await service.get("/api/v1/quality")
    assert quality["suspicion"]
    for _ in range(8):
        await service.refresh(make_batch({"n0": 50.0}, sampled_at=service.clock.now + 30))
    _, body = await service.get("/watcher")
    assert list(body["data"]["NodeMetricsMap"]) == ["n0"]
    assert (await service.get("/api/v1/quality"))[1]["suspicion"] is None


async def test_nodes_come_in_pages_by_name(service: Service) -> None:
    await service.refresh(make_batch({f"n{index}": 1.0 for index in range(5)}, sampled_at=NOW))
    seen, path = [], "/api/v1/nodes?limit=2"
    while path:
        _, body = await service.get(path)
        seen.append([node["name"] for node in body["nodes"]])
        path = f"/api/v1/nodes?limit=2&continue={body['continue']}" if body["continue"] else ""
    assert seen == [["n0", "n1"], ["n2", "n3"], ["n4"]]


async def test_a_statistic_of_which_nothing_is_held_yet_is_404(service: Service) -> None:
    await service.refresh(make_batch({"n1": 10.0}, sampled_at=service.clock.now + 30))
    status, body = await service.get("/watcher?statistic=P90,MAX")
    assert (status, body["error"]) == (404, "window_not_held")
    assert body["message"].startswith("P90, MAX: no samples span a window yet")
    assert (await service.get("/watcher?statistic=Latest"))[0] == 200


@pytest.mark.parametrize("in_file", [False, True])
async def test_the_past_of_a_node_comes_as_steps_and_pages(tmp_path: Path, *, in_file: bool) -> None:
    async with Service(tmp_path / "history.db" if in_file else None) as service:
        for value in (10.0, 20.0, 30.0, 40.0):
            await service.refresh(make_batch({"n1": value}, sampled_at=service.clock.now + 30))
        points: list[list[float]] = []
        path = "/api/v1/nodes/n1/history?window=1h&step=60s&limit=1"
        while path:
            _, body = await service.get(path)
            points += body["points"]
            path = f"/api/v1/nodes/n1/history?window=1h&step=60s&limit=1&continue={body['continue']:.3f}" if body["continue"] else ""
    assert sum(value for _, value in points) in (60.0, 75.0)  # two or three steps, by where the minute falls
    assert [at % 60 for at, _ in points] == [0.0] * len(points)


async def test_the_past_of_nobody_is_404(service: Service) -> None:
    await service.refresh(make_batch({"n1": 10.0}, sampled_at=NOW))
    status, body = await service.get("/api/v1/nodes/nobody/history")
    assert (status, body["error"]) == (404, "unknown_node")


async def test_after_a_restart_the_windows_are_there_at_once(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    async with Service(path) as service:
        for _ in range(20):
            await service.refresh(make_batch({"n1": 10.0}, sampled_at=service.clock.now + 30))
        later = service.clock.now + 20
    async with Service(path, now=later) as service:
        await service.refresh(make_batch({"n1": 12.0}, sampled_at=service.clock.now + 30))
        assert (await service.metrics())["AVG"][1] == "15m"
        _, status = await service.get("/api/v1/status")
    assert (status["history"]["mode"], status["history"]["filledRefreshes"], status["history"]["failure"]) == ("file", 20, None)


async def test_history_is_opened_while_the_source_answers_and_is_there_for_the_first_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    clock, provider = FakeClock(), ScriptedProvider(make_batch({"n1": 10.0}))

    class SlowMemory(Memory):
        async def __aenter__(self) -> Self:
            await eventually(lambda: provider.fetches)
            for _ in range(50):  # turns of the loop, in which the answer could be digested
                await asyncio.sleep(0)
            order.append("opened")
            return await super().__aenter__()

    watcher = Watcher(provider, memory=SlowMemory(source=provider.name, clock=clock, step_seconds=30), clock=clock)
    in_thread = watcher._in_thread

    async def digest(work: Callable[[], Any]) -> Any:
        order.append("digested")
        return await in_thread(work)

    monkeypatch.setattr(watcher, "_in_thread", digest)
    async with asyncio.timeout(10), watcher:
        await eventually(lambda: watcher.snapshot)
    assert order[:2] == ["opened", "digested"]


async def test_a_file_that_cannot_be_used_is_told_and_costs_nothing_else(tmp_path: Path) -> None:
    async with Service(tmp_path / "absent" / "history.db") as service:
        for _ in range(8):
            await service.refresh(make_batch({"n1": 10.0}, sampled_at=service.clock.now + 30))
        assert (await service.metrics())["AVG"] == (10.0, "5m")
        _, status = await service.get("/api/v1/status")
        assert "absent" in status["history"]["failure"]
        metrics = await (await service.client.get("/metrics")).text()
    assert 'load_watcher_history_failure{cause="unwritable"} 1.0' in metrics


async def test_what_is_exported_replays_to_the_same_answers(tmp_path: Path) -> None:
    """Each sample of the recording, played with its own times, gives the values and windows that the service gave."""
    path = tmp_path / "history.db"
    async with Service(path) as service:
        for step in range(12):
            await service.refresh(make_batch({"n1": 10.0 + step, "n2": None if step % 3 else 50.0}, sampled_at=service.clock.now + 30))
        served = await service.metrics()
        end = service.clock.now
    with (tmp_path / "day.jsonl").open("wb") as target:
        assert await export_history(path, start_at=0, end_at=None, file_format="jsonl", target=target) == 12
    lines = [json.loads(line) for line in (tmp_path / "day.jsonl").read_text().splitlines()]
    clock = FakeClock(lines[0]["at"])
    provider = RecordedProvider(tmp_path / "day.jsonl", keep_times=True, clock=clock.time)
    watcher = Watcher(provider, memory=Memory(source=provider.name, clock=clock, step_seconds=30), clock=clock)
    async with TestClient(TestServer(create_app(watcher))) as client:
        while clock.now <= end:
            await watcher.tick()
            clock.move(30)
        body = await (await client.get("/watcher")).json()
    metrics = body["data"]["NodeMetricsMap"]["n1"]["metrics"]
    assert {metric["operator"]: (metric["value"], metric["rollup"]) for metric in metrics} == served


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
async def test_export_to_other_tools(tmp_path: Path, file_format: str) -> None:
    path = tmp_path / "history.db"
    async with Service(path) as service:
        await service.refresh(make_batch({"n1": 10.0, "n2": None}, sampled_at=service.clock.now + 30))
    with (tmp_path / "out").open("wb") as target:
        await export_history(path, start_at=0, end_at=None, file_format=file_format, target=target)
    if file_format == "csv":
        header, *rows = (tmp_path / "out").read_text().splitlines()
        assert header == "fetched_at,node,sampled_at,metric,value"
    else:
        import pyarrow.parquet as pq

        rows = pq.read_table(tmp_path / "out").to_pylist()
    assert len(rows) == 1
