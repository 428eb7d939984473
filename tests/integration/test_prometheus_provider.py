"""The Prometheus provider against a stand-in of its API: what is asked, how answers are joined, and what is remembered."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from load_watcher.errors import ProviderConfigError, ProviderReplyError
from load_watcher.providers.prometheus import PrometheusProvider, create_provider
from load_watcher.quality import assess
from load_watcher.samples import FIFTEEN_MINUTES, Aggregate, SampleBatch, Window
from load_watcher.settings import Settings
from tests.builders import NOW
from tests.fakes.api_server import NODES, FakeApiServer, make_node, status_reply
from tests.fakes.prometheus_providers import MEMORY_RULE, OTHER_RULE, RULE, make_provider
from tests.fakes.prometheus_server import PrometheusServer

pytestmark = pytest.mark.timeout(60)

N1, N2 = {"instance": "n1"}, {"instance": "n2"}


@pytest.fixture
async def server() -> AsyncIterator[PrometheusServer]:
    async with PrometheusServer() as running:
        running.vectors = {RULE: [(N1, 0.5), (N2, 0.25)], MEMORY_RULE: [(N1, 0.75)]}
        yield running


@pytest.fixture
async def provider(server: PrometheusServer, tmp_path: Path) -> AsyncIterator[PrometheusProvider]:
    async with make_provider(server.url, tmp_path) as entered:
        yield entered


async def fetch(provider: PrometheusProvider, window: Window = FIFTEEN_MINUTES) -> SampleBatch:
    async with asyncio.timeout(20):
        return await provider.fetch(window)


def cpu(batch: SampleBatch) -> dict[str, float]:
    return {node: value for node, value in zip(batch.nodes, batch.latest["CPU"].tolist(), strict=True) if not np.isnan(value)}


def find(batch: SampleBatch, operator: str, window: str) -> Aggregate:
    (found,) = (a for a in batch.aggregates if (a.metric_type, a.operator, str(a.window)) == ("CPU", operator, window))
    return found


def subjects(provider: PrometheusProvider, level: str) -> set[str]:
    return {finding.subject for finding in provider.findings() if finding.level == level}


async def test_newest_values_averages_and_deviations_over_each_window(server: PrometheusServer, provider: PrometheusProvider) -> None:
    server.vectors |= {f"avg_over_time({RULE}[{window}])": [(N1, value)] for window, value in (("15m", 0.1), ("10m", 0.2), ("5m", 0.3))}
    server.vectors |= {f"stddev_over_time({RULE}[15m])": [(N1, 0.05)]}
    batch = await fetch(provider)
    assert cpu(batch) == {"n1": 50.0, "n2": 25.0}
    for operator, window, value in (("AVG", "15m", 10.0), ("AVG", "10m", 20.0), ("AVG", "5m", 30.0), ("STD", "15m", 5.0)):
        column = find(batch, operator, window)
        assert (column.name, column.unit) == (RULE, "percent")
        np.testing.assert_allclose(column.values, [value, np.nan])
    assert assess(batch, float(np.nanmax(batch.sampled_at))).rejections == ()


async def test_a_refresh_is_three_requests_and_finding_the_expressions_one(server: PrometheusServer, provider: PrometheusProvider) -> None:
    await fetch(provider)
    assert len(server.requests) == provider.requests_sent == 4
    for _ in range(3):
        server.requests.clear()
        await fetch(provider)
        assert len(server.requests) == 3


async def test_a_shorter_window_asks_for_no_longer_one(server: PrometheusServer, provider: PrometheusProvider) -> None:
    await fetch(provider, Window(600))
    assert not any("15m" in query for query in server.queries[1:])
    assert any(f"avg_over_time({RULE}[10m])" in query for query in server.queries)


async def test_report_27_queries_travel_in_the_body_at_whole_seconds(server: PrometheusServer, provider: PrometheusProvider) -> None:
    server.wants_whole_seconds = True
    assert cpu(await fetch(provider))
    assert all(request.method == "POST" and not request.query for request in server.requests)


async def test_report_27_get_where_post_is_refused(server: PrometheusServer, provider: PrometheusProvider) -> None:
    server.refuses_post = True
    assert cpu(await fetch(provider)) == {"n1": 50.0, "n2": 25.0}
    server.requests.clear()
    await fetch(provider)
    assert {request.method for request in server.requests} == {"GET"}
    assert len(server.requests) == 3


@pytest.mark.parametrize("ending", ["", "/", "//"])
async def test_report_54_90_the_configured_address_is_asked_and_probed_by_get_with_its_prefix(ending: str, tmp_path: Path) -> None:
    async with PrometheusServer(prefix="/prom/x") as server:
        server.vectors = {RULE: [(N1, 0.5)]}
        async with make_provider(server.url + ending, tmp_path) as provider:
            await provider.check_health()
            assert [(request.method, request.path) for request in server.requests] == [("GET", "/prom/x/api/v1/query")]
            assert cpu(await fetch(provider)) == {"n1": 50.0}


async def test_report_8_a_rule_that_is_not_here_gives_way_to_one_that_is(server: PrometheusServer, tmp_path: Path) -> None:
    server.vectors = {OTHER_RULE: [(N1, 0.5)], MEMORY_RULE: [(N1, 0.75)]}
    async with make_provider(server.url, tmp_path) as provider:
        assert cpu(await fetch(provider)) == {"n1": 50.0}
        (finding,) = (each for each in provider.findings() if each.subject == "metric cpu")
        assert f"1 nodes from {OTHER_RULE} (ratio)" in finding.detail
        assert subjects(provider, "warning") == {
            "nodes",
            "metric network_transmit",
            "metric network_receive",
            "metric disk",
            "metric energy",
        }


async def test_report_8_nothing_that_answers_is_a_visible_failure_not_an_error(
    server: PrometheusServer, provider: PrometheusProvider
) -> None:
    server.vectors = {}
    assert (await fetch(provider)).nodes == ()
    assert subjects(provider, "failure") == {"metric cpu", "metric memory", "newest sample"}
    await provider.check_health()


async def test_an_expression_that_stops_answering_is_replaced_at_the_next_refresh(
    server: PrometheusServer, provider: PrometheusProvider
) -> None:
    await fetch(provider)
    server.vectors[OTHER_RULE] = server.vectors.pop(RULE)
    server.vectors[f"avg_over_time({RULE}[15m])"] = [(N1, 0.9)]
    batch = await fetch(provider)
    assert "CPU" not in batch.latest or not cpu(batch)
    assert "metric cpu" in subjects(provider, "failure")
    assert cpu(await fetch(provider)) == {"n1": 50.0, "n2": 25.0}


async def test_report_9_the_query_in_use_its_unit_and_the_age_are_told(server: PrometheusServer, tmp_path: Path) -> None:
    server.measured_at = NOW - 30
    async with make_provider(server.url, tmp_path, clock=lambda: NOW) as provider:
        assert [(each.level, each.subject) for each in provider.findings()] == [("warning", "refresh")]
        batch = await fetch(provider)
        assert batch.sampled_at.tolist() == [NOW - 30, NOW - 30]
        details = {each.subject: each.detail for each in provider.findings()}
    assert details["metric cpu"] == f"2 nodes from {RULE} (ratio)"
    assert details["newest sample"] == "30 s old"


async def test_report_14_a_metric_of_the_user_passes_through(server: PrometheusServer, tmp_path: Path) -> None:
    query = "avg by (Hostname) (DCGM_FI_DEV_GPU_UTIL)"
    (tmp_path / "mine.yaml").write_text(
        f"metrics: [{{key: gpu, type: GPU, unit: percent, host_label: Hostname, expressions: [{{query: '{query}', name: gpu}}]}}]"
    )
    server.vectors[query] = [({"Hostname": "n1"}, 10), ({"Hostname": "n2"}, 80)]
    async with make_provider(server.url, tmp_path, catalogue_path=tmp_path / "mine.yaml") as provider:
        batch = await fetch(provider)
    assert dict(zip(batch.nodes, batch.latest["GPU"].tolist(), strict=True)) == {"n1": 10.0, "n2": 80.0}
    assert cpu(batch) == {"n1": 50.0, "n2": 25.0}


async def test_two_metrics_of_one_type_both_have_newest_values_with_their_unit(
    server: PrometheusServer, provider: PrometheusProvider
) -> None:
    sent, received_rule = (f"instance:node_network_{direction}_bytes_excluding_lo:rate5m" for direction in ("transmit", "receive"))
    server.vectors |= {sent: [(N1, 1000)], received_rule: [(N1, 2000)]}
    batch = await fetch(provider)
    assert batch.latest["Bandwidth"].tolist()[0] == 1000.0
    (received,) = (a for a in batch.aggregates if a.operator == "Latest")
    assert (received.name, received.window, received.unit) == (
        "instance:node_network_receive_bytes_excluding_lo:rate5m",
        None,
        "bytes_per_second",
    )
    assert received.values.tolist()[0] == 2000.0


async def test_a_query_that_the_server_refuses_costs_its_own_values_only_and_is_not_repeated(
    server: PrometheusServer, provider: PrometheusProvider
) -> None:
    server.vectors |= {f"avg_over_time({RULE}[{window}])": [(N1, 0.1)] for window in ("10m", "5m")}
    server.errors[f"avg_over_time({RULE}[15m])"] = (422, "execution")
    batch = await fetch(provider)
    assert cpu(batch) == {"n1": 50.0, "n2": 25.0}
    assert find(batch, "AVG", "10m").values.tolist()[0] == 10.0
    assert f"avg_over_time({RULE}[15m])" in "".join(each.detail for each in provider.findings() if each.subject == "query")
    server.requests.clear()
    await fetch(provider)
    assert len(server.requests) == 3


async def test_an_expression_that_does_not_parse_does_not_hide_the_others(server: PrometheusServer, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("metrics: [{key: cpu, type: CPU, unit: ratio, expressions: ['((', " + RULE + "]}]")
    server.errors["(("] = (400, "bad_data")
    async with make_provider(server.url, tmp_path, catalogue_path=tmp_path / "mine.yaml") as provider:
        assert cpu(await fetch(provider)) == {"n1": 50.0, "n2": 25.0}
        assert "cpu:0: Prometheus: 400: cannot evaluate" in "".join(each.detail for each in provider.findings())


async def test_nothing_but_refusals_is_an_error(server: PrometheusServer, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("built_in: false\nmetrics: [{key: x, type: X, unit: ratio, operators: [AVG], expressions: [x]}]")
    server.errors |= {f"avg_over_time(x[{window}])": (422, "execution") for window in ("15m", "10m", "5m")}
    async with make_provider(server.url, tmp_path, catalogue_path=tmp_path / "mine.yaml") as provider:
        with pytest.raises(ProviderReplyError, match="^Prometheus: 422: cannot evaluate avg_over_time"):
            await fetch(provider)


async def test_warnings_are_read_and_told(server: PrometheusServer, provider: PrometheusProvider) -> None:
    server.warnings = ["store down: partial answer"]
    await fetch(provider)
    assert "store down: partial answer" in [each.detail for each in provider.findings() if each.level == "warning"]


class TestWithNodeList:
    @pytest.fixture
    async def api(self) -> AsyncIterator[FakeApiServer]:
        async with FakeApiServer() as api:
            api.put_nodes(
                make_node("worker-1", addresses=[{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": "w1"}]),
                make_node("worker-2", addresses=[{"type": "InternalIP", "address": "fd00::2"}]),
                make_node("worker-3"),
            )
            yield api

    async def test_report_1_7_21_addresses_become_nodes_and_what_is_no_node_is_left_out(
        self, server: PrometheusServer, api: FakeApiServer, tmp_path: Path
    ) -> None:
        server.vectors[RULE] = [({"instance": each}, 0.5) for each in ("10.0.0.1:9100", "[fd00::2]:9100", "gone-1")]
        async with make_provider(server.url, tmp_path, kubeconfig=api.write_kubeconfig(tmp_path / "config")) as provider:
            batch = await fetch(provider)
            findings = {each.subject: each for each in provider.findings()}
        assert batch.nodes == ("worker-1", "worker-2", "worker-3")
        assert cpu(batch) == {"worker-1": 50.0, "worker-2": 50.0}
        assert batch.members_known
        assert batch.infos[0] is not None
        assert batch.infos[0].capacity.cpu == "4"
        assert findings["nodes"].level == "ok"
        assert 'for example {instance="gone-1"}' in findings["metric cpu"].detail

    async def test_cores_and_bytes_of_the_kubelet_become_percent_of_what_the_node_has(
        self, server: PrometheusServer, api: FakeApiServer, tmp_path: Path
    ) -> None:
        cores = 'sum without (cpu) (rate(container_cpu_usage_seconds_total{id="/"}[5m]))'
        server.vectors = {cores: [({"node": "worker-1"}, 1)], 'container_memory_working_set_bytes{id="/"}': [({"node": "worker-1"}, 2**32)]}
        async with make_provider(server.url, tmp_path, kubeconfig=api.write_kubeconfig(tmp_path / "config")) as provider:
            batch = await fetch(provider)
        assert cpu(batch) == {"worker-1": 25.0}
        assert batch.latest["Memory"].tolist()[0] == 25.0

    async def test_a_refused_node_list_lets_names_pass_through_and_says_so(
        self, server: PrometheusServer, api: FakeApiServer, tmp_path: Path
    ) -> None:
        api.replies[NODES] = status_reply(403, "nodes is forbidden")
        async with make_provider(server.url, tmp_path, kubeconfig=api.write_kubeconfig(tmp_path / "config")) as provider:
            assert cpu(await fetch(provider)) == {"n1": 50.0, "n2": 25.0}
            (finding,) = (each for each in provider.findings() if each.subject == "nodes")
        assert finding.level == "warning"
        assert "nodes is forbidden" in finding.detail


@pytest.mark.parametrize("address", ["prometheus:9090", "ftp://prometheus", "http://", "http://user:pass@prometheus"])
def test_report_53_an_address_that_is_none_says_which_setting(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRICS_PROVIDER_ADDRESS", address)
    with pytest.raises(ProviderConfigError, match="METRICS_PROVIDER_ADDRESS") as caught:
        create_provider(Settings())
    assert "pass@" not in str(caught.value)


async def test_a_catalogue_that_cannot_be_used_is_an_error_on_entering(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("metrics: 3")
    with pytest.raises(ProviderConfigError, match="mine.yaml: metrics must be a list"):
        async with make_provider("http://127.0.0.1:1", tmp_path, catalogue_path=tmp_path / "mine.yaml"):
            pass
