"""The SignalFx provider when the source is silent, cuts a stream short, refuses or talks nonsense."""

import asyncio
import json
import os
import socket
import traceback
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import stamina
import urllib3
from signalfx.signalflow import computation
from structlog.testing import capture_logs

from load_watcher.errors import (
    ProviderAuthError,
    ProviderConfigError,
    ProviderError,
    ProviderRateLimitError,
    ProviderReplyError,
    ProviderUnavailableError,
)
from load_watcher.providers.allowance import Allowance
from load_watcher.providers.endpoint import make_tls_context
from load_watcher.providers.signalflow import Endpoint, _Transport
from load_watcher.providers.signalfx import SignalFxProvider
from load_watcher.samples import FIFTEEN_MINUTES
from load_watcher.timing import Timing
from load_watcher.watcher import Watcher
from tests.builders import NOW
from tests.fakes.hosted import Fault, SilentServer, drop, hang, reply
from tests.fakes.hosted_providers import (
    DEADLINE_SECONDS,
    LAST_POINT_AT,
    PATIENT_SECONDS,
    SHORT_SECONDS,
    TOKEN,
    fail_once,
    make_signalfx,
    serve_signalfx,
    signalfx_threads,
)
from tests.fakes.signalfx_server import EventStream, FakeSignalFx, StreamScript, chatter, cut_off, end_early, run_script, say_nothing_more
from tests.fakes.watcher import FakeClock, eventually
from trimaran_client.wire import AVERAGE, CPU, MEMORY

pytestmark = pytest.mark.timeout(60)

CYCLES = 5000 if os.environ.get("TRIMARAN_PROVE") else 200


@pytest.fixture
async def server() -> AsyncIterator[FakeSignalFx]:
    async with serve_signalfx() as fake:
        yield fake


# What a source can answer instead


def abort_info(reason: str) -> dict[str, str]:
    return {"sf_job_abortState": "ABORTED", "sf_job_abortReason": reason}


def say(event: str, payload: object) -> StreamScript:
    async def script(stream: EventStream) -> None:
        await stream.start()
        await stream.send(event, payload)

    return script


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        pytest.param(reply(401, {"message": "Unauthorized"}), ProviderAuthError, "METRICS_PROVIDER_TOKEN", id="401"),
        pytest.param(reply(403, ""), ProviderAuthError, "403 Forbidden", id="403"),
        pytest.param(reply(404, "no such page"), ProviderConfigError, "METRICS_PROVIDER_ADDRESS", id="404"),
        pytest.param(reply(302, "", headers={"Location": "https://elsewhere.example/"}), ProviderConfigError, "elsewhere", id="redirect"),
        pytest.param(reply(400, {"message": "unexpected symbol"}), ProviderReplyError, "unexpected symbol", id="400"),
        pytest.param(reply(500, "oops"), ProviderUnavailableError, "oops", id="500"),
        pytest.param(reply(503, {"message": None}), ProviderUnavailableError, "503", id="503"),
        pytest.param(reply(200, "<html>", content_type="text/html"), ProviderReplyError, "text/html", id="html"),
        pytest.param(run_script(lambda stream: stream.send_text("event: data\ndata: {{\n\n")), ProviderReplyError, "read", id="garbage"),
        pytest.param(run_script(say("data", {"logicalTimestampMs": 1, "data": [1]})), ProviderReplyError, "read", id="wrong type"),
        pytest.param(run_script(say("data", [])), ProviderReplyError, "read", id="not an object"),
        pytest.param(run_script(say("error", {"errors": [{"code": "ANALYTICS_X"}]})), ProviderReplyError, "ANALYTICS_X", id="error"),
        pytest.param(
            run_script(say("control-message", {"event": "CHANNEL_ABORT", "timestampMs": 1, "abortInfo": abort_info("timeout")})),
            ProviderUnavailableError,
            "timeout",
            id="abort",
        ),
        pytest.param(drop, ProviderUnavailableError, "", id="dropped"),
    ],
)
async def test_what_is_no_answer_is_one_clear_error(
    server: FakeSignalFx, tmp_path: Path, fault: Fault, kind: type[ProviderError], words: str
) -> None:
    server.faults.append(fault)
    error = await fail_once(make_signalfx(server, tmp_path))
    assert type(error) is kind
    assert words in str(error)
    assert len(server.requests) == 1


