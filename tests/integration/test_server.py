"""The HTTP face on a real socket: what a client of the Go load-watcher, a scheduler, a probe and Prometheus see."""

import asyncio
import gzip
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

import pytest
import stamina
from aiohttp import ClientResponse, ClientSession, web
from aiohttp.test_utils import TestClient, TestServer
from yarl import URL

from load_watcher.errors import ProviderAuthError, ProviderUnavailableError
from load_watcher.samples import NodeInfo, SampleBatch
from load_watcher.server.app import create_app
from load_watcher.server.handlers import WATCHER, count_requests, get_watcher, make_respond
from load_watcher.telemetry import Telemetry
from load_watcher.timing import Timing
from load_watcher.watcher import Watcher
from tests.builders import NOW, make_batch
from tests.fakes.watcher import Answer, FakeClock, ScriptedProvider, eventually, hang
from trimaran_client.direct import read_head, serving
from trimaran_client.ops import error_middleware
from trimaran_client.wire import ResourceQuantities, decode_watcher_metrics

Client = TestClient[web.Request, web.Application]
JSON = "application/json"
INFO = NodeInfo(ResourceQuantities("8", "32Gi"), ResourceQuantities("7910m", "30Gi"))
BATCH = make_batch({"n1": 12.5, "n2": 50.0, "bare": None}, memory_percent={"n1": 20.0, "n2": 30.0}, infos=(INFO, None, INFO))
DOWN = ProviderUnavailableError("Scripted: connection refused; is it running?")


class Service:
    """A served watcher, and a client that takes answers as they come: not decompressed, not redirected."""

    def __init__(self, watcher: Watcher, provider: ScriptedProvider, clock: FakeClock, client: Client) -> None:
        self.watcher = watcher
        self.provider = provider
        self.clock = clock
        self.client = client

    async def request(self, path: str, method: str = "GET", **headers: str) -> tuple[ClientResponse, bytes]:
        renamed = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.client.request(method, path, headers=renamed, allow_redirects=False) as response:
            return response, await response.read()

    async def error(self, path: str, method: str = "GET") -> tuple[ClientResponse, str, str]:
        response, body = await self.request(path, method)
        assert response.headers["Content-Type"].startswith(JSON)
        content = json.loads(body)
        assert set(content) == {"status", "error", "message"}
        assert content["status"] == response.status
        return response, content["error"], content["message"]

    async def metric(self, name: str) -> str:
        _, body = await self.request("/metrics")
        return next(line.split()[-1] for line in body.decode().splitlines() if line.startswith(name))


Serve = Callable[..., Any]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    async with AsyncExitStack() as stack:
        stack.enter_context(stamina.set_testing(True, attempts=4))

        async def start(*answers: Answer, health: BaseException | None = None, fetch_timeout_seconds: float = 5) -> Service:
            clock = FakeClock()
            provider = ScriptedProvider(*answers, health=health)
            timing = Timing(fetch_timeout_seconds=fetch_timeout_seconds)
            watcher = Watcher(provider, timing=timing, clock=clock, telemetry=Telemetry(clock, version="1.2.3"))
            server = TestServer(create_app(watcher))
            client = TestClient(server, auto_decompress=False, skip_auto_headers=("Accept-Encoding",))
            return Service(watcher, provider, clock, await stack.enter_async_context(client))

        yield start


@pytest.fixture
async def service(serve: Serve) -> Service:
    started: Service = await serve(BATCH)
    await eventually(lambda: started.watcher.snapshot)
    return started


async def test_the_wire(service: Service) -> None:
    response, body = await service.request("/watcher")
    assert response.status == 200
    assert response.headers["Content-Type"] == JSON
    assert int(response.headers["Content-Length"]) == len(body)
    assert "Transfer-Encoding" not in response.headers
    assert "Content-Encoding" not in response.headers
    content = json.loads(body, parse_constant=pytest.fail)
    assert list(content) == ["timestamp", "window", "source", "data"]
    assert (content["timestamp"], content["source"]) == (NOW, "test")
    assert content["data"]["NodeMetricsMap"]["n1"] == {
        "metrics": [
            {"name": "", "type": "CPU", "operator": "Latest", "rollup": "", "value": 12.5},
            {"name": "", "type": "Memory", "operator": "Latest", "rollup": "", "value": 20.0},
        ],
        "tags": {},
        "metadata": {"dataCenter": ""},
        "capacity": {"cpu": "8", "memory": "32Gi"},
        "allocatable": {"cpu": "7910m", "memory": "30Gi"},
        "sampledAt": NOW,
        "status": "ok",
    }
    assert decode_watcher_metrics(body).source == "test"


