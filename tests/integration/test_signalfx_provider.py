"""The SignalFx provider against a server that speaks SignalFlow's protocol over TLS, with the official client as the oracle for that."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from signalfx.signalflow import SignalFlowClient, messages, sse
from structlog.testing import capture_logs

from load_watcher.errors import ProviderAuthError, ProviderConfigError
from load_watcher.providers.nodes import ClusterNodes
from load_watcher.providers.signalfx import SignalFxProvider, build_program
from load_watcher.samples import FIFTEEN_MINUTES, FIVE_MINUTES
from tests.builders import NOW
from tests.fakes.api_server import FakeApiServer, make_node
from tests.fakes.hosted_providers import (
    LAST_POINT_AT,
    PATIENT_SECONDS,
    SUFFIX,
    TOKEN,
    fail_once,
    fetch_once,
    latest,
    make_signalfx,
    serve_signalfx,
    served,
)
from tests.fakes.signalfx_server import EXECUTE_PATH, EventStream, FakeSignalFx, run_script
from tests.fakes.watcher import FakeClock
from trimaran_client.wire import AVERAGE, CPU, MEMORY, STANDARD_DEVIATION

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def server() -> AsyncIterator[FakeSignalFx]:
    async with serve_signalfx() as fake:
        yield fake


# Good input


async def test_batch_of_two_nodes(server: FakeSignalFx, tmp_path: Path) -> None:
    batch = await fetch_once(make_signalfx(server, tmp_path))
    assert (batch.source, batch.nodes, batch.members_known, batch.rejections) == ("SignalFx", ("n1", "n2"), False, ())
    assert batch.sampled_at.tolist() == [LAST_POINT_AT, LAST_POINT_AT]
    assert latest(batch, CPU) == {"n1": 20.0, "n2": 85.0}
    assert latest(batch, MEMORY) == {"n1": 40.0, "n2": 60.0}
    # Fifteen points: seven pairs at ±10 and one at the mean; of the last five, two pairs.
    assert served(batch, CPU, AVERAGE, FIFTEEN_MINUTES) == pytest.approx({"n1": 20.0, "n2": 85.0})
    assert served(batch, CPU, STANDARD_DEVIATION, FIFTEEN_MINUTES)["n1"] == pytest.approx((14 * 100 / 15) ** 0.5)
    assert served(batch, CPU, STANDARD_DEVIATION, FIVE_MINUTES)["n1"] == pytest.approx((4 * 100 / 5) ** 0.5)
    assert {str(aggregate.window) for aggregate in batch.aggregates} == {"15m", "10m", "5m"}
    assert {aggregate.name for aggregate in batch.aggregates} == {'sf_metric:"cpu.utilization"', 'sf_metric:"memory.utilization"'}


async def test_differs_from_upstream_one_request_serves_both_metrics_and_all_windows(server: FakeSignalFx, tmp_path: Path) -> None:
    await fetch_once(make_signalfx(server, tmp_path, cluster_name="blue"))
    [request] = server.requests
    assert (request.method, request.path, request.headers["X-SF-Token"]) == ("POST", EXECUTE_PATH, TOKEN)
    assert request.body == build_program(host_suffix=SUFFIX, cluster_name="blue")
    assert int(request.query["start"]) == (NOW - 900) // 60 * 60_000
    assert (request.query["stop"], request.query["resolution"], request.query["immediate"]) == (str(int(NOW * 1000)), "60000", "true")


async def test_only_hosts_with_the_suffix_and_of_the_cluster_count(server: FakeSignalFx, tmp_path: Path) -> None:
    for host, cluster in (("n3" + SUFFIX, "green"), ("n4.elsewhere", "blue")):
        server.put(host, "cpu.utilization", [50.0], end_at=NOW, cluster=cluster)
    assert (await fetch_once(make_signalfx(server, tmp_path, cluster_name="blue"))).nodes == ("n1", "n2")
    assert (await fetch_once(make_signalfx(server, tmp_path))).nodes == ("n1", "n2", "n3")
    assert (await fetch_once(make_signalfx(server, tmp_path, host_suffix="", cluster_name="blue"))).nodes[-1] == "n4.elsewhere"


async def test_two_time_series_of_one_host_are_averaged_by_the_program(server: FakeSignalFx, tmp_path: Path) -> None:
    """An agent that was installed anew can leave a second one, which differs in another dimension."""
    server.put("n1" + SUFFIX, "memory.utilization", [50.0] * 15, end_at=NOW, cluster="green")
    batch = await fetch_once(make_signalfx(server, tmp_path))
    assert latest(batch, MEMORY) == {"n1": 45.0, "n2": 60.0}
    assert batch.rejections == ()


async def test_plain_http_and_a_path_prefix(tmp_path: Path) -> None:
    async with FakeSignalFx(tls=False) as server:
        server.put("n1", "cpu.utilization", [10.0], end_at=NOW)
        batch = await fetch_once(SignalFxProvider(server.address + "/splunk/", timeout_seconds=PATIENT_SECONDS, clock=FakeClock()))
    assert latest(batch, CPU) == {"n1": 10.0}
    assert server.requests[0].path == "/splunk" + EXECUTE_PATH
    assert "X-SF-Token" not in server.requests[0].headers


async def test_differs_from_upstream_health_is_one_small_computation(server: FakeSignalFx, tmp_path: Path) -> None:
    async with make_signalfx(server, tmp_path) as provider:
        await provider.check_health()
    [request] = server.requests
    assert request.body.endswith(".count().publish('hosts')")


async def test_report_7_with_access_to_the_cluster_its_nodes_are_served(server: FakeSignalFx, tmp_path: Path) -> None:
    """Also one without metrics; a host that is no node, say one that was removed, is left out and counted."""
    server.put("gone-1" + SUFFIX, "cpu.utilization", [50.0], end_at=NOW)
    async with FakeApiServer() as api:
        api.put_nodes(make_node("n1"), make_node("n2"), make_node("new"))
        nodes = ClusterNodes(api.write_kubeconfig(tmp_path / "kubeconfig"))
        async with make_signalfx(server, tmp_path, nodes=nodes) as provider:
            batch = await provider.fetch(FIFTEEN_MINUTES)
            findings = {finding.subject: finding for finding in provider.findings()}
    assert (batch.nodes, batch.members_known) == (("n1", "n2", "new"), True)
    assert [info is not None and info.capacity.cpu for info in batch.infos] == ["4", "4", "4"]
    assert [(rejection.node, rejection.rule) for rejection in batch.rejections] == [("gone-1" + SUFFIX, "unknown_node")]
    assert findings["nodes"].detail == "3 from the API server"
    assert findings["hosts"].detail == f"1 are no nodes, for example gone-1{SUFFIX}"
    assert findings["metric CPU"].level == findings["newest sample"].level == "ok"


# The official client as the oracle


def read_with_official_client(address: str, program: str) -> dict[str, dict[str, list[object]]]:
    """Answer label → host → values, oldest first, as the plain package reads them."""
    client = SignalFlowClient(TOKEN, address, transport=sse.SSETransport)
    computation = client.execute(program, start=int(NOW - 900) * 1000, stop=int(NOW) * 1000, resolution=60_000, immediate=True)
    read: dict[str, dict[str, list[object]]] = {}
    for message in computation.stream():
        if isinstance(message, messages.DataMessage):
            for series, value in message.data.items():
                properties = computation.get_metadata(series)
                read.setdefault(properties["sf_streamLabel"], {}).setdefault(properties["host"], []).append(value)
    computation.close()
    client.close()
    return read


@pytest.fixture
def official(server: FakeSignalFx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    ca_file = str(server.write_ca_file(tmp_path))
    monkeypatch.setattr(sse.certifi, "where", lambda: ca_file)
    return lambda: asyncio.to_thread(read_with_official_client, server.address, build_program(host_suffix=SUFFIX))


async def test_agrees_with_the_official_client(server: FakeSignalFx, official: Callable[[], Any], tmp_path: Path) -> None:
    server.put("n3" + SUFFIX, "cpu.utilization", [30.0, None, 31.5], end_at=NOW)
    read = await official()
    batch = await fetch_once(make_signalfx(server, tmp_path))
    for metric_type in (CPU, MEMORY):
        averages = {
            host.removesuffix(SUFFIX): np.mean([value for value in values if value is not None])
            for host, values in read[metric_type].items()
        }
        ours = served(batch, metric_type, AVERAGE, FIFTEEN_MINUTES)
        assert {node: value for node, value in ours.items() if not np.isnan(value)} == pytest.approx(averages)


async def test_the_order_of_the_streams_makes_no_difference(server: FakeSignalFx, tmp_path: Path) -> None:
    plain = await fetch_once(make_signalfx(server, tmp_path))
    server.swaps_streams = True
    swapped = await fetch_once(make_signalfx(server, tmp_path))
    for metric_type in (CPU, MEMORY):
        assert latest(swapped, metric_type) == latest(plain, metric_type)
        for window in (FIFTEEN_MINUTES, FIVE_MINUTES):
            assert served(swapped, metric_type, AVERAGE, window) == served(plain, metric_type, AVERAGE, window)


async def test_a_job_that_says_its_resolution_first_loses_no_points(
    server: FakeSignalFx, official: Callable[[], Any], tmp_path: Path
) -> None:
    """Why the channel is read directly: the package's own iteration then drops all but the first batch."""
    server.says_resolution_first = True
    batch = await fetch_once(make_signalfx(server, tmp_path))
    assert batch.sampled_at.tolist() == [LAST_POINT_AT, LAST_POINT_AT]
    assert [len(values) for values in (await official())[CPU].values()] == [1, 1]


