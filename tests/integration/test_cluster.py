"""The pods and nodes of a cluster, against an API server that does what was reported."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.builders import NOW
from tests.fakes.api_server import NODES, PODS, FakeApiServer, Manifest, Reply, WatchStream, make_node, make_pod, status_reply
from trimaran_client.assigned import DEFAULT_BOUND_SECONDS, AssignedPods
from trimaran_client.capacities import NodeCapacities
from trimaran_client.cluster import ClusterFeed, fetch_cluster, fetch_pod
from trimaran_client.errors import KubernetesStatusError, ManifestError
from trimaran_client.kube import KubeClient, WatchTimes
from trimaran_client.resources import CPU, Node, Pod

pytestmark = pytest.mark.timeout(30)

DEADLINE_SECONDS = 10
TIMES = WatchTimes(request_timeout_seconds=5, silence_seconds=5, first_pause_seconds=0.01, max_pause_seconds=0.02)
JUST_NOW = "2023-11-14T22:13:10Z"  # NOW is ten seconds later
JUST_NOW_AT = NOW - 10


class Change:
    """Lets a test wait for what a feed tells."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def tell(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not condition():
                await self._event.wait()


class WatchedNodes(NodeCapacities):
    """Nodes that can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.change = Change()

    def update(self, node: Node) -> None:
        super().update(node)
        self.change.tell()


class WatchedPods(AssignedPods):
    """Pods that can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._change = Change()

    def update(self, pod: Pod, *, now: float) -> None:
        super().update(pod, now=now)
        self._change.tell()

    def remove(self, key: str) -> None:
        super().remove(key)
        self._change.tell()

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        await self._change.wait_for(condition)

    def states(self) -> dict[str, tuple[str, str]]:
        """Answer UID → node and state of the pods in flight."""
        return {each.pod.uid: (each.node, each.state) for each in self.view(NOW).in_flight}


@pytest.fixture
async def api() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        server.put_nodes(make_node("n1"), make_node("n2", cpu="8"))
        server.put_pods(make_pod("old", node="n1", scheduled_at="2023-11-14T00:00:00Z"), make_pod("new", node="n1", scheduled_at=JUST_NOW))
        yield server


@pytest.fixture
async def client(api: FakeApiServer, tmp_path: Path) -> AsyncIterator[KubeClient]:
    async with KubeClient(api.write_kubeconfig(tmp_path / "config")) as opened:
        yield opened


@pytest.fixture
def pods() -> WatchedPods:
    return WatchedPods()


@pytest.fixture
def nodes() -> WatchedNodes:
    return WatchedNodes()


@pytest.fixture
def bound() -> list[str]:
    """The names of the pods that were told to have become bound."""
    return []


@pytest.fixture
async def feed(
    api: FakeApiServer, client: KubeClient, pods: WatchedPods, nodes: WatchedNodes, bound: list[str]
) -> AsyncIterator[ClusterFeed]:
    """A feed that follows the changes."""
    feed = ClusterFeed(client, pods=pods, nodes=nodes, clock=lambda: NOW, on_bound=lambda pod: bound.append(pod.name), times=TIMES)
    async with feed as opened:
        await wait_for(api, lambda: api.open_watches == 2)
        yield opened


