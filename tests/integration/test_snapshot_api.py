"""``GET /api/v1/snapshot`` through the real server: columns in any windows and statistics, and waiting for the next snapshot."""

import asyncio
import gzip
import json
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import stamina
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from load_watcher import rendering
from load_watcher.errors import ProviderUnavailableError
from load_watcher.samples import FIFTEEN_MINUTES, FIVE_MINUTES, Aggregate, NodeInfo, SampleBatch, Window
from load_watcher.server.app import create_app
from load_watcher.server.snapshots import MAX_WINDOWS
from load_watcher.snapshot import Encoded
from load_watcher.snapshot import encode as encode_body
from load_watcher.watcher import Watcher
from tests.builders import NOW, make_batch
from tests.fakes.service import Service
from tests.fakes.watcher import ScriptedProvider, eventually, hang
from trimaran_client import MetricChoice, TargetLoadPacking, TargetLoadPackingArgs, WatcherClient
from trimaran_client.policies.metric_needs import find_needs
from trimaran_client.wire import ResourceQuantities, SnapshotColumns, encode_json

ROOT = Path(__file__).parents[2]
PATH = "/api/v1/snapshot"
Column = dict[str, Any]


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with Service() as started:
        yield started


async def ask(service: Service, query: str = "", **headers: str) -> tuple[ClientResponse, bytes]:
    renamed = {name.replace("_", "-"): value for name, value in headers.items()}
    async with service.client.get(f"{PATH}{query}", headers=renamed) as response:
        return response, await response.read()


async def columns(service: Service, query: str = "") -> dict[tuple[str, str, str], list[float | None]]:
    """Answer (type, statistic, window) → values; no two columns have the same."""
    status, body = await service.get(f"{PATH}{query}")
    assert status == 200
    found = {(each["type"], each["statistic"], each["window"]): each["values"] for each in body["columns"]}
    assert len(found) == len(body["columns"])
    return found


async def fill(service: Service, *values: float) -> None:
    """Bring a value a minute."""
    for value in values:
        await service.refresh(make_batch({"n1": value}, sampled_at=service.clock.now + 60), seconds=60)


def averaged(*aggregates: Aggregate, **fields: Any) -> SampleBatch:
    return make_batch({"n1": 10.0}, aggregates=aggregates, **fields)


def by_source(operator: str, window: Any, value: float) -> Aggregate:
    return Aggregate(f"cpu_{operator}", "CPU", operator, window, np.array([value]))


async def test_the_whole_shape(service: Service) -> None:
    info = NodeInfo(ResourceQuantities("8", "32Gi"), ResourceQuantities("7910m"))
    batch = make_batch(
        {"n1": 12.5, "bare": None, "n2": 0.0},
        memory_percent={"n1": 20.0},
        sampled_at={"n1": NOW + 30, "bare": NOW, "n2": NOW + 10.5},
        infos=(info, None, info),
        sample_seconds=np.array([20.0, np.nan, 10.0625]),
    )
    await service.refresh(batch)
    response, body = await ask(service)
    assert (response.status, response.headers["Content-Type"], response.headers["Vary"]) == (200, "application/json", "Accept-Encoding")
    content = json.loads(body, parse_constant=pytest.fail)
    assert content.pop("id")
    assert content == {
        "madeAt": NOW + 30,
        "source": "test",
        "windowEndAt": NOW + 30,
        "nodes": ["n1", "bare", "n2"],
        "sampledAt": [NOW + 30, None, NOW + 10],
        "sampleSeconds": [20.0, None, 10.0625],
        "statuses": ["ok", "no_metrics", "ok"],
        "capacity": {"cpu": ["8", None, "8"], "memory": ["32Gi", None, "32Gi"]},
        "allocatable": {"cpu": ["7910m", None, "7910m"], "memory": [None, None, None]},
        "columns": [
            {"type": "CPU", "statistic": "Latest", "window": "", "name": "", "values": [12.5, None, 0.0]},
            {"type": "Memory", "statistic": "Latest", "window": "", "name": "", "values": [20.0, None, None]},
        ],
        "notHeld": [],
    }


def test_the_example_of_the_documentation_is_such_an_answer() -> None:
    text = (ROOT / "docs/wire.md").read_text()
    [example] = re.findall(r"```json\n(\{\n  \"id\".*?)```", text, re.DOTALL)
    decoded = msgspec.json.decode(example, type=SnapshotColumns)
    assert json.loads(encode_json(decoded)) == json.loads(example)