async def test_report_50_no_message_shows_the_token(server: FakeSignalFx, tmp_path: Path) -> None:
    """Not even where the server repeats it."""
    echoes: list[Fault] = [
        reply(401, {"message": f"token {TOKEN} is unknown"}),
        reply(500, f"cannot look up {TOKEN}"),
        reply(200, f"<html>{TOKEN}</html>", content_type="text/html"),
        run_script(lambda stream: stream.send("error", {"errors": [{"code": TOKEN}]})),
        run_script(
            lambda stream: stream.send("control-message", {"event": "CHANNEL_ABORT", "timestampMs": 1, "abortInfo": abort_info(TOKEN)})
        ),
        run_script(lambda stream: stream.send_text(f"event: data\ndata: {TOKEN}\n\n")),
    ]
    for echo in echoes:
        server.faults.append(echo)
        with capture_logs() as logs:
            error = await fail_once(make_signalfx(server, tmp_path))
        assert TOKEN not in "".join(traceback.format_exception(error)) + repr(logs)


@pytest.mark.parametrize(("headers", "hold_seconds"), [({"Retry-After": "300"}, 300), ({}, 60)])
async def test_429_holds_every_call_until_it_says(
    server: FakeSignalFx, tmp_path: Path, headers: dict[str, str], hold_seconds: float
) -> None:
    clock = FakeClock()
    server.faults.append(reply(429, {"message": "Too many requests"}, headers=headers))
    async with asyncio.timeout(DEADLINE_SECONDS), make_signalfx(server, tmp_path, clock=clock) as provider:
        for call in (lambda: provider.fetch(FIFTEEN_MINUTES), lambda: provider.fetch(FIFTEEN_MINUTES), provider.check_health):
            with pytest.raises(ProviderRateLimitError) as caught:
                await call()
            assert caught.value.until_at == NOW + hold_seconds
        assert len(server.requests) == 1
        clock.move(hold_seconds)
        assert (await provider.fetch(FIFTEEN_MINUTES)).nodes == ("n1", "n2")


async def test_report_19_a_failure_never_turns_into_a_value(server: FakeSignalFx, tmp_path: Path) -> None:
    async def wrong_value(stream: EventStream) -> None:
        await stream.start()
        await stream.send("metadata", {"tsId": "a", "properties": {"sf_streamLabel": "CPU", "host": "n2.example.org"}})
        await stream.send("data", {"logicalTimestampMs": int(LAST_POINT_AT * 1000), "data": [{"tsId": "a", "value": "abc"}]})
        await stream.end()

    clock = FakeClock()
    async with make_signalfx(server, tmp_path, clock=clock) as provider:
        watcher = Watcher(provider, timing=Timing(fetch_timeout_seconds=PATIENT_SECONDS), clock=clock)
        await watcher.tick()
        for fault in (reply(503), drop, run_script(say("data", [])), run_script(wrong_value)):
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


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(hang, id="no headers"),
        pytest.param(run_script(say_nothing_more), id="a stream that falls silent"),
        pytest.param(run_script(chatter), id="a stream that never ends"),
    ],
)
async def test_report_64_silence_ends_at_the_deadline(server: FakeSignalFx, tmp_path: Path, fault: Fault) -> None:
    server.faults.append(fault)
    async with asyncio.timeout(DEADLINE_SECONDS), make_signalfx(server, tmp_path, timeout_seconds=SHORT_SECONDS) as provider:
        with pytest.raises(ProviderUnavailableError, match=r"^SignalFx: https://127"):
            await provider.fetch(FIFTEEN_MINUTES)
        await eventually(lambda: not signalfx_threads())
        await server.wait_until(lambda: server.open_requests == 0)
    assert len(server.requests) == 1