async def test_one_host(service: Service) -> None:
    whole = json.loads((await service.request("/watcher"))[1])
    response, body = await service.request("/watcher?host=n2", Accept_Encoding="gzip")
    assert (response.status, int(response.headers["Content-Length"])) == (200, len(body))
    assert json.loads(body) == whole | {"data": {"NodeMetricsMap": {"n2": whole["data"]["NodeMetricsMap"]["n2"]}}}


@pytest.mark.parametrize(("query", "nodes"), [("host=", 3), ("host=n1&host=n2", 1), ("host=&host=n2", 3), ("other=1", 3)])
async def test_an_empty_host_means_all_and_the_first_counts(service: Service, query: str, nodes: int) -> None:
    _, body = await service.request(f"/watcher?{query}")
    assert len(json.loads(body)["data"]["NodeMetricsMap"]) == nodes


async def test_report_21_a_known_host_without_metrics_is_answered_with_its_entry(service: Service) -> None:
    response, body = await service.request("/watcher?host=bare")
    entry = json.loads(body)["data"]["NodeMetricsMap"]["bare"]
    assert (response.status, entry["status"], entry["metrics"], entry["capacity"]) == (
        200,
        "no_metrics",
        [],
        {"cpu": "8", "memory": "32Gi"},
    )


async def test_an_unknown_host(service: Service) -> None:
    response, error, message = await service.error("/watcher?host=n9")
    assert (response.status, error) == (404, "unknown_node")
    assert message == "no node is called 'n9'; GET /watcher lists the nodes that are known"


@pytest.mark.parametrize(
    "accept",
    ["gzip", "GZIP", "gzip, deflate, br", "gzip;q=0.5", "x-gzip", "*", "*;q=0.1", "identity;q=0.5, gzip;q=1", "br;q=1, gzip;q=0.2"],
)
async def test_gzip_where_it_is_wanted(service: Service, accept: str) -> None:
    _, identity = await service.request("/watcher")
    response, body = await service.request("/watcher", Accept_Encoding=accept)
    assert response.headers["Content-Encoding"] == "gzip"
    assert int(response.headers["Content-Length"]) == len(body)
    assert gzip.decompress(body) == identity


@pytest.mark.parametrize("accept", ["", "identity", "br", "gzip;q=0", "gzip;q=0, *", "*;q=0", "gzip;q=0.5, identity", "gzip;q=x", ",;=,"])
async def test_no_gzip_where_it_is_not_wanted(service: Service, accept: str) -> None:
    response, body = await service.request("/watcher", Accept_Encoding=accept)
    assert "Content-Encoding" not in response.headers
    assert json.loads(body)["source"] == "test"


async def test_each_encoding_has_its_own_strong_tag_and_vary(service: Service) -> None:
    tags = set()
    for accept in ("identity", "gzip"):
        response, _ = await service.request("/watcher", Accept_Encoding=accept)
        assert response.headers["Vary"] == "Accept-Encoding"
        tags.add(response.headers["ETag"])
    assert len(tags) == 2
    assert all(tag.startswith('"') for tag in tags)


