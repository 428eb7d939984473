"""The images: built here, without a container engine, and run as they would be, non-root on a read-only root."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from tests.e2e.binaries import Binaries
from tests.e2e.cluster import Cluster
from tests.e2e.images import ROOT, Image, ImageBuilder
from tests.e2e.manifests import K8S, NAMESPACE, apply_identities
from tests.e2e.probes import wait_until_ok
from tests.e2e.processes import choose_free_ports, running_process
from tests.e2e.requirements import skip_or_fail
from tests.e2e.service import CommandFailedError, Service, run_command, watched

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120, func_only=True)]

TARGETS = ("load-watcher", "trimaran")
PORTS = {"load-watcher": 2020, "trimaran": 8888}
PYTHON = "/opt/trimaran/bin/python"
PIP_SECONDS = 120.0
# Wheels for other processors exist of all that we depend on but of these, which are published as source alone.
SOURCE_ONLY = ("pyformance",)
BUILD_TOOLS = {
    "pip",
    "pip3",
    "ensurepip",
    "wheel",
    "setuptools",
    "hatchling",
    "gcc",
    "cc",
    "g++",
    "c++",
    "ld",
    "as",
    "make",
    "rustc",
    "cargo",
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def images() -> AsyncIterator[dict[str, Image]]:
    """Both images, built on a small Debian; about a minute and a half once the base is in the cache."""
    missing = [tool for tool in ("buildah", "debootstrap", "unshare") if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        skip_or_fail(f"images are built by root with buildah and debootstrap; missing: {missing or 'root'}")
    # Not in pytest's folder, of which it keeps the last three: this is a gigabyte or two.
    with tempfile.TemporaryDirectory(prefix="trimaran-images-") as folder:
        builder = ImageBuilder(Path(folder))
        base = await builder.build_base()
        built = await asyncio.gather(*(builder.build(target, base=base) for target in TARGETS))
        yield {image.name: image for image in built}


@pytest.fixture(params=TARGETS)
def image(images: dict[str, Image], request: pytest.FixtureRequest) -> Image:
    return images[request.param]


def version() -> str:
    text: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return text


def read_lock() -> dict[str, str]:
    """Return the lock file: normalized name → version."""
    pairs = (line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    return {normalize(name): text for name, text in pairs}


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


async def test_image_says_what_it_is(image: Image) -> None:
    config = image.config
    assert config["User"] == "65532:65532"
    assert config["Entrypoint"] == [f"/usr/local/bin/{image.name}"]
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in config["Labels"].items()}
    assert labels.items() >= {"title": image.name, "licenses": "Apache-2.0", "version": version(), "source": ""}.items()
    assert labels["description"]
    assert config["Healthcheck"]["Test"] == ["CMD", "/usr/local/bin/healthcheck", f"http://127.0.0.1:{PORTS[image.name]}/livez"]


async def test_image_has_nothing_to_build_or_install_with(image: Image) -> None:
    found = [
        str(Path(folder, name).relative_to(image.root))
        for folder, folders, files in os.walk(image.root)
        for name in (*folders, *files)
        if name in BUILD_TOOLS or name == "pip.conf" or name.endswith(".deb") or re.fullmatch(r"(pip|setuptools)-.*(whl|dist-info)", name)
    ]
    # Of Debian, not of ours: texts about the run-time library of the compiler.
    assert [path for path in found if not path.startswith(("usr/share/", "var/lib/dpkg/", "etc/"))] == []
    assert not any((image.root / path).exists() for path in ("src", "opt/pip", "root/.cache", "run/secrets"))
    with pytest.raises(CommandFailedError, match="No module named pip"):
        await run_command(*image.command("-m", "pip", program=PYTHON))


async def test_image_does_not_tell_how_its_builder_reaches_the_index(image: Image) -> None:
    assert "secret" not in image.history + json.dumps(image.config)
    assert not [variable for variable in image.config["Env"] if re.match(r"PIP_|\w*PROXY|\w*CERT", variable, re.IGNORECASE)]


async def test_image_holds_the_locked_versions(image: Image) -> None:
    code = "import importlib.metadata as m, json; print(json.dumps({each.metadata['Name']: each.version for each in m.distributions()}))"
    installed = {normalize(name): text for name, text in json.loads(await run_command(*image.command("-Ic", code, program=PYTHON))).items()}
    assert installed.pop("trimaran") == version()
    assert {"aiohttp", "numpy"} < installed.keys()
    assert installed.items() <= read_lock().items()


async def test_container_is_not_root_and_cannot_write(image: Image) -> None:
    code = "import os; print(os.getuid(), os.getgid()); open('/opt/trimaran/x', 'w')"
    with pytest.raises(CommandFailedError, match="Read-only file system"):
        await run_command(*image.command("-c", code, program=PYTHON))
    assert (
        await run_command(*image.command("-c", code.partition(";")[0] + "; print(os.getuid(), os.getgid())", program=PYTHON))
        == "65532 65532\n"
    )


async def test_entry_point_tells_its_version(image: Image) -> None:
    assert version() in await run_command(*image.command("--version"))


@asynccontextmanager
async def serving(image: Image, folder: Path, settings: dict[str, str], mounts: dict[str, Path] | None = None) -> AsyncIterator[Service]:
    """Run the load watcher's container on a free port of loopback."""
    (port,) = choose_free_ports(1)
    command = image.command(settings={"LOAD_WATCHER_BIND": f"127.0.0.1:{port}", **settings}, mounts=mounts)
    async with (
        running_process(f"container-{port}", command, folder=folder) as process,
        watched(f"http://127.0.0.1:{port}", process) as service,
    ):
        yield service


