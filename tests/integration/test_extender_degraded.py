"""Whatever hangs, dies or lies behind the extender: the scheduler is answered, and what was missing is told (report 67)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.builders import NOW
from tests.fakes.api_server import NODES, PODS, FakeApiServer, Reply, make_node, make_pod, status_reply
from tests.fakes.extender import Asked, always, cluster_config, make_load, make_manifest, serving
from tests.fakes.peer import Peer
from tests.fakes.watcher import eventually
from trimaran_client.fetch import feed

pytestmark = pytest.mark.timeout(30)

LOAD = {"a": 20.0, "b": 0.0}
SCORES = {"a": 98, "b": 68}
# Far more than an answer takes on any machine, and far less than the peers hang.
DEADLINE_SECONDS = 5


@pytest.fixture
async def load() -> AsyncIterator[Peer]:
    peer = Peer()
    yield peer
    await peer.stop()


@pytest.fixture
async def api() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        server.put_nodes(make_node("a", cpu="8"), make_node("b", cpu="8"))
        server.put_pods(make_pod("old", node="a", scheduled_at="2023-01-01T00:00:00Z", cpu="2"))
        yield server


@pytest.fixture(autouse=True)
def _brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between questions, and after failures, that a test need not wait for."""
    monkeypatch.setattr(feed, "MAX_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(feed, "_UNTAGGED_FACTOR", 0.01)


async def ask(asked: Asked, name: str = "web") -> Any:
    async with asyncio.timeout(DEADLINE_SECONDS):
        return await asked.prioritize(make_manifest(name), LOAD)


def are_neutral(scores: dict[str, int]) -> bool:
    """Tell whether scores leave the choice to the other plugins."""
    return list(scores) == list(LOAD) and len(set(scores.values())) == 1


async def degraded(asked: Asked) -> str:
    told: str = (await asked.decision())["degraded"]
    return told


async def hang(request: web.Request) -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError


async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.01)


class TestLoadWatcher:
    """The cluster is not watched: nothing else is known of the nodes."""

    async def test_that_never_was_there(self) -> None:
        async with serving({}) as asked:
            assert are_neutral(await ask(asked))
            await eventually(lambda: asked.decider._sources.problem() != "no snapshot of the load watcher")
            await ask(asked)
            assert "no snapshot of the load watcher: http://127.0.0.1:1" in await degraded(asked)
            assert "2 of 2 nodes without usable metrics" in await degraded(asked)
            status, body = await asked.get("/readyz")
            assert (status, "check that the load watcher runs there" in body["message"]) == (503, True)
            assert (await asked.get("/livez"))[0] == 200
            assert (await asked.metrics())["degraded"] == 1

    async def test_that_hangs_from_the_start(self, load: Peer) -> None:
        await load.serve(hang)
        async with serving({}, load=load) as asked:
            await eventually(lambda: load.requests)
            assert are_neutral(await ask(asked))
            assert "no snapshot of the load watcher" in await degraded(asked)

    @pytest.mark.parametrize("talk", [say_nothing, drip])
    async def test_that_stops_answering(self, load: Peer, talk: Any) -> None:
        await load.serve(always(make_load(LOAD)))
        async with serving({}, load=load) as asked:
            source: Any = asked.decider._load
            await eventually(lambda: source.snapshot.nodes)
            source._connection._attempt_seconds = 0.1
            await load.talk(talk)
            await eventually(lambda: asked.decider._sources.problem())
            assert await ask(asked) == SCORES
            assert "the load watcher gives no news: http://127.0.0.1" in await degraded(asked)
            assert (await asked.get("/readyz"))[0] == 200

    async def test_that_dies_and_comes_back_is_logged_once_each(self, load: Peer, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "trimaran_client.extender")
        await load.serve(always(make_load(LOAD)))
        async with serving({}, load=load) as asked:
            await eventually(lambda: asked.decider._load.snapshot.nodes)
            await load.stop()
            await eventually(lambda: asked.decider._sources.problem())
            for number in range(3):
                await ask(asked, f"web-{number}")
            await load.serve(always(make_load({"a": 90.0, "b": 0.0})))
            await eventually(lambda: not asked.decider._sources.problem())
            assert (await ask(asked))["a"] == 0
            assert await degraded(asked) == ""
        told = [each.getMessage() for each in caplog.records if "degraded" in each.getMessage()]
        assert [line.split(":")[0] for line in told][-2:] == ["answers are degraded", "answers are no longer degraded by the load"]
        assert len(told) <= 4  # and once more for the start, where an answer may come before the snapshot

    async def test_whose_source_is_silent(self, load: Peer) -> None:
        await load.serve(always(make_load(LOAD, sampled_at=NOW - 400)))
        async with serving({}, load=load) as asked:
            await eventually(lambda: asked.decider._load.snapshot.nodes)
            assert are_neutral(await ask(asked))
            assert "newest metrics are 400 s old" in await degraded(asked)
            assert "2 of 2 nodes without usable metrics" in await degraded(asked)


