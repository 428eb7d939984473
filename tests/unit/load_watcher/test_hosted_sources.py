"""What the hosted sources share, and the texts that they send: addresses, secrets, allowances, programs, queries, findings."""

import json
from pathlib import Path

import numpy as np
import pytest
import trustme

from load_watcher.errors import ProviderAuthError, ProviderConfigError, ProviderError, ProviderRateLimitError, ProviderUnavailableError
from load_watcher.providers.allowance import Allowance
from load_watcher.providers.coverage import Coverage
from load_watcher.providers.datadog import DatadogProvider, find_api_address
from load_watcher.providers.datadog_points import build_queries, build_request
from load_watcher.providers.endpoint import make_status_error, make_tls_context, parse_address, read_secret, shorten
from load_watcher.providers.findings import FAILURE, OK, WARNING
from load_watcher.providers.signalfx import SignalFxProvider, build_health_program, build_program, find_stream_address
from load_watcher.samples import FIFTEEN_MINUTES, Rejection
from tests.builders import NOW, make_batch
from tests.fakes.watcher import FakeClock

# Addresses


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("https://h", "https://h"),
        ("https://h:8443/prefix/", "https://h:8443/prefix"),
        ("http://[::1]:80", "http://[::1]:80"),
        ("h.example.org", "https://h.example.org"),
        (" h:443 ", "https://h:443"),
    ],
)
def test_report_53_an_address_without_a_scheme_is_https(text: str, address: str) -> None:
    assert parse_address("X", text) == address


@pytest.mark.parametrize(
    "text", ["", "ftp://h", "https://", "https://h:port", "https://[::1", "https://h/?q=1", "https://h/#f", "https://a b"]
)
def test_report_53_what_is_no_address_is_refused_when_the_provider_is_made(text: str) -> None:
    for make in (SignalFxProvider, DatadogProvider):
        with pytest.raises(ProviderConfigError, match="METRICS_PROVIDER_ADDRESS"):
            make(text)


def test_a_password_in_an_address_is_refused_without_showing_it() -> None:
    with pytest.raises(ProviderConfigError) as caught:
        parse_address("X", "https://user:hunter2@h")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("https://api.signalfx.com", "https://stream.signalfx.com"),  # the default of the Go load-watcher
        ("https://api.us1.signalfx.com", "https://stream.us1.signalfx.com"),
        ("https://api.eu0.observability.splunkcloud.com", "https://stream.eu0.observability.splunkcloud.com"),
        ("https://stream.us1.signalfx.com", "https://stream.us1.signalfx.com"),
        ("https://api.example.org", "https://api.example.org"),
    ],
)
def test_signalfx_programs_run_behind_the_stream_address(given: str, used: str) -> None:
    assert find_stream_address(given) == used


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("https://datadoghq.com", "https://api.datadoghq.com"),  # the default of the Go load-watcher, with its scheme
        ("https://us5.datadoghq.com", "https://api.us5.datadoghq.com"),
        ("https://app.datadoghq.eu", "https://api.datadoghq.eu"),
        ("https://ddog-gov.com", "https://api.ddog-gov.com"),
        ("https://api.ap1.datadoghq.com", "https://api.ap1.datadoghq.com"),
        ("https://datadoghq.com.example.org/x", "https://datadoghq.com.example.org/x"),
    ],
)
def test_differs_from_upstream_a_datadog_site_stands_for_its_api(given: str, used: str) -> None:
    assert find_api_address(given) == used


# Secrets, TLS, refusals


@pytest.mark.parametrize(("secret", "text"), [(None, ""), ("", ""), (" a ", "a"), ("a\n", "a"), (lambda: "b\n", "b")])
async def test_a_secret_is_read_without_the_space_around_it(secret: object, text: str) -> None:
    assert await read_secret("X", "V", secret) == text  # type: ignore[arg-type]


async def test_a_secret_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ProviderConfigError, match="^X: V cannot be read"):
        await read_secret("X", "V", lambda: path.read_text("utf-8"))


def test_a_line_of_the_source_is_short_and_without_secrets() -> None:
    assert shorten("a\n  b\tsecret", ["secret", ""]) == "a b ***"
    assert len(shorten("x" * 1000)) == 201


@pytest.mark.parametrize("status", [401, 403, 404, 302, 400, 500, 503, 599, 777])
def test_a_status_is_one_error_that_names_it(status: int) -> None:
    error = make_status_error("X", status, "detail", auth_remedy="renew it")
    assert isinstance(error, ProviderError)
    assert str(error).startswith(f"X: {status}")
    assert "detail" in str(error)
    assert isinstance(error, ProviderAuthError) == (status in {401, 403})
    assert isinstance(error, ProviderUnavailableError) == (status >= 500)