async def test_load_watcher_serves_this_machine_and_the_command_line_scores_it(images: dict[str, Image], tmp_path: Path) -> None:
    """One container asks the other; the health check sees it live, and see it gone."""
    load_watcher, trimaran = images["load-watcher"], images["trimaran"]
    (check, _) = load_watcher.config["Healthcheck"]["Test"][1:]
    async with serving(load_watcher, tmp_path, {"METRICS_PROVIDER_NAME": "Local"}) as service:
        nodes = await service.fetch_nodes()
        assert len(nodes) == 1
        await run_command(*load_watcher.command(f"{service.url}/livez", program=check))
        (tmp_path / "pods").mkdir()
        shutil.copy(ROOT / "docs/examples/pod.yaml", tmp_path / "pods")
        arguments = ("score", "--pod", "/pods/pod.yaml", "--watcher", service.url, "--output", "json")
        scored = json.loads(await run_command(*trimaran.command(*arguments, mounts={"/pods": tmp_path / "pods"})))
        assert [row["node"] for row in scored["nodes"]] == [*nodes]
        assert await service.process.stop() == 0
    with pytest.raises(CommandFailedError):
        await run_command(*load_watcher.command(f"{service.url}/livez", program=check))


async def make_account(cluster: Cluster, name: str, folder: Path) -> tuple[dict[str, str], dict[str, Path]]:
    """Make the variables and the files by which a pod with service account *name* finds its cluster."""
    account = folder / name
    account.mkdir()
    (account / "token").write_text(await cluster.create_token(name, namespace=NAMESPACE))
    (account / "namespace").write_text(NAMESPACE)
    shutil.copy(cluster.authority.certificate, account / "ca.crt")
    host, _, port = cluster.server.removeprefix("https://").rpartition(":")
    variables = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    return variables, {"/run/secrets/kubernetes.io/serviceaccount": account}  # /var/run is a link to /run


async def test_images_run_in_their_cluster_as_pods_do(
    images: dict[str, Image], loaded_cluster: Cluster, binaries: Binaries, tmp_path: Path
) -> None:
    """With the files and variables of a pod, the identities and the configuration of our manifests, and history in the image's volume."""
    for overlay in ("load-watcher", "extender"):
        await apply_identities(loaded_cluster.api, binaries, overlay)
    settings, account = await make_account(loaded_cluster, "load-watcher", tmp_path)
    async with serving(images["load-watcher"], tmp_path, settings, account) as service:
        reply = await service.fetch()
        assert reply["source"] == "KubernetesMetricsServer"
        await service.wait_for_nodes("node with metrics", lambda nodes: nodes.get("node-0", {}).get("status") == "ok")

        extender = images["trimaran"]
        (tmp_path / "config").mkdir()
        shutil.copy(K8S / "overlays/extender/extender.yaml", tmp_path / "config")
        settings, account = await make_account(loaded_cluster, "extender", tmp_path)
        (port,) = choose_free_ports(1)
        url = f"http://127.0.0.1:{port}"
        arguments = (*extender.config["Cmd"], "--bind", f"127.0.0.1:{port}", "--watcher", service.url)
        command = extender.command(*arguments, settings=settings, mounts={**account, "/etc/trimaran": tmp_path / "config"})
        async with running_process("extender", command, folder=tmp_path) as process:
            await wait_until_ok(process, f"{url}/readyz", context=loaded_cluster.authority.make_client_context())
            await run_command(*extender.command(f"{url}/livez", program=extender.config["Healthcheck"]["Test"][1]))
            assert await process.stop() == 0


async def run_pip(*arguments: str | Path) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "pip", "--quiet", *map(str, arguments), stderr=subprocess.PIPE)
    async with asyncio.timeout(PIP_SECONDS):
        _, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()


async def test_lock_file_resolves_to_wheels_for_arm64(tmp_path: Path) -> None:
    """What has no wheel is built here and proves to be pure Python."""
    lock, project = read_lock(), tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    requirements = [
        *project["dependencies"],
        *(each for name in ("service", "prometheus", "signalfx", "extender", "cli", "speed") for each in extras[name]),
    ]
    await run_pip("wheel", "--no-deps", "--wheel-dir", tmp_path, *(f"{name}=={lock[name]}" for name in SOURCE_ONLY))
    assert [path.name for path in tmp_path.iterdir() if not path.name.endswith("-none-any.whl")] == []
    platforms = [f"--platform=manylinux{tag}_aarch64" for tag in ("2014", "_2_28")]
    await run_pip(
        *("install", "--dry-run", "--ignore-installed", "--target", tmp_path / "none", "--only-binary=:all:", "--python-version=3.13"),
        *(
            *platforms,
            "--find-links",
            tmp_path,
            "--constraint",
            ROOT / "constraints.txt",
            "--report",
            tmp_path / "report.json",
            *requirements,
        ),
    )
    report = json.loads((tmp_path / "report.json").read_text())["install"]
    wheels = {normalize(each["metadata"]["name"]): each["download_info"]["url"].rpartition("/")[2] for each in report}
    assert {name: each["metadata"]["version"] for each in report if (name := normalize(each["metadata"]["name"]))}.items() <= lock.items()
    assert [wheel for wheel in wheels.values() if not re.search(r"(aarch64|-any)\.whl$", wheel)] == []
    assert "aarch64" in wheels["numpy"]