class TestApiServer:
    async def test_that_is_well_lets_requests_stand_in_for_metrics(self, api: FakeApiServer, tmp_path: Path) -> None:
        """a: 2 of 8 cores and one more are 37.5 %: 60 · 37.5 / 40 + 40 = 96; b: 12.5 %: 59."""
        async with serving(cluster_config(api, tmp_path), api=api) as asked:
            await eventually(lambda: "cluster" not in asked.decider._sources.problem())
            assert await ask(asked) == {"a": 96, "b": 59}

    @pytest.mark.parametrize("reply", [Reply(None), status_reply(500), Reply(body="<html>")])
    async def test_that_gives_nothing_from_the_start(self, api: FakeApiServer, load: Peer, tmp_path: Path, reply: Reply) -> None:
        api.replies[NODES] = api.replies[PODS] = reply
        await load.serve(always(make_load(LOAD)))
        async with serving(cluster_config(api, tmp_path), api=api, load=load) as asked:
            await eventually(lambda: asked.decider._load.snapshot.nodes and api.count(PODS))
            assert await ask(asked) == SCORES
            assert "the pods and nodes of the cluster are not known yet" in await degraded(asked)
            assert (await asked.get("/readyz"))[0] == 503

    async def test_that_dies(self, api: FakeApiServer, load: Peer, tmp_path: Path) -> None:
        await load.serve(always(make_load(LOAD)))
        async with serving(cluster_config(api, tmp_path), api=api, load=load) as asked:
            await eventually(lambda: asked.decider._load.snapshot.nodes and not asked.decider._sources.problem())
            await api.stop()
            await eventually(lambda: asked.decider._sources.problem())
            assert await ask(asked) == SCORES
            assert "the view of the cluster is not kept up to date" in await degraded(asked)

    async def test_that_forgets_the_version_is_listed_again(self, api: FakeApiServer, load: Peer, tmp_path: Path) -> None:
        await load.serve(always(make_load(LOAD)))
        api.watch_scripts_of[PODS].append(lambda stream: stream.send_gone())
        async with serving(cluster_config(api, tmp_path), api=api, load=load) as asked:
            await eventually(lambda: asked.decider._load.snapshot.nodes and api.count(PODS) >= 2)
            await eventually(lambda: not asked.decider._sources.problem())
            assert await ask(asked) == SCORES


async def test_report_68_everything_absent_it_starts_and_answers(tmp_path: Path) -> None:
    """After a full restart nothing else may be there yet, and the scheduler waits for nobody."""
    server = FakeApiServer()
    async with server:
        document = cluster_config(server, tmp_path)
    async with serving(document, api=server) as asked:
        assert are_neutral(await ask(asked))
        assert (await asked.get("/livez"))[0] == 200
        status, body = await asked.get("/readyz")
        assert status == 503
        assert all(part in body["message"] for part in ("load watcher", "cluster"))
