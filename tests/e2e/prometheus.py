"""Real Prometheus and node_exporter from the Debian packages, and a page of metrics with any content that Prometheus scrapes."""

from __future__ import annotations

import asyncio
import base64
import bisect
import shutil
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import trustme
import yaml
from aiohttp import web

from tests.e2e.processes import ManagedProcess, choose_free_ports, running_process
from tests.e2e.requirements import skip_or_fail
from tests.e2e.waiting import NotYet, wait_for

START_SECONDS = 30.0
USER, PASSWORD = "watcher", "open-sesame"
# bcrypt with cost 4 of that password; Prometheus takes nothing else.
PASSWORD_HASH = "$2b$04$abcdefghijklmnopqrstuuXcjcm5avyCiJoD2uS24xa2lb6fjMB3G"


def find_program(name: str) -> Path:
    """Return the program of a Debian package, or skip with that reason."""
    path = shutil.which(name)
    if path is None:
        skip_or_fail(f"{name} is missing (apt-get install --no-install-recommends prometheus prometheus-node-exporter)")
    return Path(path)


@dataclass(frozen=True)
class Access:
    """
    How a Prometheus is reached.

    Attributes:
        prefix: The path before ``/api/v1``.
        is_secured: Whether it wants TLS, with the CA in *ca_file*, and basic authentication.
    """

    prefix: str = ""
    is_secured: bool = False


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus."""

    url: str
    process: ManagedProcess
    ca_file: Path | None
    session: aiohttp.ClientSession = field(repr=False)

    async def query(self, query: str) -> list[dict[str, Any]]:
        """Ask it directly: the series of an instant vector."""
        async with self.session.get(f"{self.url}/api/v1/query", params={"query": query}) as response:
            if response.status != 200:
                raise NotYet(f"{response.status}: {await response.text()}")
            series: list[dict[str, Any]] = (await response.json())["data"]["result"]
            return series

    async def wait_for(self, query: str, *, timeout_seconds: float = START_SECONDS) -> None:
        """Wait until a query gives at least one series."""

        async def probe() -> None:
            self.process.check_running()
            try:
                series = await self.query(query)
            except aiohttp.ClientConnectionError as error:
                raise NotYet(str(error)) from error
            if not series:
                raise NotYet("no series")

        await wait_for(f"answer of Prometheus to {query}", probe, timeout_seconds=timeout_seconds)


@asynccontextmanager
async def running_prometheus(
    folder: Path,
    targets: Mapping[str, str],
    *,
    rules: Mapping[str, str] | None = None,
    access: Access | None = None,
    scrape_seconds: int = 1,
) -> AsyncIterator[Prometheus]:
    """
    Run a Prometheus that scrapes each target, from its first answer to the end of the context.

    Args:
        folder: Of its own: configuration, data and log.
        targets: Address → value of the label ``node`` that its series get; empty for none.
        rules: Name of a recording rule → expression, evaluated every second.
        access: How it is to be reached.
        scrape_seconds: From one scrape to the next.
    """
    program = find_program("prometheus")
    access = access or Access()
    (port,) = choose_free_ports(1)
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [{"targets": [address], "labels": {"node": node} if node else {}} for address, node in targets.items()]
    config = {
        "global": {"scrape_interval": f"{scrape_seconds}s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / "rules.yml")],
        "scrape_configs": [{"job_name": "node", "honor_labels": True, "static_configs": jobs}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    groups = [{"name": "rules", "rules": [{"record": name, "expr": expression} for name, expression in (rules or {}).items()]}]
    (folder / "rules.yml").write_text(yaml.safe_dump({"groups": groups if rules else []}))
    command: list[str | Path] = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        f"--web.route-prefix={access.prefix or '/'}",
    ]
    ca_file = _secure(folder, command) if access.is_secured else None
    credentials = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    session = aiohttp.ClientSession(
        headers={"Authorization": f"Basic {credentials}"} if access.is_secured else None,
        connector=aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=ca_file)),
    )
    async with session, running_process(f"prometheus-{port}", command, folder=folder) as process:
        url = f"{'https' if access.is_secured else 'http'}://127.0.0.1:{port}{access.prefix}"
        running = Prometheus(url, process, ca_file, session)
        await running.wait_for("vector(1)")
        yield running


def _secure(folder: Path, command: list[str | Path]) -> Path:
    """Let Prometheus serve TLS with a certificate of an own CA, and ask for a password; return the CA's file."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    web_config = {
        "tls_server_config": {"cert_file": str(folder / "cert.pem"), "key_file": str(folder / "key.pem")},
        "basic_auth_users": {USER: PASSWORD_HASH},
    }
    (folder / "web.yml").write_text(yaml.safe_dump(web_config))
    command.append(f"--web.config.file={folder / 'web.yml'}")
    return folder / "ca.pem"


@asynccontextmanager
async def running_node_exporter(folder: Path) -> AsyncIterator[str]:
    """Run a node_exporter of this machine and give its address."""
    program = find_program("prometheus-node-exporter")
    (port,) = choose_free_ports(1)
    collectors = [f"--collector.{name}" for name in ("cpu", "meminfo", "diskstats", "netdev")]
    command: list[str | Path] = [program, "--collector.disable-defaults", *collectors, f"--web.listen-address=127.0.0.1:{port}"]
    async with running_process(f"node-exporter-{port}", command, folder=folder):
        yield f"127.0.0.1:{port}"


@asynccontextmanager
async def serving_page(write: Callable[[], str]) -> AsyncIterator[str]:
    """Serve a page of metrics that is written anew at each scrape, and give its address."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=write())

    app = web.Application()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class MachineRecorder:
    """What psutil says of this machine over time, so that any span can be compared afterwards."""

    def __init__(self) -> None:
        self._readings: list[tuple[float, float, float, float]] = []  # time, busy seconds, all seconds, memory in use in percent

    async def run(self) -> None:
        """Read four times a second until cancelled."""
        while True:
            times, memory = psutil.cpu_times(), psutil.virtual_memory()
            # As the node mixin counts; guest time is part of user time.
            total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
            idle = times.idle + getattr(times, "iowait", 0.0) + getattr(times, "steal", 0.0)
            self._readings.append((time.time(), total - idle, total, 100 * (1 - memory.available / memory.total)))
            await asyncio.sleep(0.25)

    def cpu_percent(self, start_at: float, end_at: float) -> float:
        """Answer the busy share between two instants."""
        first, last = self._find(start_at), self._find(end_at)
        return 100 * (last[1] - first[1]) / (last[2] - first[2])

    def memory_percent(self, at: float) -> float:
        """Answer the share of memory in use."""
        return self._find(at)[3]

    def _find(self, at: float) -> Sequence[float]:
        index = bisect.bisect_left(self._readings, (at,))
        return self._readings[min(index, len(self._readings) - 1)]
