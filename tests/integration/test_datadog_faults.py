"""The Datadog provider when the source is silent, refuses, counts our requests or talks nonsense."""

import asyncio
import json
import os
import socket
import traceback
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import stamina
from aiohttp import web
from structlog.testing import capture_logs

from load_watcher.errors import (
    ProviderAuthError,
    ProviderConfigError,
    ProviderError,
    ProviderRateLimitError,
    ProviderReplyError,
    ProviderUnavailableError,
)
from load_watcher.providers.datadog import DatadogProvider
from load_watcher.samples import FIFTEEN_MINUTES
from load_watcher.timing import Timing
from load_watcher.watcher import Watcher
from tests.builders import NOW
from tests.fakes.datadog_server import FakeDatadog, make_rate_limit
from tests.fakes.hosted import Fault, SilentServer, drop, hang, reply
from tests.fakes.hosted_providers import (
    APP_KEY,
    DEADLINE_SECONDS,
    LAST_POINT_AT,
    PATIENT_SECONDS,
    SHORT_SECONDS,
    TOKEN,
    fail_once,
    make_datadog,
    serve_datadog,
)
from tests.fakes.watcher import FakeClock, eventually
from trimaran_client.wire import AVERAGE, CPU, MEMORY

pytestmark = pytest.mark.timeout(60)

CYCLES = 5000 if os.environ.get("TRIMARAN_PROVE") else 200


@pytest.fixture
async def server() -> AsyncIterator[FakeDatadog]:
    async with serve_datadog() as fake:
        yield fake


def make_body(**attributes: Any) -> dict[str, Any]:
    one = {"series": [{"group_tags": ["host:n1.example.org"], "query_index": 0}], "times": [LAST_POINT_AT * 1000], "values": [[5.0]]}
    return {"data": {"type": "timeseries_response", "attributes": one | attributes}}


async def stop_halfway(request: web.Request) -> web.StreamResponse:
    """Send half of a body and then nothing, with the connection open."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.content_length = 1000
    await response.prepare(request)
    await response.write(b'{"data":')
    return await hang(request)


async def cut_off(request: web.Request) -> web.StreamResponse:
    """Send half of a body and close the connection."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.content_length = 1000
    await response.prepare(request)
    await response.write(b'{"data":')
    return await drop(request)


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        pytest.param(reply(401, {"errors": ["Unauthorized"]}), ProviderAuthError, "METRICS_PROVIDER_APP_KEY", id="401"),
        pytest.param(reply(403, {"errors": ["Forbidden"]}), ProviderAuthError, "403 Forbidden", id="403"),
        pytest.param(reply(404, "no such page"), ProviderConfigError, "METRICS_PROVIDER_ADDRESS", id="404"),
        pytest.param(reply(302, "", headers={"Location": "https://elsewhere.example/"}), ProviderConfigError, "elsewhere", id="redirect"),
        pytest.param(reply(400, {"errors": ["unable to parse", "q0"]}), ProviderReplyError, "unable to parse; q0", id="400"),
        pytest.param(reply(500, "oops"), ProviderUnavailableError, "oops", id="500"),
        pytest.param(reply(503, {"errors": None}), ProviderUnavailableError, "503 Service Unavailable", id="503"),
        pytest.param(reply(200, "<html>", content_type="text/html"), ProviderReplyError, "cannot be read", id="html"),
        pytest.param(reply(200, '{"data":{"attributes"'), ProviderReplyError, "cannot be read", id="truncated"),
        pytest.param(reply(200, {"data": []}), ProviderReplyError, "cannot be read", id="wrong type"),
        pytest.param(reply(200, {"errors": "query timed out"}), ProviderReplyError, "query timed out", id="errors only"),
        pytest.param(reply(200, {}), ProviderReplyError, "without data", id="nothing"),
        pytest.param(reply(200, make_body(values=[])), ProviderReplyError, "0 rows of values for 1 series", id="rows missing"),
        pytest.param(drop, ProviderUnavailableError, "", id="dropped"),
        pytest.param(cut_off, ProviderUnavailableError, "", id="cut off"),
    ],
)
async def test_what_is_no_answer_is_one_clear_error(
    server: FakeDatadog, tmp_path: Path, fault: Fault, kind: type[ProviderError], words: str
) -> None:
    server.faults.append(fault)
    error = await fail_once(make_datadog(server, tmp_path))
    assert type(error) is kind
    assert words in str(error)
    assert len(server.requests) == 1


