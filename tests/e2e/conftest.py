"""Fixtures of the end-to-end tests: one control plane, six loaded nodes and one load watcher for the whole run; one more to break."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from tests.e2e.binaries import Binaries, build_all
from tests.e2e.cluster import Cluster
from tests.e2e.control_plane import running_cluster
from tests.e2e.nodes import LOADED_NODES
from tests.e2e.requirements import skip_or_fail
from tests.e2e.service import Service, on_cluster, running_load_watcher

RBAC_MANIFEST = Path(__file__).parents[2] / "k8s" / "base" / "rbac.yaml"


@pytest.fixture(scope="session")
def binaries(request: pytest.FixtureRequest) -> Binaries:
    """Build what the cache lacks, with the progress on the terminal: it takes minutes the first time."""
    if shutil.which("go") is None:
        skip_or_fail("Go is missing, and the control plane is built with it (https://go.dev/doc/install)")
    capture = request.config.pluginmanager.getplugin("capturemanager")
    if capture is None:
        return build_all()
    with capture.global_and_fixture_disabled():
        return build_all()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def cluster(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with running_cluster(binaries, tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def breakable_cluster(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """A cluster without metrics-server, whose API server a test may stop or hang, if it has it running again at its end."""
    async with running_cluster(binaries, tmp_path_factory.mktemp("breakable-cluster"), with_metrics=False) as running:
        yield running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def loaded_cluster(cluster: Cluster) -> Cluster:
    """The cluster once metrics-server reports the loads of the six nodes."""
    for node in LOADED_NODES:
        await cluster.create_node(node.name, cpu=node.cpu, memory=node.memory)
        await cluster.set_load(node.name, cpu_millicores=node.cpu_millicores, memory_mebibytes=node.memory_mebibytes)
    await cluster.wait_for_load({node.name: node.cpu_millicores for node in LOADED_NODES})
    return cluster


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def kubeconfig(cluster: Cluster) -> Path:
    """The kubeconfig of a user with the rights of the manifest that we ship, and no more."""
    (rules,) = [manifest["rules"] for manifest in yaml.safe_load_all(RBAC_MANIFEST.read_text()) if manifest["kind"] == "ClusterRole"]
    return await cluster.create_user("load-watcher", rules)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def service(loaded_cluster: Cluster, kubeconfig: Path) -> AsyncIterator[Service]:
    """Our load watcher on the loaded cluster."""
    async with running_load_watcher(on_cluster(kubeconfig), folder=loaded_cluster.folder) as running:
        yield running
