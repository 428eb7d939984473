"""An API server, or a proxy before it, that says too much, too long, or something else."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fakes.api_server import NODES, FakeApiServer, Reply, make_node, status_reply
from trimaran_client.errors import KubernetesError, KubernetesReplyError, KubernetesStatusError
from trimaran_client.kube import KubeClient, ObjectMeta, client


class Node(msgspec.Struct, frozen=True):
    metadata: ObjectMeta


@pytest.fixture
async def api() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer(token="SECRETTOKEN123") as server:
        server.put_nodes(make_node("n1"), make_node("n2"))
        yield server


async def list_nodes(api: FakeApiServer, tmp_path: Path) -> Any:
    async with KubeClient(api.write_kubeconfig(tmp_path / "config")) as kube:
        return [page async for page in kube.list_pages(NODES, Node, timeout_seconds=5)]


@pytest.mark.parametrize("body", [{}, {"foo": 1}, {"kind": "Status", "status": "Failure", "code": 500}])
async def test_an_answer_without_items_is_no_empty_list(api: FakeApiServer, tmp_path: Path, body: object) -> None:
    """Taking it for one would make every node of the cluster vanish."""
    api.replies[NODES] = Reply(body=body)
    with pytest.raises(KubernetesReplyError, match="not what the API documents"):
        await list_nodes(api, tmp_path)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(502, "upstream got: authorization: Bearer SECRETTOKEN123"),
        status_reply(500, "invalid bearer token: SECRETTOKEN123"),
        Reply(200, "authorization: Bearer SECRETTOKEN123"),
        Reply(502, "proxy for http://admin:hunter2@host/x"),
    ],
)
async def test_secrets_that_come_back_are_not_told(api: FakeApiServer, tmp_path: Path, reply: Reply) -> None:
    api.replies[NODES] = reply
    with pytest.raises(KubernetesError) as caught:
        await list_nodes(api, tmp_path)
    assert "SECRETTOKEN123" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


async def test_an_answer_beyond_all_bounds_is_not_read_into_memory(
    api: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "MAX_REPLY_BYTES", 1000)
    api.replies[NODES] = Reply(body=" " * 5000)
    with pytest.raises(KubernetesReplyError, match="more than 1000 bytes"):
        await list_nodes(api, tmp_path)


async def test_of_a_long_error_only_the_start_is_read(api: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_ERROR_BYTES", 50)
    api.replies[NODES] = Reply(500, "x" * 5000)
    with pytest.raises(KubernetesStatusError) as caught:
        await list_nodes(api, tmp_path)
    assert caught.value.reason == "x" * 50


async def test_a_list_that_never_ends_is_given_up(api: FakeApiServer, tmp_path: Path) -> None:
    api.replies[NODES] = Reply(body={"metadata": {"continue": "more"}, "items": []})
    with pytest.raises(KubernetesReplyError, match="a list without end"):
        await list_nodes(api, tmp_path)