async def test_report_50_no_message_shows_the_keys(server: FakeDatadog, tmp_path: Path) -> None:
    """Not even where the server repeats them."""
    for fault in (
        reply(403, {"errors": [f"key {TOKEN} with {APP_KEY} is unknown"]}),
        reply(500, f"cannot look up {TOKEN} {APP_KEY}"),
        reply(200, f"<html>{TOKEN} {APP_KEY}</html>", content_type="text/html"),
        reply(200, {"errors": f"{TOKEN} {APP_KEY}"}),
        reply(200, make_body() | {"errors": f"{TOKEN} {APP_KEY}"}),
        drop,
    ):
        server.faults.append(fault)
        with capture_logs() as logs:
            try:
                async with asyncio.timeout(DEADLINE_SECONDS), make_datadog(server, tmp_path) as provider:
                    await provider.fetch(FIFTEEN_MINUTES)
                shown = ""
            except ProviderError as error:
                shown = "".join(traceback.format_exception(error))
        assert TOKEN not in shown + repr(logs)
        assert APP_KEY not in shown + repr(logs)


# Allowances


@pytest.mark.parametrize(
    ("headers", "hold_seconds"),
    [
        (make_rate_limit(remaining=0, reset_seconds=1234), 1234),
        ({"Retry-After": "30"}, 30),
        ({"X-RateLimit-Period": "600"}, 600),
        ({}, 60),
        ({"X-RateLimit-Reset": "soon"}, 60),
        ({"X-RateLimit-Reset": "1e12"}, 3600),
        ({"X-RateLimit-Reset": "-5"}, 1),
    ],
)
async def test_429_holds_every_call_until_its_reset(
    server: FakeDatadog, tmp_path: Path, headers: dict[str, str], hold_seconds: float
) -> None:
    clock = FakeClock()
    server.faults.append(reply(429, {"errors": ["Too many requests"]}, headers=headers))
    async with asyncio.timeout(DEADLINE_SECONDS), make_datadog(server, tmp_path, clock=clock) as provider:
        for call in (lambda: provider.fetch(FIFTEEN_MINUTES), lambda: provider.fetch(FIFTEEN_MINUTES), provider.check_health):
            with pytest.raises(ProviderRateLimitError, match=r"used up until 2023-11-1") as caught:
                await call()
            assert caught.value.until_at == NOW + hold_seconds
            assert caught.value.cause == "rate_limited"
        assert len(server.requests) == 1
        clock.move(hold_seconds)
        await provider.fetch(FIFTEEN_MINUTES)
        assert len(server.requests) == 2


async def test_the_last_request_of_an_allowance_is_followed_by_none(server: FakeDatadog, tmp_path: Path) -> None:
    clock = FakeClock()
    server.rate_limit = make_rate_limit(remaining=0, reset_seconds=120)
    async with asyncio.timeout(DEADLINE_SECONDS), make_datadog(server, tmp_path, clock=clock) as provider:
        assert (await provider.fetch(FIFTEEN_MINUTES)).nodes == ("n1", "n2")
        clock.move(119)
        with pytest.raises(ProviderRateLimitError):
            await provider.fetch(FIFTEEN_MINUTES)
        clock.move(1)
        await provider.fetch(FIFTEEN_MINUTES)
    assert server.count_queries() == 2


async def test_a_scarce_allowance_is_spread_up_to_its_reset(server: FakeDatadog, tmp_path: Path) -> None:
    """Ten requests for half an hour: at most ten, evenly, so that no value expires in between."""
    clock = FakeClock()
    waits: list[float] = []
    async with asyncio.timeout(DEADLINE_SECONDS), make_datadog(server, tmp_path, clock=clock) as provider:
        for second in range(0, 1800, 30):
            server.rate_limit = make_rate_limit(remaining=10 - server.count_queries() - 1, reset_seconds=1800 - second)
            try:
                await provider.fetch(FIFTEEN_MINUTES)
            except ProviderRateLimitError as error:
                waits.append(error.until_at - clock.time())
            clock.move(30)
    assert server.count_queries() + len(waits) == 60
    assert 8 <= server.count_queries() <= 10
    assert max(waits) <= 300


async def test_a_plentiful_allowance_slows_nothing(server: FakeDatadog, tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS), make_datadog(server, tmp_path) as provider:
        for _ in range(5):
            await provider.fetch(FIFTEEN_MINUTES)
    assert server.count_queries() == 5


async def test_the_last_good_values_stay_served_while_the_allowance_is_used_up(server: FakeDatadog, tmp_path: Path) -> None:
    clock = FakeClock()
    async with make_datadog(server, tmp_path, clock=clock) as provider:
        watcher = Watcher(provider, timing=Timing(fetch_timeout_seconds=PATIENT_SECONDS), clock=clock)
        await watcher.tick()
        server.faults.append(reply(429, headers=make_rate_limit(remaining=0, reset_seconds=600)))
        for _ in range(10):
            clock.move(30)
            await watcher.tick()
            assert watcher.snapshot is not None
            assert watcher.snapshot.newest_sampled_at == LAST_POINT_AT
    assert server.count_queries() == 2
    assert watcher.snapshot is not None
    assert watcher.snapshot.status_counts["stale"] == 2  # more than five minutes old by now
    assert "used up until" in str(watcher.ready())


