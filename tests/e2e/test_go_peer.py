"""The Go load-watcher as peer: its client reads our service, and our service serves what its service serves."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

import pytest

from tests.e2e.api import JsonObject
from tests.e2e.binaries import Binaries
from tests.e2e.cluster import Cluster
from tests.e2e.nodes import LOADED_NODES
from tests.e2e.processes import is_port_free, running_process
from tests.e2e.requirements import skip_or_fail
from tests.e2e.service import TWO_REFRESHES_SECONDS, Service, on_cluster, run_command, running_load_watcher, watched
from tests.e2e.waiting import NotYet, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180, func_only=True)]

TOLERANCE = 1e-9
LARGE_TOLERANCE_RATIO = 1e-13  # beyond 10000 the distance of doubles, and the error of the Go decoder, pass 1e-9
GO_PORT = 2020  # fixed in its watcher.go, on all addresses
GO_GRACE_SECONDS = 1.0  # on SIGTERM it only closes its server, and waits for ever after it (main.go)
SAME_SAMPLE_SECONDS = 90.0

# Residues that need an exponent, digits that the Go decoder adds up in 64 bits, absence, and more than all.
AWKWARD_PERCENTS = (
    0.0,
    5e-324,
    1e-20,
    1.5e-10,
    0.1 + 0.2,
    28.999999999999996,
    100 / 3,
    99.99999999999999,
    None,
    100.00000000000001,
    105.678,
)
AWKWARD_WATTS = (0.0, 1 / 3, 1e-7, 123456.789, 12345678.123456789, 9628069826.731375, 1e9 / 3, 1e13, 999999999999999.9, 1e15, None)
AWKWARD_NAMES = ("", ".example.test:9100", "-é", '-"quoted"', "-back\\slash", "-<a&b>", "-\U0001f600")

Values = dict[tuple[str, str, str], float]


def get_metrics(reply: JsonObject) -> dict[str, list[JsonObject]]:
    """Return the metric lists of a reply: node name → metrics in their order."""
    return {name: entry.get("metrics") or [] for name, entry in reply["data"]["NodeMetricsMap"].items()}


def get_values(reply: JsonObject) -> Values:
    """Return the values of a reply: (node, type, operator) → percent."""
    return {
        (node, metric["type"], metric["operator"]): metric["value"] for node, metrics in get_metrics(reply).items() for metric in metrics
    }


@asynccontextmanager
async def running_go_load_watcher(binaries: Binaries, kubeconfig: Path, *, folder: Path) -> AsyncIterator[Service]:
    """Run the Go load-watcher, which fetches once at its start and serves before it has waited for anything."""
    if not is_port_free(GO_PORT, address="0.0.0.0"):
        skip_or_fail(f"port {GO_PORT} is taken, and the Go load-watcher listens on no other; end the program that holds it")
    settings = on_cluster(kubeconfig)
    command = [binaries.path("go-load-watcher")]
    async with (
        running_process("go-load-watcher", command, folder=folder, settings=settings, grace_seconds=GO_GRACE_SECONDS) as process,
        watched(f"http://127.0.0.1:{GO_PORT}", process) as service,
    ):
        yield service


async def check_go_client_reads_all(binaries: Binaries, service: Service) -> JsonObject:
    """Assert that the Go plugins' client decodes from our reply what the reply says, in the same order, and return the reply."""
    served, output = await service.observe_stable(lambda: run_command(binaries.path("watcher-client"), service.url))
    decoded = json.loads(output)
    assert {key: decoded[key] for key in ("timestamp", "window", "source")} == {
        key: served[key] for key in ("timestamp", "window", "source")
    }
    served_metrics, decoded_metrics = get_metrics(served), get_metrics(decoded)
    assert set(decoded_metrics) == set(served_metrics)
    for node, metrics in served_metrics.items():
        for metric, read in zip(metrics, decoded_metrics[node], strict=True):
            assert read["value"] == pytest.approx(metric["value"], abs=TOLERANCE, rel=LARGE_TOLERANCE_RATIO)
            # Its printing leaves out an empty rollup.
            assert (read["name"], read["type"], read["operator"], read.get("rollup", "")) == tuple(
                metric[key] for key in ("name", "type", "operator", "rollup")
            )
    return served