async def test_without_parameters_it_says_what_the_watcher_says(service: Service) -> None:
    """Each node over the longest window that it holds: a column a window, each node in one of them."""
    for step in range(16):
        new = {"new": float(step)} if step >= 12 else {}
        await service.refresh(make_batch({"old": 10.0 + step, **new}, sampled_at=service.clock.now + 30))
    found = await columns(service)
    assert list(found) == [("CPU", "Latest", ""), *(("CPU", statistic, window) for statistic in ("AVG", "STD") for window in ("5m", "15m"))]
    assert found["CPU", "AVG", "15m"] == [17.5, None]
    assert found["CPU", "AVG", "5m"] == [None, 13.5]
    assert (await service.metrics(node="new"))["AVG"] == (13.5, "5m")


async def test_report_33_several_windows_and_statistics_at_once(service: Service) -> None:
    await fill(service, 10.0, 10.0, 10.0, 10.0, 90.0, 10.0, 10.0, 10.0, 10.0, 10.0)
    found = await columns(service, "?windows=5m,10m&statistics=AVG,MAX")
    assert found == {
        ("CPU", "Latest", ""): [10.0],
        ("CPU", "AVG", "5m"): [10.0],
        ("CPU", "AVG", "10m"): [18.0],
        ("CPU", "MAX", "5m"): [10.0],
        ("CPU", "MAX", "10m"): [90.0],
    }


async def test_one_of_both_parameters_leaves_the_other_as_usual(service: Service) -> None:
    await fill(service, *range(10))
    assert list(await columns(service, "?windows=5m")) == [("CPU", "Latest", ""), ("CPU", "AVG", "5m"), ("CPU", "STD", "5m")]
    assert list(await columns(service, "?statistics=P90")) == [("CPU", "Latest", ""), ("CPU", "P90", "15m")]
    assert list(await columns(service, "?statistics=Latest")) == [("CPU", "Latest", "")]


async def test_report_32_a_window_that_is_not_held_is_named_and_the_others_are_answered(service: Service) -> None:
    await fill(service, *range(9))
    _, body = await service.get(f"{PATH}?windows=5m,7m,30m,6h&statistics=AVG")
    assert [each["window"] for each in body["columns"]] == ["", "5m", "7m"]
    reasons = {each["window"]: each["reason"] for each in body["notHeld"]}
    assert list(reasons) == ["30m", "6h"]
    assert "held: 5m, 10m, 15m" in reasons["30m"]
    assert "LOAD_WATCHER_HISTORY" in reasons["6h"]


async def test_a_window_that_one_node_holds_is_absent_for_the_other(service: Service) -> None:
    for step in range(16):
        await service.refresh(make_batch({"old": 10.0, **({"new": 50.0} if step > 13 else {})}, sampled_at=service.clock.now + 30))
    found = await columns(service, "?windows=15m&statistics=AVG")
    assert found["CPU", "AVG", "15m"] == [10.0, None]


async def test_what_the_source_averaged_counts_and_history_has_the_rest(service: Service) -> None:
    """Never both for the same type, statistic and window."""
    await fill(service, *range(10))
    given = averaged(by_source("AVG", FIFTEEN_MINUTES, 70.0), by_source("AVG", FIVE_MINUTES, 50.0), sampled_at=service.clock.now + 60)
    await service.refresh(given, seconds=60)
    usual = {("CPU", "Latest", ""): [10.0], ("CPU", "AVG", "15m"): [70.0]}
    assert await columns(service) == usual
    assert await columns(service, "?windows=5m,15m&statistics=AVG") == usual | {("CPU", "AVG", "5m"): [50.0]}
    asked = await columns(service, "?windows=10m,15m&statistics=AVG,MAX")
    assert asked == {
        ("CPU", "Latest", ""): [10.0],
        ("CPU", "AVG", "10m"): [5.5],
        ("CPU", "AVG", "15m"): [70.0],
        ("CPU", "MAX", "10m"): [10.0],
        ("CPU", "MAX", "15m"): [10.0],
    }
    assert await columns(service, "?statistics=AVG,MAX") == usual | {("CPU", "MAX", "15m"): [10.0]}
    assert await columns(service, "?statistics=MAX") == {("CPU", "Latest", ""): [10.0], ("CPU", "MAX", "15m"): [10.0]}


async def test_what_only_the_source_averages_is_not_missed_in_our_history() -> None:
    """Our samples are of newest values; of a metric without any there is nothing that history could add."""
    only_average = Aggregate("Bandwidth", "Bandwidth", "AVG", FIFTEEN_MINUTES, np.array([5.0]), "")
    async with Service(history=False) as service:
        by_both = [by_source(operator, FIFTEEN_MINUTES, 70.0) for operator in ("AVG", "STD")]
        await service.refresh(averaged(*by_both, only_average, sampled_at=NOW + 30))
        _, body = await service.get(f"{PATH}?windows=15m")
        assert body["notHeld"] == []


