"""The kept view of a kind of objects, against an API server that breaks its watches in every way that was reported."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.fakes.api_server import NODES, FakeApiServer, Reply, WatchStream, make_node, status_reply
from trimaran_client.kube import KubeClient, ListWatch, ListWatchListener, ObjectMeta, ObjectSelection, WatchTimes

pytestmark = pytest.mark.timeout(30)

DEADLINE_SECONDS = 10
TIMES = WatchTimes(request_timeout_seconds=5, silence_seconds=5, first_pause_seconds=0.01, max_pause_seconds=0.02)
IMPATIENT = WatchTimes(request_timeout_seconds=5, silence_seconds=0.1, first_pause_seconds=0.01, max_pause_seconds=0.02)


class Status(msgspec.Struct):
    capacity: dict[str, str] = {}


class Thing(msgspec.Struct):
    metadata: ObjectMeta
    status: Status = msgspec.field(default_factory=Status)


class Recorder:
    """Writes down what the view tells, and lets a test wait for it."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self._change = asyncio.Event()

    def on_update(self, key: str, value: Thing) -> None:
        self._tell(f"update {key} {value.status.capacity.get('cpu', '-')}")

    def on_delete(self, key: str, value: Thing) -> None:
        self._tell(f"delete {key} {value.status.capacity.get('cpu', '-')}")

    def on_relist(self) -> None:
        self._tell("relist")

    async def wait_for(self, *told: str) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not set(told) <= set(self.told):
                await self._change.wait()

    def _tell(self, line: str) -> None:
        self.told.append(line)
        self._change.set()
        self._change = asyncio.Event()


@pytest.fixture
async def api() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        server.put_nodes(make_node("n1"), make_node("n2", cpu="8"))
        yield server


@pytest.fixture
async def client(api: FakeApiServer, tmp_path: Path) -> AsyncIterator[KubeClient]:
    async with KubeClient(api.write_kubeconfig(tmp_path / "config")) as opened:
        yield opened


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def list_watch(client: KubeClient, listener: ListWatchListener[Thing] | None = None, times: WatchTimes = TIMES) -> ListWatch[Thing]:
    return ListWatch(client, ObjectSelection(NODES, Thing, key=lambda metadata: metadata.name), listener=listener, times=times)