async def wait_for(api: FakeApiServer, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        await api.wait_until(condition)


def capacity(nodes: NodeCapacities, name: str) -> float:
    view = nodes.view()
    columns = view.columns(CPU)
    assert columns is not None
    return float(columns[0][view.table.rows[name]])


# Following


async def test_the_first_lists_tell_all(feed: ClusterFeed, pods: WatchedPods, bound: list[str]) -> None:
    """What is old is not in flight, and what was bound before is no news."""
    assert feed.synced.is_set()
    assert pods.is_complete
    assert pods.states() == {"uid-new": ("n1", "bound")}
    assert pods.view(NOW).assigned_at.tolist() == [JUST_NOW_AT]
    assert len(pods) == 2
    assert (capacity(feed.nodes, "n1"), capacity(feed.nodes, "n2")) == (4000, 8000)
    assert (feed.last_error, feed.bad_object_count, feed.event_count) == (None, 0, 4)
    assert feed.silent_seconds < DEADLINE_SECONDS
    assert bound == []


async def test_it_makes_what_it_is_not_given(api: FakeApiServer, client: KubeClient) -> None:
    async with ClusterFeed(client, times=TIMES) as feed, asyncio.timeout(DEADLINE_SECONDS):
        await feed.synced.wait()
        assert (len(feed.pods), len(feed.nodes)) == (2, 2)
        assert feed.pods.in_flight_count == 0  # by the real clock


async def test_a_pod_from_pending_over_nominated_to_bound(
    api: FakeApiServer, feed: ClusterFeed, pods: WatchedPods, bound: list[str]
) -> None:
    api.put_pods(make_pod("p"))
    api.put_pods(make_pod("p", nominated="n2"))
    await pods.wait_for(lambda: pods.states().get("uid-p") == ("n2", "nominated"))
    assert bound == []
    api.put_pods(make_pod("p", node="n1", nominated="n2", scheduled_at=JUST_NOW))
    await pods.wait_for(lambda: pods.states().get("uid-p") == ("n1", "bound"))
    api.put_pods(make_pod("p", node="n1", nominated="n2", scheduled_at=JUST_NOW, phase="Running"))
    api.put_pods(make_pod("last"))
    await pods.wait_for(lambda: feed.event_count == 9)
    assert bound == ["p"]
    assert len(pods) == 3


async def test_an_assumed_pod_that_is_bound_elsewhere(api: FakeApiServer, feed: ClusterFeed, pods: WatchedPods, bound: list[str]) -> None:
    pods.assume(Pod(name="p", uid="uid-p"), "n2", now=NOW)
    api.put_pods(make_pod("p"))
    api.put_pods(make_pod("p", node="n1", scheduled_at=JUST_NOW))
    await pods.wait_for(lambda: pods.states().get("uid-p") == ("n1", "bound"))
    assert bound == ["p"]
    assert len(pods) == 3


async def test_a_pod_assumed_before_the_first_list_is_told_when_that_shows_it_bound(api: FakeApiServer, client: KubeClient) -> None:
    """As after the start of an extender, which decides before the list has come."""
    told: list[str] = []
    pods = AssignedPods()
    pods.assume(Pod(name="new", uid="uid-new"), "n2", now=NOW)
    async with ClusterFeed(client, pods=pods, clock=lambda: NOW, on_bound=lambda pod: told.append(pod.name), times=TIMES) as feed:
        assert not pods.is_complete
        async with asyncio.timeout(DEADLINE_SECONDS):
            await feed.synced.wait()
    assert told == ["new"]
    assert pods.state_of("uid-new") == "bound"


@pytest.mark.parametrize("metadata_only", [False, True])
async def test_report_91_deletion_with_metadata_only(
    api: FakeApiServer, feed: ClusterFeed, pods: WatchedPods, *, metadata_only: bool
) -> None:
    api.delete(PODS, "default/new", metadata_only=metadata_only)
    await pods.wait_for(lambda: pods.states() == {})
    assert len(pods) == 1


async def test_a_pod_made_again_under_its_name_is_another(api: FakeApiServer, feed: ClusterFeed, pods: WatchedPods) -> None:
    api.delete(PODS, "default/new")
    api.put_pods(make_pod("new", uid="second", node="n2", scheduled_at=JUST_NOW))
    await pods.wait_for(lambda: pods.states() == {"second": ("n2", "bound")})
    assert len(pods) == 2


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_a_pod_that_ends_leaves_at_once(api: FakeApiServer, feed: ClusterFeed, pods: WatchedPods, phase: str) -> None:
    """The API server tells of it as of a deletion, since it leaves the selection."""
    api.put_pods(make_pod("new", node="n1", scheduled_at=JUST_NOW, phase=phase))
    await pods.wait_for(lambda: pods.states() == {})
    api.put_pods(make_pod("other", node="n1", scheduled_at=JUST_NOW, phase=phase))
    api.put_pods(make_pod("last", node="n1", scheduled_at=JUST_NOW))
    await pods.wait_for(lambda: "uid-last" in pods.states())
    assert len(pods) == 2


async def test_a_pod_that_has_ended_leaves_even_if_the_selection_is_not_heeded(
    api: FakeApiServer, client: KubeClient, pods: WatchedPods
) -> None:
    async def tell_end(stream: WatchStream) -> None:
        await stream.send("MODIFIED", make_pod("new", node="n1", scheduled_at=JUST_NOW, phase="Failed"))
        await stream.hang()

    api.watch_scripts_of[PODS].append(tell_end)
    async with ClusterFeed(client, pods=pods, clock=lambda: NOW, times=TIMES):
        await pods.wait_for(lambda: pods.states() == {} and len(pods) == 1)


async def test_nodes_come_change_and_go(api: FakeApiServer, feed: ClusterFeed, nodes: WatchedNodes) -> None:
    api.put_nodes(make_node("n3"), make_node("n1", cpu="16"))
    api.delete(NODES, "n2")
    api.put_nodes(make_node("n4"))
    await nodes.change.wait_for(lambda: "n4" in nodes)
    assert len(nodes) == 3
    assert capacity(nodes, "n1") == 16000


async def test_pods_whose_time_in_flight_is_over_leave_though_nobody_asks(
    api: FakeApiServer, client: KubeClient, pods: WatchedPods
) -> None:
    now = NOW
    async with ClusterFeed(client, pods=pods, clock=lambda: now, times=TIMES) as feed:
        await pods.wait_for(lambda: pods.in_flight_count == 1)
        now += DEFAULT_BOUND_SECONDS + 100
        await wait_for(api, lambda: api.open_watches == 2)
        api.put_pods(make_pod("any"))
        await pods.wait_for(lambda: feed.event_count == 5)
        assert pods.in_flight_count == 0


async def test_report_38_pods_and_nodes_that_have_been_leave_nothing_behind(
    api: FakeApiServer, feed: ClusterFeed, pods: WatchedPods, nodes: WatchedNodes
) -> None:
    """Bad ones included."""
    for number in range(300):
        api.put_nodes(make_node(f"gone-{number}"))
        api.put_pods(make_pod(f"gone-{number}", node=f"gone-{number}", scheduled_at=JUST_NOW, cpu="many" if number % 10 == 0 else "1"))
        api.delete(PODS, f"default/gone-{number}", metadata_only=number % 2 == 0)
        api.delete(NODES, f"gone-{number}")
    api.put_nodes(make_node("last"))
    api.put_pods(make_pod("last", node="last", scheduled_at=JUST_NOW))
    await nodes.change.wait_for(lambda: "last" in nodes)
    await pods.wait_for(lambda: "uid-last" in pods.states())
    assert feed.bad_object_count == 30
    assert (len(pods), len(nodes)) == (3, 3)
    for watch in feed._watches:
        assert (len(watch.objects), len(watch._versions), len(watch._unreadable)) == (3, 3, 0)


# Breaks


async def test_what_vanished_while_nothing_was_heard_is_removed(
    api: FakeApiServer, client: KubeClient, pods: WatchedPods, bound: list[str]
) -> None:
    """Report 60 for pods: 410, a new list; what became bound meanwhile is told."""

    async def end_at_change(stream: WatchStream) -> None:
        await stream.bookmark("104")
        api.delete(PODS, "default/new")
        api.put_pods(make_pod("late", node="n2", scheduled_at=JUST_NOW))
        api.forget_history(PODS)

    api.watch_scripts_of[PODS].append(end_at_change)
    async with ClusterFeed(client, pods=pods, clock=lambda: NOW, on_bound=lambda pod: bound.append(pod.name), times=TIMES) as feed:
        await pods.wait_for(lambda: pods.states() == {"uid-late": ("n2", "bound")})
        assert bound == ["late"]
        assert pods.is_complete
        assert feed.last_error is None
    assert api.count(PODS) == 2


async def test_outage_keeps_everything_and_is_told(api: FakeApiServer, client: KubeClient, pods: WatchedPods) -> None:
    outage = asyncio.Event()

    async def end_at_outage(stream: WatchStream) -> None:
        await outage.wait()

    api.watch_scripts_of[PODS].append(end_at_outage)
    async with ClusterFeed(client, pods=pods, clock=lambda: NOW, times=TIMES) as feed:
        await wait_for(api, lambda: api.open_watches == 2)
        api.replies[PODS] = status_reply(500, "no leader")
        outage.set()
        await wait_for(api, lambda: api.count(PODS) >= 3)  # and so the second of them has failed
        assert pods.states() == {"uid-new": ("n1", "bound")}
        assert feed.synced.is_set()
        assert "no leader" in str(feed.last_error)
        del api.replies[PODS]
        await wait_for(api, lambda: api.open_watches == 2)
        api.put_pods(make_pod("next", node="n1", scheduled_at=JUST_NOW))
        await pods.wait_for(lambda: "uid-next" in pods.states())
        assert feed.last_error is None


async def test_before_the_first_lists_nothing_is_known(api: FakeApiServer, client: KubeClient) -> None:
    api.replies[PODS] = status_reply(403, "pods is forbidden")
    async with ClusterFeed(client, times=TIMES) as feed:
        await wait_for(api, lambda: api.count(NODES, watch=True) == 1 and api.count(PODS) >= 2)
        assert not feed.synced.is_set()
        assert not feed.pods.is_complete
        assert "pods is forbidden" in str(feed.last_error)
        assert feed.silent_seconds == math.inf


async def test_leaving_ends_both_watches_and_entering_again_goes_on(api: FakeApiServer, client: KubeClient, pods: WatchedPods) -> None:
    feed = ClusterFeed(client, pods=pods, clock=lambda: NOW, times=TIMES)
    for _ in range(2):
        async with feed:
            await wait_for(api, lambda: api.open_watches == 2)
            assert pods.is_complete
        await wait_for(api, lambda: api.open_watches == 0)
        api.delete(PODS, "default/new")
        api.put_pods(make_pod("new", node="n1", scheduled_at=JUST_NOW))


# Bad objects


BAD_QUANTITY = make_pod("bad", node="n1", scheduled_at=JUST_NOW, cpu="1.5.2")
BAD_FORM: Manifest = make_pod("bad") | {"spec": "none"}


@pytest.mark.parametrize(
    ("bad", "cause"), [(BAD_QUANTITY, "'1.5.2' is not a quantity"), (BAD_FORM, "not what the API documents")], ids=["quantity", "form"]
)
async def test_a_bad_pod_of_the_watch_is_counted_logged_once_and_passed_over(
    api: FakeApiServer, feed: ClusterFeed, pods: WatchedPods, caplog: pytest.LogCaptureFixture, bad: Manifest, cause: str
) -> None:
    api.put_pods(bad, bad, make_pod("next", node="n1", scheduled_at=JUST_NOW))
    await pods.wait_for(lambda: "uid-next" in pods.states())
    assert feed.bad_object_count == 2
    assert (feed.last_error, api.count(PODS)) == (None, 1)
    [record] = caplog.records
    assert (record.levelname, "object default/bad cannot be read" in record.message, cause in record.message) == ("WARNING", True, True)


@pytest.mark.parametrize("bad", [BAD_QUANTITY, BAD_FORM], ids=["quantity", "form"])
async def test_a_bad_pod_of_the_list_is_passed_over_and_not_read_again(
    api: FakeApiServer, client: KubeClient, pods: WatchedPods, caplog: pytest.LogCaptureFixture, bad: Manifest
) -> None:
    async def end_at_change(stream: WatchStream) -> None:
        await stream.bookmark("105")
        api.put_pods(make_pod("late", node="n2", scheduled_at=JUST_NOW))
        api.forget_history(PODS)

    api.put_pods(bad)
    api.watch_scripts_of[PODS].append(end_at_change)
    async with ClusterFeed(client, pods=pods, clock=lambda: NOW, times=TIMES) as feed:
        await pods.wait_for(lambda: "uid-late" in pods.states())
        assert feed.synced.is_set()
        assert feed.bad_object_count == len(caplog.records) == 1


async def test_a_pod_that_turns_bad_stays_as_it_was_until_it_goes(api: FakeApiServer, feed: ClusterFeed, pods: WatchedPods) -> None:
    for bad in (BAD_QUANTITY, BAD_FORM):
        api.put_pods(bad | {"metadata": make_pod("new")["metadata"]})
    api.put_pods(make_pod("next", node="n1", scheduled_at=JUST_NOW))
    await pods.wait_for(lambda: "uid-next" in pods.states())
    assert feed.bad_object_count == 2
    assert pods.states()["uid-new"] == ("n1", "bound")
    api.delete(PODS, "default/new")
    await pods.wait_for(lambda: "uid-new" not in pods.states())


async def test_a_bad_pod_that_is_mended_counts_and_is_told_again_when_it_breaks(
    api: FakeApiServer, feed: ClusterFeed, pods: WatchedPods, caplog: pytest.LogCaptureFixture
) -> None:
    good = make_pod("bad", node="n1", scheduled_at=JUST_NOW)
    api.put_pods(BAD_QUANTITY, good, BAD_QUANTITY, make_pod("next", node="n1", scheduled_at=JUST_NOW))
    await pods.wait_for(lambda: "uid-next" in pods.states())
    assert "uid-bad" in pods.states()
    assert len(caplog.records) == 2


async def test_an_object_without_readable_metadata_is_passed_over(
    api: FakeApiServer, client: KubeClient, pods: WatchedPods, caplog: pytest.LogCaptureFixture
) -> None:
    async def babble(stream: WatchStream) -> None:
        for nonsense in (b'{"metadata": {"name": 5}}', b'{"metadata": null}', b"{}", b"[]"):
            await stream.send_bytes(b'{"type": "ADDED", "object": %b}\n' % nonsense)
        await stream.send("ADDED", make_pod("next", node="n1", scheduled_at=JUST_NOW))
        await stream.hang()

    api.watch_scripts_of[PODS].append(babble)
    async with ClusterFeed(client, pods=pods, clock=lambda: NOW, times=TIMES) as feed:
        await pods.wait_for(lambda: "uid-next" in pods.states())
        assert (feed.bad_object_count, feed.last_error) == (3, None)
    [record] = caplog.records
    assert "object without a name cannot be read" in record.message


async def test_a_bad_node_is_passed_over(
    api: FakeApiServer, feed: ClusterFeed, nodes: WatchedNodes, caplog: pytest.LogCaptureFixture
) -> None:
    api.put_nodes(make_node("n3", cpu="many"), make_node("n4"))
    await nodes.change.wait_for(lambda: "n4" in nodes)
    assert "n3" not in nodes
    assert feed.bad_object_count == len(caplog.records) == 1


# Fetched once


async def test_fetch_pod(api: FakeApiServer, client: KubeClient) -> None:
    api.replies["/api/v1/namespaces/shop/pods/web-0"] = Reply(body=make_pod("web-0", namespace="shop", nominated="n1"))
    pod = await fetch_pod(client, "shop", "web-0")
    assert (pod.namespace, pod.name, pod.nominated_node_name) == ("shop", "web-0", "n1")


async def test_fetch_pod_that_is_not_there(api: FakeApiServer, client: KubeClient) -> None:
    with pytest.raises(KubernetesStatusError) as caught:
        await fetch_pod(client, "shop", "../nodes?x")
    assert caught.value.status == 404
    assert api.requests[-1].path == "/api/v1/namespaces/shop/pods/../nodes?x"


async def test_fetch_pod_that_is_bad(api: FakeApiServer, client: KubeClient) -> None:
    api.replies["/api/v1/namespaces/default/pods/bad"] = Reply(body=BAD_QUANTITY)
    with pytest.raises(ManifestError, match=r"spec\.containers\[0\]\.resources\.requests\.cpu"):
        await fetch_pod(client, "default", "bad")


async def test_fetch_cluster(api: FakeApiServer, client: KubeClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    api.put_pods(make_pod("done", node="n1", phase="Succeeded"), BAD_QUANTITY)
    nodes, pods = await fetch_cluster(client)
    assert [(type(node), node.name) for node in nodes] == [(Node, "n1"), (Node, "n2")]
    assert [(type(pod), pod.name, pod.node_name) for pod in pods] == [(Pod, "old", "n1"), (Pod, "new", "n1")]
    [record] = caplog.records
    assert "'1.5.2' is not a quantity" in record.message