async def test_without_history_the_source_is_all_there_is() -> None:
    async with Service(history=False) as service:
        await service.refresh(averaged(by_source("AVG", FIFTEEN_MINUTES, 70.0), sampled_at=NOW + 30))
        _, body = await service.get(f"{PATH}?windows=15m&statistics=AVG")
        assert ([each["values"] for each in body["columns"]], body["notHeld"]) == ([[10.0], [70.0]], [])
        _, body = await service.get(f"{PATH}?windows=5m,15m&statistics=AVG,P90")
        assert [(each["statistic"], each["window"]) for each in body["columns"]] == [("Latest", ""), ("AVG", "15m")]
        assert [each["window"] for each in body["notHeld"]] == ["5m", "15m"]
        assert all("LOAD_WATCHER_HISTORY is off" in each["reason"] for each in body["notHeld"])
        assert all("the source itself has 15m" in each["reason"] for each in body["notHeld"])
        _, body = await service.get(f"{PATH}?statistics=P90")
        assert [each["window"] for each in body["notHeld"]] == [""]


async def test_every_window_of_the_source_is_there_for_who_asks() -> None:
    """Without one asked for, each node has the longest, here as at `/watcher`."""
    nodes = {"old": 10.0, "new": 20.0}
    values = {
        ("AVG", "5m"): [11.0, 21.0],
        ("AVG", "10m"): [12.0, 22.0],
        ("AVG", "15m"): [13.0, None],
        ("STD", "5m"): [1.0, 2.0],
        ("STD", "10m"): [1.5, 2.5],
        ("STD", "15m"): [1.75, None],
    }
    given = tuple(
        Aggregate("cpu", "CPU", operator, Window.parse(window), np.array(row, dtype=np.float64))
        for (operator, window), row in values.items()
    )
    latest = {("CPU", "Latest", ""): [10.0, 20.0]}
    async with Service(history=False) as service:
        await service.refresh(make_batch(nodes, aggregates=given, sampled_at=NOW + 30))
        asked = await columns(service, "?windows=5m,10m,15m")
        usual = await columns(service)
        by_node = [await service.metrics(node=node) for node in nodes]
    assert asked == latest | {("CPU", *key): row for key, row in values.items()}
    assert usual == latest | {
        ("CPU", "AVG", "10m"): [None, 22.0],
        ("CPU", "AVG", "15m"): [13.0, None],
        ("CPU", "STD", "10m"): [None, 2.5],
        ("CPU", "STD", "15m"): [1.75, None],
    }
    assert by_node == [
        {"Latest": (10.0, ""), "AVG": (13.0, "15m"), "STD": (1.75, "15m")},
        {"Latest": (20.0, ""), "AVG": (22.0, "10m"), "STD": (2.5, "10m")},
    ]


async def test_a_policy_that_goes_by_five_minutes_gets_those_of_the_source() -> None:
    five, longest = MetricChoice("AVG", "5m"), MetricChoice("AVG")
    windows, statistics = find_needs([TargetLoadPacking(TargetLoadPackingArgs(cpu_metric=five))])
    async with Service(history=False) as service:
        await service.refresh(averaged(by_source("AVG", FIFTEEN_MINUTES, 70.0), by_source("AVG", FIVE_MINUTES, 30.0), sampled_at=NOW + 30))
        async with WatcherClient(service.address, windows=windows, statistics=statistics) as client:
            snapshot = await client.fetch_snapshot()
    assert [snapshot.select(choice.selector("CPU", ())).values.tolist() for choice in (five, longest)] == [[30.0], [70.0]]


async def test_units_and_sources_stand_beside_the_values(service: Service) -> None:
    batch = make_batch(
        {"a": 1.0, "b": 2.0, "c": None},
        latest={"CPU": np.array([1.0, 2.0, np.nan]), "power": np.array([150.0, np.nan, np.nan])},
        sampled_at=NOW + 30,
        units={"CPU": "percent", "power": "watts"},
        origins={"CPU": ("first", "second", "")},
    )
    await service.refresh(batch)
    _, body = await service.get(PATH)
    assert [(each["type"], each.get("unit"), each.get("sources")) for each in body["columns"]] == [
        ("CPU", None, ["first", "second", None]),
        ("power", "watts", None),
    ]