async def test_report_19_a_failure_never_turns_into_a_value(server: FakeDatadog, tmp_path: Path) -> None:
    clock = FakeClock()
    async with make_datadog(server, tmp_path, clock=clock) as provider:
        watcher = Watcher(provider, timing=Timing(fetch_timeout_seconds=PATIENT_SECONDS), clock=clock)
        await watcher.tick()
        for fault in (reply(503), drop, reply(200, make_body(values=5)), reply(200, make_body(values=[["abc"]]))):
            server.faults.extend([fault] * 10)  # more than there are tries
            clock.move(30)
            with stamina.set_testing(True, attempts=2):
                await watcher.tick()
            server.faults.clear()
            assert watcher.snapshot is not None
            assert watcher.snapshot.status_counts["late"] == 2
            nodes = json.loads(watcher.snapshot.identity.body)["data"]["NodeMetricsMap"]
            values = {(metric["type"], metric["operator"], metric["rollup"]): metric["value"] for metric in nodes["n2"]["metrics"]}
            assert values[CPU, "Latest", ""] == values[CPU, AVERAGE, "15m"] == 85.0
            assert values[MEMORY, "Latest", ""] == values[MEMORY, AVERAGE, "15m"] == 60.0
            assert nodes["n2"]["sampledAt"] == LAST_POINT_AT


# Silence, and the end


@pytest.mark.parametrize("fault", [pytest.param(hang, id="no headers"), pytest.param(stop_halfway, id="half a body")])
async def test_silence_ends_at_the_deadline(server: FakeDatadog, tmp_path: Path, fault: Fault) -> None:
    server.faults.append(fault)
    async with asyncio.timeout(DEADLINE_SECONDS), make_datadog(server, tmp_path, timeout_seconds=SHORT_SECONDS) as provider:
        with pytest.raises(ProviderUnavailableError, match=r"no complete answer within 0\.3 s"):
            await provider.fetch(FIFTEEN_MINUTES)
        await server.wait_until(lambda: server.open_requests == 0)
    assert len(server.requests) == 1


async def test_silence_in_the_handshake_ends_at_the_deadline() -> None:
    async with SilentServer() as silent, asyncio.timeout(DEADLINE_SECONDS):
        async with DatadogProvider(silent.address, api_key=TOKEN, timeout_seconds=SHORT_SECONDS) as provider:
            for call in (lambda: provider.fetch(FIFTEEN_MINUTES), provider.check_health):
                with pytest.raises(ProviderUnavailableError):
                    await call()
        assert silent.connections == 2


async def test_report_53_a_missing_token_is_one_error_that_names_the_variable(server: FakeDatadog, tmp_path: Path) -> None:
    error = await fail_once(make_datadog(server, tmp_path, api_key=None, app_key=None))
    assert isinstance(error, ProviderAuthError)
    assert "METRICS_PROVIDER_APP_KEY" in str(error)


async def test_report_53_an_address_where_nobody_listens() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        error = await fail_once(DatadogProvider(f"https://127.0.0.1:{port}", api_key=TOKEN))
    assert type(error) is ProviderUnavailableError


async def test_report_62_leaving_in_the_middle_of_a_fetch_ends_it(server: FakeDatadog, tmp_path: Path) -> None:
    server.faults.append(hang)
    async with asyncio.timeout(DEADLINE_SECONDS):
        async with make_datadog(server, tmp_path, timeout_seconds=3600) as provider:
            task = asyncio.create_task(provider.fetch(FIFTEEN_MINUTES))
            await server.wait_until(lambda: bool(server.requests))
        with pytest.raises(ProviderUnavailableError):
            await task


@pytest.mark.timeout(600)
async def test_report_62_many_cycles_leave_nothing_behind(server: FakeDatadog, tmp_path: Path) -> None:
    process = psutil.Process()
    async with make_datadog(server, tmp_path) as provider:
        await provider.fetch(FIFTEEN_MINUTES)
        await eventually(lambda: server.open_requests == 0)
        handles, memory_bytes = process.num_fds(), process.memory_info().rss
        for cycle in range(CYCLES):
            if cycle % 10 == 0:
                server.faults.append(cut_off)
                with pytest.raises(ProviderUnavailableError):
                    await provider.fetch(FIFTEEN_MINUTES)
            await provider.fetch(FIFTEEN_MINUTES)
            server.requests.clear()
        await eventually(lambda: process.num_fds() <= handles)
        assert process.memory_info().rss - memory_bytes < 16 * 2**20
