"""The extender beside an API server: where pods were bound, what namespaces wish, and events that say why."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.fakes.api_server import NODES, PODS, FakeApiServer, Reply, make_node, make_pod, status_reply
from tests.fakes.extender import Asked, always, cluster_config, make_load, make_manifest, serving
from tests.fakes.peer import Peer
from tests.fakes.watcher import eventually
from trimaran_client.extender import events

pytestmark = pytest.mark.timeout(30)

NAMESPACES = "/api/v1/namespaces"
EVENTS = "/api/v1/namespaces/default/events"
LOAD = {"a": 20.0, "b": 0.0}
SCHEDULED = "2023-11-14T22:13:20Z"


@pytest.fixture
async def load() -> AsyncIterator[Peer]:
    peer = Peer()
    await peer.serve(always(make_load(LOAD)))
    yield peer
    await peer.stop()


@pytest.fixture
async def api() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        server.put_nodes(make_node("a", cpu="8"), make_node("b", cpu="8"))
        server.put_pods(make_pod("web"))
        server.put(NAMESPACES, {"metadata": {"name": "default"}})
        yield server


class Cluster:
    """What a test has: the API server, and a way to run an extender beside it."""

    def __init__(self, api: FakeApiServer, load: Peer, folder: Path) -> None:
        self.api = api
        self._load = load
        self._folder = folder

    def serving(self, **document: Any) -> Any:
        return serving(cluster_config(self.api, self._folder) | document, api=self.api, load=self._load)

    async def ready(self, asked: Asked) -> None:
        await eventually(lambda: not asked.decider._sources.problem())

    def bind(self, name: str, node: str, **more: Any) -> None:
        self.api.put_pods(make_pod(name, node=node, scheduled_at=SCHEDULED, **more))


@pytest.fixture
def cluster(api: FakeApiServer, load: Peer, tmp_path: Path) -> Cluster:
    return Cluster(api, load, tmp_path)


async def wait_for_binding(asked: Asked, pod: str = "web") -> Any:
    """Answer the newest decision on a pod once its binding was seen."""
    log = asked.decider.log
    await eventually(lambda: (found := log.find("default", pod)) is not None and found.bound_to)
    _, body = await asked.get(f"/api/v1/decisions?pod=default/{pod}")
    return body["decisions"][0]


class TestBinding:
    async def test_is_noted_with_the_score_that_the_node_had(self, cluster: Cluster) -> None:
        async with cluster.serving() as asked:
            await cluster.ready(asked)
            await asked.prioritize(make_manifest(), LOAD)
            cluster.bind("web", "b")
            decision = await wait_for_binding(asked)
            assert (decision["boundTo"], decision["boundScore"], decision["nodes"][0]["node"]) == ("b", 68, "a")

    async def test_takes_the_place_of_the_assumption(self, cluster: Cluster) -> None:
        async with cluster.serving() as asked:
            await cluster.ready(asked)
            await asked.prioritize(make_manifest(), LOAD)
            cluster.bind("web", "b")
            await wait_for_binding(asked)
            # a without it, b with it: 60 · 37.5 / 40 + 40 = 96.
            assert await asked.prioritize(make_manifest("two"), LOAD) == {"a": 98, "b": 96}

    async def test_of_a_pod_that_is_deleted_while_assumed_never_comes(self, cluster: Cluster) -> None:
        async with cluster.serving() as asked:
            await cluster.ready(asked)
            await asked.prioritize(make_manifest(), LOAD)
            cluster.api.delete(PODS, "default/web")
            await eventually(lambda: asked.decider._pods.state_of("uid-web") is None)
            assert await asked.prioritize(make_manifest("two"), LOAD) == {"a": 98, "b": 68}

    async def test_is_told_by_an_explanation_however_the_node_ranked(self, cluster: Cluster) -> None:
        names = [*LOAD, *(f"n{number}" for number in range(30))]
        async with cluster.serving() as asked:
            await cluster.ready(asked)
            await asked.prioritize(make_manifest(), names)
            cluster.bind("web", "n7")
            await wait_for_binding(asked)
            _, body = await asked.get("/api/v1/explain?pod=default/web&nodes=1")
            assert "n7" in [each["node"] for each in body["explanation"]["nodes"]]

    async def test_by_a_nomination_is_not_noted(self, cluster: Cluster) -> None:
        async with cluster.serving() as asked:
            await cluster.ready(asked)
            await asked.prioritize(make_manifest(), LOAD)
            cluster.api.put_pods(make_pod("web", nominated="b"))
            await eventually(lambda: asked.decider._pods.state_of("uid-web") == "nominated")
            assert (await asked.decision())["boundTo"] == ""


class TestNamespaces:
    PROFILES: ClassVar = [{"overrides": ["policy", "target-cpu-percent"]}]

    async def test_a_wish_is_followed_as_it_changes(self, cluster: Cluster) -> None:
        """b: 18.75 %, with a target of 20: 80 · 18.75 / 20 + 20 = 95; of 40: 68."""
        async with cluster.serving(namespaceOverrides=True, profiles=self.PROFILES) as asked:
            await cluster.ready(asked)
            assert await asked.prioritize(make_manifest(), ["b"]) == {"b": 68}
            for annotations, score in (({"trimaran.io/target-cpu-percent": "20"}, 95), ({}, 68)):
                cluster.api.put(NAMESPACES, {"metadata": {"name": "default", "annotations": annotations}})
                await eventually(lambda wanted=annotations: asked.decider._profiles._namespace_entries("default") == wanted)  # type: ignore[misc]
                assert await asked.prioritize(make_manifest(), ["b"]) == {"b": score}

    async def test_are_not_watched_where_that_is_not_set(self, cluster: Cluster) -> None:
        cluster.api.put(NAMESPACES, {"metadata": {"name": "default", "annotations": {"trimaran.io/target-cpu-percent": "20"}}})
        async with cluster.serving(profiles=self.PROFILES) as asked:
            await cluster.ready(asked)
            assert await asked.prioritize(make_manifest(), ["b"]) == {"b": 68}
        assert not cluster.api.count(NAMESPACES)

    async def test_that_may_not_be_read_are_told(self, cluster: Cluster) -> None:
        cluster.api.replies[NAMESPACES] = status_reply(403, "namespaces is forbidden")
        async with cluster.serving(namespaceOverrides=True, profiles=self.PROFILES) as asked:
            await eventually(lambda: asked.decider._sources.problem().startswith("what namespaces wish is not kept up to date"))
            assert await asked.prioritize(make_manifest(), ["b"]) == {"b": 68}
            assert "namespaces is forbidden" in (await asked.decision())["degraded"]


class TestEvents:
    async def test_say_why_the_pod_is_there(self, cluster: Cluster) -> None:
        async with cluster.serving(events=True) as asked:
            await cluster.ready(asked)
            await asked.prioritize(make_manifest(), LOAD)
            cluster.bind("web", "b")
            await eventually(lambda: cluster.api.created(EVENTS))
            cluster.bind("web", "b", phase="Running")
            cluster.bind("stranger", "b")
            await eventually(lambda: asked.decider._pods.state_of("uid-stranger"))
            await asked.wait_for_metric('events_total{outcome="written"}', 1)
        [event] = cluster.api.created(EVENTS)
        assert (event["reason"], event["type"], event["kind"]) == ("TrimaranScored", "Normal", "Event")
        assert event["message"].startswith("TargetLoadPacking scored b 68 (at_or_below_target), the best of 2 nodes had 98, ")
        assert event["involvedObject"] == {"kind": "Pod", "namespace": "default", "name": "web", "uid": "uid-web", "apiVersion": "v1"}

    @pytest.mark.parametrize("document", [{}, {"events": True, "shadow": True}])
    async def test_are_not_written_unless_enabled_and_never_on_what_was_not_answered(
        self, cluster: Cluster, document: dict[str, Any]
    ) -> None:
        async with cluster.serving(**document) as asked:
            await cluster.ready(asked)
            await asked.prioritize(make_manifest(), LOAD)
            cluster.bind("web", "b")
            await wait_for_binding(asked)
            assert not [name for name in await asked.metrics() if name.startswith("events_total")]
        assert not cluster.api.created(EVENTS)

    async def test_that_are_refused_are_counted_and_logged_once(self, cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
        cluster.api.replies[EVENTS] = status_reply(403, "events is forbidden")
        async with cluster.serving(events=True) as asked:
            await cluster.ready(asked)
            for name in ("one", "two"):
                await asked.prioritize(make_manifest(name), LOAD)
                cluster.bind(name, "b")
            await eventually(lambda: len(cluster.api.created(EVENTS)) == 2)
            await asked.wait_for_metric('events_total{outcome="failed"}', 2)
        assert caplog.text.count("an event could not be written") == 1
        assert "events is forbidden" in caplog.text

    async def test_a_fault_of_our_own_ends_no_other_event(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with cluster.serving(events=True) as asked:
            await cluster.ready(asked)
            for name in ("bad", "good"):
                with monkeypatch.context() as patch:
                    if name == "bad":
                        patch.setattr(events, "_make_event", None)
                    await asked.prioritize(make_manifest(name), LOAD)
                    cluster.bind(name, "b")
                    await asked.wait_for_metric(f'events_total{{outcome="{"failed" if name == "bad" else "written"}"}}', 1)
        assert "a fault of our own, report it: TypeError" in caplog.text

    async def test_that_hang_hold_up_nothing_and_what_does_not_fit_is_dropped(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(events, "_MOST_WAITING", 2)
        cluster.api.replies[EVENTS] = Reply(None)
        async with cluster.serving(events=True) as asked:
            await cluster.ready(asked)
            for number in range(8):
                await asked.prioritize(make_manifest(f"p{number}"), LOAD)
                cluster.bind(f"p{number}", "b")
                await wait_for_binding(asked, f"p{number}")
            # One is being written, two wait; the first to be taken out leaves room for one more.
            assert (await asked.metrics())['events_total{outcome="dropped"}'] in (5, 6)
            assert await asked.prioritize(make_manifest("last"), ["b"]) == {"b": 0}


async def test_nodes_say_what_they_have_before_the_load_watcher_does(cluster: Cluster) -> None:
    """The load watcher tells 8 cores, the node itself 4: 0 % and 1500m of 4000m are 37.5 %."""
    cluster.api.put(NODES, make_node("b", cpu="4"))
    async with cluster.serving() as asked:
        await cluster.ready(asked)
        assert await asked.prioritize(make_manifest(), ["b"]) == {"b": 96}