async def wait_for(api: FakeApiServer, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        await api.wait_until(condition)


async def close(stream: WatchStream) -> None:
    pass


async def hang(stream: WatchStream) -> None:
    await stream.hang()


async def say_gone(stream: WatchStream) -> None:
    await stream.send_gone()


async def say_internal_error(stream: WatchStream) -> None:
    await stream.send("ERROR", {"kind": "Status", "message": "etcd has no leader", "code": 500})


async def say_garbage(stream: WatchStream) -> None:
    await stream.send_bytes(b"<html>\n")


async def cut_off(stream: WatchStream) -> None:
    """An event whose line never ends."""
    await stream.send_bytes(b'{"type": "ADDED", "object": {"metadata": {"name": "half')


# Following


async def test_view_follows_the_changes(api: FakeApiServer, client: KubeClient, recorder: Recorder) -> None:
    async with list_watch(client, recorder) as view:
        await recorder.wait_for("relist")
        assert view.synced.is_set()
        assert {key: value.status.capacity["cpu"] for key, value in view.objects.items()} == {"n1": "4", "n2": "8"}
        await wait_for(api, lambda: api.open_watches == 1)
        api.put(NODES, make_node("n3"))
        api.put(NODES, make_node("n1", cpu="16"))
        api.delete(NODES, "n2")
        await recorder.wait_for("update n3 4", "update n1 16", "delete n2 8")
        assert set(view.objects) == {"n1", "n3"}
        assert view.last_error is None
        assert view.silent_seconds < DEADLINE_SECONDS
    assert recorder.told == ["update n1 4", "update n2 8", "relist", "update n3 4", "update n1 16", "delete n2 8"]
    assert (api.count(NODES), api.count(NODES, watch=True)) == (1, 1)


async def test_watch_asks_for_bookmarks_an_end_and_the_selection(api: FakeApiServer, client: KubeClient) -> None:
    selection = ObjectSelection(NODES, Thing, key=lambda m: m.name, field_selector="spec.nodeName!=", label_selector="a=b")
    async with ListWatch(client, selection, times=WatchTimes(watch_seconds=300)):
        await wait_for(api, lambda: api.open_watches == 1)
    listing, watch = (dict(r.query) for r in api.requests)
    selectors = {"fieldSelector": "spec.nodeName!=", "labelSelector": "a=b"}
    assert listing == selectors | {"limit": "500"}
    assert 300 <= int(watch.pop("timeoutSeconds")) <= 600
    assert watch == selectors | {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": "102"}


async def test_report_91_deletion_with_metadata_only(api: FakeApiServer, client: KubeClient, recorder: Recorder) -> None:
    selection = ObjectSelection(NODES, Thing, key=lambda metadata: metadata.uid)
    async with ListWatch(client, selection, listener=recorder, times=TIMES) as view:
        await recorder.wait_for("relist")
        api.delete(NODES, "n2", metadata_only=True)
        await recorder.wait_for("delete uid-n2 8")
        assert list(view.objects) == ["uid-n1"]


async def test_only_what_is_to_be_kept_is_kept(api: FakeApiServer, client: KubeClient, recorder: Recorder) -> None:
    """A change is told in full, a deletion with what was kept; and a list knows by the version what has not changed."""
    selection = ObjectSelection(NODES, Thing, key=lambda metadata: metadata.name, keep=lambda thing: Thing(thing.metadata))
    api.watch_scripts += [close, say_gone]
    async with ListWatch(client, selection, listener=recorder, times=TIMES) as view:
        await wait_for(api, lambda: api.open_watches == 1 and api.count(NODES) == 2)
        api.delete(NODES, "n2")
        await recorder.wait_for("delete n2 -")
        assert [thing.status.capacity for thing in view.objects.values()] == [{}]
        assert (view.event_count, view.unreadable_count) == (3, 0)
    assert recorder.told == ["update n1 4", "update n2 8", "relist", "relist", "delete n2 -"]


async def test_object_of_the_same_name_and_version_that_is_another(api: FakeApiServer, client: KubeClient, recorder: Recorder) -> None:
    """As after etcd was restored from a backup: versions come again."""
    node = make_node("n1", cpu="64")
    node["metadata"] |= {"uid": "another", "resourceVersion": "101"}

    async def restore(stream: WatchStream) -> None:
        api.replies[NODES] = Reply(body={"metadata": {"resourceVersion": "101"}, "items": [node]})
        await stream.send_gone()

    api.watch_scripts.append(restore)
    async with list_watch(client, recorder):
        await recorder.wait_for("update n1 64", "delete n2 8")


async def test_deletion_of_an_unknown_object_is_nothing(api: FakeApiServer, client: KubeClient, recorder: Recorder) -> None:
    async def delete_unknown(stream: WatchStream) -> None:
        await stream.send("DELETED", {"metadata": {"name": "never-seen", "resourceVersion": "200"}})
        await stream.send("ADDED", make_node("n3"))
        await stream.hang()

    api.watch_scripts.append(delete_unknown)
    async with list_watch(client, recorder) as view:
        await recorder.wait_for("update n3 4")
        assert view.last_error is None
        assert not [line for line in recorder.told if "never-seen" in line]


async def test_empty_cluster_is_synced(client: KubeClient, api: FakeApiServer) -> None:
    api.delete(NODES, "n1")
    api.delete(NODES, "n2")
    async with list_watch(client) as view, asyncio.timeout(DEADLINE_SECONDS):
        await view.synced.wait()
        assert view.objects == {}


# Report 60: watches end, stall or answer 410


async def test_report_60_watch_that_ends_goes_on_where_it_stood(api: FakeApiServer, client: KubeClient, recorder: Recorder) -> None:
    """Changes between two watches are not lost, and there is no second list."""

    async def bookmark_and_close(stream: WatchStream) -> None:
        await stream.bookmark("102")

    async def change_and_close(stream: WatchStream) -> None:
        await stream.bookmark("102")
        api.put(NODES, make_node("n3"))

    api.watch_scripts += [bookmark_and_close, bookmark_and_close, change_and_close]
    async with list_watch(client, recorder) as view:
        await recorder.wait_for("update n3 4")
        assert view.last_error is None
    assert api.count(NODES) == 1
    assert [r.query["resourceVersion"] for r in api.requests if r.is_watch] == ["102"] * 4


async def test_report_60_bookmark_moves_the_point_to_go_on_from(api: FakeApiServer, client: KubeClient) -> None:
    async def bookmark(stream: WatchStream) -> None:
        await stream.bookmark("777")

    api.watch_scripts.append(bookmark)
    async with list_watch(client):
        await wait_for(api, lambda: api.count(NODES, watch=True) == 2)
    assert [r.query["resourceVersion"] for r in api.requests if r.is_watch] == ["102", "777"]


async def test_report_60_watch_that_hangs_is_replaced(api: FakeApiServer, client: KubeClient, recorder: Recorder) -> None:
    api.watch_scripts.append(hang)
    async with list_watch(client, recorder, IMPATIENT):
        await wait_for(api, lambda: api.open_watches == 1)
        api.put(NODES, make_node("n3"))
        await recorder.wait_for("update n3 4")
        # Nor does the server's side of the old one stay open.
        await wait_for(api, lambda: api.open_watches <= 1)


async def test_report_60_bookmarks_hold_off_the_silence_limit(api: FakeApiServer, client: KubeClient, recorder: Recorder) -> None:
    beats, times = 6, replace(IMPATIENT, silence_seconds=0.4)

    async def beat(stream: WatchStream) -> None:
        for version in range(beats):
            await asyncio.sleep(times.silence_seconds / 4)
            await stream.bookmark(str(200 + version))
        await stream.send("ADDED", make_node("n3"))
        await stream.hang()

    api.watch_scripts.append(beat)
    async with list_watch(client, recorder, times):
        await recorder.wait_for("update n3 4")
        assert api.count(NODES, watch=True) == 1


@pytest.mark.parametrize("gone", [say_gone, status_reply(410, "Expired")], ids=["event", "status"])
async def test_report_60_gone_lists_again(
    api: FakeApiServer, client: KubeClient, recorder: Recorder, caplog: pytest.LogCaptureFixture, gone: Reply
) -> None:
    """What vanished meanwhile is removed, what stayed is not told again; and it is nothing to log."""
    caplog.set_level(logging.INFO)

    async def vanish(stream: WatchStream) -> None:
        await stream.bookmark("102")
        api.delete(NODES, "n2")
        api.put(NODES, make_node("n3"))
        api.forget_history(NODES)

    api.watch_scripts += [vanish, gone]
    async with list_watch(client, recorder) as view:
        await recorder.wait_for("update n3 4", "delete n2 8")
        await wait_for(api, lambda: api.open_watches == 1)
        assert set(view.objects) == {"n1", "n3"}
        assert view.last_error is None
    assert recorder.told == ["update n1 4", "update n2 8", "relist", "update n3 4", "delete n2 8", "relist"]
    assert (api.count(NODES), api.count(NODES, watch=True)) == (2, 3)
    assert not caplog.records


async def test_report_60_history_that_the_server_forgot(api: FakeApiServer, client: KubeClient, recorder: Recorder) -> None:
    """As above, with the fake's own rule in place of a script."""
    api.watch_scripts.append(close)
    async with list_watch(client, recorder):
        await recorder.wait_for("relist")
        api.put(NODES, make_node("n3"))
        api.forget_history(NODES)
        await recorder.wait_for("update n3 4")


async def test_report_60_line_of_ten_megabytes(api: FakeApiServer, client: KubeClient, recorder: Recorder) -> None:
    async def send_huge(stream: WatchStream) -> None:
        await stream.send("ADDED", make_node("n3") | {"spec": {"filler": "x" * 10_000_000}})
        await stream.send("ADDED", make_node("n4"))
        await stream.hang()

    api.watch_scripts.append(send_huge)
    async with list_watch(client, recorder):
        await recorder.wait_for("update n3 4", "update n4 4")
        assert api.count(NODES, watch=True) == 1


async def test_report_60_lines_split_anywhere(api: FakeApiServer, client: KubeClient, recorder: Recorder) -> None:
    lines = "".join(
        msgspec.json.encode({"type": "ADDED", "object": {"metadata": {"name": f"ñ{i}"}}}).decode() + "\n" * (i % 3 + 1) for i in range(20)
    ).encode()

    async def send_pieces(stream: WatchStream) -> None:
        for start in range(0, len(lines), 7):
            await stream.send_bytes(lines[start : start + 7])
        await stream.hang()

    api.watch_scripts.append(send_pieces)
    async with list_watch(client, recorder):
        await recorder.wait_for(*(f"update ñ{i} -" for i in range(20)))


@pytest.mark.parametrize(
    ("script", "times", "message"),
    [
        (say_internal_error, TIMES, "the watch ended with 500: etcd has no leader"),
        (say_garbage, TIMES, "not what the API documents"),
        (hang, IMPATIENT, "nothing from the API server for 0.1 s"),
        (status_reply(500, "overloaded"), TIMES, "overloaded"),
        (status_reply(403, 'cannot watch resource "nodes"'), TIMES, 'cannot watch resource "nodes"'),
    ],
)
async def test_report_60_failing_watch_is_told_once_and_survived(
    api: FakeApiServer,
    client: KubeClient,
    recorder: Recorder,
    caplog: pytest.LogCaptureFixture,
    script: Reply,
    times: WatchTimes,
    message: str,
) -> None:
    caplog.set_level(logging.INFO)
    api.watch_scripts.append(script)
    async with list_watch(client, recorder, times) as view:
        await wait_for(api, lambda: api.count(NODES, watch=True) == 2)
        assert set(view.objects) == {"n1", "n2"}
        api.put(NODES, make_node("n3"))
        await recorder.wait_for("update n3 4")
        assert view.last_error is None
    assert [record.levelname for record in caplog.records][:2] == ["WARNING", "INFO"]
    assert message in caplog.records[0].message


async def test_cut_off_event_is_not_lost(api: FakeApiServer, client: KubeClient, recorder: Recorder) -> None:
    api.watch_scripts.append(cut_off)
    async with list_watch(client, recorder):
        await wait_for(api, lambda: api.count(NODES, watch=True) == 2)
        api.put(NODES, make_node("n3"))
        await recorder.wait_for("update n3 4")
    assert not [line for line in recorder.told if "half" in line]


async def test_watch_that_is_never_allowed_leaves_a_view_by_lists(
    api: FakeApiServer, client: KubeClient, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    """A role with list but without watch: late, but right, and logged once."""
    api.watch_scripts += [status_reply(403, "watch is forbidden")] * 1000
    async with list_watch(client, recorder) as view:
        await recorder.wait_for("relist")
        api.delete(NODES, "n1")
        await recorder.wait_for("delete n1 4")
        await wait_for(api, lambda: api.count(NODES, watch=True) >= 6)
        assert view.synced.is_set()
    assert len(caplog.records) == 1


async def test_outage_keeps_the_objects(
    api: FakeApiServer, client: KubeClient, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    """Everything answers 500 for a while, and one node goes meanwhile."""
    caplog.set_level(logging.INFO)
    go_down = asyncio.Event()

    async def close_at_outage(stream: WatchStream) -> None:
        await go_down.wait()

    api.watch_scripts.append(close_at_outage)
    async with list_watch(client, recorder) as view:
        await wait_for(api, lambda: api.open_watches == 1)
        api.replies[NODES] = status_reply(500)
        api.delete(NODES, "n2")
        go_down.set()
        await wait_for(api, lambda: len(api.requests) > 8)
        assert set(view.objects) == {"n1", "n2"}
        assert "500 from" in str(view.last_error)
        del api.replies[NODES]
        await recorder.wait_for("delete n2 8")
        api.put(NODES, make_node("n3"))
        await recorder.wait_for("update n3 4")
        assert view.last_error is None
    assert [r.levelname for r in caplog.records] == ["WARNING", "INFO"]


async def test_first_list_that_fails_is_an_attempt(api: FakeApiServer, client: KubeClient, recorder: Recorder) -> None:
    api.replies[NODES] = status_reply(403, "nodes is forbidden")
    async with list_watch(client, recorder) as view:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await view.attempted.wait()
        assert not view.synced.is_set()
        assert "nodes is forbidden" in str(view.last_error)
        assert view.silent_seconds == float("inf")
        del api.replies[NODES]
        await recorder.wait_for("relist")
        assert view.synced.is_set()


# Ending


@pytest.mark.parametrize("state", ["watching", "listing", "pausing"])
async def test_stop_is_quick(api: FakeApiServer, client: KubeClient, state: str) -> None:
    times = WatchTimes(first_pause_seconds=1000, max_pause_seconds=1000)
    if state != "watching":
        api.replies[NODES] = Reply(None) if state == "listing" else status_reply(500)
    view = list_watch(client, times=times)
    async with view:
        await wait_for(api, lambda: api.open_watches == 1 if state == "watching" else len(api.requests) == 1)
        if state == "pausing":
            await view.attempted.wait()
        async with asyncio.timeout(1):
            await view.__aexit__(None, None, None)
    await wait_for(api, lambda: api.open_watches == 0)


async def test_listener_that_raises_is_a_defect_that_is_logged(
    api: FakeApiServer, client: KubeClient, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    """And the watch goes on: it lists anew."""

    class Broken(Recorder):
        def on_relist(self) -> None:
            super().on_relist()
            if self.told.count("relist") == 1:
                raise ZeroDivisionError

    broken = Broken()
    async with list_watch(client, broken):
        await wait_for(api, lambda: api.open_watches == 1)
    assert broken.told.count("relist") == 2
    assert "a defect of this program" in caplog.text
    assert "ZeroDivisionError" in caplog.text


async def test_two_views_share_a_client(api: FakeApiServer, client: KubeClient) -> None:
    first, second = Recorder(), Recorder()
    async with list_watch(client, first):
        async with list_watch(client, second):
            await wait_for(api, lambda: api.open_watches == 2)
        api.put(NODES, make_node("n3"))
        await first.wait_for("update n3 4")
    assert "update n3 4" not in second.told
