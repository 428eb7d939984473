"""The Metrics Server provider against a scripted API server, with every bad input that concerns it."""

import asyncio
import functools
import json
import logging
import math
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from load_watcher.errors import (
    ProviderAuthError,
    ProviderConfigError,
    ProviderError,
    ProviderNotInstalledError,
    ProviderReplyError,
    ProviderUnavailableError,
)
from load_watcher.providers import nodes
from load_watcher.providers.metrics_server import MetricsServerProvider, create_provider
from load_watcher.samples import FIFTEEN_MINUTES, Rejection, SampleBatch
from load_watcher.settings import Settings
from tests.fakes.api_server import (
    METRICS_DISCOVERY,
    NODE_METRICS,
    NODES,
    FakeApiServer,
    Reply,
    WatchStream,
    make_node,
    make_node_metrics,
    status_reply,
)
from trimaran_client.kube import WatchTimes
from trimaran_client.wire import CPU, MEMORY, ResourceQuantities

pytestmark = pytest.mark.timeout(60)

DEADLINE_SECONDS = 10
CYCLES = 5000 if os.environ.get("TRIMARAN_PROVE") else 300
NEW_YEAR_2024 = datetime(2024, 1, 1, tzinfo=UTC).timestamp()


@pytest.fixture
async def api() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        server.put_nodes(make_node("n1"), make_node("n2"))
        server.set_node_metrics(make_node_metrics("n1", cpu="1", memory="4Gi"), make_node_metrics("n2", cpu="2", memory="8Gi"))
        yield server


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "WatchTimes", functools.partial(WatchTimes, first_pause_seconds=0.01, max_pause_seconds=0.05))


def make_provider(api: FakeApiServer, folder: Path, *, request_timeout_seconds: float = 5) -> MetricsServerProvider:
    return MetricsServerProvider(api.write_kubeconfig(folder / "config"), request_timeout_seconds)


async def fetch_once(api: FakeApiServer, folder: Path, *, request_timeout_seconds: float = 5) -> SampleBatch:
    async with make_provider(api, folder, request_timeout_seconds=request_timeout_seconds) as provider:
        return await provider.fetch(FIFTEEN_MINUTES)


def rows(batch: SampleBatch) -> dict[str, tuple[float, float]]:
    """Node → CPU and memory."""
    return {name: (float(batch.latest[CPU][row]), float(batch.latest[MEMORY][row])) for row, name in enumerate(batch.nodes)}


# Good input


async def test_batch_of_two_nodes(api: FakeApiServer, tmp_path: Path) -> None:
    batch = await fetch_once(api, tmp_path)
    assert batch.source == "KubernetesMetricsServer"
    assert rows(batch) == {"n1": (25.0, 25.0), "n2": (50.0, 50.0)}  # 1 of 4 cores, 4 of 16 Gi; 2 of 4, 8 of 16
    assert batch.sampled_at.tolist() == [NEW_YEAR_2024, NEW_YEAR_2024]
    assert (batch.rejections, batch.aggregates, batch.members_known) == ((), (), True)
    info = batch.infos[0]
    assert info is not None
    assert info.capacity == info.allocatable == ResourceQuantities("4", "16Gi")


def vector_cases() -> list[Any]:
    suite = json.loads((Path(__file__).parents[1] / "vectors" / "wire.json").read_text())
    cases = [case for case in suite["cases"] if case["provider"] == "KubernetesMetricsServer"]
    return [pytest.param(case, id=case["id"]) for case in cases]


@pytest.mark.parametrize("case", vector_cases())
async def test_agrees_with_the_go_load_watcher(case: dict[str, Any], tmp_path: Path) -> None:
    """Each finite value to 1e-9; where Go serves infinity or NaN, a rejection; where it fails, an error."""
    expected = case["expected"]["gets"][0]
    async with FakeApiServer() as api:
        for path, reply in case["replies"].items():
            if path == NODES and "status" not in reply:
                api.put_nodes(*reply["body"]["items"])
            else:
                api.replies[path] = Reply(reply.get("status", 200), reply["body"])
        if expected["status"] != 200:
            with pytest.raises(ProviderError):
                await fetch_once(api, tmp_path)
            return
        batch = await fetch_once(api, tmp_path)
    served = json.loads(expected["body"].replace("+Inf", "Infinity"))["data"]["NodeMetricsMap"]
    rejected = {(rejection.node, rejection.metric_type, rejection.rule) for rejection in batch.rejections}
    for name, node in served.items():
        for metric in node["metrics"]:
            value = batch.latest[metric["type"]][batch.nodes.index(name)]
            if math.isfinite(metric["value"]):
                assert value == pytest.approx(metric["value"], rel=1e-9, abs=1e-9)
            else:
                assert math.isnan(value)
                assert (name, metric["type"], "capacity_unknown") in rejected
    assert set(batch.nodes) == set(served)


