"""Following a load watcher: fresh within moments, whatever the load watcher does, and never a burden to it."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import unused_port

from load_watcher.errors import ProviderUnavailableError
from tests.builders import NOW, make_batch
from tests.fakes.peer import Handler, Peer
from tests.fakes.service import Service
from tests.fakes.watcher import eventually
from trimaran_client import (
    BlockingWatcherClient,
    LoadSnapshot,
    SnapshotDecodeError,
    SnapshotFeed,
    SnapshotSource,
    WatcherClient,
    WatcherError,
    WatcherNotReadyError,
    WatcherStatusError,
    WatcherUnreachableError,
)
from trimaran_client.fetch import asking, feed
from trimaran_client.snapshot import MetricSelector

DEADLINE_SECONDS = 20
NEVER_POLL = 3600.0
GO_BODY = b'{"source": "go", "data": {"NodeMetricsMap": {"n1": {"metrics": [{"type": "CPU", "operator": "AVG", "value": 12.5}]}}}}'


def columns_body(value: float = 12.5, *, end_at: float = NOW) -> bytes:
    none = {"cpu": [None], "memory": [None]}
    column = {"type": "CPU", "statistic": "AVG", "window": "15m", "name": "", "values": [value]}
    content = {"id": "1", "madeAt": NOW, "source": "fake", "windowEndAt": end_at, "nodes": ["n1"], "sampledAt": [end_at]}
    content |= {"sampleSeconds": [None], "statuses": ["ok"], "capacity": none, "allocatable": none, "columns": [column], "notHeld": []}
    return json.dumps(content).encode()


def always(body: bytes, *, path: str = asking.COLUMNS_PATH, tag: str = "") -> Handler:
    async def handler(request: web.Request) -> web.Response:
        if request.path != path:
            return web.Response(status=404)
        if tag and request.headers.get("If-None-Match") == tag:
            return web.Response(status=304)
        return web.Response(body=body, headers={"ETag": tag} if tag else {})

    return handler


GO = always(GO_BODY, path="/watcher")


def cpu(snapshot: LoadSnapshot) -> list[float]:
    return [float(value) for value in snapshot.column("CPU", ("Latest", "AVG"), pick="first")]


async def next_of(source: SnapshotFeed, than: LoadSnapshot | None = None) -> LoadSnapshot:
    async with asyncio.timeout(DEADLINE_SECONDS):
        return await source.wait_newer(source.snapshot if than is None else than)


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with Service(port=unused_port()) as started:
        yield started


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    peer = Peer()
    yield peer
    await peer.stop()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the feed would wait between questions, which takes no time here; its clock stands still, so that every answer comes at once."""
    made: list[float] = []

    async def note(seconds: float) -> None:
        made.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(feed, "sleep", note)
    monkeypatch.setattr(feed, "monotonic", lambda: 0.0)
    return made