async def test_go_client_reads_the_cluster(binaries: Binaries, service: Service) -> None:
    served = await check_go_client_reads_all(binaries, service)
    assert set(get_values(served)) >= {(node.name, metric_type, "Latest") for node in LOADED_NODES for metric_type in ("CPU", "Memory")}


async def test_go_client_reads_awkward_values(binaries: Binaries, tmp_path: Path) -> None:
    """Numbers and names that a Go decoder could stumble over pass it; the recording makes them reach our encoder."""
    recording = tmp_path / "awkward.jsonl"
    nodes = [f"node-{i}{AWKWARD_NAMES[i % len(AWKWARD_NAMES)]}" for i in range(len(AWKWARD_PERCENTS))]
    latest = {"CPU": AWKWARD_PERCENTS, "Memory": AWKWARD_PERCENTS[::-1], "Energy": AWKWARD_WATTS}
    aggregates = [{"type": "CPU", "operator": operator, "window": "15m", "values": AWKWARD_PERCENTS} for operator in ("AVG", "STD")]
    batch = {"at": 1.7e9, "nodes": nodes, "latest": latest, "aggregates": aggregates}
    recording.write_text(json.dumps(batch))
    provider = {"METRICS_PROVIDER_NAME": "Recorded", "METRICS_PROVIDER_ADDRESS": str(recording)}
    async with running_load_watcher(provider, folder=tmp_path) as service:
        served = await check_go_client_reads_all(binaries, service)
    expected = {(node, kind, "Latest"): value for kind, values in latest.items() for node, value in zip(nodes, values, strict=True)}
    present = {key: value for key, value in expected.items() if value is not None}
    values = get_values(served)
    assert {key: values.get(key) for key in present} == pytest.approx(present, abs=TOLERANCE, rel=LARGE_TOLERANCE_RATIO)
    assert not {key for key, value in expected.items() if value is None} & set(values)


async def test_peers_serve_the_same_values(binaries: Binaries, loaded_cluster: Cluster, kubeconfig: Path, service: Service) -> None:
    """Both load watchers on the same samples of metrics-server: all that the Go one serves, ours serves with the same value."""
    names = [node.name for node in LOADED_NODES]

    async def fetch_both() -> tuple[Values, Values]:
        samples = await loaded_cluster.wait_for_next_samples(names)
        sampled_at = {name: int(datetime.fromisoformat(samples[name].timestamp).timestamp()) for name in names}
        async with running_go_load_watcher(binaries, kubeconfig, folder=loaded_cluster.folder) as go_service:
            go_reply = await go_service.fetch()
        if (seen := await loaded_cluster.fetch_node_samples()) != samples:
            raise NotYet(f"samples of the Go load-watcher between {samples} and {seen}")
        return get_values(go_reply), get_values(await wait_until_sampled(service, sampled_at))

    go_values, own_values = await wait_for("reply of both on the same samples", fetch_both, timeout_seconds=SAME_SAMPLE_SECONDS)
    assert set(go_values) >= {(name, metric_type, "Latest") for name in names for metric_type in ("CPU", "Memory")}
    assert {key: own_values.get(key) for key in go_values} == pytest.approx(go_values, abs=TOLERANCE, rel=0)


async def wait_until_sampled(service: Service, sampled_at: Mapping[str, int]) -> JsonObject:
    """
    Return the reply of *service* made of the samples of *sampled_at* (node name → Unix seconds).

    Raises:
        NotYet: When it has gone past them on any node.
    """

    async def probe() -> JsonObject | None:
        reply = await service.fetch()
        served = {name: reply["data"]["NodeMetricsMap"][name]["sampledAt"] for name in sampled_at}
        if served == sampled_at:
            return reply
        if any(served[name] > wanted for name, wanted in sampled_at.items()):
            return None
        raise NotYet(f"samples of {served}")

    reply = await wait_for(f"reply with the samples of {sampled_at}", probe, timeout_seconds=TWO_REFRESHES_SECONDS)
    if reply is None:
        raise NotYet(f"our reply past the samples of {sampled_at}")
    return reply