async def test_nodes_that_the_watcher_leaves_out_are_left_out(service: Service) -> None:
    await service.refresh(make_batch({"n1": 95.0, "n2": 5.0}, sampled_at=NOW))
    await service.refresh(make_batch({"n1": None, "n2": 5.0}, sampled_at=NOW + 1000), seconds=1000)
    _, body = await service.get(PATH)
    assert (body["nodes"], body["columns"][0]["values"]) == (["n2"], [5.0])


async def test_the_id_is_that_of_the_published_snapshot_whatever_is_asked(service: Service) -> None:
    await fill(service, *range(10))
    ids = {
        (await service.get(f"{PATH}{query}"))[1]["id"] for query in ("", "?windows=5m", "?windows=5m,10m&statistics=P90", "?statistics=MAX")
    }
    await fill(service, 10.0)
    later = (await service.get(PATH))[1]["id"]
    assert len(ids) == 1
    assert later not in ids


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("windows=soon", "windows='soon'"),
        ("windows=5m,0m", "windows='0m'"),
        ("statistics=P42", "choose from Latest, AVG, STD"),
        ("statistics=AVG&statistics=avg", "statistics='avg'"),
        ("windows=" + ",".join(f"{minutes}m" for minutes in range(1, MAX_WINDOWS + 2)), f"at most {MAX_WINDOWS}"),
        ("wait=soon", "wait='soon'"),
        ("wait=-1", "write seconds from 0 to 60"),
        ("wait=nan", "wait='nan'"),
    ],
)
async def test_parameters_that_are_none_are_named(service: Service, query: str, named: str) -> None:
    status, body = await service.get(f"{PATH}?{query}")
    assert (status, body["status"], body["error"]) == (400, 400, "bad_parameter")
    assert named in body["message"]


async def test_report_30_before_the_first_snapshot_it_says_so() -> None:
    watcher = Watcher(ScriptedProvider(hang))
    async with TestClient(TestServer(create_app(watcher))) as client, client.get(f"{PATH}?wait=60") as response:
        assert (response.status, (await response.json())["error"]) == (503, "not_ready")
        assert int(response.headers["Retry-After"]) > 0


async def test_tags_encodings_and_head(service: Service) -> None:
    await fill(service, *range(10))
    query = "?windows=5m"
    plain, body = await ask(service, query, Accept_Encoding="identity")
    zipped, same = await ask(service, query, Accept_Encoding="gzip")  # the test's client unpacks it
    assert body == same
    assert (zipped.headers["Content-Encoding"], int(plain.headers["Content-Length"])) == ("gzip", len(body))
    assert int(zipped.headers["Content-Length"]) == len(gzip.compress(body, 6, mtime=0))
    assert plain.headers["ETag"] != zipped.headers["ETag"]
    for first, accept in ((plain, "identity"), (zipped, "gzip")):
        again, nothing = await ask(service, query, Accept_Encoding=accept, If_None_Match=first.headers["ETag"])
        assert (again.status, nothing, again.headers["ETag"]) == (304, b"", first.headers["ETag"])
        assert "Content-Encoding" not in again.headers
    other, _ = await ask(service, "?windows=10m", Accept_Encoding="identity", If_None_Match=plain.headers["ETag"])
    assert other.status == 200
    async with service.client.head(f"{PATH}{query}", headers={"Accept-Encoding": "identity"}) as head:
        assert (head.status, head.headers["ETag"], int(head.headers["Content-Length"])) == (200, plain.headers["ETag"], len(body))


async def test_the_same_question_in_another_order_is_the_same_answer(service: Service) -> None:
    await fill(service, *range(10))
    first, _ = await ask(service, "?windows=5m,10m&statistics=P90,AVG")
    second, _ = await ask(service, "?statistics=AVG&windows=10m&windows=5m,5m&statistics=P90&wait=0")
    assert first.headers["ETag"] == second.headers["ETag"]


# Waiting


async def wait_for_next(service: Service, query: str = "?wait=60") -> asyncio.Task[tuple[ClientResponse, bytes]]:
    """Ask for what comes after the snapshot of now, and answer the task once the service holds it."""
    first, _ = await ask(service, query)
    waiting = len(waiters(service))
    task = asyncio.create_task(ask(service, query, If_None_Match=first.headers["ETag"]))
    await eventually(lambda: len(waiters(service)) > waiting)
    return task


def waiters(service: Service) -> list[Any]:
    return list(service.watcher.publisher._changed._waiters)


