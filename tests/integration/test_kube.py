"""The Kubernetes access against a scripted API server: credentials, requests, lists in pages."""

import asyncio
import contextlib
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import psutil
import pytest
import yaml

from tests.fakes.api_server import NODES, FakeApiServer, Reply, make_node, status_reply
from trimaran_client.errors import KubernetesConfigError, KubernetesReplyError, KubernetesStatusError, KubernetesUnreachableError
from trimaran_client.kube import KubeClient, ObjectMeta, access

pytestmark = [pytest.mark.timeout(30), pytest.mark.usefixtures("no_access")]


class Thing(msgspec.Struct):
    metadata: ObjectMeta
    status: dict[str, object] = {}


class Version(msgspec.Struct):
    major: str


@pytest.fixture
async def api() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        server.replies["/version"] = Reply(body={"major": "1", "minor": "36"})
        yield server


@pytest.fixture
async def client(api: FakeApiServer, tmp_path: Path) -> AsyncIterator[KubeClient]:
    async with KubeClient(api.write_kubeconfig(tmp_path / "config")) as opened:
        yield opened


async def get_version(client: KubeClient) -> str:
    return (await client.get("/version", Version, timeout_seconds=5)).major


def enter_cluster(api: FakeApiServer, folder: Path, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    """Lay out what a pod finds."""
    assert api.authority is not None
    folder.mkdir()
    (folder / "token").write_text(token)
    api.authority.cert_pem.write_to_path(str(folder / "ca.crt"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", api.address.rsplit(":", 1)[1])


# Finding access


async def test_report_52_no_access_lists_each_place_and_why(tmp_path: Path) -> None:
    with pytest.raises(KubernetesConfigError) as caught:
        await KubeClient().__aenter__()
    assert str(caught.value) == (
        "no usable access to a Kubernetes cluster (in-cluster files: KUBERNETES_SERVICE_HOST is not set;"
        " ~/.kube/config: No such file or directory);"
        " give a kubeconfig, set KUBECONFIG, or run in a pod that has a service account token"
    )


async def test_report_52_kubeconfig_that_is_a_directory(tmp_path: Path) -> None:
    with pytest.raises(KubernetesConfigError, match=rf"kubeconfig {tmp_path}: .*Is a directory"):
        await KubeClient(tmp_path).__aenter__()


@pytest.mark.parametrize("change", [{"current-context": ""}, {"current-context": None}, {"current-context": "other"}, "absent"])
async def test_report_52_kubeconfig_without_current_context(api: FakeApiServer, tmp_path: Path, change: object) -> None:
    path = api.write_kubeconfig(tmp_path / "config")
    config = yaml.safe_load(path.read_text())
    if isinstance(change, dict):
        config |= change
    else:
        del config["current-context"]
    path.write_text(yaml.safe_dump(config))
    with pytest.raises(KubernetesConfigError, match="kubectl config use-context"):
        await KubeClient(path).__aenter__()


@pytest.mark.parametrize(
    "text", ["", "just text", "[1, 2]", "{: -", "clusters: 5", "\0", "current-context: x\ncontexts: null\nclusters: null", "a: &a [*a]"]
)
async def test_kubeconfig_that_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(KubernetesConfigError, match=f"kubeconfig {path}: "):
        await KubeClient(path).__aenter__()


@pytest.mark.parametrize(
    ("part", "value", "reason"),
    [
        ("cluster", {"insecure-skip-tls-verify": False}, "has no server"),
        ("cluster", {}, "kubectl config view"),
        ("cluster", {"server": "https://127.0.0.1:1", "certificate-authority": "/absent/ca"}, "/absent/ca"),
        ("cluster", {"server": "https://127.0.0.1:1", "certificate-authority-data": "bm90IGEgY2VydA=="}, "."),
        ("user", {"tokenFile": "/absent/token"}, "/absent/token"),
        ("user", {"exec": {"command": "/absent/plugin", "apiVersion": "v1"}}, "/absent/plugin"),
        ("user", {"exec": {"command": "false", "apiVersion": "v1"}}, "process returned 1"),
    ],
)
async def test_kubeconfig_whose_parts_cannot_be_used(
    api: FakeApiServer, tmp_path: Path, part: str, value: dict[str, object], reason: str
) -> None:
    path = api.write_kubeconfig(tmp_path / "config")
    config = yaml.safe_load(path.read_text())
    config[f"{part}s"][0][part] = value
    path.write_text(yaml.safe_dump(config))
    with pytest.raises(KubernetesConfigError, match=reason):
        await KubeClient(path).__aenter__()


async def test_context_without_a_user(tmp_path: Path) -> None:
    async with FakeApiServer(tls=True) as api:
        path = api.write_kubeconfig(tmp_path / "config")
    config = yaml.safe_load(path.read_text())
    del config["contexts"][0]["context"]["user"]
    path.write_text(yaml.safe_dump(config))
    with pytest.raises(KubernetesConfigError, match="with a cluster and a user"):
        await KubeClient(path).__aenter__()


async def test_exec_plugin_that_hangs(api: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_files = psutil.Process().num_fds()
    monkeypatch.setattr(access, "ACCESS_TIMEOUT_SECONDS", 0.2)
    path = write_exec_plugin(api, tmp_path, f"while [ ! -e {tmp_path}/stop ]; do sleep 0.01; done")
    with pytest.raises(KubernetesConfigError, match="no credentials within 0.2 s; run its exec plugin by hand"):
        await KubeClient(path).__aenter__()
    await end_exec_plugins(tmp_path, open_files)


async def test_exec_plugin_that_hangs_later_is_started_once(api: FakeApiServer, tmp_path: Path) -> None:
    """Each request gives up in its time; the plugin is waited for, not started again, and what it says at last is used."""
    open_files = psutil.Process().num_fds()
    credential = '{"apiVersion": "v1", "kind": "ExecCredential", "status": {"token": "\'$(wc -l < runs)\'"}}'
    script = f"cd {tmp_path}; echo >> runs; while [ -e wait ] && [ ! -e stop ]; do sleep 0.01; done; echo '{credential}'"
    path = write_exec_plugin(api, tmp_path, script)
    async with KubeClient(path) as client:
        assert await get_version(client) == "1"
        api.token = "2"
        (tmp_path / "wait").touch()
        for _ in range(3):
            with pytest.raises(KubernetesUnreachableError, match="0.1 s"):
                await client.get("/version", Version, timeout_seconds=0.1)
        (tmp_path / "wait").unlink()
        assert await get_version(client) == "1"
        api.token = "3"
        (tmp_path / "wait").touch()
        under_way = asyncio.create_task(get_version(client))
        with pytest.raises(KubernetesUnreachableError, match="0.1 s"):
            await client.get("/version", Version, timeout_seconds=0.1)
    with pytest.raises(KubernetesStatusError, match="Unauthorized"):
        await under_way
    assert (tmp_path / "runs").read_text() == "\n" * 3
    await end_exec_plugins(tmp_path, open_files)


async def end_exec_plugins(folder: Path, open_files: int) -> None:
    """Let hanging plugins end, and wait until as few files are open as before."""
    (folder / "stop").touch()
    async with asyncio.timeout(10):
        while psutil.Process().children() or psutil.Process().num_fds() > open_files:  # noqa: ASYNC110 - a foreign process sets no event
            await asyncio.sleep(0.01)


async def test_kubeconfig_variable_is_used(api: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(api.write_kubeconfig(tmp_path / "config")))
    async with KubeClient() as client:
        assert await get_version(client) == "1"


async def test_home_file_is_used(api: FakeApiServer, tmp_path: Path) -> None:
    (tmp_path / "home" / ".kube").mkdir(parents=True)
    api.write_kubeconfig(tmp_path / "home" / ".kube" / "config")
    async with KubeClient() as client:
        assert await get_version(client) == "1"


async def test_in_cluster_files_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path))
    async with FakeApiServer(tls=True, token="mine") as api:
        api.replies["/version"] = Reply(body={"major": "7"})
        enter_cluster(api, tmp_path / "serviceaccount", monkeypatch, "mine")
        async with KubeClient() as client:
            assert await get_version(client) == "7"


async def test_unusable_in_cluster_files_are_passed_over(api: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeApiServer(tls=True) as other:
        enter_cluster(other, tmp_path / "serviceaccount", monkeypatch, "")
    monkeypatch.setenv("KUBECONFIG", str(api.write_kubeconfig(tmp_path / "config")))
    async with KubeClient() as client:
        assert await get_version(client) == "1"


# Credentials


async def test_report_59_rotated_service_account_token_is_used_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file ends in a newline, as some tools write it, and is replaced by a rename, as kubelet does."""
    async with FakeApiServer(tls=True, token="first") as api:
        api.replies["/version"] = Reply(body={"major": "1"})
        enter_cluster(api, tmp_path / "serviceaccount", monkeypatch, "first\n")
        async with KubeClient() as client:
            for token in ("first", "second", "third"):
                api.token = token
                (tmp_path / "new").write_text(f"{token}\n")
                (tmp_path / "new").rename(tmp_path / "serviceaccount" / "token")
                assert await get_version(client) == "1"
            (tmp_path / "serviceaccount" / "token").unlink()
            assert await get_version(client) == "1"
        assert [r.authorization for r in api.requests] == ["Bearer first", "Bearer second", "Bearer third", "Bearer third"]


async def test_report_59_refused_token_file_of_a_kubeconfig_is_read_again(api: FakeApiServer, tmp_path: Path) -> None:
    api.token = "first"
    token_file = tmp_path / "token"
    token_file.write_text("first\n")
    async with KubeClient(api.write_kubeconfig(tmp_path / "config", tokenFile=str(token_file))) as client:
        for token in ("first", "second", "third"):
            api.token = token
            token_file.write_text(f"{token}\n")
            assert await get_version(client) == "1"
    assert [r.authorization for r in api.requests] == [f"Bearer {t}" for t in ("first", "first", "second", "second", "third")]


async def test_report_59_requests_under_way_survive_a_rotation(api: FakeApiServer, tmp_path: Path) -> None:
    api.token = "first"
    token_file = tmp_path / "token"
    token_file.write_text("first")
    async with KubeClient(api.write_kubeconfig(tmp_path / "config", tokenFile=str(token_file))) as client:
        api.token = "second"
        token_file.write_text("second")
        assert await asyncio.gather(*(get_version(client) for _ in range(10))) == ["1"] * 10


async def test_report_59_watch_under_way_survives_a_rotation(api: FakeApiServer, tmp_path: Path) -> None:
    api.put_nodes(make_node("n1"))
    api.token = "first"
    token_file = tmp_path / "token"
    token_file.write_text("first")
    async with (
        KubeClient(api.write_kubeconfig(tmp_path / "config", tokenFile=str(token_file))) as client,
        client.watch(NODES, Thing, params={"resourceVersion": "101"}, timeout_seconds=5, silence_seconds=5) as events,
    ):
        api.token = "second"
        token_file.write_text("second")
        assert await get_version(client) == "1"
        api.put_nodes(make_node("n2"))
        assert (await anext(events)).metadata.name == "n2"


async def test_refused_credentials_that_stay_the_same_are_not_tried_again(api: FakeApiServer, tmp_path: Path) -> None:
    api.token = "right"
    async with KubeClient(api.write_kubeconfig(tmp_path / "config", token="wrong")) as client:
        with pytest.raises(KubernetesStatusError, match="Unauthorized") as caught:
            await get_version(client)
    assert caught.value.status == 401
    assert "wrong" not in str(caught.value)
    assert len(api.requests) == 1


async def test_report_59_exec_plugin_is_run_again(api: FakeApiServer, tmp_path: Path) -> None:
    api.token = "first"
    (tmp_path / "answer").write_text("first")
    credential = '{"apiVersion": "v1", "kind": "ExecCredential", "status": {"token": "\'$(cat answer)\'"}}'
    path = write_exec_plugin(api, tmp_path, f"cd {tmp_path}; echo '{credential}'")
    async with KubeClient(path) as client:
        assert await get_version(client) == "1"
        api.token = "second"
        (tmp_path / "answer").write_text("second")
        assert await get_version(client) == "1"


async def test_oidc_token_is_refreshed_and_the_file_left_alone(api: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refresh_token(self: object, refresh_token: str) -> dict[str, str]:
        return {"id_token": f"new after {refresh_token}", "refresh_token": "next"}

    monkeypatch.setattr("kubernetes_asyncio.config.openid.OpenIDRequestor.refresh_token", refresh_token)
    api.token = "new after old"
    provider = {"client-id": "c", "client-secret": "s", "idp-issuer-url": "https://idp", "refresh-token": "old"}
    path = write_user(api, tmp_path, {"auth-provider": {"name": "oidc", "config": provider}})
    written = path.read_text()
    async with KubeClient(path) as client:
        assert await get_version(client) == "1"
    assert path.read_text() == written


async def test_token_with_a_line_break_is_refused_without_showing_it(api: FakeApiServer, tmp_path: Path) -> None:
    async with KubeClient(api.write_kubeconfig(tmp_path / "config", token="se\ncret")) as client:
        with pytest.raises(KubernetesConfigError, match="check the token for line breaks") as caught:
            await get_version(client)
    assert "cret" not in str(caught.value)


async def test_report_48_certificate_of_an_unknown_authority_fails_closed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with FakeApiServer(tls=True) as api:
        api.replies["/version"] = Reply(body={"major": "1"})
        path = api.write_kubeconfig(tmp_path / "config")
        async with KubeClient(path) as client:
            assert await get_version(client) == "1"
        config = yaml.safe_load(path.read_text())
        cluster = config["clusters"][0]["cluster"]
        del cluster["certificate-authority"]
        path.write_text(yaml.safe_dump(config))
        async with KubeClient(path) as client:
            with pytest.raises(KubernetesUnreachableError, match="certificate is not trusted.*certificate-authority"):
                await get_version(client)
        cluster["insecure-skip-tls-verify"] = True
        path.write_text(yaml.safe_dump(config))
        assert "turns the verification" not in caplog.text
        async with KubeClient(path) as client:
            assert await get_version(client) == "1"
        assert "turns the verification" in caplog.text


async def test_replaced_authority_is_read_again(tmp_path: Path) -> None:
    """A new CA in the same file, as when a cluster's CA is rotated: no restart is needed."""
    async with FakeApiServer(tls=True) as old, FakeApiServer(tls=True) as api:
        assert old.authority is not None
        assert api.authority is not None
        api.replies["/version"] = Reply(body={"major": "1"})
        path = api.write_kubeconfig(tmp_path / "config")
        authority_file = path.with_suffix(".ca.pem")
        old.authority.cert_pem.write_to_path(str(authority_file))
        async with KubeClient(path) as client:
            with pytest.raises(KubernetesUnreachableError):
                await get_version(client)
            api.authority.cert_pem.write_to_path(str(authority_file))
            assert await get_version(client) == "1"


def write_exec_plugin(api: FakeApiServer, folder: Path, script: str) -> Path:
    """Write a plugin that runs the script, and a kubeconfig that names it."""
    plugin = folder / "plugin"
    plugin.write_text(f"#!/bin/sh\n{script}\n")
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    return write_user(api, folder, {"exec": {"command": str(plugin), "apiVersion": "v1"}})


def write_user(api: FakeApiServer, folder: Path, user: dict[str, object]) -> Path:
    """Write a kubeconfig with that user."""
    path = api.write_kubeconfig(folder / "config")
    config = yaml.safe_load(path.read_text())
    config["users"][0]["user"] = user
    path.write_text(yaml.safe_dump(config))
    return path


# Requests


async def test_get_sends_the_query_and_decodes_the_reply(api: FakeApiServer, client: KubeClient) -> None:
    reply = await client.get("/version", Version, params={"fieldSelector": "spec.nodeName!=,status.phase=a b&c"}, timeout_seconds=5)
    assert reply == Version("1")
    assert dict(api.requests[-1].query) == {"fieldSelector": "spec.nodeName!=,status.phase=a b&c"}


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (status_reply(403, 'nodes is forbidden: User "x" cannot list'), 'nodes is forbidden: User "x" cannot list'),
        (Reply(404, "404 page not found\n"), "404 page not found"),
        (Reply(500, "x" * 1000), "x" * 200),
        (Reply(502, b"\xff<html>"), "\ufffd<html>"),
        (Reply(503, ""), ""),
        (Reply(204, ""), ""),
    ],
)
async def test_another_status_tells_what_the_server_said(api: FakeApiServer, client: KubeClient, reply: Reply, reason: str) -> None:
    api.replies["/version"] = reply
    with pytest.raises(KubernetesStatusError, match=f"GET /version: {reply.status} from {api.address}: ") as caught:
        await get_version(client)
    assert (caught.value.status, caught.value.reason) == (reply.status, reason)


@pytest.mark.parametrize("body", ["<html>", '{"major": "1', '{"major": 1}', "{}", "null", "", '{"x": ' + "[" * 100_000, b"\xff\xfe"])
async def test_garbage_is_a_reply_error(api: FakeApiServer, client: KubeClient, body: str | bytes) -> None:
    api.replies["/version"] = Reply(body=body)
    with pytest.raises(KubernetesReplyError, match="GET /version: not what the API documents"):
        await get_version(client)


async def test_server_that_says_nothing_is_given_up(api: FakeApiServer, client: KubeClient) -> None:
    api.replies["/version"] = Reply(None)
    with pytest.raises(KubernetesUnreachableError, match="nothing from the API server for 0.1 s"):
        await client.get("/version", Version, timeout_seconds=0.1)


async def test_refused_connection_is_unreachable(api: FakeApiServer, client: KubeClient) -> None:
    await api.stop()
    with pytest.raises(KubernetesUnreachableError, match="Cannot connect"):
        await get_version(client)


async def test_client_that_is_not_open_says_so(api: FakeApiServer, tmp_path: Path) -> None:
    client = KubeClient(api.write_kubeconfig(tmp_path / "config"))
    for _ in range(2):  # before and after
        with pytest.raises(KubernetesConfigError, match="async with"):
            await get_version(client)
        async with client:
            assert await get_version(client) == "1"


async def test_report_62_cancelled_request_leaves_nothing_open(api: FakeApiServer, client: KubeClient) -> None:
    api.replies["/hang"] = Reply(None)
    task = asyncio.create_task(client.get("/hang", Version, timeout_seconds=60))
    await api.wait_until(lambda: api.count("/hang") == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await get_version(client) == "1"


async def test_report_62_sockets_stay_level(api: FakeApiServer, client: KubeClient) -> None:
    """Also where replies are errors or garbage, whose bodies nobody wants."""
    bodies = [Reply(body={"major": "1"}), status_reply(500), Reply(body="{"), Reply(404, "x" * 100_000)]
    counts = []
    for cycle in range(200):
        api.replies["/version"] = bodies[cycle % len(bodies)]
        with contextlib.suppress(KubernetesStatusError, KubernetesReplyError):
            await get_version(client)
        counts.append(psutil.Process().num_fds())
    assert max(counts[10:]) <= counts[10]


# Lists


async def list_things(client: KubeClient, **params: str) -> tuple[list[Thing], str]:
    """Put the pages together; answer the things and the version to watch from."""
    things: list[Thing] = []
    version = ""
    async for page in client.list_pages(NODES, Thing, params=params, timeout_seconds=5):
        things = page.items if page.is_first else things + page.items
        version = page.resource_version
    return things, version


async def test_list_comes_in_pages(api: FakeApiServer, client: KubeClient) -> None:
    api.put_nodes(*(make_node(f"n{i}") for i in range(1201)))
    things, version = await list_things(client, labelSelector="a")
    assert [thing.metadata.name for thing in things] == [f"n{i}" for i in range(1201)]
    assert version == "1301"
    pages = [dict(r.query) for r in api.requests]
    assert pages == [{"labelSelector": "a", "limit": "500"} | extra for extra in ({}, {"continue": "500"}, {"continue": "1000"})]


async def test_list_whose_next_page_is_gone_is_fetched_whole(api: FakeApiServer, client: KubeClient) -> None:
    api.put_nodes(*(make_node(f"n{i}") for i in range(501)))
    api.continue_expired = True
    things, _ = await list_things(client)
    assert len({thing.metadata.name for thing in things}) == len(things) == 501
    assert dict(api.requests[-1].query) == {}


@pytest.mark.parametrize("items", [[], None])
async def test_list_of_nothing(api: FakeApiServer, client: KubeClient, items: list[object] | None) -> None:
    api.replies[NODES] = Reply(body={"metadata": {"resourceVersion": "5"}, "items": items})
    assert await list_things(client) == ([], "5")


async def test_library_that_is_not_installed(api: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = api.write_kubeconfig(tmp_path / "config")
    monkeypatch.setitem(sys.modules, "kubernetes_asyncio", None)
    with pytest.raises(KubernetesConfigError, match=r"pip install 'trimaran\[service\]'"):
        await KubeClient(path).__aenter__()