@pytest.mark.parametrize(
    ("cpu", "percent"),
    [
        ("95647727n", 2.4),  # 96 millicores of 4000
        ("250u", 0.025),  # rounds up to one
        ("1", 25.0),
        ("0.5", 12.5),
        ("1e3m", None),
        ("1e-1", 2.5),
        ("", None),
        ("0", 0.0),
    ],
)
async def test_report_15_quantities(api: FakeApiServer, tmp_path: Path, cpu: str, percent: float | None) -> None:
    api.set_node_metrics(make_node_metrics("n1", cpu=cpu))
    batch = await fetch_once(api, tmp_path)
    if percent is None:
        assert math.isnan(batch.latest[CPU][0])
        assert [rejection.rule for rejection in batch.rejections] == ["unparseable_quantity"]
    else:
        assert batch.latest[CPU][0] == pytest.approx(percent, rel=1e-12)
        assert batch.rejections == ()


@pytest.mark.parametrize(
    ("timestamp", "instant"),
    [
        ("2024-01-01T00:00:00Z", NEW_YEAR_2024),
        ("2024-01-01T02:00:00+02:00", NEW_YEAR_2024),
        ("2024-01-01T00:00:00.123456789Z", NEW_YEAR_2024 + 0.123457),
    ],
)
async def test_time_is_the_samples_own(api: FakeApiServer, tmp_path: Path, timestamp: str, instant: float) -> None:
    api.set_node_metrics(make_node_metrics("n1", timestamp=timestamp))
    batch = await fetch_once(api, tmp_path)
    assert batch.sampled_at[0] == pytest.approx(instant, abs=1e-5)


async def test_node_list_of_many_pages(api: FakeApiServer, tmp_path: Path) -> None:
    names = [f"node-{i:04}" for i in range(1100)]
    api.put_nodes(*(make_node(name) for name in names))
    api.set_node_metrics(*(make_node_metrics(name) for name in reversed(names)))
    batch = await fetch_once(api, tmp_path)
    assert batch.nodes == ("n1", "n2", *names)
    assert np.all(batch.latest[CPU][2:] == 25.0)


