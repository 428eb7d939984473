"""Our programs as a user runs them: the load watcher as a process that is read over HTTP, and single commands."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import aiohttp

from tests.e2e.api import JsonObject
from tests.e2e.processes import ManagedProcess, choose_free_ports, make_environment, running_process
from tests.e2e.waiting import NotYet, wait_for

REFRESH_SECONDS = 5.0
START_SECONDS = 30.0
REQUEST_SECONDS = 10.0
COMMAND_SECONDS = 30.0
# What is seen in the sources must be served within two refreshes; the second is for the refresh itself and for our polling.
TWO_REFRESHES_SECONDS = 2 * REFRESH_SECONDS + 1
STABLE_SECONDS = 4 * REFRESH_SECONDS

T = TypeVar("T")


class CommandFailedError(Exception):
    """A command that should succeed did not; the message holds its standard error."""


class Service:
    """
    A running load watcher, ours or the Go one.

    Attributes:
        url: Its address, without a path.
        process: The process itself.
    """

    def __init__(self, url: str, process: ManagedProcess, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.process = process
        self._session = session

    async def fetch(self) -> JsonObject:
        """Return the reply of ``GET /watcher``."""
        async with self._session.get("/watcher") as response:
            if response.status != 200:
                raise NotYet(f"GET /watcher: {response.status} {await response.text()}")
            reply: JsonObject = await response.json(content_type=None)  # upstream's 500 is JSON in name only
            return reply

    async def fetch_nodes(self) -> dict[str, JsonObject]:
        """Return the entries of the nodes: node name → entry."""
        nodes: dict[str, JsonObject] = (await self.fetch())["data"]["NodeMetricsMap"]
        return nodes

    async def fetch_status(self, *, host: str) -> int:
        """Return the status of the reply for one node."""
        async with self._session.get("/watcher", params={"host": host}) as response:
            return response.status

    async def wait_for_nodes(
        self, what: str, predicate: Callable[[dict[str, JsonObject]], bool], *, timeout_seconds: float = TWO_REFRESHES_SECONDS
    ) -> dict[str, JsonObject]:
        """Wait, by default at most two refreshes, until *predicate* holds for the served nodes, and return them."""

        async def probe() -> dict[str, JsonObject]:
            self.process.check_running()
            nodes = await self.fetch_nodes()
            if not predicate(nodes):
                raise NotYet(f"served nodes {nodes}")
            return nodes

        return await wait_for(what, probe, timeout_seconds=timeout_seconds)

    async def observe_stable(self, action: Callable[[], Awaitable[T]]) -> tuple[JsonObject, T]:
        """Run *action*, again if the reply changed meanwhile, and return the reply that it saw and its result."""

        async def probe() -> tuple[JsonObject, T]:
            before = await self.fetch()
            result = await action()
            if await self.fetch() != before:
                raise NotYet("a refresh in between")
            return before, result

        return await wait_for("action between two refreshes", probe, timeout_seconds=STABLE_SECONDS)


def on_cluster(kubeconfig: Path) -> dict[str, str]:
    """Return the settings, ours and the Go ones alike, of a load watcher that reads the metrics-server of a cluster."""
    return {"KUBE_CONFIG": str(kubeconfig), "METRICS_PROVIDER_NAME": "KubernetesMetricsServer"}


@asynccontextmanager
async def running_load_watcher(provider: Mapping[str, str], *, folder: Path, port: int = 0) -> AsyncIterator[Service]:
    """
    Run our load watcher, from its first snapshot to the end of the context.

    Args:
        provider: The environment variables that choose what it reads, such as on_cluster(...).
        folder: Where its log goes.
        port: Where it listens; 0 = on any free port.
    """
    port = port or choose_free_ports(1)[0]
    settings = {
        "LOAD_WATCHER_BIND": f"127.0.0.1:{port}",
        "LOAD_WATCHER_REFRESH_SECONDS": f"{REFRESH_SECONDS:g}",
        **provider,
    }
    command = [sys.executable, "-m", "load_watcher"]
    async with (
        running_process(f"load-watcher-{port}", command, folder=folder, settings=settings) as process,
        watched(f"http://127.0.0.1:{port}", process) as service,
    ):
        yield service


@asynccontextmanager
async def watched(url: str, process: ManagedProcess) -> AsyncIterator[Service]:
    """Wait for the first good reply of the load watcher in *process*, and give access to it."""
    async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS)) as session:
        service = Service(url, process, session)

        async def probe() -> None:
            process.check_running()
            try:
                await service.fetch()
            except aiohttp.ClientConnectionError as error:
                raise NotYet(str(error)) from error

        await wait_for(f"first reply of {process.name} (log: {process.log_path})", probe, timeout_seconds=START_SECONDS)
        yield service


async def run_command(*command: str | Path) -> str:
    """
    Run a command to its end and return its standard output.

    Raises:
        CommandFailedError: When its exit code is not 0.
        TimeoutError: When it takes longer than the bound; it is killed then.
    """
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*map(str, command), stdout=pipe, stderr=pipe, env=make_environment({}))
    try:
        async with asyncio.timeout(COMMAND_SECONDS):
            output, errors = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        raise CommandFailedError(f"{' '.join(map(str, command))} ended with {process.returncode}: {errors.decode(errors='replace')}")
    return output.decode()
