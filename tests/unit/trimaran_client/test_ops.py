import asyncio
import ctypes
import io
import json
import logging
import platform
import resource
import subprocess
import sys
import threading
import types
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import structlog
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry, Counter

from trimaran_client import ops

Client = TestClient[web.Request, web.Application]


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("things_total", "Things.", registry=registry).inc()
    return registry


@pytest.fixture
def problems() -> dict[str, str]:
    return {}


@pytest.fixture
async def client(registry: CollectorRegistry, problems: dict[str, str]) -> AsyncIterator[Client]:
    app = web.Application(middlewares=[ops.error_middleware], client_max_size=10)
    ops.add_probes(app, live=lambda: problems.get("live"), ready=lambda: problems.get("ready"))
    ops.add_metrics(app, registry)

    async def fail(request: web.Request) -> web.Response:
        raise RuntimeError("the password is hunter2")

    async def refuse(request: web.Request) -> web.Response:
        raise ops.HttpError(409, "conflicting", "two at once; try again", headers={"Retry-After": "1"})

    async def read(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    async def move(request: web.Request) -> web.Response:
        raise web.HTTPFound("/livez")

    app.router.add_get("/fail", fail)
    app.router.add_get("/refuse", refuse)
    app.router.add_get("/move", move)
    app.router.add_post("/read", read)
    async with TestClient(TestServer(app)) as client:
        yield client


async def read_error(client: Client, path: str, method: str = "GET", **arguments: Any) -> tuple[int, str, str]:
    async with client.request(method, path, **arguments) as response:
        assert response.content_type == "application/json"
        body = await response.json()
        assert set(body) == {"status", "error", "message"}
        assert body["status"] == response.status
        return response.status, body["error"], body["message"]


async def test_probes_that_are_well(client: Client) -> None:
    for path in ("/livez", "/readyz"):
        async with client.get(path) as response:
            assert (response.status, await response.json()) == (200, {"status": "ok"})


async def test_probes_say_what_is_wrong_each_for_itself(client: Client, problems: dict[str, str]) -> None:
    problems["ready"] = "no snapshot yet"
    assert await read_error(client, "/readyz") == (503, "not_ready", "no snapshot yet")
    async with client.get("/livez") as response:
        assert response.status == 200
    problems["live"] = "the loop hangs"
    assert await read_error(client, "/livez") == (503, "not_live", "the loop hangs")


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics", "/fail", "/nowhere"])
async def test_report_54_head_is_answered_without_a_body(client: Client, path: str) -> None:
    async with client.get(path) as response:
        status, length = response.status, response.headers["Content-Length"]
    async with client.head(path) as response:
        assert (response.status, await response.read()) == (status, b"")
        assert path == "/metrics" or response.headers["Content-Length"] == length


async def test_metrics_as_prometheus_reads_them(client: Client) -> None:
    async with client.get("/metrics") as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=")
        assert "things_total 1.0" in await response.text()
    async with client.get("/metrics", headers={"Accept": "application/openmetrics-text"}) as response:
        assert response.headers["Content-Type"].startswith("application/openmetrics-text")
        assert (await response.text()).endswith("# EOF\n")


async def test_an_unexpected_error_is_logged_and_tells_nothing(client: Client) -> None:
    with structlog.testing.capture_logs() as logs:
        status, error, message = await read_error(client, "/fail")
    assert (status, error) == (500, "internal")
    assert "hunter2" not in message
    assert [(log["event"], log["path"], log["exc_info"]) for log in logs] == [("request failed", "/fail", True)]


async def test_an_error_of_a_handler_keeps_its_headers(client: Client) -> None:
    assert await read_error(client, "/refuse") == (409, "conflicting", "two at once; try again")
    async with client.get("/refuse") as response:
        assert response.headers["Retry-After"] == "1"


async def test_an_unknown_path_lists_what_there_is(client: Client) -> None:
    status, error, message = await read_error(client, "/nowhere")
    assert (status, error) == (404, "not_found")
    assert message == "there is nothing at /nowhere; ask for one of /fail, /livez, /metrics, /move, /read, /readyz, /refuse"


async def test_a_method_that_is_not_answered_names_those_that_are(client: Client) -> None:
    assert await read_error(client, "/livez", "POST") == (405, "method_not_allowed", "/livez does not answer POST; use GET or HEAD")
    async with client.post("/livez") as response:
        assert response.headers["Allow"] == "GET,HEAD"


async def test_a_body_that_is_too_large(client: Client) -> None:
    status, error, message = await read_error(client, "/read", "POST", data=b"x" * 100)
    assert (status, error) == (413, "body_too_large")
    assert "10" in message


async def test_a_redirect_is_no_error(client: Client) -> None:
    async with client.get("/move", allow_redirects=False) as response:
        assert (response.status, response.headers["Location"], response.content_type) == (302, "/livez", "text/plain")


@pytest.fixture
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def written(stream: io.StringIO) -> str:
    for handler in logging.getLogger().handlers:
        handler.flush()
    return stream.getvalue()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("_restore_logging")
def test_json_holds_records_of_both_kinds_in_one_shape() -> None:
    stream = io.StringIO()
    ops.configure_logging("INFO", stream=stream)
    structlog.get_logger("ours").info("refreshed", nodes=3)
    logging.getLogger("theirs").warning("slow: %s", "disk", extra={"seconds": 2})
    ours, theirs = (json.loads(line) for line in written(stream).splitlines())
    assert (ours["event"], ours["nodes"], ours["level"], ours["logger"]) == ("refreshed", 3, "info", "ours")
    assert (theirs["event"], theirs["seconds"], theirs["level"], theirs["logger"]) == ("slow: disk", 2, "warning", "theirs")
    assert ours["timestamp"].endswith("Z")


@pytest.mark.usefixtures("_restore_logging")
@pytest.mark.parametrize(("log_format", "stream"), [("auto", Terminal()), ("text", io.StringIO())])
def test_text_on_a_terminal_or_on_request(log_format: str, stream: io.StringIO) -> None:
    ops.configure_logging("info", log_format=log_format, stream=stream)
    structlog.get_logger("ours").info("refreshed", nodes=3)
    assert "refreshed" in written(stream)
    assert "{" not in written(stream)


@pytest.mark.usefixtures("_restore_logging")
def test_json_on_a_terminal_on_request() -> None:
    stream = Terminal()
    ops.configure_logging("info", log_format="json", stream=stream)
    structlog.get_logger("ours").info("refreshed")
    assert json.loads(written(stream))["event"] == "refreshed"


@pytest.mark.usefixtures("_restore_logging")
def test_levels_below_the_chosen_one_and_requests_are_not_logged() -> None:
    stream = io.StringIO()
    ops.configure_logging("DEBUG", stream=stream)
    logging.getLogger("aiohttp.access").info("GET /watcher")
    logging.getLogger("kubernetes_asyncio.client.rest").debug("response body: …")
    assert written(stream) == ""
    ops.configure_logging("ERROR", stream=stream)
    structlog.get_logger("ours").warning("hm")
    logging.getLogger("theirs").warning("hm")
    assert written(stream) == ""


@pytest.mark.usefixtures("_restore_logging")
@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_traceback_shows_no_local_variables(log_format: str) -> None:
    stream = io.StringIO()
    ops.configure_logging("INFO", log_format=log_format, stream=stream)

    def fail() -> None:
        token = "".join(["s3c", "ret"])
        raise ValueError(len(token))

    try:
        fail()
    except ValueError:
        structlog.get_logger("ours").exception("failed")
        logging.getLogger("theirs").exception("failed")
    assert written(stream).count("ValueError: 6") == 2
    assert "s3cret" not in written(stream)


async def test_a_compressed_body_is_not_unpacked() -> None:
    """Three megabytes may become gigabytes, and the event loop would do nothing else for seconds."""

    async def answer_size(request: web.Request) -> web.Response:
        return web.Response(text=str(len(await request.read())))

    app = web.Application()
    app.router.add_post("/", answer_size)
    runner = ops.make_runner(app, shutdown_seconds=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address = "http://{}:{}/".format(*runner.addresses[0])
        packed = zlib.compress(b" " * 1_000_000)
        async with ClientSession() as session, session.post(address, data=packed, headers={"Content-Encoding": "deflate"}) as response:
            assert await response.text() == str(len(packed))
    finally:
        await runner.cleanup()


async def test_the_end_does_not_wait_for_a_body_that_nobody_wants() -> None:
    """By default aiohttp reads on for ten seconds after the answer."""
    runner = ops.make_runner(web.Application(), shutdown_seconds=30)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    reader, writer = await asyncio.open_connection(*runner.addresses[0][:2])
    writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nabc")
    assert await reader.readuntil(b"\r\n") == b"HTTP/1.1 404 Not Found\r\n"
    async with asyncio.timeout(5):
        await runner.cleanup()
    writer.close()


class Stuck(io.StringIO):
    """A log that nobody reads, until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self.released = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.is_asked.set()
        assert self.released.wait(10)
        return super().write(text)


def make_record(text: str) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": text})


def test_a_log_that_nobody_reads_holds_up_nobody() -> None:
    stream = Stuck()
    writer = ops.LogWriter(stream, most_lines=2)
    writer.emit(make_record("first"))
    assert stream.is_asked.wait(10)
    for text in ("second", "third", "lost", "lost"):
        writer.emit(make_record(text))
    stream.released.set()
    writer.flush()
    assert sorted(stream.getvalue().splitlines()) == ["2 records could not be written in time and are lost", "first", "second", "third"]


def test_a_log_that_is_closed_ends_nothing() -> None:
    stream = io.StringIO()
    stream.close()
    writer = ops.LogWriter(stream)
    for text in ("first", "second"):
        writer.emit(make_record(text))
        writer.flush()
    assert writer._lines.empty()


def test_all_connections_that_are_allowed_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 20_000))
    monkeypatch.setattr(resource, "setrlimit", lambda *arguments: asked.append(arguments))
    ops.allow_connections()
    assert asked == [(resource.RLIMIT_NOFILE, (20_000, 20_000))]


def test_the_loop_is_uvloop_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    uvloop = types.ModuleType("uvloop")
    uvloop.new_event_loop = asyncio.new_event_loop  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "uvloop", uvloop)
    assert ops.choose_loop() is asyncio.new_event_loop


def test_without_it_the_loop_is_that_of_the_standard_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert ops.choose_loop() is None


_GROW_AND_FREE = """
import resource
from trimaran_client.ops import return_memory

def resident_bytes():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

return_memory()
before = resident_bytes()
large = bytearray(20 << 20)
del large  # by default blocks below this size come from the heap from now on, and 40 MB of it are kept
blocks = [bytearray(b"x" * (1 << 20)) for _ in range(30)]
del blocks
print(resident_bytes() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told")
def test_freed_memory_is_given_back() -> None:
    kept_bytes = subprocess.run([sys.executable, "-c", _GROW_AND_FREE], check=True, capture_output=True, text=True).stdout
    assert int(kept_bytes) < 10 << 20


def test_another_c_library_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    ops.return_memory()
