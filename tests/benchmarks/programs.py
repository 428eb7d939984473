"""The programs that are measured, as processes: ours, the Go load-watcher, a bare loop; and what a process costs."""

from __future__ import annotations

import asyncio
import json
import math
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.load import LoadError, fetch_raw, wait_first_answer
from tests.benchmarks.sources import CountingProxy
from tests.benchmarks.watched_service import TURN_REFRESHES
from tests.e2e.binaries import PARTS, _build_part, _cache_root
from tests.e2e.processes import ManagedProcess, choose_free_ports, is_port_free, running_process
from tests.e2e.waiting import NotYet, wait_for

UVLOOP: Final = "uvloop"
STANDARD: Final = "asyncio"
GO_PORT: Final = 2020  # fixed in its watcher.go, on all addresses
GO_GRACE_SECONDS: Final = 1.0  # it does not end on SIGTERM
START_SECONDS: Final = 60.0
ROOT: Final = Path(__file__).parents[2]
# What clock_getcpuclockid(3) makes of a process id; Python has it for threads only.
_PROCESS_CLOCK: Final = 2
_IDLE_STEP_SECONDS: Final = 0.1
_IDLE_SHARE: Final = 0.05
_IDLE_LIMIT_SECONDS: Final = 3.0
_WITHOUT_UVLOOP: Final = "import sys; sys.modules['uvloop'] = None; from load_watcher.cli import main; sys.exit(main([]))"


class MissingError(Exception):
    """Something that the benchmark needs is not there; the message says how to get it."""


@dataclass(frozen=True)
class Program:
    """A server that runs: where it answers, and what it has cost."""

    port: int
    process: ManagedProcess

    @property
    def pid(self) -> int:
        """Answer its process id; the launcher became the program."""
        return self.process._process.pid

    def cpu_seconds(self) -> float:
        """Answer the CPU that all its threads have used, user and system, to the microsecond (``/proc/PID/stat`` counts in 10 ms)."""
        return time.clock_gettime(~self.pid << 3 | _PROCESS_CLOCK)

    def rss_bytes(self) -> int:
        """Answer its resident memory."""
        found = re.search(r"VmRSS:\s+([0-9]+) kB", Path(f"/proc/{self.pid}/status").read_text())
        assert found is not None
        return int(found[1]) * 1024