async def test_an_answer_is_held_until_the_next_snapshot(service: Service) -> None:
    waiting = await wait_for_next(service)
    await service.refresh(make_batch({"n1": 42.0}, sampled_at=NOW + 30))
    response, body = await waiting
    assert response.status == 200
    assert json.loads(body)["columns"][0]["values"] == [42.0]


async def test_who_has_an_older_snapshot_does_not_wait(service: Service) -> None:
    first, _ = await ask(service)
    await service.refresh(make_batch({"n1": 42.0}, sampled_at=NOW + 30))
    async with asyncio.timeout(10):
        response, _ = await ask(service, "?wait=60", If_None_Match=first.headers["ETag"])
        assert response.status == 200
        assert (await ask(service, "?wait=60"))[0].status == 200


async def test_when_the_time_is_over_nothing_is_new(service: Service) -> None:
    first, _ = await ask(service)
    response, body = await ask(service, "?wait=0.05", If_None_Match=first.headers["ETag"])
    assert (response.status, body, response.headers["ETag"]) == (304, b"", first.headers["ETag"])


async def test_a_refresh_that_failed_is_told_too(service: Service) -> None:
    """The values are the same, their statuses are not."""
    await service.refresh(make_batch({"n1": 42.0}, sampled_at=NOW + 30))
    waiting = await wait_for_next(service)
    with stamina.set_testing(True, attempts=1):
        await service.refresh(ProviderUnavailableError("Scripted: down"), seconds=400)
    assert json.loads((await waiting)[1])["statuses"] == ["stale"]


async def test_a_service_that_stops_lets_all_go_at_once() -> None:
    service = Service()
    await service.__aenter__()
    waiting = [await wait_for_next(service) for _ in range(3)]
    async with asyncio.timeout(10):
        await service.client.server.close()
        answers = await asyncio.gather(*waiting)
    assert [response.status for response, _ in answers] == [304] * 3
    await service.client.close()


async def test_a_client_that_goes_away_leaves_nothing(service: Service) -> None:
    first, _ = await ask(service)
    tag = first.headers["ETag"]
    _, writer = await asyncio.open_connection(service.client.host, service.client.port)
    writer.write(f"GET {PATH}?wait=60 HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\nIf-None-Match: {tag}\r\n\r\n".encode())
    await eventually(lambda: waiters(service))
    writer.close()
    await eventually(lambda: not waiters(service))


async def test_one_answer_is_made_for_all_who_wait_for_it(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    def encode(body: bytes) -> Encoded:
        made.append(body)
        return encode_body(body)

    waiting = [await wait_for_next(service) for _ in range(20)]
    monkeypatch.setattr(rendering, "encode", encode)
    await service.refresh(make_batch({"n1": 42.0}, sampled_at=NOW + 30))
    answers = await asyncio.gather(*waiting)
    assert len({body for _, body in answers}) == 1
    assert len(made) == 1


async def test_what_anybody_can_make_up_is_bounded(service: Service) -> None:
    await fill(service, *range(10))
    for seconds in range(60, 60 + 3 * rendering.CACHED_ANSWERS):
        assert (await service.get(f"{PATH}?windows={seconds}s"))[0] == 200
    renderer = service.watcher.renderer
    assert len(renderer._columns._tasks) == rendering.CACHED_ANSWERS
    await eventually(lambda: not renderer._columns._running)


async def test_an_answer_that_failed_is_made_anew(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(rendering, "build_columns", None)
        assert (await service.get(PATH))[0] == 500
    assert (await service.get(PATH))[0] == 200


@pytest.mark.slow
async def test_thousands_can_wait(service: Service) -> None:
    """As many as this process may open: each waiter has a socket at both ends here."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20_000), hard))
    count = min(3000, (min(hard, 20_000) - 500) // 2)
    first, _ = await ask(service, "", Accept_Encoding="identity")
    head = f"GET {PATH}?wait=60 HTTP/1.1\r\nHost: x\r\nConnection: close\r\nIf-None-Match: {first.headers['ETag']}\r\n\r\n".encode()
    streams = []
    try:
        for _ in range(count):
            reader, writer = await asyncio.open_connection(service.client.host, service.client.port, family=socket.AF_INET)
            writer.write(head)
            streams.append((reader, writer))
        await eventually(lambda: len(waiters(service)) == count, 60)
        await service.refresh(make_batch({"n1": 42.0}, sampled_at=NOW + 30))
        answers = await asyncio.gather(*(reader.read() for reader, _ in streams))
        assert {answer.partition(b"\r\n")[0] for answer in answers} == {b"HTTP/1.1 200 OK"}
        assert not waiters(service)
    finally:
        for _, writer in streams:
            writer.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
