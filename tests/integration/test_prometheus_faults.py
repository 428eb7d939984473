"""The Prometheus provider where something is wrong: credentials, TLS, silence, and answers that are none."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web

from load_watcher.errors import (
    ProviderAuthError,
    ProviderConfigError,
    ProviderError,
    ProviderRateLimitError,
    ProviderReplyError,
    ProviderUnavailableError,
)
from load_watcher.providers import prometheus, prometheus_options
from load_watcher.providers.prometheus import PrometheusProvider, create_provider
from load_watcher.providers.prometheus_http import TlsSettings
from load_watcher.samples import FIFTEEN_MINUTES
from load_watcher.settings import Settings
from tests.fakes.hosted import Fault, SilentServer, drop, hang, reply
from tests.fakes.prometheus_providers import RULE, make_provider
from tests.fakes.prometheus_server import PrometheusServer

pytestmark = pytest.mark.timeout(60)

TOKEN = "t0p-secret-token"
N1 = {"instance": "n1"}


@pytest.fixture
async def server() -> AsyncIterator[PrometheusServer]:
    async with PrometheusServer() as running:
        running.vectors = {RULE: [(N1, 0.5)]}
        yield running


@pytest.fixture
async def tls_server() -> AsyncIterator[PrometheusServer]:
    async with PrometheusServer(tls=True, certificate_names=("localhost", "prometheus.test")) as running:
        running.vectors = {RULE: [(N1, 0.5)]}
        yield running


async def check_works(provider: PrometheusProvider) -> None:
    async with provider, asyncio.timeout(20):
        await provider.check_health()
        assert (await provider.fetch(FIFTEEN_MINUTES)).nodes == ("n1",)


async def fail(provider: PrometheusProvider) -> ProviderError:
    async with provider, asyncio.timeout(20):
        with pytest.raises(ProviderError) as caught:
            await provider.fetch(FIFTEEN_MINUTES)
    return caught.value


def at_localhost(server: PrometheusServer) -> str:
    return server.url.replace("127.0.0.1", "localhost")


# Credentials


async def test_a_token_and_a_password_are_sent_with_every_request(server: PrometheusServer, tmp_path: Path) -> None:
    server.token = TOKEN
    await check_works(make_provider(server.url, tmp_path, token=f"{TOKEN}\n"))
    server.token, server.basic = None, "user:pa:ss"
    await check_works(make_provider(server.url, tmp_path, username="user", password="pa:ss"))


async def test_report_50_a_token_file_is_read_anew_and_no_refresh_fails_after_it_changed(server: PrometheusServer, tmp_path: Path) -> None:
    def write(token: str) -> None:
        # As the kubelet does: a new file, and one rename of a link to it.
        fresh = tmp_path / f"token-{token}"
        fresh.write_text(token)
        (tmp_path / "link").symlink_to(fresh)
        (tmp_path / "link").rename(tmp_path / "token")

    write("a")
    server.token = "a"
    async with make_provider(server.url, tmp_path, token=(tmp_path / "token").read_text) as provider:
        await provider.fetch(FIFTEEN_MINUTES)
        server.token = "b"
        with pytest.raises(ProviderAuthError, match="METRICS_PROVIDER_TOKEN"):
            await provider.fetch(FIFTEEN_MINUTES)
        write("b")
        for _ in range(3):
            await provider.fetch(FIFTEEN_MINUTES)


async def test_report_50_a_token_that_changes_during_a_refresh_is_sent_again(server: PrometheusServer, tmp_path: Path) -> None:
    tokens = iter(["old", "new"])
    server.token = "new"
    provider = make_provider(server.url, tmp_path, token=lambda: next(tokens))
    async with provider:
        assert (await provider.fetch(FIFTEEN_MINUTES)).nodes == ("n1",)


async def test_a_secret_never_shows_even_if_the_server_repeats_it(server: PrometheusServer, tmp_path: Path) -> None:
    server.token = "another"
    error = await fail(make_provider(server.url, tmp_path, token=TOKEN))
    assert isinstance(error, ProviderAuthError)
    assert "Unauthorized: ***" in str(error)
    assert TOKEN not in repr(error) + repr(make_provider(server.url, tmp_path, token=TOKEN)._options)


async def test_a_token_that_no_header_can_carry_is_not_sent_nor_shown(server: PrometheusServer, tmp_path: Path) -> None:
    error = await fail(make_provider(server.url, tmp_path, token="se\x00cret"))
    assert isinstance(error, ProviderConfigError)
    assert "cret" not in str(error).replace("secret", "")
    assert server.requests == []


async def test_proxies_and_netrc_of_the_environment_are_not_used(
    server: PrometheusServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login someone password else\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    await check_works(make_provider(server.url, tmp_path))
    assert all("Authorization" not in request.headers for request in server.requests)


async def test_a_redirect_does_not_take_the_token_elsewhere(server: PrometheusServer, tmp_path: Path) -> None:
    async with PrometheusServer() as other:
        server.faults.extend([reply(302, headers={"Location": other.url})] * 5)
        error = await fail(make_provider(server.url, tmp_path, token=TOKEN))
        assert isinstance(error, ProviderConfigError)
        assert other.requests == []


# TLS


async def test_an_own_ca_is_trusted_and_no_other(tls_server: PrometheusServer, tmp_path: Path) -> None:
    ca_file = tls_server.write_ca_file(tmp_path)
    await check_works(make_provider(at_localhost(tls_server), tmp_path, tls=TlsSettings(ca_file=ca_file)))
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    for tls in (TlsSettings(), TlsSettings(ca_file=tmp_path / "other.pem")):
        tls_server.requests.clear()
        error = await fail(make_provider(at_localhost(tls_server), tmp_path, tls=tls, token=TOKEN))
        assert "METRICS_PROVIDER_CA_FILE" in str(error)
        assert tls_server.requests == []


@pytest.mark.parametrize("token", [None, TOKEN])
async def test_report_51_insecure_skip_verify_works_with_and_without_a_token(
    token: str | None, tls_server: PrometheusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METRICS_PROVIDER_ADDRESS", tls_server.url)
    monkeypatch.setenv("KUBE_CONFIG", __file__)
    if token:
        monkeypatch.setenv("METRICS_PROVIDER_TOKEN", token)
    assert (await fail(create_provider(Settings()))).cause == "unavailable"
    monkeypatch.setenv("INSECURE_SKIP_VERIFY", "true")
    tls_server.token = token
    await check_works(create_provider(Settings()))


@pytest.mark.parametrize("token", [None, TOKEN])
async def test_report_51_openshift_takes_ca_and_token_of_the_service_account_unless_they_are_set(
    token: str | None, tls_server: PrometheusServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls_server.write_ca_file(tmp_path).rename(tmp_path / "ca.crt")
    (tmp_path / "token").write_text("from-the-account")
    monkeypatch.setattr(prometheus_options, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setenv("ENABLE_OPENSHIFT_AUTH", "true")
    monkeypatch.setenv("METRICS_PROVIDER_ADDRESS", at_localhost(tls_server))
    monkeypatch.setenv("KUBE_CONFIG", __file__)
    if token:
        monkeypatch.setenv("METRICS_PROVIDER_TOKEN", token)
    tls_server.token = token or "from-the-account"
    await check_works(create_provider(Settings()))


async def test_report_95_the_certificate_is_held_to_the_host_alone_or_to_the_name_that_is_set(
    tls_server: PrometheusServer, tmp_path: Path
) -> None:
    ca_file = tls_server.write_ca_file(tmp_path)
    await check_works(make_provider(at_localhost(tls_server), tmp_path, tls=TlsSettings(ca_file=ca_file)))
    # The certificate is not for the address.
    assert "TLS" in str(await fail(make_provider(tls_server.url, tmp_path, tls=TlsSettings(ca_file=ca_file))))
    named = TlsSettings(ca_file=ca_file, server_name="prometheus.test")
    await check_works(make_provider(tls_server.url, tmp_path, tls=named))
    wrong = TlsSettings(ca_file=ca_file, server_name="other.test")
    assert "TLS" in str(await fail(make_provider(at_localhost(tls_server), tmp_path, tls=wrong)))


async def serve_tls(authority: trustme.CA, host: str, *, wants_client: bool = False) -> tuple[asyncio.Server, str]:
    """Answer every request with one series; aiohttp's test server listens on IPv4 only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(host).configure_cert(context)
    if wants_client:
        context.verify_mode = ssl.CERT_REQUIRED
        authority.configure_trust(context)

    async def handle(request: web.BaseRequest) -> web.Response:
        metric = {"instance": "n1", "load_watcher_part": "cpu:0"}
        result = [{"metric": metric, "value": [0, "1"]}, {"metric": metric | {"load_watcher_part": "cpu/Latest/"}, "value": [0, "0.5"]}]
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": result}})

    server = await asyncio.get_running_loop().create_server(web.Server(handle), host, 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    return server, f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


async def test_report_95_an_ipv6_address_is_checked_without_its_brackets(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    try:
        running, address = await serve_tls(authority, "::1")
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    async with running:
        await check_works(make_provider(address, tmp_path, tls=TlsSettings(ca_file=tmp_path / "ca.pem")))


async def test_a_client_certificate_is_shown(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    client = authority.issue_cert("client@example.org")
    client.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    client.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    running, address = await serve_tls(authority, "127.0.0.1", wants_client=True)
    async with running:
        tls = TlsSettings(ca_file=tmp_path / "ca.pem", certificate=tmp_path / "cert.pem", key=tmp_path / "key.pem")
        await check_works(make_provider(address, tmp_path, tls=tls))
        assert (await fail(make_provider(address, tmp_path, tls=TlsSettings(ca_file=tmp_path / "ca.pem")))).cause == "unavailable"


@pytest.mark.parametrize(("field", "name"), [("ca_file", "CA file"), ("certificate", "client certificate")])
async def test_a_file_that_is_no_certificate_is_an_error_on_entering_that_names_it(field: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "x.pem").write_text("no certificate")
    tls: dict[str, Any] = {field: tmp_path / "x.pem"}
    with pytest.raises(ProviderConfigError, match=f"Prometheus: {name} .*x.pem"):
        async with make_provider("https://127.0.0.1:1", tmp_path, tls=TlsSettings(**tls)):
            pass


# Answers that are none


def of_status(status: int, text: str = "for a reason") -> Fault:
    return reply(status, text, content_type="text/plain")


def of_kind(kind: str) -> Fault:
    return reply(200, {"status": "success", "data": {"resultType": kind, "result": []}})


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        (of_status(401), ProviderAuthError, "METRICS_PROVIDER_TOKEN"),
        (of_status(403), ProviderAuthError, "may query"),
        (of_status(404), ProviderConfigError, "check METRICS_PROVIDER_ADDRESS"),
        (of_status(429), ProviderRateLimitError, "429"),
        (of_status(500), ProviderUnavailableError, "500 Internal Server Error: for a reason"),
        (of_status(503), ProviderUnavailableError, "503"),
        (reply(422, {"status": "error", "errorType": "execution", "error": "too many samples"}), ProviderReplyError, "too many samples"),
        (reply(503, {"status": "error", "errorType": "timeout", "error": "query timed out"}), ProviderUnavailableError, "query timed out"),
        (reply(200, "<html>"), ProviderReplyError, "it starts b'<html>'"),
        (reply(200, ""), ProviderReplyError, "not a reply of the Prometheus API"),
        (reply(200, {"status": "success"}), ProviderReplyError, "not a reply of the Prometheus API"),
        (reply(200, {"data": {"resultType": "vector", "result": [{"metric": {}}]}}), ProviderReplyError, "not a reply"),
        (of_kind("matrix"), ProviderReplyError, "the result is a matrix"),
        (drop, ProviderUnavailableError, "check METRICS_PROVIDER_ADDRESS"),
    ],
)
async def test_report_19_a_failure_is_an_error_with_its_cause_and_remedy(
    fault: Fault, kind: type[ProviderError], said: str, server: PrometheusServer, tmp_path: Path
) -> None:
    server.faults.extend([fault] * 200)
    error = await fail(make_provider(server.url, tmp_path))
    assert isinstance(error, kind)
    assert str(error).startswith("Prometheus: ")
    assert said in str(error)
    # One refusal may be halved for its cause, but is no reason for a storm.
    assert len(server.requests) <= 3 + 2 * prometheus.MAX_SPLITS


async def test_a_rate_limit_tells_when_it_ends(server: PrometheusServer, tmp_path: Path) -> None:
    server.faults.extend([reply(429, headers={"Retry-After": "120"})] * 5)
    before = time.time()
    error = await fail(make_provider(server.url, tmp_path))
    assert isinstance(error, ProviderRateLimitError)
    assert before + 120 <= error.until_at <= time.time() + 120


async def test_a_refused_connection_names_the_address(tmp_path: Path) -> None:
    async with PrometheusServer() as server:
        address = server.url
    error = await fail(make_provider(address, tmp_path))
    assert isinstance(error, ProviderUnavailableError)
    assert address in str(error)
    assert "check METRICS_PROVIDER_ADDRESS" in str(error)


async def drip(request: web.Request) -> web.StreamResponse:
    """Send a byte ever so often, each well within the timeout of a read."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" ")
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("fault", [hang, drip])
async def test_report_63_a_server_that_does_not_finish_ends_by_the_deadline_and_the_loop_goes_on(
    fault: Callable[[web.Request], Any], server: PrometheusServer, tmp_path: Path
) -> None:
    server.faults.extend([fault] * 10)
    async with make_provider(server.url, tmp_path, timeout_seconds=0.5) as provider:
        task = asyncio.create_task(provider.fetch(FIFTEEN_MINUTES))
        turns = 0
        while not task.done():
            turns += 1
            await asyncio.sleep(0)
        with pytest.raises(ProviderUnavailableError, match="no answer in time|no time left"):
            await task
        # A blocked loop would have turned once.
        assert turns > 100
        server.faults.clear()
        assert (await provider.fetch(FIFTEEN_MINUTES)).nodes == ("n1",)


async def test_a_silent_handshake_ends_by_the_deadline(tmp_path: Path) -> None:
    async with SilentServer() as silent:
        assert (await fail(make_provider(silent.address, tmp_path, timeout_seconds=0.5))).cause == "unavailable"


async def test_leaving_does_not_wait_for_a_server_that_hangs(server: PrometheusServer, tmp_path: Path) -> None:
    server.faults.extend([hang] * 10)
    provider = make_provider(server.url, tmp_path, timeout_seconds=5.0)
    async with provider:
        task = asyncio.create_task(provider.fetch(FIFTEEN_MINUTES))
        async with asyncio.timeout(10):
            await server.wait_until(lambda: server.open_requests > 0)
        task.cancel()
        await asyncio.wait([task])
        left_at = time.monotonic()
    assert time.monotonic() - left_at < provider._options.timeout_seconds


async def test_connections_are_reused_and_closed(server: PrometheusServer, tmp_path: Path) -> None:
    def count_sockets() -> int:
        return sum(entry.is_socket() for entry in Path("/proc/self/fd").iterdir())

    async with make_provider(server.url, tmp_path) as provider:
        await provider.fetch(FIFTEEN_MINUTES)
        before = count_sockets()
        for _ in range(20):
            await provider.fetch(FIFTEEN_MINUTES)
        assert count_sockets() <= before + 4