def make_settings(folder: Path, port: int, *, provider: str, address: str, kubeconfig: Path | None = None) -> dict[str, str]:
    """Make the variables of our service; without a kubeconfig it finds no cluster."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    settings = {
        "HOME": str(home),
        "PYTHONPATH": str(ROOT),
        "LOAD_WATCHER_BIND": f"127.0.0.1:{port}",
        "METRICS_PROVIDER_NAME": provider,
        "METRICS_PROVIDER_ADDRESS": address,
        "LOG_LEVEL": "warning",
    }
    return settings | ({} if kubeconfig is None else {"KUBE_CONFIG": str(kubeconfig)})


@asynccontextmanager
async def running_service(
    folder: Path, *, loop: str = UVLOOP, provider: str = "Prometheus", address: str, variables: Mapping[str, str] | None = None
) -> AsyncIterator[Program]:
    """Run our service from its first answer on."""
    (port,) = choose_free_ports(1)
    settings = make_settings(folder, port, provider=provider, address=address) | dict(variables or {})
    command = [sys.executable, "-m", "load_watcher"] if loop == UVLOOP else [sys.executable, "-c", _WITHOUT_UVLOOP]
    async with running_process(f"load-watcher-{port}", command, folder=folder, settings=settings) as process:
        await _wait_answer(port, process)
        yield Program(port, process)


@asynccontextmanager
async def running_watched(
    folder: Path,
    *,
    refreshes: int,
    pause_seconds: float = 0.0,
    is_watching: bool = False,
    provider: str = "Prometheus",
    address: str,
    kubeconfig: Path | None = None,
) -> AsyncIterator[tuple[Program, Path]]:
    """Run our service with a fast clock; gives also the file in which each refresh leaves a line."""
    (port,) = choose_free_ports(1)
    report = folder / f"refreshes-{port}.jsonl"
    command: list[str | Path] = [sys.executable, "-m", "tests.benchmarks.watched_service", report, str(refreshes), str(pause_seconds)]
    settings = make_settings(folder, port, provider=provider, address=address, kubeconfig=kubeconfig)
    async with running_process(f"watched-{port}", command + ["watch"] * is_watching, folder=folder, settings=settings) as process:
        await _wait_answer(port, process)
        yield Program(port, process), report


async def read_refreshes(program: Program, report: Path, count: int, *, timeout_seconds: float) -> list[dict[str, Any]]:
    """Wait until there were so many refreshes, and answer what each cost."""

    async def probe() -> list[dict[str, Any]]:
        program.process.check_running()
        lines = report.read_text().splitlines()
        if len(lines) < count:
            raise NotYet(f"{len(lines)} refreshes")
        return [json.loads(line) for line in lines[:count]]

    return await wait_for(f"{count} refreshes", probe, timeout_seconds=timeout_seconds)


@asynccontextmanager
async def running_go_peer(folder: Path, *, address: str) -> AsyncIterator[Program]:
    """
    Run the Go load-watcher from its first answer on.

    Raises:
        MissingError: If its port is taken.
    """
    if not is_port_free(GO_PORT, address="0.0.0.0"):
        raise MissingError(f"port {GO_PORT} is taken, and the Go load-watcher listens on no other; end the program that holds it")
    settings = {"METRICS_PROVIDER_NAME": "Prometheus", "METRICS_PROVIDER_ADDRESS": address, "LOG_LEVEL": "warning"}
    async with running_process("go-peer", [build_go_peer()], folder=folder, settings=settings, grace_seconds=GO_GRACE_SECONDS) as process:
        await _wait_answer(GO_PORT, process)
        yield Program(GO_PORT, process)


def build_go_peer() -> Path:
    """Build the Go load-watcher from the module proxy, if it is not there yet, and answer its file."""
    root = _cache_root()
    root.mkdir(parents=True, exist_ok=True)
    (part,) = (part for part in PARTS if part.name == "go-load-watcher")
    return _build_part(part, root) / "go-load-watcher"


@asynccontextmanager
async def running_bare(folder: Path, replies: Mapping[str, bytes], *, loop: str) -> AsyncIterator[dict[str, Program]]:
    """Run a bare loop that sends these replies; gives for each the process with the port."""
    ports = choose_free_ports(len(replies))
    places = []
    for port, (name, reply) in zip(ports, replies.items(), strict=True):
        file = folder / f"{name}.reply"
        file.write_bytes(reply)
        places.append(f"{port}={file}")
    command = [sys.executable, "-m", "tests.benchmarks.bare_server", loop, *places]
    async with running_process(f"bare-{loop}", command, folder=folder, settings={"PYTHONPATH": str(ROOT)}) as process:
        for port in ports:
            await _wait_answer(port, process)
        yield {name: Program(port, process) for name, port in zip(replies, ports, strict=True)}


async def _wait_answer(port: int, process: ManagedProcess) -> None:
    async def probe() -> None:
        process.check_running()
        try:
            reply = await asyncio.to_thread(fetch_raw, port, "/watcher", {})
        except (ConnectionError, LoadError) as error:
            raise NotYet(str(error)) from error
        if not reply.startswith((b"HTTP/1.1 200", b"HTTP/1.1 304")):
            raise NotYet(reply[:200].decode(errors="replace"))

    await wait_for(f"answer of {process.name} (log: {process.log_path})", probe, timeout_seconds=START_SECONDS)


async def measure_start(folder: Path, *, provider: str, address: str, variables: Mapping[str, str] | None = None) -> float:
    """Answer the seconds from the start of our service to its first answer."""
    (port,) = choose_free_ports(1)
    settings = make_settings(folder, port, provider=provider, address=address) | dict(variables or {})
    started_at = time.monotonic()
    async with running_process(f"start-{port}", [sys.executable, "-m", "load_watcher"], folder=folder, settings=settings):
        return await asyncio.to_thread(wait_first_answer, port, "/watcher", started_at=started_at, timeout_seconds=START_SECONDS)


async def settle(program: Program) -> None:
    """
    Wait until a program computes no more: the Go load-watcher goes on collecting garbage after its last request.

    Not for ever: one that still computes after some seconds makes one pair of readings worse, and the median leaves that out.
    """
    deadline = time.monotonic() + _IDLE_LIMIT_SECONDS
    used = math.inf
    while used > _IDLE_SHARE * _IDLE_STEP_SECONDS and time.monotonic() < deadline:
        before = program.cpu_seconds()
        await asyncio.sleep(_IDLE_STEP_SECONDS)
        used = program.cpu_seconds() - before


async def wait_quiet(proxy: CountingProxy, *, quiet_seconds: float, timeout_seconds: float) -> None:
    """Wait until the source was not asked for a while."""

    async def probe() -> None:
        if proxy.waiting or time.monotonic() - proxy.changed_at < quiet_seconds:
            raise NotYet(f"{proxy.requests} requests")

    await wait_for("pause between refreshes", probe, timeout_seconds=timeout_seconds)


async def wait_due(proxy: CountingProxy, *, timeout_seconds: float) -> None:
    """Wait until a request waits in the proxy."""

    async def probe() -> None:
        if not proxy.waiting:
            raise NotYet("no request")

    await wait_for("refresh", probe, timeout_seconds=timeout_seconds)


async def measure_turn(program: Program, report: Path) -> float:
    """
    Let a watched service that pauses make a turn of refreshes, and answer the CPU seconds of one, with what it does right after.

    Raises:
        LoadError: If one failed: that is cheap.
    """
    count = len(report.read_text().splitlines())
    await settle(program)
    cpu_seconds = program.cpu_seconds()
    program.process.send_signal(signal.SIGUSR1)
    await read_refreshes(program, report, count + TURN_REFRESHES, timeout_seconds=120)
    await settle(program)
    if "refresh failed" in program.process.log:
        raise LoadError(f"a refresh failed that was measured:\n{program.process.log}")
    return (program.cpu_seconds() - cpu_seconds) / TURN_REFRESHES