async def test_report_64_silence_in_the_handshake_ends_at_the_deadline() -> None:
    async with SilentServer() as silent, asyncio.timeout(DEADLINE_SECONDS):
        async with SignalFxProvider(silent.address, token=TOKEN, timeout_seconds=SHORT_SECONDS) as provider:
            for call in (lambda: provider.fetch(FIFTEEN_MINUTES), provider.check_health):
                with pytest.raises(ProviderUnavailableError):
                    await call()
        await eventually(lambda: not signalfx_threads())
        assert silent.connections == 2


@pytest.mark.parametrize("script", [cut_off, end_early])
async def test_report_64_a_stream_that_ends_early_is_a_failure_and_starts_no_storm(
    server: FakeSignalFx, tmp_path: Path, script: StreamScript
) -> None:
    server.faults.extend(run_script(script) for _ in range(100))
    error = await fail_once(make_signalfx(server, tmp_path))
    assert type(error) is ProviderUnavailableError
    assert len(server.requests) == 1
    await eventually(lambda: not signalfx_threads())


async def test_report_64_our_transport_keeps_even_the_package_from_a_storm(server: FakeSignalFx, tmp_path: Path) -> None:
    """Its own iteration starts the program anew, without a pause, whenever a stream ends early."""
    server.faults.extend(run_script(end_early) for _ in range(100))
    tls = make_tls_context("SignalFx", server.write_ca_file(tmp_path), verify_tls=True)
    endpoint = Endpoint("SignalFx", server.address, TOKEN, tls, Allowance("SignalFx", FakeClock()), "")
    pool = urllib3.HTTPSConnectionPool("127.0.0.1", int(server.address.rpartition(":")[2]), ssl_context=tls, retries=False)
    transport = _Transport(endpoint, pool)

    def run() -> None:
        package = computation.Computation(lambda _: transport.execute("data('x').publish()", {}))
        try:
            list(package.stream())
        finally:
            package.close()
            transport.close()

    with pytest.raises(ProviderUnavailableError, match="not started twice"):
        await asyncio.to_thread(run)
    assert len(server.requests) == 1


@pytest.mark.parametrize("is_silent_at_once", [True, False])
async def test_report_64_stop_is_bounded(server: FakeSignalFx, tmp_path: Path, is_silent_at_once: bool) -> None:
    """In the middle of a fetch that would wait for ever; its thread ends too."""
    async with SilentServer() as silent, asyncio.timeout(DEADLINE_SECONDS):
        if is_silent_at_once:
            provider = SignalFxProvider(silent.address, timeout_seconds=3600)
        else:
            server.faults.append(run_script(say_nothing_more))
            provider = make_signalfx(server, tmp_path, timeout_seconds=3600)
        async with provider:
            task = asyncio.create_task(provider.fetch(FIFTEEN_MINUTES))
            await eventually(lambda: silent.connections or server.requests)
        with pytest.raises(ProviderUnavailableError):
            await task
        await eventually(lambda: not signalfx_threads())


async def test_report_53_a_missing_token_is_one_error_that_names_the_variable(server: FakeSignalFx, tmp_path: Path) -> None:
    error = await fail_once(make_signalfx(server, tmp_path, token=None))
    assert isinstance(error, ProviderAuthError)
    assert "METRICS_PROVIDER_TOKEN" in str(error)


async def test_report_53_an_address_where_nobody_listens(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        error = await fail_once(SignalFxProvider(f"https://127.0.0.1:{port}", token=TOKEN))
    assert type(error) is ProviderUnavailableError


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_report_62_many_cycles_leave_nothing_behind(server: FakeSignalFx, tmp_path: Path) -> None:
    process = psutil.Process()
    async with make_signalfx(server, tmp_path) as provider:
        await provider.fetch(FIFTEEN_MINUTES)
        await eventually(lambda: not signalfx_threads() and server.open_requests == 0)
        handles, memory_bytes = process.num_fds(), process.memory_info().rss
        for cycle in range(CYCLES):
            if cycle % 10 == 0:
                server.faults.append(run_script(cut_off))
                with pytest.raises(ProviderUnavailableError):
                    await provider.fetch(FIFTEEN_MINUTES)
            await provider.fetch(FIFTEEN_MINUTES)
            server.requests.clear()
        await eventually(lambda: not signalfx_threads() and process.num_fds() <= handles)
        assert process.memory_info().rss - memory_bytes < 16 * 2**20