@pytest.fixture
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses after failures that a test need not wait for."""
    monkeypatch.setattr(feed, "MAX_PAUSE_SECONDS", 0.02)


# A load watcher of ours


async def test_a_new_snapshot_arrives_when_it_is_published(service: Service) -> None:
    """Without polling: a poll would come in an hour."""
    async with WatcherClient(service.address) as client, client.follow(poll_seconds=NEVER_POLL) as source:
        first = await next_of(source)
        for step in range(1, 4):
            await eventually(lambda: service.watcher.publisher._changed._waiters)
            await service.refresh(make_batch({"n1": float(step)}, sampled_at=NOW + 30 * step))
            first = await next_of(source, first)
            assert cpu(first) == [float(step)]
        assert (source.failure, dict(source.failures)) == (None, {})


async def test_leaving_the_feed_leaves_nothing_at_the_service(service: Service) -> None:
    async with WatcherClient(service.address) as client:
        async with client.follow(poll_seconds=NEVER_POLL) as source:
            await next_of(source)
            await eventually(lambda: service.watcher.publisher._changed._waiters)
        await eventually(lambda: not service.watcher.publisher._changed._waiters)
        with pytest.raises(WatcherUnreachableError, match="the feed was left"):
            await source.wait_newer(source.snapshot)
        assert source.snapshot.source == "test"


async def test_windows_and_statistics_are_asked_for(service: Service) -> None:
    for step in range(10):
        await service.refresh(make_batch({"n1": float(step)}, sampled_at=service.clock.now + 60), seconds=60)
    async with WatcherClient(service.address, windows=("5m", "10m", "30m"), statistics=["MAX"]) as client:
        fetched = await client.fetch_snapshot()
        async with client.follow() as source:
            followed = await next_of(source)
    for snapshot in (fetched, followed):
        values = [float(snapshot.select(MetricSelector("CPU", ("MAX",), window)).values[0]) for window in ("5m", "10m")]
        assert values == [9.0, 9.0]
        assert list(snapshot.not_held) == ["30m"]
        assert snapshot.id


async def test_both_endpoints_of_a_service_select_the_same(service: Service) -> None:
    for step in range(12):
        cpu_percent = {"old": 10.0 + step, "new": None if step < 9 else float(step)}
        await service.refresh(make_batch(cpu_percent, memory_percent={"old": 5.0}, sampled_at=service.clock.now + 60), seconds=60)
    async with WatcherClient(service.address) as client, service.client.get("/watcher") as response:
        by_metric, by_node = await client.fetch_snapshot(), LoadSnapshot.decode(await response.read())
    assert by_metric.id
    assert (by_metric.nodes, by_metric.statuses, by_metric.made_at) == (by_node.nodes, by_node.statuses, by_node.made_at)
    for kind in ("CPU", "Memory"):
        for operators in (("Latest",), ("AVG",), ("STD",), ("AVG", "Latest")):
            first, second = (each.column(kind, operators).tolist() for each in (by_metric, by_node))
            assert first == pytest.approx(second, abs=0, nan_ok=True)


async def test_a_setting_that_the_service_refuses_is_told(service: Service) -> None:
    async with WatcherClient(service.address, statistics="P42") as client:
        with pytest.raises(WatcherStatusError, match="choose from Latest, AVG"):
            await client.fetch_snapshot()
        async with client.follow() as source:
            await eventually(lambda: source.failure)
            assert isinstance(source.failure, WatcherStatusError)
            assert source.failures["status"] >= 1


# Ages


async def test_before_the_first_snapshot_nothing_is_known(peer: Peer) -> None:
    async with WatcherClient(peer.address) as client, client.follow() as source:
        assert (source.snapshot.nodes, source.age_seconds(NOW)) == ((), float("inf"))
        known: SnapshotSource = source
        assert known.snapshot is source.snapshot
        await eventually(lambda: source.failure)


async def test_report_28_the_age_of_the_newest_sample_is_told(peer: Peer) -> None:
    await peer.serve(always(columns_body(95.0, end_at=NOW - 1200), tag='"1"'))
    async with WatcherClient(peer.address) as client, client.follow() as source:
        await next_of(source)
        assert source.age_seconds(NOW) == 1200
        assert source.age_seconds(NOW - 5000) == 0


async def test_report_98_a_service_that_is_dead_for_an_hour_leaves_the_last_snapshot_and_its_age() -> None:
    service = Service(port=unused_port())
    await service.__aenter__()
    await service.refresh(make_batch({"n1": 95.0}, sampled_at=NOW + 30))
    async with WatcherClient(service.address) as client, client.follow() as source:
        last = await next_of(source)
        await service.client.close()
        await eventually(lambda: source.failures.get("unreachable", 0) >= 2)
        assert source.snapshot is last
        assert cpu(source.snapshot) == [95.0]
        assert source.age_seconds(NOW + 30 + 3600) == 3600
        assert "check that the load watcher runs there" in str(source.failure)


async def test_a_source_that_is_down_is_told_by_the_statuses(service: Service) -> None:
    await service.refresh(make_batch({"n1": 95.0}, sampled_at=NOW + 30))
    async with WatcherClient(service.address) as client, client.follow(poll_seconds=NEVER_POLL) as source:
        first = await next_of(source)
        service.batch = ProviderUnavailableError("down")
        service.clock.move(400)
        await service.watcher._publish_held()
        assert (await next_of(source, first)).statuses == ("stale",)
        assert source.age_seconds(service.clock.now) == 400


# Whatever the peer does


@pytest.mark.usefixtures("brisk")
async def test_a_service_that_is_restarted_is_followed_again(peer: Peer) -> None:
    async with WatcherClient(peer.address) as client, client.follow(poll_seconds=NEVER_POLL) as source:
        for value in (1.0, 2.0, 3.0):
            seen = source.snapshot
            async with Service(port=peer.port) as service:
                await service.refresh(make_batch({"n1": value}, sampled_at=NOW + 30))
                while value not in cpu(seen):
                    seen = await next_of(source, seen)
            failed = source.failures.get("unreachable", 0)
            await eventually(lambda failed=failed: source.failures.get("unreachable", 0) > failed)  # type: ignore[misc]


async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.01)


async def cut_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{")


async def talk_nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x00\xff" * 100)


@pytest.mark.usefixtures("brisk")
@pytest.mark.parametrize("talk", [say_nothing, hang_up, drip, cut_off, talk_nonsense])
async def test_a_peer_that_misbehaves_costs_the_age_only(peer: Peer, talk: Any) -> None:
    await peer.serve(always(columns_body(10.0), tag='"1"'))
    async with WatcherClient(peer.address, attempt_seconds=0.2) as client, client.follow(wait_seconds=0.1) as source:
        good = await next_of(source)
        await peer.talk(talk)
        await eventually(lambda: peer.connections >= 2 and source.failures.get("unreachable", 0) >= 2)
        assert source.snapshot is good
        await peer.serve(always(columns_body(20.0), tag='"2"'))
        assert cpu(await next_of(source, good)) == [20.0]
        assert source.failure is None


@pytest.mark.usefixtures("brisk")
@pytest.mark.parametrize(
    ("answer", "cause", "error"),
    [
        (web.Response(status=503), "not_ready", WatcherNotReadyError),
        (web.Response(status=500), "status", WatcherStatusError),
        (web.Response(status=304), "status", WatcherStatusError),
        (web.Response(status=404), "status", WatcherStatusError),
        (web.Response(body=b"<html>"), "decode", SnapshotDecodeError),
        (web.Response(body=columns_body()[:-9]), "decode", SnapshotDecodeError),
        (web.Response(body=columns_body().replace(b'["ok"]', b'["ok", "ok"]')), "decode", SnapshotDecodeError),
    ],
)
async def test_an_answer_without_a_snapshot_is_counted_and_outlived(peer: Peer, answer: web.Response, cause: str, error: type) -> None:
    async def other(request: web.Request) -> web.Response:
        return web.Response(status=answer.status, body=answer.body)

    await peer.serve(always(columns_body(10.0), tag='"1"'))
    async with WatcherClient(peer.address) as client, client.follow(poll_seconds=0.01) as source:
        good = await next_of(source)
        await peer.serve(strip_tag(other))
        await eventually(lambda: source.failures.get(cause, 0) >= 2)
        assert isinstance(source.failure, error)
        assert source.snapshot is good
        await peer.serve(always(columns_body(20.0), tag='"2"'))
        assert cpu(await next_of(source, good)) == [20.0]


def strip_tag(handler: Handler) -> Handler:
    """A 304 to a question with a tag would be an answer: here it comes to one without."""

    async def strip(request: web.Request) -> web.StreamResponse:
        response = await handler(request)
        if response.status == 304 and "If-None-Match" in request.headers:
            return web.Response(status=412)
        return response

    return strip


async def test_a_fault_of_our_own_is_told_and_outlived(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await peer.serve(always(columns_body(10.0), tag='"1"'))
    with monkeypatch.context() as patch:
        patch.setattr(LoadSnapshot, "decode_columns", None)
        async with WatcherClient(peer.address) as client, client.follow() as source:
            await eventually(lambda: source.failures.get("bug"))
            assert "a fault of our own: TypeError" in str(source.failure)
            patch.undo()
            assert cpu(await next_of(source)) == [10.0]
    assert "report this" in caplog.text


# Never a burden


async def hammer(peer: Peer, handler: Handler, pauses: list[float], requests: int = 40, **settings: float) -> None:
    """Follow a peer for some questions."""
    await peer.serve(handler)
    async with WatcherClient(peer.address) as client, client.follow(**settings):
        await eventually(lambda: len(pauses) >= requests)


def changing(*, tagged: bool) -> Handler:
    """Answer each question at once with something new."""
    count = iter(range(1_000_000))

    async def handler(request: web.Request) -> web.Response:
        number = next(count)
        return web.Response(body=columns_body(float(number % 100)), headers={"ETag": f'"{number}"'} if tagged else {})

    return handler


async def ignoring(request: web.Request) -> web.Response:
    return web.Response(body=columns_body(), headers={"ETag": '"1"'})


@pytest.mark.parametrize("handler", [always(columns_body(), tag='"1"'), ignoring, changing(tagged=True)])
async def test_a_service_that_does_not_hold_its_answers_is_soon_only_polled(peer: Peer, pauses: list[float], handler: Handler) -> None:
    """304 at once, 200 at once with the same, 200 at once with something new: the pause doubles up to that of polling."""
    await hammer(peer, handler, pauses, poll_seconds=5)
    assert pauses[:8] == [0.25, 0.25, 0.25, 0.5, 1.0, 2.0, 4.0, 5.0]
    assert set(pauses[8:]) == {5.0}


@pytest.mark.parametrize(
    ("handler", "seconds"),
    [
        (always(columns_body()), 15.0),
        (changing(tagged=False), 15.0),
        (GO, 15.0),
        (always(GO_BODY, path="/watcher", tag='"1"'), 5.0),
    ],
)
async def test_a_peer_that_cannot_hold_an_answer_is_polled(peer: Peer, pauses: list[float], handler: Handler, seconds: float) -> None:
    await hammer(peer, handler, pauses, poll_seconds=5)
    assert all(seconds / 2 <= pause <= seconds for pause in pauses)
    assert len(set(pauses)) > 1  # clients do not ask in step


async def test_failures_are_followed_by_pauses_that_grow(peer: Peer, pauses: list[float]) -> None:
    async with WatcherClient(peer.address) as client, client.follow():
        await eventually(lambda: len(pauses) >= 20)
    for number, pause in enumerate(pauses):
        longest = min(0.1 * 2**number, 2.0)
        assert longest / 2 <= pause <= longest


async def test_an_answer_that_was_held_is_followed_by_the_next_question(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10**6, 100))
    made: list[float] = []

    async def note(seconds: float) -> None:
        made.append(seconds)

    monkeypatch.setattr(feed, "sleep", note)
    monkeypatch.setattr(feed, "monotonic", lambda: float(next(clock)))
    async with WatcherClient(service.address) as client, client.follow() as source:
        seen = await next_of(source)
        for step in range(1, 4):
            await service.refresh(make_batch({"n1": float(step)}, sampled_at=NOW + 30 * step))
            seen = await next_of(source, seen)
        await eventually(lambda: len(made) >= 4)
    assert set(made) == {0.25}


# A Go load-watcher


async def test_a_go_load_watcher_is_read_and_not_asked_again_for_what_it_lacks(peer: Peer, pauses: list[float]) -> None:
    await peer.serve(GO)
    async with WatcherClient(peer.address, windows=("5m",)) as client:
        assert cpu(await client.fetch_snapshot()) == [12.5]
        async with client.follow() as source:
            await next_of(source)
            await eventually(lambda: len(pauses) >= 5)
        assert source.snapshot.id == ""
    assert peer.requests.count("/api/v1/snapshot?windows=5m") == 1
    assert peer.requests.count("/watcher") >= 5


@pytest.mark.parametrize("answer", [web.Response(status=405), web.Response(body=b"<html>a page for every path</html>")])
async def test_what_is_no_answer_of_ours_is_as_good_as_none(peer: Peer, answer: web.Response) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return await GO(request) if request.path == "/watcher" else web.Response(status=answer.status, body=answer.body)

    await peer.serve(handler)
    async with WatcherClient(peer.address) as client:
        assert [cpu(await client.fetch_snapshot()) for _ in range(3)] == [[12.5]] * 3
    assert len(peer.requests) == 4


async def test_after_some_minutes_it_is_asked_again(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "COLUMNS_LACKING_SECONDS", 0.0)
    await peer.serve(GO)
    async with WatcherClient(peer.address) as client:
        await client.fetch_snapshot()
        await client.fetch_snapshot()
    assert peer.requests == ["/api/v1/snapshot", "/watcher"] * 2


async def test_after_an_outage_it_is_asked_again_since_it_may_have_been_replaced(peer: Peer) -> None:
    await peer.serve(GO)
    async with WatcherClient(peer.address) as client, client.follow(poll_seconds=0.01) as source:
        seen = await next_of(source)
        await peer.stop()
        await eventually(lambda: source.failures.get("unreachable"))
        async with Service(port=peer.port) as service:
            await service.refresh(make_batch({"n1": 42.0}, sampled_at=NOW + 30))
            while not source.snapshot.id or 42.0 not in cpu(source.snapshot):
                seen = await next_of(source, seen)


# Life


async def test_big_bodies_are_decoded_beside_the_event_loop(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    decode, threads = LoadSnapshot.decode_columns, []

    def note(body: bytes) -> LoadSnapshot:
        threads.append(threading.current_thread() is threading.main_thread())
        return decode(body)

    monkeypatch.setattr(LoadSnapshot, "decode_columns", note)
    for limit in (10**6, 10):
        monkeypatch.setattr(asking, "_THREAD_BYTES", limit)
        await peer.serve(always(columns_body()))
        async with WatcherClient(peer.address) as client:
            await client.fetch_snapshot()
    assert threads == [True, False]


async def test_what_has_not_changed_stays_the_same_object(peer: Peer, pauses: list[float]) -> None:
    await peer.serve(always(columns_body(), tag='"1"'))
    async with WatcherClient(peer.address) as client, client.follow() as source:
        first = await next_of(source)
        await eventually(lambda: len(pauses) >= 5)
        assert source.snapshot is first


async def test_a_feed_is_entered_once_and_inside_its_client(peer: Peer) -> None:
    client = WatcherClient(peer.address)
    with pytest.raises(RuntimeError, match="enter the client first"):
        await client.follow().__aenter__()
    async with client:
        source = client.follow()
        async with source:
            with pytest.raises(RuntimeError, match="entered already"):
                await source.__aenter__()


async def test_a_client_that_is_left_first_ends_its_feeds(peer: Peer) -> None:
    await peer.serve(always(columns_body(), tag='"1"'))
    client = WatcherClient(peer.address)
    await client.__aenter__()
    async with client.follow(wait_seconds=0.01, poll_seconds=0.01) as source:
        await next_of(source)
        waiting = asyncio.create_task(source.wait_newer(source.snapshot))
        await asyncio.sleep(0)
        await client.__aexit__(None, None, None)
        async with asyncio.timeout(DEADLINE_SECONDS):
            with pytest.raises(WatcherUnreachableError, match="the feed was left"):
                await waiting
    assert cpu(source.snapshot) == [12.5]


@pytest.mark.parametrize("settings", [{"poll_seconds": 0.0}, {"poll_seconds": float("nan")}, {"wait_seconds": 61.0}, {"wait_seconds": 0.0}])
def test_times_that_are_none_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(WatcherError, match="give numbers above 0"):
        WatcherClient("http://127.0.0.1:1").follow(**settings)


# Without an event loop


async def test_the_blocking_feed_is_read_from_any_thread(service: Service) -> None:
    await service.refresh(make_batch({"n1": 1.0}, sampled_at=NOW + 30))
    followed = threading.Event()

    def use() -> list[list[float]]:
        with BlockingWatcherClient(service.address) as client, client.follow(poll_seconds=NEVER_POLL) as source:
            known: SnapshotSource = source
            first = source.wait_newer(known.snapshot, timeout_seconds=DEADLINE_SECONDS)
            with pytest.raises(TimeoutError):
                source.wait_newer(first, timeout_seconds=0.01)
            followed.set()
            second = source.wait_newer(first, timeout_seconds=DEADLINE_SECONDS)
            assert (source.snapshot, source.failure, dict(source.failures)) == (second, None, {})
            assert source.age_seconds(NOW + 100) == 40
        return [cpu(first), cpu(second)]

    task = asyncio.create_task(asyncio.to_thread(use))
    await eventually(lambda: followed.is_set() or task.done())
    await service.refresh(make_batch({"n1": 2.0}, sampled_at=NOW + 60))
    assert await task == [[1.0], [2.0]]
    assert "trimaran-watcher-client" not in {thread.name for thread in threading.enumerate()}


async def test_a_blocking_client_that_is_left_first_ends_its_feed(service: Service) -> None:
    def use() -> LoadSnapshot:
        client = BlockingWatcherClient(service.address)
        client.__enter__()
        with client.follow() as source:
            source.wait_newer(source.snapshot, timeout_seconds=DEADLINE_SECONDS)
            client.__exit__(None, None, None)
            with pytest.raises(RuntimeError, match="enter the client first"):
                source.wait_newer(source.snapshot)
            return source.snapshot

    assert (await asyncio.to_thread(use)).source == "test"
    await eventually(lambda: not service.watcher.publisher._changed._waiters)