# TLS and the token


async def test_report_48_a_certificate_of_another_ca_is_refused_before_the_token_goes_out(server: FakeSignalFx, tmp_path: Path) -> None:
    error = await fail_once(make_signalfx(server, tmp_path, ca_file=None))
    assert isinstance(error, ProviderConfigError)
    assert "METRICS_PROVIDER_CA_FILE" in str(error)
    assert server.requests == []


async def test_report_48_a_certificate_for_another_name_is_refused_before_the_token_goes_out(tmp_path: Path) -> None:
    async with FakeSignalFx(token=TOKEN, certificate_names=("elsewhere.example",)) as server:
        error = await fail_once(make_signalfx(server, tmp_path))
    assert isinstance(error, ProviderConfigError)
    assert "127.0.0.1" in str(error)
    assert server.requests == []


@pytest.mark.parametrize("content", [None, "not a certificate"])
async def test_report_48_a_ca_file_that_cannot_be_used_is_named(server: FakeSignalFx, tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "other.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ProviderConfigError, match=r"other\.pem"):
        await fetch_once(make_signalfx(server, tmp_path, ca_file=path))


@pytest.mark.parametrize("token", [TOKEN, None])
async def test_report_51_verification_is_off_when_told_so_with_and_without_a_token(tmp_path: Path, token: str | None) -> None:
    async with FakeSignalFx(certificate_names=("elsewhere.example",)) as server:
        server.put("n1", "cpu.utilization", [10.0], end_at=NOW)
        with capture_logs() as logs:
            provider = make_signalfx(server, tmp_path, token=token, ca_file=None, verify_tls=False, host_suffix="")
            assert (await fetch_once(provider)).nodes == ("n1",)
        assert [request.headers.get("X-SF-Token") for request in server.requests] == [token]
    assert any("not verified" in entry["event"] for entry in logs)


async def test_report_50_a_token_that_changes_is_used_at_the_next_fetch(server: FakeSignalFx, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    async with make_signalfx(server, tmp_path, token=path.read_text) as provider:
        await provider.fetch(FIFTEEN_MINUTES)
        server.token = "another"
        with pytest.raises(ProviderAuthError):
            await provider.fetch(FIFTEEN_MINUTES)
        path.write_text("another\n")
        assert (await provider.fetch(FIFTEEN_MINUTES)).nodes == ("n1", "n2")


async def test_report_50_a_token_that_changed_during_the_request_costs_no_cycle(server: FakeSignalFx, tmp_path: Path) -> None:
    tokens = ["expired", TOKEN]
    async with make_signalfx(server, tmp_path, token=lambda: tokens.pop(0)) as provider:
        assert (await provider.fetch(FIFTEEN_MINUTES)).nodes == ("n1", "n2")
    assert len(server.requests) == 2


@pytest.mark.parametrize("token", ["two\nlines", "naïve", "with space"])
async def test_report_50_a_token_that_no_header_can_carry_is_refused_without_showing_it(
    server: FakeSignalFx, tmp_path: Path, token: str
) -> None:
    error = await fail_once(make_signalfx(server, tmp_path, token=token))
    assert isinstance(error, ProviderConfigError)
    assert token not in str(error)


async def test_report_50_a_token_file_that_is_gone_is_an_error_that_says_so(server: FakeSignalFx, tmp_path: Path) -> None:
    error = await fail_once(make_signalfx(server, tmp_path, token=(tmp_path / "gone").read_text))
    assert isinstance(error, ProviderConfigError)
    assert "METRICS_PROVIDER_TOKEN" in str(error)


async def test_report_53_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "load_watcher.providers.signalflow")
    monkeypatch.delattr("load_watcher.providers.signalflow")
    monkeypatch.setitem(sys.modules, "sseclient", None)
    with pytest.raises(ProviderConfigError, match=r"pip install 'trimaran\[signalfx\]'"):
        await fetch_once(SignalFxProvider())


def test_the_package_is_imported_only_when_the_provider_is_opened() -> None:
    code = "import sys, load_watcher.providers.signalfx as p; p.SignalFxProvider(); sys.exit('signalfx' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# What series can hold


async def test_report_24_gaps_are_gaps(server: FakeSignalFx, tmp_path: Path) -> None:
    server.put("gaps" + SUFFIX, "cpu.utilization", [5.8, None, 6.2], end_at=NOW)
    server.put("none" + SUFFIX, "cpu.utilization", [None, None], end_at=NOW)
    batch = await fetch_once(make_signalfx(server, tmp_path))
    averages = served(batch, CPU, AVERAGE, FIFTEEN_MINUTES)
    assert averages["gaps"] == pytest.approx(6.0)
    assert np.isnan(averages["none"])
    assert np.isnan(latest(batch, CPU)["none"])
    assert batch.rejections == ()


async def test_report_16_a_point_that_is_no_number_is_counted_and_the_others_stay(server: FakeSignalFx, tmp_path: Path) -> None:
    server.put("odd" + SUFFIX, "cpu.utilization", [40.0, "NaN", float("inf"), -1.0, 1e9], end_at=NOW)
    server.put("odd" + SUFFIX, "memory.utilization", [50.0] * 5, end_at=NOW)
    batch = await fetch_once(make_signalfx(server, tmp_path))
    assert latest(batch, MEMORY)["odd"] == 50.0
    assert np.isnan(latest(batch, CPU)["odd"])  # its one good point is four minutes older than its memory
    assert {rejection.rule for rejection in batch.rejections if rejection.metric_type == CPU} == {
        "not_a_number",
        "not_finite",
        "negative",
        "over_capacity",
        "lagging",
    }


async def test_series_without_a_host_are_rejections(server: FakeSignalFx, tmp_path: Path) -> None:
    async def script(stream: EventStream) -> None:
        await stream.start()
        await stream.send("metadata", {"tsId": "a", "properties": {"sf_streamLabel": "CPU", "host": "n1.example.org"}})
        await stream.send("metadata", {"tsId": "b", "properties": {"sf_streamLabel": "CPU"}})
        data = [{"tsId": series, "value": 5} for series in "abc"]
        await stream.send("data", {"logicalTimestampMs": int(LAST_POINT_AT * 1000), "data": data})
        await stream.end()

    server.faults.append(run_script(script))
    batch = await fetch_once(make_signalfx(server, tmp_path))
    assert latest(batch, CPU) == {"n1": 5.0}
    assert [(rejection.node, rejection.rule) for rejection in batch.rejections] == [("b", "no_metadata"), ("c", "no_metadata")]


async def test_report_8_an_answer_that_cannot_be_the_whole_cluster_is_said_once(server: FakeSignalFx, tmp_path: Path) -> None:
    server.limit = 1
    with capture_logs() as logs:
        async with make_signalfx(server, tmp_path) as provider:
            await provider.fetch(FIFTEEN_MINUTES)
            await provider.fetch(FIFTEEN_MINUTES)
            server.series.clear()
            assert (await provider.fetch(FIFTEEN_MINUTES)).nodes == ()
    warnings = [(entry["subject"], entry["detail"]) for entry in logs if entry.get("subject") not in {None, "nodes"}]
    assert warnings == [
        ("answer", "only 1 of the 2 series that match were read"),
        ("metric CPU", "no node has it"),
        ("metric Memory", "no node has it"),
    ]