def test_a_ca_file_is_the_only_one_that_is_trusted(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(path))
    assert len(make_tls_context("X", path, verify_tls=True).get_ca_certs()) == 1


# Allowances


def test_an_allowance_holds_until_its_reset_and_says_until_when() -> None:
    clock = FakeClock()
    allowance = Allowance("X", clock)
    allowance.check()
    assert allowance.findings() == ()
    error = allowance.hold(90)
    assert (error.until_at, error.cause) == (NOW + 90, "rate_limited")
    assert "2023-11-14T22:14:50+00:00, 90 s from now" in str(error)
    clock.move(89)
    with pytest.raises(ProviderRateLimitError, match="1 s from now"):
        allowance.check()
    assert allowance.findings()[0].level == WARNING
    clock.move(1)
    allowance.check()


@pytest.mark.parametrize(
    ("remaining", "reset_seconds", "held_seconds"),
    [
        (0, 120, 120),
        (10, 1800, 180),
        (179, 1800, 10.06),
        (181, 1800, 0),
        (None, 60, 0),
        (5, None, 0),
        (-1, 60, 0),
        (5, 0, 0),
        (0, 1e9, 3600),
    ],
)
def test_what_is_left_is_spread_up_to_the_reset(remaining: float | None, reset_seconds: float | None, held_seconds: float) -> None:
    clock = FakeClock()
    allowance = Allowance("X", clock)
    allowance.note(remaining, reset_seconds)
    if held_seconds:
        with pytest.raises(ProviderRateLimitError) as caught:
            allowance.check()
        assert caught.value.until_at - NOW == pytest.approx(held_seconds, abs=0.01)
    else:
        allowance.check()


# What is sent


def test_differs_from_upstream_an_empty_suffix_or_cluster_name_is_no_filter() -> None:
    assert build_program().splitlines()[0] == "nodes = filter('host', '*')"
    assert "{*}" in build_queries()[0]
    assert "{cluster_name:blue}" in build_queries(cluster_name="blue")[0]


def test_a_name_cannot_end_the_text_that_it_stands_in() -> None:
    program = build_health_program(cluster_name="a') and b\\")
    assert program.splitlines()[0] == "nodes = filter('host', '*') and filter('cluster', 'a\\') and b\\\\')"


@pytest.mark.parametrize("arguments", [{"cluster_name": "a} by {x"}, {"host_suffix": "a,b"}, {"host_suffix": "*"}, {"cluster_name": "a b"}])
def test_what_no_tag_can_hold_is_refused_when_the_provider_is_made(arguments: dict[str, str]) -> None:
    with pytest.raises(ProviderConfigError, match="DATADOG_"):
        DatadogProvider(**arguments)  # type: ignore[arg-type]


def test_the_query_asks_for_a_point_a_minute_of_the_window() -> None:
    data = json.loads(build_request(build_queries(), window=FIFTEEN_MINUTES, end_at=NOW))["data"]
    assert data["type"] == "timeseries_request"
    attributes = data["attributes"]
    assert attributes["to"] - attributes["from"] == 920_000  # from the minute in which the window begins
    assert [query["data_source"] for query in attributes["queries"]] == ["metrics"] * 4
    assert len({query["name"] for query in attributes["queries"]}) == 4


# Findings


def test_findings_tell_where_to_look_for_a_cause() -> None:
    coverage = Coverage("X", silent_remedy="send it", host_remedy="set the suffix")
    assert [finding.level for finding in coverage.findings(NOW)] == [WARNING]
    unknown = tuple(Rejection(f"h{number}", "CPU", "unknown_node", "no node") for number in range(5))
    coverage.note(make_batch({"n1": 10.0}, sampled_at=NOW - 70, rejections=unknown), None, None)
    found = {finding.subject: finding for finding in coverage.findings(NOW)}
    assert {subject: finding.level for subject, finding in found.items()} == {
        "nodes": WARNING,
        "metric CPU": OK,
        "metric Memory": FAILURE,
        "hosts": WARNING,
        "newest sample": OK,
    }
    assert found["hosts"].detail == "5 are no nodes, for example h0, h1, h2"
    assert (found["metric Memory"].remedy, found["hosts"].remedy) == ("send it", "set the suffix")
    assert found["newest sample"].detail == "70 s old"


def test_a_batch_without_any_value_is_a_failure() -> None:
    coverage = Coverage("X", silent_remedy="", host_remedy="")
    coverage.note(make_batch({"n1": None}, latest={"CPU": np.array([np.nan])}), None, None)
    assert coverage.findings(NOW)[-1].level == FAILURE
