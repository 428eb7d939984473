"""``trimaran explain`` as a person types it: files, a load watcher of ours or the Go one, and the live cluster."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner

from load_watcher.errors import ProviderUnavailableError
from tests.builders import NOW, make_batch
from tests.fakes.api_server import NODES, FakeApiServer, Reply, make_node
from tests.fakes.service import Service
from trimaran_client import cli
from trimaran_client.cli import inputs
from trimaran_client.errors import KubernetesError, PolicyArgumentError, TrimaranError, WatcherUnreachableError
from trimaran_client.explain import Explanation

POD = "metadata: {name: web, namespace: shop}\nspec: {containers: [{name: c, resources: {requests: {cpu: 1}}}]}"
PODS = "/api/v1/pods"


def make_reply(cpu_percent: Mapping[str, float | None]) -> dict[str, Any]:
    nodes = {
        name: {
            "metrics": [] if value is None else [{"type": "CPU", "operator": "AVG", "rollup": "15m", "value": value}],
            "capacity": {"cpu": "8"},
            "allocatable": {"cpu": "8"},
            "sampledAt": NOW - 20,
        }
        for name, value in cpu_percent.items()
    }
    window = {"duration": "15m", "start": NOW - 920, "end": NOW - 20}
    return {"timestamp": NOW - 5, "window": window, "source": "Prometheus", "data": {"NodeMetricsMap": nodes}}


def make_bound_pod(
    name: str, node: str, *, cpu: str = "1", bound_at: str = "2023-11-14T22:13:00Z", namespace: str = "shop"
) -> dict[str, Any]:
    """Bound 20 s before NOW by default."""
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}"},
        "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]},
        "status": {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": bound_at}]},
    }


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "time", SimpleNamespace(time=lambda: NOW))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pod.yaml").write_text(POD)
    (tmp_path / "pods.json").write_text(json.dumps({"kind": "List", "items": [make_bound_pod("new", "idle")]}))
    (tmp_path / "snapshot.json").write_text(json.dumps(make_reply({"idle": 10, "[red]hot": 90, "mute": None})))
    return tmp_path


def explain(folder: Path, *arguments: object, command: str = "explain") -> str:
    paths = [str(folder / str(each)) if str(each).endswith((".yaml", ".json")) else str(each) for each in arguments]
    pod = [] if "--pod" in paths else ["--pod", str(folder / "pod.yaml")]
    result = CliRunner().invoke(cli.cli, [command, *pod, *paths], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.output


FROM_FILES = ("--snapshot", "snapshot.json", "--pods", "pods.json")


def test_the_text_tells_the_prediction_and_every_node_best_first(folder: Path) -> None:
    """1000m · 1.5 = 1500m for each of the two pods: 10 + 2 · 18.75 = 47.5 %; 90 + 18.75 %; the mute one by requests, 1000m of 8000m."""
    assert explain(folder, *FROM_FILES) == (
        "TargetLoadPacking (default) for pod shop/web; load from Prometheus, its reply 5 s old\n"
        "  arguments     target_percent=40, default_request_millicores=1000, request_multiplier=1.5, prediction=limit_first,\n"
        "                  cpu_metric=any, weight=1, others=[], combine=minimum, fallback=allocation, max_age_seconds=300\n"
        "  prediction    cpu: the pod is taken to use 1500m, part by part:\n"
        "                  container c: 1500m (request × 1.5)\n"
        "\n"
        "#1 of 3: mute, score 59, fallback_allocation\n"
        "  metric        cpu: CPU: none\n"
        "  resources     cpu: capacity 8000m, allocatable 8000m, requested by its pods 0m (0 % of allocatable)\n"
        "  arithmetic    cpu: no fresh metric; requests with the pod are 12.5 % of allocatable, taken for utilization\n"
        "                cpu: at or below the target of 40 %: (100 - 40) × 12.5 / 40 + 40 = 58.75\n"
        "  hint          no CPU metric (AVG or Latest): the load watcher serves none for this node (status unknown), though for\n"
        "                  others\n"
        "\n"
        "#2 of 3: idle, score 35, above_target\n"
        "  metric        cpu: CPU AVG over 15m = 10 %, 20 s old, from Prometheus\n"
        "  resources     cpu: capacity 8000m, allocatable 8000m, requested by its pods 1000m (12.5 % of allocatable)\n"
        "  in flight     shop/new: 1500m of cpu = 100 % of 1500m; bound 20 s ago\n"
        "  arithmetic    cpu: measured 10 %; measured + in flight + pod: 100 × (800m + 1500m + 1500m) / 8000m = 47.5 % predicted\n"
        "                cpu: above the target of 40 %: 40 × (100 - 47.5) / (100 - 40) = 35\n"
        "\n"
        "#3 of 3: [red]hot, score 0, over_capacity\n"
        "  metric        cpu: CPU AVG over 15m = 90 %, 20 s old, from Prometheus\n"
        "  resources     cpu: capacity 8000m, allocatable 8000m, requested by its pods 0m (0 % of allocatable)\n"
        "  arithmetic    cpu: measured 90 %; measured + in flight + pod: 100 × (7200m + 0m + 1500m) / 8000m = 108.8 % predicted\n"
        "                cpu: more than 100 %: score 0\n"
    )


def test_json_is_the_explanation(folder: Path) -> None:
    explanation = msgspec.json.decode(explain(folder, *FROM_FILES, "--output", "json"), type=Explanation)
    assert [(each.node, each.score) for each in explanation.nodes] == [("mute", 59), ("idle", 35), ("[red]hot", 0)]
    assert [(each.pod, each.share) for each in explanation.nodes[1].in_flight] == [("shop/new", 1.0)]


def test_one_node_keeps_its_rank_among_all(folder: Path) -> None:
    heads = [line for line in explain(folder, *FROM_FILES, "--node", "idle").splitlines() if line.startswith(("#", "..."))]
    assert [head.split(",")[0] for head in heads] == ["... 1 node left out", "#2 of 3: idle", "... 1 node left out"]


def test_a_node_that_is_no_candidate_is_refused(folder: Path) -> None:
    with pytest.raises(click.BadParameter, match="idler: not among the 3 candidates"):
        explain(folder, *FROM_FILES, "--node", "idler")


@pytest.mark.parametrize(("options", "told"), [((), 13), (("--all",), 40), (("--output", "json"), 40)])
def test_of_a_wide_cluster_the_text_has_the_best_and_the_worst(folder: Path, options: tuple[str, ...], told: int) -> None:
    (folder / "snapshot.json").write_text(json.dumps(make_reply({f"n{number:02}": number for number in range(40)})))
    output = explain(folder, *FROM_FILES, *options)
    assert len(re.findall(r"^#\d+ of 40: n\d\d,|\"node\":", output, re.MULTILINE)) == told
    assert ("... 27 nodes left out" in output) == (told == 13)


def test_a_pod_is_not_in_flight_beside_itself(folder: Path) -> None:
    (folder / "pods.json").write_text(json.dumps({"items": [make_bound_pod("web", "idle"), make_bound_pod("web", "idle", namespace="b")]}))
    output = explain(folder, *FROM_FILES)
    assert re.findall(r"in flight +(\S+):", output) == ["b/web"]
    assert "the pod is on idle already" in output


class TestPolicy:
    def test_any_policy_explains(self, folder: Path) -> None:
        models = "{models: {idle: {k0: 300, k1: -90, k2: -0.07}}}"
        for name, arguments in (("LoadVariationRiskBalancing", "{margin: 2}"), ("LowRiskOverCommitment", "{}"), ("Peaks", models)):
            assert "\n#3 of 3: " in explain(folder, *FROM_FILES, "--policy", name, "--policy-args", arguments)

    def test_arguments_come_from_a_file_too_and_the_target_goes_over_them(self, folder: Path) -> None:
        (folder / "args.txt").write_text("target_percent: 30\nrequest_multiplier: 2\n")
        output = explain(folder, *FROM_FILES, "--policy-args", f"@{folder / 'args.txt'}", "--target", "60")
        assert "target_percent=60" in output
        assert "container c: 2000m (request × 2)" in output

    def test_the_upstream_preset_takes_the_plugins_arguments(self, folder: Path) -> None:
        output = explain(folder, *FROM_FILES, "--preset", "upstream", "--policy-args", '{"targetUtilization": 70}')
        assert "TargetLoadPacking (upstream)" in output
        assert "target_percent=70" in output

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--policy", "TargetLoadPackin"), "TargetLoadPackin"),
            (("--policy-args", "{target: 1}"), "'target'"),
            (("--policy-args", "{a"), "--policy-args: not YAML or JSON"),
            (("--policy-args", "60"), "--policy-args: 60 is no mapping"),
            (("--policy-args", "@nowhere"), "nowhere: .*No such file"),
        ],
    )
    def test_what_cannot_be_made_is_an_error_that_says_why(self, folder: Path, options: tuple[str, ...], message: str) -> None:
        with pytest.raises(PolicyArgumentError, match=message):
            explain(folder, *FROM_FILES, *options)

    def test_a_target_for_a_policy_without_one_is_refused(self, folder: Path) -> None:
        with pytest.raises(click.UsageError, match="--target belongs to TargetLoadPacking"):
            explain(folder, *FROM_FILES, "--policy", "Peaks", "--target", "60")


Answer = Callable[[web.Request], Awaitable[web.Response]]


class FakeWatcher:
    """Serves a reply at /watcher, and what the test says at /api/v1/status; all else is 404, as in Go."""

    def __init__(self, status: web.Response | None = None) -> None:
        self.status = status
        self.queries: list[Mapping[str, str]] = []
        self._server: TestServer

    async def __aenter__(self) -> FakeWatcher:
        app = web.Application()
        app.router.add_get("/watcher", self._get_watcher)
        app.router.add_get("/api/v1/status", self._get_status)
        app.router.add_get("/api/v1/snapshot", self._get_snapshot)
        self._server = TestServer(app)
        await self._server.start_server()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()

    @property
    def address(self) -> str:
        return str(self._server.make_url("")).rstrip("/")

    async def explain(self, folder: Path, *arguments: object) -> str:
        return await asyncio.to_thread(explain, folder, "--watcher", self.address, *arguments)

    async def _get_watcher(self, request: web.Request) -> web.Response:
        return web.json_response(make_reply({"n1": 10}))

    async def _get_snapshot(self, request: web.Request) -> web.Response:
        self.queries.append(dict(request.query))
        return web.Response(status=404, text="404 page not found\n")

    async def _get_status(self, request: web.Request) -> web.Response:
        return web.Response(status=404, text="404 page not found\n") if self.status is None else self.status


class TestWatcher:
    async def test_what_the_load_watcher_found_is_told_in_plain_words(self, folder: Path) -> None:
        findings = [
            {"level": "ok", "subject": "nodes", "detail": "3 from the API server", "remedy": ""},
            {"level": "failure", "subject": "metric CPU", "detail": "rule X not found", "remedy": "install it"},
            {"level": "warning", "subject": "answer", "detail": "may be partial", "remedy": ""},
        ]
        status = {"ready": False, "problem": "too old", "failure": "Prometheus: timeout", "findings": findings, "more": 1}
        async with FakeWatcher(web.json_response(status)) as watcher:
            explanation = json.loads(await watcher.explain(folder, "--output", "json"))
        assert explanation["hints"][:-1] == [
            "the load watcher's last refresh failed, and it serves what it had: Prometheus: timeout",
            "the load watcher is not ready: too old",
            "no CPU metric: rule X not found; install it",
            "answer: may be partial",
        ]

    async def test_the_service_itself_tells_its_failure(self, folder: Path) -> None:
        async with Service() as service:
            await service.refresh(make_batch({"n1": 10.0}, sampled_at=NOW + 20))
            await service.refresh(ProviderUnavailableError("the source is away"))
            output = await asyncio.to_thread(explain, folder, "--watcher", service.address)
        assert "last refresh failed, and it serves what it had: the source is away" in " ".join(output.split())
        assert "#1 of 1: n1" in output

    async def test_a_go_load_watcher_has_no_status_and_that_is_fine(self, folder: Path) -> None:
        async with FakeWatcher() as watcher:
            explanation = json.loads(await watcher.explain(folder, "--output", "json"))
        assert [each["node"] for each in explanation["nodes"]] == ["n1"]
        assert [hint for hint in explanation["hints"] if "status" in hint or "itself" in hint] == []

    @pytest.mark.parametrize("status", [web.Response(status=500, text="oh"), web.Response(text="<html>"), web.Response(text="[]")])
    async def test_a_status_that_cannot_be_read_costs_a_hint_only(self, folder: Path, status: web.Response) -> None:
        async with FakeWatcher(status) as watcher:
            output = await watcher.explain(folder)
        assert "what the load watcher says of itself was not read" in output
        assert "#1 of 1: n1" in output

    async def test_a_load_watcher_that_is_down_is_an_error_with_its_address(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(inputs, "WATCHER_DEADLINE_SECONDS", 0.3)
        async with FakeWatcher() as watcher:
            address = watcher.address
        with pytest.raises(WatcherUnreachableError, match=f"{re.escape(address)}.*check that the load watcher runs there"):
            await asyncio.to_thread(explain, folder, "--watcher", address)

    async def test_it_is_asked_for_the_windows_and_statistics_of_the_policy(self, folder: Path) -> None:
        async with FakeWatcher() as watcher:
            output = await watcher.explain(folder, "--policy-args", "{cpu_metric: {statistic: P90, window: 30m}}")
        assert watcher.queries[0]["windows"].split(",") == ["10m", "15m", "30m", "5m"]
        assert watcher.queries[0]["statistics"].split(",") == ["AVG", "P90", "STD"]
        assert "no CPU metric (P90 over 30m): the load watcher serves AVG 15m for it" in output


class TestCluster:
    async def test_a_live_pod_is_explained_among_live_nodes_and_pods(self, folder: Path) -> None:
        """The pod itself, bound to n1, is not counted there: 10 + 18.75 %. n2 has one in flight: 10 + 2 · 18.75 %."""
        async with FakeApiServer() as api:
            api.put_nodes(make_node("n1", cpu="8"), make_node("n2", cpu="8"))
            own = make_bound_pod("web", "n1")
            for pod in (own, make_bound_pod("other", "n2")):
                api.put(PODS, pod)
            api.replies["/api/v1/namespaces/shop/pods/web"] = Reply(body=own)
            (folder / "snapshot.json").write_text(json.dumps(make_reply({"n1": 10, "n2": 10, "gone": 0})))
            config = api.write_kubeconfig(folder / "config")
            options = ("--pod", "shop/web", "--kubeconfig", config, "--snapshot", "snapshot.json")
            output = await asyncio.to_thread(explain, folder, *options)
            table = await asyncio.to_thread(lambda: explain(folder, *options, command="score"))
        assert re.findall(r"^#.*", output, re.MULTILINE) == [
            "#1 of 2: n1, score 83, at_or_below_target",  # 60 · 28.75 / 40 + 40
            "#2 of 2: n2, score 35, above_target",  # 40 · 52.5 / 60
        ]
        assert "the pod is on n1 already" in output
        assert [line.split()[0] for line in table.splitlines()[2:]] == ["n1", "n2"]

    async def test_with_a_kubeconfig_a_file_is_explained_among_live_nodes(self, folder: Path) -> None:
        async with FakeApiServer() as api:
            api.put_nodes(make_node("idle", cpu="8"))
            api.replies[PODS] = Reply(body={"kind": "PodList", "metadata": {}, "items": []})
            config = api.write_kubeconfig(folder / "config")
            output = await asyncio.to_thread(explain, folder, "--kubeconfig", config, "--snapshot", "snapshot.json")
        assert re.findall(r"^#.*", output, re.MULTILINE) == ["#1 of 1: idle, score 83, at_or_below_target"]

    async def test_a_pod_that_is_not_there_is_an_error_that_names_it(self, folder: Path) -> None:
        async with FakeApiServer() as api:
            api.put(NODES, make_node("n1"))
            config = api.write_kubeconfig(folder / "config")
            with pytest.raises(KubernetesError, match="shop/pods/wed"):
                await asyncio.to_thread(explain, folder, "--pod", "shop/wed", "--kubeconfig", config, "--snapshot", "snapshot.json")

    def test_a_file_that_is_not_there_is_no_live_pod(self, folder: Path) -> None:
        with pytest.raises(click.BadParameter, match=r"manifests/web.yaml.*No such file.*NAMESPACE/NAME"):
            explain(Path(), "--pod", "manifests/web.yaml", "--snapshot", folder / "snapshot.json")


def test_an_error_is_one_of_ours(folder: Path) -> None:
    (folder / "pod.yaml").write_text("spec: {}")
    with pytest.raises(TrimaranError, match=r"pod.yaml: no spec.containers"):
        explain(folder, *FROM_FILES)
