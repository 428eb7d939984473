"""The Datadog provider against a server that speaks its API over TLS, with the official client as the oracle for that."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datadog_api_client import ApiClient, Configuration
from datadog_api_client.v2.api.key_management_api import KeyManagementApi
from datadog_api_client.v2.api.metrics_api import MetricsApi
from structlog.testing import capture_logs

from load_watcher.errors import ProviderAuthError, ProviderConfigError
from load_watcher.providers.datadog import DatadogProvider
from load_watcher.providers.nodes import ClusterNodes
from load_watcher.samples import FIFTEEN_MINUTES, FIVE_MINUTES
from tests.builders import NOW
from tests.fakes.api_server import FakeApiServer, make_node
from tests.fakes.datadog_server import FRACTION, PERCENT, QUERY_PATH, VALIDATE_PATH, FakeDatadog
from tests.fakes.hosted import reply
from tests.fakes.hosted_providers import (
    APP_KEY,
    CLUSTER,
    LAST_POINT_AT,
    PATIENT_SECONDS,
    SUFFIX,
    TOKEN,
    fail_once,
    fetch_once,
    latest,
    make_datadog,
    serve_datadog,
    served,
)
from tests.fakes.watcher import FakeClock
from trimaran_client.wire import AVERAGE, CPU, MEMORY, STANDARD_DEVIATION

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def server() -> AsyncIterator[FakeDatadog]:
    async with serve_datadog() as fake:
        yield fake


# Good input


async def test_batch_of_two_nodes(server: FakeDatadog, tmp_path: Path) -> None:
    batch = await fetch_once(make_datadog(server, tmp_path))
    assert (batch.source, batch.nodes, batch.members_known, batch.rejections) == ("Datadog", ("n1", "n2"), False, ())
    assert batch.sampled_at.tolist() == [LAST_POINT_AT, LAST_POINT_AT]
    assert latest(batch, CPU) == {"n1": 20.0, "n2": 85.0}
    assert latest(batch, MEMORY) == {"n1": 40.0, "n2": 60.0}
    # Fifteen points: seven pairs at ±10 and one at the mean; of the last five, two pairs.
    assert served(batch, CPU, AVERAGE, FIFTEEN_MINUTES) == pytest.approx({"n1": 20.0, "n2": 85.0})
    assert served(batch, CPU, STANDARD_DEVIATION, FIFTEEN_MINUTES)["n1"] == pytest.approx((14 * 100 / 15) ** 0.5)
    assert served(batch, CPU, STANDARD_DEVIATION, FIVE_MINUTES)["n1"] == pytest.approx((4 * 100 / 5) ** 0.5)
    assert {str(aggregate.window) for aggregate in batch.aggregates} == {"15m", "10m", "5m"}
    assert {aggregate.name for aggregate in batch.aggregates} == {"max:cpu.utilization", "max:memory.utilization"}


async def test_one_post_serves_both_metrics_and_all_windows(server: FakeDatadog, tmp_path: Path) -> None:
    await fetch_once(make_datadog(server, tmp_path, cluster_name=CLUSTER))
    [request] = server.requests
    assert (request.method, request.path) == ("POST", QUERY_PATH)
    assert (request.headers["DD-API-KEY"], request.headers["DD-APPLICATION-KEY"]) == (TOKEN, APP_KEY)
    attributes = json.loads(request.body)["data"]["attributes"]
    assert (attributes["from"], attributes["to"], attributes["interval"]) == ((NOW - 900) // 60 * 60_000, NOW * 1000, 60_000)
    assert attributes["queries"][0]["query"] == (
        "max:cpu.utilization{host:*.example.org,cluster_name:blue} by {host}.rollup(max, 60).fill(null)"
    )


async def test_only_hosts_with_the_suffix_and_of_the_cluster_count(server: FakeDatadog, tmp_path: Path) -> None:
    for host, cluster in (("n3" + SUFFIX, "green"), ("n4.elsewhere", CLUSTER)):
        server.put(host, "cpu.utilization", [50.0], end_at=NOW, cluster=cluster)
    assert (await fetch_once(make_datadog(server, tmp_path, cluster_name=CLUSTER))).nodes == ("n1", "n2")
    assert (await fetch_once(make_datadog(server, tmp_path))).nodes == ("n1", "n2", "n3")
    assert (await fetch_once(make_datadog(server, tmp_path, host_suffix="", cluster_name=CLUSTER))).nodes[-1] == "n4.elsewhere"


async def test_differs_from_upstream_the_metrics_of_every_agent_fill_in_for_the_preferred_ones(server: FakeDatadog, tmp_path: Path) -> None:
    server.put("n3" + SUFFIX, "system.cpu.idle", [75.0, 70.0], end_at=NOW, unit=PERCENT)
    server.put("n3" + SUFFIX, "system.mem.pct_usable", [0.75, 0.25], end_at=NOW, unit=FRACTION)
    server.put("n1" + SUFFIX, "system.cpu.idle", [1.0], end_at=NOW, unit=PERCENT)  # n1 has the preferred one
    batch = await fetch_once(make_datadog(server, tmp_path))
    assert latest(batch, CPU) == pytest.approx({"n1": 20.0, "n2": 85.0, "n3": 30.0})
    assert latest(batch, MEMORY) == pytest.approx({"n1": 40.0, "n2": 60.0, "n3": 75.0})
    averages = {a.name: a.values.tolist() for a in batch.aggregates if (a.operator, a.window) == (AVERAGE, FIFTEEN_MINUTES)}
    np.testing.assert_allclose(averages["avg:system.cpu.idle"], [np.nan, np.nan, 27.5])
    np.testing.assert_allclose(averages["avg:system.mem.pct_usable"], [np.nan, np.nan, 50.0])
    np.testing.assert_allclose(averages["max:cpu.utilization"], [20.0, 85.0, np.nan])


async def test_a_unit_in_the_reply_decides_the_scale(server: FakeDatadog, tmp_path: Path) -> None:
    server.put("n3" + SUFFIX, "cpu.utilization", [0.5], end_at=NOW, unit=FRACTION)
    server.put("n3" + SUFFIX, "system.mem.pct_usable", [20.0], end_at=NOW, unit=PERCENT)
    batch = await fetch_once(make_datadog(server, tmp_path))
    assert (latest(batch, CPU)["n3"], latest(batch, MEMORY)["n3"]) == (50.0, 80.0)


async def test_without_a_unit_in_the_reply_the_documented_one_counts(server: FakeDatadog, tmp_path: Path) -> None:
    server.put("n3" + SUFFIX, "system.mem.pct_usable", [0.25], end_at=NOW)
    assert latest(await fetch_once(make_datadog(server, tmp_path)), MEMORY)["n3"] == 75.0


async def test_a_machine_at_rest_that_is_idle_for_a_little_over_100_percent_is_at_zero(server: FakeDatadog, tmp_path: Path) -> None:
    server.put("n3" + SUFFIX, "system.cpu.idle", [100.4], end_at=NOW)
    batch = await fetch_once(make_datadog(server, tmp_path))
    assert latest(batch, CPU)["n3"] == 0.0
    assert batch.rejections == ()


async def test_plain_http_and_a_path_prefix() -> None:
    async with FakeDatadog(tls=False) as server:
        server.faults.append(reply(200, {"data": {"attributes": {"series": [], "times": [], "values": []}}}))
        batch = await fetch_once(DatadogProvider(server.address + "/datadog/", timeout_seconds=PATIENT_SECONDS, clock=FakeClock()))
    assert batch.nodes == ()
    assert server.requests[0].path == "/datadog" + QUERY_PATH
    assert not {"DD-API-KEY", "DD-APPLICATION-KEY"} & set(server.requests[0].headers)


async def test_health_asks_whether_both_keys_are_valid(server: FakeDatadog, tmp_path: Path) -> None:
    async with make_datadog(server, tmp_path) as provider:
        await provider.check_health()
    [request] = server.requests
    assert (request.method, request.path, request.headers["DD-APPLICATION-KEY"]) == ("GET", VALIDATE_PATH, APP_KEY)


async def test_report_7_with_access_to_the_cluster_its_nodes_are_served(server: FakeDatadog, tmp_path: Path) -> None:
    """Also one without metrics; a host that is no node, say one that was removed, is left out and counted."""
    server.put("gone-1" + SUFFIX, "cpu.utilization", [50.0], end_at=NOW)
    async with FakeApiServer() as api:
        api.put_nodes(make_node("n1"), make_node("n2"), make_node("new"))
        nodes = ClusterNodes(api.write_kubeconfig(tmp_path / "kubeconfig"))
        async with make_datadog(server, tmp_path, nodes=nodes) as provider:
            batch = await provider.fetch(FIFTEEN_MINUTES)
            findings = {finding.subject: finding for finding in provider.findings()}
    assert (batch.nodes, batch.members_known) == (("n1", "n2", "new"), True)
    assert [info is not None and info.capacity.cpu for info in batch.infos] == ["4", "4", "4"]
    assert [(rejection.node, rejection.rule) for rejection in batch.rejections] == [("gone-1" + SUFFIX, "unknown_node")]
    assert findings["nodes"].detail == "3 from the API server"
    assert findings["hosts"].detail == f"1 are no nodes, for example gone-1{SUFFIX}"
    assert findings["metric CPU"].level == findings["newest sample"].level == "ok"


# The official client as the oracle


def read_with_official_client(address: str, ca_file: Path, body: Any) -> tuple[Any, str]:
    """Answer the reply to a query, and what it says of the keys."""
    configuration: Any = Configuration(host=address, api_key={"apiKeyAuth": TOKEN, "appKeyAuth": APP_KEY})  # type: ignore[no-untyped-call]
    configuration.ssl_ca_cert = str(ca_file)
    with ApiClient(configuration) as client:
        queried = MetricsApi(client).query_timeseries_data(body=body)  # type: ignore[no-untyped-call]
        validated = KeyManagementApi(client).validate_api_key()  # type: ignore[no-untyped-call]
        client.rest_client.pool_manager.clear()
        return queried, str(validated.status)


@pytest.mark.parametrize("reverses", [False, True])
async def test_agrees_with_the_official_client(server: FakeDatadog, tmp_path: Path, reverses: bool) -> None:
    """Also when series come in another order: CPU and memory are told apart by their index, not by their place."""
    server.put("n3" + SUFFIX, "cpu.utilization", [30.0, None, 31.5], end_at=NOW)
    server.reverses = reverses
    batch = await fetch_once(make_datadog(server, tmp_path))
    body = json.loads(server.requests[0].body)
    read, validated = await asyncio.to_thread(read_with_official_client, server.address, server.write_ca_file(tmp_path), body)
    assert validated == "ok"
    attributes = read.data.attributes
    times_ms = attributes.times.value
    in_window = [time_ms > (NOW - 900) * 1000 for time_ms in times_ms]
    expected: dict[tuple[int, str], float] = {}
    for series, values in zip(attributes.series.value, attributes.values.value, strict=True):
        points = [point for point, counts in zip(values.value, in_window, strict=True) if counts and point is not None]
        expected[series.query_index, series.group_tags.value[0].removeprefix("host:").removesuffix(SUFFIX)] = float(np.mean(points))
    assert len(expected) == 5
    ours = {(0, node): value for node, value in served(batch, CPU, AVERAGE, FIFTEEN_MINUTES).items()}
    ours |= {(1, node): value for node, value in served(batch, MEMORY, AVERAGE, FIFTEEN_MINUTES).items()}
    assert {key: value for key, value in ours.items() if not np.isnan(value)} == pytest.approx(expected)


# TLS and the keys


async def test_report_48_a_certificate_of_another_ca_is_refused_before_the_keys_go_out(server: FakeDatadog, tmp_path: Path) -> None:
    error = await fail_once(make_datadog(server, tmp_path, ca_file=None))
    assert isinstance(error, ProviderConfigError)
    assert "METRICS_PROVIDER_CA_FILE" in str(error)
    assert server.requests == []


async def test_report_48_a_certificate_for_another_name_is_refused_before_the_keys_go_out(tmp_path: Path) -> None:
    async with FakeDatadog(certificate_names=("elsewhere.example",)) as server:
        error = await fail_once(make_datadog(server, tmp_path))
    assert isinstance(error, ProviderConfigError)
    assert "127.0.0.1" in str(error)
    assert server.requests == []


@pytest.mark.parametrize("content", [None, "not a certificate"])
async def test_report_48_a_ca_file_that_cannot_be_used_is_named(server: FakeDatadog, tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "other.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ProviderConfigError, match=r"other\.pem"):
        await fetch_once(make_datadog(server, tmp_path, ca_file=path))


@pytest.mark.parametrize("token", [TOKEN, None])
async def test_report_51_verification_is_off_when_told_so_with_and_without_a_token(tmp_path: Path, token: str | None) -> None:
    async with FakeDatadog(certificate_names=("elsewhere.example",)) as server:
        server.put("n1", "cpu.utilization", [10.0], end_at=NOW)
        with capture_logs() as logs:
            provider = make_datadog(server, tmp_path, api_key=token, app_key=token, ca_file=None, verify_tls=False, host_suffix="")
            assert (await fetch_once(provider)).nodes == ("n1",)
        assert [request.headers.get("DD-API-KEY") for request in server.requests] == [token]
    assert any("not verified" in entry["event"] for entry in logs)


async def test_report_50_keys_that_change_are_used_at_the_next_fetch(server: FakeDatadog, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    async with make_datadog(server, tmp_path, api_key=path.read_text) as provider:
        await provider.fetch(FIFTEEN_MINUTES)
        server.api_key = "another"
        with pytest.raises(ProviderAuthError, match="timeseries_query"):
            await provider.fetch(FIFTEEN_MINUTES)
        path.write_text("another\n")
        assert (await provider.fetch(FIFTEEN_MINUTES)).nodes == ("n1", "n2")


async def test_report_50_a_token_that_changed_during_the_request_costs_no_cycle(server: FakeDatadog, tmp_path: Path) -> None:
    tokens = ["expired", TOKEN]
    async with make_datadog(server, tmp_path, api_key=lambda: tokens.pop(0)) as provider:
        assert (await provider.fetch(FIFTEEN_MINUTES)).nodes == ("n1", "n2")
    assert len(server.requests) == 2


@pytest.mark.parametrize("arguments", [{"api_key": "two\nlines"}, {"app_key": "with space"}])
async def test_report_50_a_key_that_no_header_can_carry_is_refused_without_showing_it(
    server: FakeDatadog, tmp_path: Path, arguments: dict[str, str]
) -> None:
    error = await fail_once(make_datadog(server, tmp_path, **arguments))
    assert isinstance(error, ProviderConfigError)
    assert not any(key in str(error) for key in arguments.values())


# What series can hold


async def test_report_24_gaps_are_gaps(server: FakeDatadog, tmp_path: Path) -> None:
    server.put("gaps" + SUFFIX, "cpu.utilization", [5.8, None, 6.2], end_at=NOW)
    server.put("none" + SUFFIX, "cpu.utilization", [None, None], end_at=NOW)
    server.put("empty" + SUFFIX, "cpu.utilization", [], end_at=NOW)
    batch = await fetch_once(make_datadog(server, tmp_path))
    averages = served(batch, CPU, AVERAGE, FIFTEEN_MINUTES)
    assert averages["gaps"] == pytest.approx(6.0)
    assert np.isnan([averages["none"], averages["empty"], latest(batch, CPU)["none"], latest(batch, CPU)["empty"]]).all()
    assert batch.rejections == ()


async def test_report_24_an_empty_list_of_times_and_values_is_no_data(server: FakeDatadog, tmp_path: Path) -> None:
    attributes = {"series": [{"group_tags": ["host:n1.example.org"], "query_index": 0}], "times": [], "values": [[]]}
    server.faults.append(reply(200, {"data": {"type": "timeseries_response", "attributes": attributes}}))
    batch = await fetch_once(make_datadog(server, tmp_path))
    assert batch.nodes == ("n1",)
    assert np.isnan(batch.latest[CPU]).all()
    assert batch.aggregates == ()


async def test_report_16_a_point_that_is_no_number_costs_only_its_series(server: FakeDatadog, tmp_path: Path) -> None:
    for host, bad in (("text", "abc"), ("negative", -5.0), ("huge", 1e9)):
        server.put(host + SUFFIX, "cpu.utilization", [40.0, bad], end_at=NOW)
        server.put(host + SUFFIX, "memory.utilization", [50.0, 50.0], end_at=NOW)
    batch = await fetch_once(make_datadog(server, tmp_path))
    values = latest(batch, CPU)
    assert np.isnan(values["text"])
    assert (values["negative"], values["huge"]) == (40.0, 40.0)
    assert {node: latest(batch, MEMORY)[node] for node in ("text", "negative", "huge")} == dict.fromkeys(("text", "negative", "huge"), 50.0)
    assert {(rejection.node, rejection.rule) for rejection in batch.rejections} == {
        ("text.example.org", "malformed_series"),
        ("huge", "over_capacity"),
        ("negative", "negative"),
    }


@pytest.mark.parametrize("row", [[1.0], [1.0, 2.0, 3.0], [[1.0], 2.0], {}, "text"])
async def test_a_row_that_does_not_fit_the_times_costs_only_itself(server: FakeDatadog, tmp_path: Path, row: object) -> None:
    series = [{"group_tags": [f"host:{node}{SUFFIX}"], "query_index": 0} for node in ("n1", "n2")]
    times = [(LAST_POINT_AT - 60) * 1000, LAST_POINT_AT * 1000]
    server.faults.append(reply(200, {"data": {"attributes": {"series": series, "times": times, "values": [row, [5.0, 6.0]]}}}))
    batch = await fetch_once(make_datadog(server, tmp_path))
    assert (batch.nodes, latest(batch, CPU)) == (("n2",), {"n2": 6.0})
    assert [(rejection.node, rejection.rule) for rejection in batch.rejections] == [("n1" + SUFFIX, "malformed_series")]


async def test_times_can_come_in_any_order(server: FakeDatadog, tmp_path: Path) -> None:
    series = [{"group_tags": ["host:n1.example.org"], "query_index": 0}]
    times = [LAST_POINT_AT * 1000, (LAST_POINT_AT - 60) * 1000]
    server.faults.append(reply(200, {"data": {"attributes": {"series": series, "times": times, "values": [[6.0, 5.0]]}}}))
    batch = await fetch_once(make_datadog(server, tmp_path))
    assert (latest(batch, CPU), batch.sampled_at.tolist()) == ({"n1": 6.0}, [LAST_POINT_AT])


async def test_series_without_a_host_are_rejections(server: FakeDatadog, tmp_path: Path) -> None:
    server.put(None, "cpu.utilization", [40.0], end_at=NOW)
    batch = await fetch_once(make_datadog(server, tmp_path, host_suffix=""))
    assert batch.nodes == ("n1.example.org", "n2.example.org")
    assert [rejection.rule for rejection in batch.rejections] == ["unnamed_series"]


async def test_report_8_an_answer_that_cannot_be_the_whole_cluster_is_said_once(server: FakeDatadog, tmp_path: Path) -> None:
    server.errors = "some data was left out"
    with capture_logs() as logs:
        async with make_datadog(server, tmp_path) as provider:
            await provider.fetch(FIFTEEN_MINUTES)
            await provider.fetch(FIFTEEN_MINUTES)
            server.errors = None
            server.series.clear()
            assert (await provider.fetch(FIFTEEN_MINUTES)).nodes == ()
    warnings = [(entry["subject"], entry["detail"]) for entry in logs if entry.get("subject") not in {None, "nodes"}]
    assert warnings == [
        ("answer", "it may be partial: some data was left out"),
        ("metric CPU", "no node has it"),
        ("metric Memory", "no node has it"),
    ]