async def test_provider_is_made_from_settings(api: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBE_CONFIG", str(api.write_kubeconfig(tmp_path / "config")))
    async with create_provider(Settings()) as provider:
        assert provider.name == "KubernetesMetricsServer"
        assert (await provider.fetch(FIFTEEN_MINUTES)).nodes == ("n1", "n2")


# Nodes that come, go or have no metrics


async def test_report_21_node_without_metrics_does_not_spoil_the_others(api: FakeApiServer, tmp_path: Path) -> None:
    api.put_nodes(make_node("n3"))
    batch = await fetch_once(api, tmp_path)
    assert batch.nodes == ("n1", "n2", "n3")
    assert rows(batch)["n1"] == (25.0, 25.0)
    assert np.isnan([batch.latest[CPU][2], batch.latest[MEMORY][2], batch.sampled_at[2]]).all()
    assert batch.rejections == ()


async def test_report_7_removed_node_is_gone_at_the_next_fetch(api: FakeApiServer, tmp_path: Path) -> None:
    """Metrics Server still has it; the node list does not."""
    async with make_provider(api, tmp_path) as provider:
        assert (await provider.fetch(FIFTEEN_MINUTES)).nodes == ("n1", "n2")
        api.delete(NODES, "n1", metadata_only=True)
        batch = await fetch_until(provider, ("n2",))
        assert {(r.node, r.metric_type, r.rule) for r in batch.rejections} == {
            ("n1", CPU, "unknown_node"),
            ("n1", MEMORY, "unknown_node"),
        }
        api.put_nodes(make_node("n1", cpu="8"))
        assert rows(await fetch_until(provider, ("n1", "n2")))["n1"] == (12.5, 25.0)  # 1 of 8 cores now


async def fetch_until(provider: MetricsServerProvider, nodes: tuple[str, ...]) -> SampleBatch:
    """Fetch until the watch has brought the change: there is nothing else to see it by."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while (batch := await provider.fetch(FIFTEEN_MINUTES)).nodes != nodes:
            pass
    return batch


@pytest.mark.parametrize("items", [[], None])
async def test_empty_metrics_list(api: FakeApiServer, tmp_path: Path, items: list[object] | None) -> None:
    """As right after the start of metrics-server."""
    api.replies[NODE_METRICS] = Reply(body={"items": items})
    batch = await fetch_once(api, tmp_path)
    assert batch.nodes == ("n1", "n2")
    assert np.isnan(batch.sampled_at).all()


# Bad values: a verdict on one sample


@pytest.mark.parametrize("bad", ["abc", "", "1e3Ki", "NaN", "1,5", True, {}, [1], "x" * 100_000])
async def test_usage_that_does_not_parse(api: FakeApiServer, tmp_path: Path, bad: object) -> None:
    api.set_node_metrics(make_node_metrics("n1", cpu=bad), make_node_metrics("n2", cpu="2", memory=bad))
    batch = await fetch_once(api, tmp_path)
    assert np.isnan(rows(batch)["n1"][0])
    assert rows(batch)["n1"][1] == 25.0
    assert rows(batch)["n2"][0] == 50.0
    assert [(r.node, r.metric_type, r.rule) for r in batch.rejections] == [
        ("n1", CPU, "unparseable_quantity"),
        ("n2", MEMORY, "unparseable_quantity"),
    ]
    assert all(len(r.detail) < 100 for r in batch.rejections)


@pytest.mark.parametrize("usage", [None, {}, {"cpu": None, "memory": None}])
async def test_usage_that_is_not_there_is_not_zero(api: FakeApiServer, tmp_path: Path, usage: object) -> None:
    api.set_node_metrics(make_node_metrics("n1") | {"usage": usage}, make_node_metrics("n2"))
    batch = await fetch_once(api, tmp_path)
    assert np.isnan(rows(batch)["n1"]).all()
    assert np.isnan(batch.sampled_at[0])
    assert rows(batch)["n2"] == (25.0, 25.0)


async def test_negative_and_absurd_usage_are_handed_on_as_they_are(api: FakeApiServer, tmp_path: Path) -> None:
    """To judge them is the next stage's task."""
    api.set_node_metrics(make_node_metrics("n1", cpu="-1", memory="16Ei"))
    assert rows(await fetch_once(api, tmp_path))["n1"] == (-25.0, 100 * float(2**63 - 1) / 2**34)


@pytest.mark.parametrize("capacity", ["0", "-4", "abc", "", None, [], 0])
async def test_capacity_that_is_unknown(api: FakeApiServer, tmp_path: Path, capacity: object) -> None:
    api.put_nodes(make_node("n1", cpu=capacity))
    batch = await fetch_once(api, tmp_path)
    assert np.isnan(rows(batch)["n1"][0])
    assert rows(batch)["n1"][1] == 25.0
    assert batch.rejections == (Rejection("n1", CPU, "capacity_unknown", f"capacity {capacity!r}"),)


@pytest.mark.parametrize("status", [None, {}, {"capacity": None}, {"capacity": {}}])
async def test_node_without_capacity(api: FakeApiServer, tmp_path: Path, status: object) -> None:
    api.put_nodes({"metadata": {"name": "n1"}, "status": status})
    batch = await fetch_once(api, tmp_path)
    assert np.isnan(rows(batch)["n1"]).all()
    assert {r.rule for r in batch.rejections} == {"capacity_unknown"}
    info = batch.infos[0]
    assert info is not None
    assert info.capacity == ResourceQuantities()


async def test_quantities_of_a_node_are_as_printed_or_left_out(api: FakeApiServer, tmp_path: Path) -> None:
    node = make_node("n1", cpu=4, memory="abc")
    node["status"]["allocatable"] = {"cpu": "3920m", "memory": 0.5, "pods": "110"}
    api.put_nodes(node)
    info = (await fetch_once(api, tmp_path)).infos[0]
    assert info is not None
    assert (info.capacity, info.allocatable) == (ResourceQuantities("4", None), ResourceQuantities("3920m", "0.5"))


@pytest.mark.parametrize("bad", [None, "", "yesterday", "2024-01-01", "2024-01-01T00:00:00", "2024-13-01T00:00:00Z", 1704067200, {}])
async def test_bad_timestamp(api: FakeApiServer, tmp_path: Path, bad: object) -> None:
    api.set_node_metrics(make_node_metrics("n1", timestamp=bad), make_node_metrics("n2"))
    batch = await fetch_once(api, tmp_path)
    assert np.isnan([*rows(batch)["n1"], batch.sampled_at[0]]).all()
    assert rows(batch)["n2"] == (25.0, 25.0)
    assert [(r.node, r.metric_type, r.rule) for r in batch.rejections] == [("n1", CPU, "bad_timestamp"), ("n1", MEMORY, "bad_timestamp")]


# Failures


FAILURES = [
    (status_reply(401, "Unauthorized"), ProviderAuthError, "kubectl auth whoami"),
    (status_reply(403, "nodes.metrics.k8s.io is forbidden"), ProviderAuthError, "grant the verb list on nodes of the API group metrics"),
    (Reply(404, "404 page not found\n"), ProviderNotInstalledError, "kubectl apply -f.*kubectl get apiservice v1beta1.metrics.k8s.io"),
    (status_reply(400, "bad"), ProviderReplyError, "check that the address"),
    (status_reply(429, "slow down"), ProviderUnavailableError, "slow down"),
    (status_reply(500, "boom"), ProviderUnavailableError, "500 from .*: boom"),
    (status_reply(503, "service unavailable"), ProviderUnavailableError, "server behind the Metrics API.*v1beta1.metrics.k8s.io"),
    (Reply(None), ProviderUnavailableError, "nothing from the API server for 0.2 s"),
    (Reply(body="<html>"), ProviderReplyError, "not what the API documents"),
    (Reply(body={"items": 5}), ProviderReplyError, "not what the API documents"),
    (Reply(body=b'{"items": [{"metadata"'), ProviderReplyError, "not what the API documents"),
]


@pytest.mark.parametrize(("reply", "error_type", "message"), FAILURES)
async def test_metrics_api_that_fails(
    api: FakeApiServer, tmp_path: Path, reply: Reply, error_type: type[ProviderError], message: str
) -> None:
    """One request each: the watcher tries again, not the provider. Afterwards it works as before."""
    good = api.replies[NODE_METRICS]
    async with make_provider(api, tmp_path, request_timeout_seconds=5 if reply.status else 0.2) as provider:
        api.replies[NODE_METRICS] = reply
        with pytest.raises(error_type, match=f"KubernetesMetricsServer: .*{message}"):
            await provider.fetch(FIFTEEN_MINUTES)
        assert api.count(NODE_METRICS) == 1
        api.replies[NODE_METRICS] = good
        assert rows(await provider.fetch(FIFTEEN_MINUTES))["n1"] == (25.0, 25.0)


@pytest.mark.parametrize(
    ("reply", "error_type", "message"),
    [
        (status_reply(401, "Unauthorized"), ProviderAuthError, "kubectl auth whoami"),
        (status_reply(403, "nodes is forbidden"), ProviderAuthError, "nodes is forbidden; grant the verbs list and watch on nodes"),
        (Reply(404, "404 page not found\n"), ProviderReplyError, "check that the address is that of a Kubernetes API server"),
        (status_reply(500, "boom"), ProviderUnavailableError, "boom"),
        (Reply(None), ProviderUnavailableError, "0.2 s"),
        (Reply(body="<html>"), ProviderReplyError, "not what the API documents"),
    ],
)
async def test_node_list_that_fails(
    api: FakeApiServer, tmp_path: Path, reply: Reply, error_type: type[ProviderError], message: str
) -> None:
    """It shows at once, in fetches and in the health check, not as a hang."""
    api.replies[NODES] = reply
    async with (
        make_provider(api, tmp_path, request_timeout_seconds=5 if reply.status else 0.2) as provider,
        asyncio.timeout(DEADLINE_SECONDS),
    ):
        with pytest.raises(error_type, match=message):
            await provider.fetch(FIFTEEN_MINUTES)
        if reply.status is not None:
            with pytest.raises(error_type, match=message):
                await provider.check_health()
            del api.replies[NODES]
            await api.wait_until(lambda: api.open_watches == 1)
            assert rows(await provider.fetch(FIFTEEN_MINUTES))["n1"] == (25.0, 25.0)


async def test_node_list_that_takes_too_long(api: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of many pages that are each in time."""
    monkeypatch.setattr(nodes, "WatchTimes", lambda **_: WatchTimes(request_timeout_seconds=100))
    api.replies[NODES] = Reply(None)
    with pytest.raises(ProviderUnavailableError, match="no node list from the API server within 0.2 s"):
        await fetch_once(api, tmp_path, request_timeout_seconds=0.2)


async def test_api_server_that_is_not_there(api: FakeApiServer, tmp_path: Path) -> None:
    """No error on entering; it may come up later."""
    provider = make_provider(api, tmp_path)
    await api.stop()
    async with provider:
        for attempt in (provider.fetch(FIFTEEN_MINUTES), provider.check_health()):
            with pytest.raises(ProviderUnavailableError, match="Cannot connect"):
                await attempt


async def test_no_access_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ProviderConfigError, match="KubernetesMetricsServer: .*No such file"):
        await MetricsServerProvider(tmp_path / "absent").__aenter__()


async def test_node_watch_that_breaks_later_keeps_the_nodes(api: FakeApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    go_down = asyncio.Event()

    async def close_at_outage(stream: WatchStream) -> None:
        await go_down.wait()

    api.watch_scripts.append(close_at_outage)
    async with make_provider(api, tmp_path) as provider, asyncio.timeout(DEADLINE_SECONDS):
        await provider.fetch(FIFTEEN_MINUTES)
        await api.wait_until(lambda: api.open_watches == 1)
        api.replies[NODES] = status_reply(403, "nodes is forbidden")
        go_down.set()
        await api.wait_until(lambda: api.count(NODES) == 2)
        assert rows(await provider.fetch(FIFTEEN_MINUTES)) == {"n1": (25.0, 25.0), "n2": (50.0, 50.0)}
        await provider.check_health()
    assert "nodes is forbidden" in caplog.text


# Health


async def test_health_asks_for_the_discovery_only(api: FakeApiServer, tmp_path: Path) -> None:
    async with make_provider(api, tmp_path) as provider:
        await provider.check_health()
    assert (api.count(METRICS_DISCOVERY), api.count(NODE_METRICS)) == (1, 0)


@pytest.mark.parametrize(("reply", "error_type", "message"), [f for f in FAILURES if f[0].body != {"items": 5}])
async def test_health_of_a_metrics_api_that_fails(
    api: FakeApiServer, tmp_path: Path, reply: Reply, error_type: type[ProviderError], message: str
) -> None:
    api.replies[METRICS_DISCOVERY] = reply
    async with make_provider(api, tmp_path, request_timeout_seconds=5 if reply.status else 0.2) as provider:
        with pytest.raises(error_type, match=message):
            await provider.check_health()


# Ownership of what is open


async def test_report_62_many_fetches_leave_nothing_behind(api: FakeApiServer, tmp_path: Path) -> None:
    """Sockets and memory stay level over many cycles, good and bad; `make prove` runs the 5,000 of the report."""
    process = psutil.Process()
    good, bad = api.replies[NODE_METRICS], status_reply(503)
    async with make_provider(api, tmp_path) as provider:
        await provider.fetch(FIFTEEN_MINUTES)
        await api.wait_until(lambda: api.open_watches == 1)
        await provider.fetch(FIFTEEN_MINUTES)  # now one connection is the watch's and one the fetches'
        sockets, memory_bytes = process.num_fds(), process.memory_info().rss
        for cycle in range(CYCLES):
            api.replies[NODE_METRICS] = bad if cycle % 10 == 0 else good
            try:
                await provider.fetch(FIFTEEN_MINUTES)
            except ProviderUnavailableError:
                assert cycle % 10 == 0
            api.requests.clear()
            assert process.num_fds() <= sockets
        assert process.memory_info().rss - memory_bytes < 16 * 2**20


async def test_report_62_stop_in_the_middle_of_a_fetch(api: FakeApiServer, tmp_path: Path) -> None:
    api.replies[NODE_METRICS] = Reply(None)
    provider = make_provider(api, tmp_path, request_timeout_seconds=60)
    async with asyncio.timeout(DEADLINE_SECONDS):
        async with provider:
            fetch = asyncio.create_task(provider.fetch(FIFTEEN_MINUTES))
            await api.wait_until(lambda: api.count(NODE_METRICS) == 1)
        with pytest.raises(ProviderUnavailableError, match="closed|disconnected"):
            await fetch


async def test_two_providers_do_not_know_each_other(api: FakeApiServer, tmp_path: Path) -> None:
    async with make_provider(api, tmp_path) as first:
        async with make_provider(api, tmp_path) as second:
            await asyncio.gather(first.fetch(FIFTEEN_MINUTES), second.fetch(FIFTEEN_MINUTES))
        assert rows(await first.fetch(FIFTEEN_MINUTES))["n1"] == (25.0, 25.0)