@pytest.mark.parametrize("form", ["{}", "W/{}", '"x", {}', '"x" , W/{} ,"y"', "*"])
@pytest.mark.parametrize("path", ["/watcher", "/watcher?host=n1"])
@pytest.mark.parametrize("accept", ["identity", "gzip"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_what_the_client_has_already_is_not_sent_again(service: Service, form: str, path: str, accept: str, method: str) -> None:
    first, _ = await service.request(path, Accept_Encoding=accept)
    tag = first.headers["ETag"]
    response, body = await service.request(path, method, Accept_Encoding=accept, If_None_Match=form.format(tag))
    assert (response.status, body) == (304, b"")
    assert (response.headers["ETag"], response.headers["Vary"]) == (tag, "Accept-Encoding")
    assert "Content-Encoding" not in response.headers


async def test_another_tag_is_sent_the_reply(service: Service) -> None:
    gzipped, _ = await service.request("/watcher", Accept_Encoding="gzip")
    for tag in ('"x"', "x", "", gzipped.headers["ETag"]):
        response, body = await service.request("/watcher", If_None_Match=tag)
        assert response.status == 200
        assert body


async def test_a_new_snapshot_has_a_new_tag(service: Service) -> None:
    first, _ = await service.request("/watcher")
    service.provider.answers = [make_batch({"n1": 13.0}, sampled_at=NOW + 30)]
    old = service.watcher.snapshot
    await service.clock.wake(30)
    await eventually(lambda: service.watcher.snapshot is not old)
    response, _ = await service.request("/watcher", If_None_Match=first.headers["ETag"])
    assert response.status == 200


@pytest.mark.parametrize("path", ["/watcher", "/watcher?host=n1", "/watcher?host=n9", "/watcher/health", "/nowhere"])
async def test_head_is_get_without_the_body(service: Service, path: str) -> None:
    get, body = await service.request(path)
    head, nothing = await service.request(path, "HEAD")
    assert (head.status, nothing) == (get.status, b"")
    assert int(head.headers["Content-Length"]) == len(body)
    assert (head.headers["Content-Type"], head.headers.get("ETag")) == (get.headers["Content-Type"], get.headers.get("ETag"))


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_other_methods_are_refused_with_those_that_are_allowed(service: Service, method: str) -> None:
    response, error, message = await service.error("/watcher", method)
    assert (response.status, error, response.headers["Allow"]) == (405, "method_not_allowed", "GET,HEAD")
    assert "use GET or HEAD" in message


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("//watcher", "/watcher"),
        ("///watcher?host=n1&x=%20", "/watcher?host=n1&x=%20"),
        ("/./watcher", "/watcher"),
        ("/x/../watcher", "/watcher"),
        ("/watcher//health/", "/watcher/health/"),
        ("//example.com/..", "/"),
    ],
)
async def test_a_path_with_slashes_too_many_is_redirected_as_in_go(service: Service, path: str, location: str) -> None:
    """The Go client puts /watcher after the address that it was given, and that may end in a slash."""
    reader, writer = await asyncio.open_connection(service.client.host, service.client.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    head = (await reader.read()).decode()
    writer.close()
    assert head.startswith("HTTP/1.1 301 ")
    assert f"\r\nLocation: {location}\r\n" in head


async def test_a_trailing_slash_is_another_path_as_in_go(service: Service) -> None:
    response, error, message = await service.error("/watcher/")
    assert (response.status, error) == (404, "not_found")
    assert "/watcher, /watcher/health" in message


@pytest.mark.parametrize("request_line", ["GET /" + "x" * 70_000 + " HTTP/1.1", "GET /watcher HTTP/1.1\r\nX: " + "x" * 70_000, "nonsense"])
async def test_a_malformed_request_ends_its_own_connection_only(service: Service, request_line: str) -> None:
    reader, writer = await asyncio.open_connection(service.client.host, service.client.port)
    writer.write(f"{request_line}\r\nHost: x\r\n\r\n".encode())
    head = await reader.read()
    writer.close()
    assert head.startswith(b"HTTP/1.")
    assert head.split()[1] == b"400"
    assert b"Traceback" not in head
    assert (await service.request("/watcher"))[0].status == 200


async def test_report_30_without_a_snapshot_there_is_a_clear_error(serve: Serve) -> None:
    service: Service = await serve(hang, fetch_timeout_seconds=60)
    for path in ("/watcher", "/watcher?host=n1"):
        response, error, message = await service.error(path)
        assert (response.status, error) == (503, "not_ready")
        assert message == "no snapshot yet; the first refresh is under way"
        assert int(response.headers["Retry-After"]) > 0
    assert (await service.request("/livez"))[0].status == 200
    assert (await service.error("/readyz"))[1] == "not_ready"
    assert "load_watcher_nodes{" not in (await service.request("/metrics"))[1].decode()


@pytest.mark.parametrize("trouble", [hang, DOWN, ProviderAuthError("Scripted: 401"), KeyError("x")])
async def test_report_63_whatever_the_provider_does_the_last_good_values_are_served_at_once(serve: Serve, trouble: Answer) -> None:
    service: Service = await serve(BATCH, trouble, fetch_timeout_seconds=60)
    await eventually(lambda: service.watcher.snapshot)
    await service.clock.wake(30)
    await eventually(lambda: service.provider.fetches > 1)
    async with asyncio.timeout(1):
        response, body = await service.request("/watcher")
    assert response.status == 200
    assert json.loads(body)["data"]["NodeMetricsMap"]["n1"]["metrics"][0]["value"] == 12.5


async def test_report_54_an_outage_makes_it_not_ready_but_keeps_it_live(serve: Serve) -> None:
    service: Service = await serve(BATCH, DOWN, health=DOWN)
    await eventually(lambda: service.watcher.snapshot)
    assert (await service.request("/readyz"))[0].status == 200
    for _ in range(20):
        made_at = service.watcher.snapshot and service.watcher.snapshot.made_at
        await service.clock.wake(30)
        await eventually(lambda made_at=made_at: service.watcher.snapshot and service.watcher.snapshot.made_at != made_at)  # type: ignore[misc]
    assert (await service.request("/livez"))[0].status == 200
    response, error, message = await service.error("/readyz")
    assert (response.status, error) == (503, "not_ready")
    assert "600 s old" in message
    assert "connection refused" in message
    response, error, message = await service.error("/watcher/health")
    assert (response.status, error, message) == (503, "provider_unhealthy", str(DOWN))
    entry = json.loads((await service.request("/watcher?host=n1"))[1])["data"]["NodeMetricsMap"]["n1"]
    assert (entry["status"], entry["metrics"][0]["value"]) == ("stale", 12.5)
    assert await service.metric('load_watcher_nodes{status="stale"}') == "2.0"


async def test_health_of_the_provider(service: Service) -> None:
    response, body = await service.request("/watcher/health")
    assert (response.status, response.headers["Content-Type"], json.loads(body)) == (200, JSON, {"status": "ok"})


async def test_metrics_tell_what_went_on(service: Service) -> None:
    await service.request("/watcher")
    await service.request("/watcher?host=n1")
    await service.request("/watcher?host=n9")
    await service.request("/secret/path")
    await service.request("/watcher", "POST")
    _, body = await service.request("/metrics")
    lines = body.decode().splitlines()
    assert 'load_watcher_requests_total{method="GET",route="/watcher",status="200"} 2.0' in lines
    assert 'load_watcher_requests_total{method="GET",route="/watcher",status="404"} 1.0' in lines
    assert 'load_watcher_requests_total{method="GET",route="unmatched",status="404"} 1.0' in lines
    assert 'load_watcher_requests_total{method="POST",route="unmatched",status="405"} 1.0' in lines
    assert 'load_watcher_nodes{status="ok"} 2.0' in lines
    assert 'load_watcher_nodes{status="no_metrics"} 1.0' in lines
    assert "load_watcher_refresh_duration_seconds_count 1.0" in lines
    assert "load_watcher_snapshot_age_seconds 0.0" in lines
    assert any(line.startswith('load_watcher_build_info{python="3.') and 'version="1.2.3"' in line for line in lines)
    assert "secret" not in body.decode()


async def test_the_provider_is_left_after_the_last_answer(serve: Serve) -> None:
    release = asyncio.Event()
    service: Service = await serve(BATCH)
    await eventually(lambda: service.watcher.snapshot)

    async def check_slowly() -> None:
        assert service.provider.is_open
        await release.wait()
        assert service.provider.is_open

    service.provider.check_health = check_slowly  # type: ignore[method-assign]
    answer = asyncio.create_task(service.request("/watcher/health"))
    await eventually(lambda: service.watcher._health_lock.locked())
    closing = asyncio.create_task(service.client.server.close())
    await asyncio.sleep(0)
    release.set()
    assert (await answer)[0].status == 200
    await closing
    assert not service.provider.is_open


async def test_many_at_once_get_the_same_snapshot(service: Service) -> None:
    answers = await asyncio.gather(*(service.request("/watcher", Accept_Encoding="gzip") for _ in range(200)))
    assert len({body for _, body in answers}) == 1
    assert service.provider.fetches == 1


async def answer_rubbish() -> SampleBatch:
    return "rubbish"  # type: ignore[return-value]


async def test_report_19_rubbish_never_reaches_the_wire(serve: Serve) -> None:
    service: Service = await serve(answer_rubbish)
    await eventually(lambda: service.watcher.ready() and "fault in the provider" in (service.watcher.ready() or ""))
    response, error, _ = await service.error("/watcher")
    assert (response.status, error) == (503, "not_ready")
    assert await service.metric('load_watcher_refresh_failures_total{cause="bug"}') == "1.0"


ASKED: Mapping[str, Mapping[str, str]] = {
    "all": {},
    "gzip": {"Accept-Encoding": "gzip, deflate"},
    "no gzip": {"Accept-Encoding": "gzip;q=0, identity"},
    "held": {"If-None-Match": "TAG"},
    "held by weak tag": {"If-None-Match": "W/TAG"},
    "held among others": {"If-None-Match": '"else", TAG'},
    "anything held": {"If-None-Match": "*"},
    "another held": {"If-None-Match": '"else"'},
    "no tag": {"If-None-Match": "else"},
    "held and gzip": {"If-None-Match": "TAG", "Accept-Encoding": "gzip"},
}
TARGETS = ("/watcher", "/watcher?host=n1", "/watcher?host=nobody", "/watcher?host=", "/watcher?host=n%31", "/watcher?window=5m", "/readyz")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("asked", ASKED)
async def test_usual_requests_are_answered_as_all_others(service: Service, target: str, asked: str) -> None:
    """With and without what answers them from their bytes: the same, and counted once."""
    watcher = service.watcher
    assert watcher.snapshot is not None
    identity = watcher.snapshot.identity if "host" not in target else watcher.snapshot.cut_host("n1")
    assert identity is not None
    headers = {name: value.replace("TAG", identity.etag) for name, value in ASKED[asked].items()}
    answers = []
    for respond in (make_respond(watcher), lambda *_: None):
        app = web.Application(middlewares=[count_requests, error_middleware])
        app[WATCHER] = watcher
        app.router.add_get("/watcher", get_watcher)
        async with (
            serving(app, "127.0.0.1", 0, respond=respond, shutdown_seconds=1) as address,
            ClientSession("http://{}:{}".format(*address), auto_decompress=False, skip_auto_headers=["Accept-Encoding"]) as session,
            session.get(URL(target, encoded=True), headers=headers) as response,
        ):
            kept = {name: value for name, value in response.headers.items() if name != "Date"}
            answers.append((response.status, kept, await response.read()))
    assert answers[0] == answers[1]
    counted = Counter(dict(watcher.telemetry.list_requests()))
    assert counted.total() == len(counted) * 2 == 2


async def test_an_answer_that_is_ready_is_that_of_the_newest_refresh() -> None:
    """What a client that always asks the same was answered before must not outlive its snapshot."""
    watcher = Watcher(ScriptedProvider(BATCH, make_batch({"n1": 99.0, "n2": 98.0})), clock=FakeClock())
    respond = make_respond(watcher)
    asked = [read_head(f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode()) for target in ("/watcher", "/watcher?host=n1")]
    answered = []
    for _ in range(2):
        await watcher.tick()
        assert watcher.snapshot is not None
        newest = [watcher.snapshot.identity, watcher.snapshot.cut_host("n1")]
        for head, reply in zip(asked, newest, strict=True):
            assert head is not None
            assert reply is not None
            for _ in range(2):
                answer = respond(head, b"")
                assert answer is not None
                assert (answer.status, answer.body) == (200, reply.body)
            answered.append(reply.body)
    assert len(set(answered)) == 4
