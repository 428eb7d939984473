"""The command ``load-watcher``: read the settings, build the service, serve until told to stop."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import textwrap
import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Final

import prometheus_client
import stamina
import structlog

import load_watcher
from load_watcher.clock import SystemClock
from load_watcher.doctor import run_doctor
from load_watcher.errors import LoadWatcherError, SettingsError
from load_watcher.export import FORMATS, export_history
from load_watcher.providers.registry import choose_provider, list_provider_names
from load_watcher.samples import Window
from load_watcher.server.app import create_app
from load_watcher.server.handlers import make_respond
from load_watcher.settings import BindAddress, Settings, list_variables, load_settings
from load_watcher.watcher import Watcher
from load_watcher.wiring import make_memory, make_watcher
from trimaran_client.direct import serving
from trimaran_client.ops import allow_connections, choose_loop, configure_logging, explain_os_error, return_memory, settle

# Well inside the 30 s after which Kubernetes kills.
_SHUTDOWN_SECONDS: Final = 10
_THREADS_SECONDS: Final = 5
_HELP_WIDTH: Final = 110

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; answers 0 after a clean stop, 1 if it could not serve, 2 for settings that cannot be used."""
    arguments = _make_parser().parse_args(argv)
    if arguments.command == "export":
        return _export(arguments)
    if arguments.command == "doctor":
        configure_logging("critical")
        return run_doctor(clock=SystemClock(), as_json=arguments.output == "json", make_memory=make_memory)
    try:
        settings, warnings = load_settings(list_provider_names())
    except SettingsError as error:
        for problem in error.problems:
            print(f"load-watcher: {problem}", file=sys.stderr)
        return 2
    configure_logging(settings.log_level, log_format=settings.log_format)
    # The time at which each series began doubles the scrape, and nobody reads it.
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    # By default each retry is logged, and counted in the global registry; a refresh that fails is told once, by the watcher.
    stamina.instrumentation.set_on_retry_hooks([])
    for warning in warnings:
        _log.warning(warning)
    try:
        with asyncio.Runner(loop_factory=choose_loop()) as runner:
            runner.run(_serve(settings))
    except KeyboardInterrupt:  # before the loop could take the signal
        return 0
    except (LoadWatcherError, _ListenError) as error:
        print(f"load-watcher: {error}", file=sys.stderr)
        return 1
    return 0


def _export(arguments: argparse.Namespace) -> int:
    """Write a range of history to a file or to standard output."""
    now = SystemClock().time()
    start_at = 0.0 if arguments.last is None else now - arguments.last.duration_seconds
    with ExitStack() as stack:
        try:
            target = sys.stdout.buffer if arguments.output == "-" else stack.enter_context(Path(arguments.output).open("wb"))
            count = asyncio.run(
                export_history(arguments.history, start_at=start_at, end_at=None, file_format=arguments.format, target=target)
            )
        except (LoadWatcherError, OSError) as error:
            print(f"load-watcher export: {error}", file=sys.stderr)
            return 1
    print(f"{count} refreshes written", file=sys.stderr)
    return 0


class _ListenError(Exception):
    """The address cannot be listened on."""


async def _serve(settings: Settings) -> None:
    return_memory()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    choice = choose_provider(settings)
    watcher = make_watcher(settings, choice.name, SystemClock())
    allow_connections()
    try:
        async with AsyncExitStack() as stack:
            url = _make_url(*await _listen(stack, watcher, settings.bind))
            settle()
            _log.info("listening", url=url, provider=choice.name, reason=choice.reason, version=load_watcher.__version__)
            _log.info("try it", command=f"curl -s {url}/watcher")
            await stop.wait()
            _log.info("stopping", reason="signal")
    finally:
        # A thread of a source that hangs in a file or a name lookup cannot be ended, and the interpreter would wait for it for ever.
        last_resort = threading.Timer(_THREADS_SECONDS, os._exit, [0])
        last_resort.daemon = True
        last_resort.start()


async def _listen(stack: AsyncExitStack, watcher: Watcher, bind: BindAddress) -> tuple[str, int]:
    server = serving(
        create_app(watcher),
        bind.host,
        bind.port,
        respond=make_respond(watcher),
        shutdown_seconds=_SHUTDOWN_SECONDS,
        handler_cancellation=True,  # a client that waits for a snapshot may go away
    )
    try:
        return await stack.enter_async_context(server)
    except OSError as error:
        host = f"[{bind.host}]" if ":" in bind.host else bind.host
        remedy = "stop what uses it, or set LOAD_WATCHER_BIND to another address"
        raise _ListenError(f"cannot listen on {host}:{bind.port}: {explain_os_error(error)}; {remedy}") from error


def _make_url(host: str, port: int) -> str:
    if host in ("0.0.0.0", "::"):  # every address; this one can be typed
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="load-watcher",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Serve the utilization of the nodes of a cluster at GET /watcher. Without a command it serves; settings are variables.",
        epilog=_make_epilog(),
    )
    parser.add_argument("--version", action="version", version=f"load-watcher {load_watcher.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    commands.add_parser("serve", help="serve; the same as no command")
    doctor = commands.add_parser("doctor", help="check step by step what the service would do here, and what is wrong")
    doctor.add_argument("--output", choices=("text", "json"), default="text", help="how to print  [%(default)s]")
    export = commands.add_parser("export", help="write a range of history, for the provider Recorded or for other tools")
    export.add_argument("history", type=Path, help="the file that LOAD_WATCHER_HISTORY names; a running service may go on with it")
    export.add_argument("--last", type=Window.parse, metavar="SPAN", help="only the last 30m, 6h, 7d, …; everything if not given")
    export.add_argument("--format", choices=FORMATS, default="jsonl", help="jsonl is what Recorded replays  [%(default)s]")
    export.add_argument("--output", default="-", metavar="FILE", help="where to write; - is standard output  [%(default)s]")
    return parser


def _make_epilog() -> str:
    lines = ["settings (environment variables):"]
    for variable in list_variables():
        default = f" [{variable.default}]" if variable.default else ""
        lines.append(f"  {variable.name}{default}")
        lines.append(textwrap.fill(variable.description, _HELP_WIDTH, initial_indent="      ", subsequent_indent="      "))
    lines += [
        "",
        f"providers: {', '.join(list_provider_names())}",
        "",
        "endpoints:",
        "  GET /watcher             metrics of all nodes; ?host=NODE for one",
        "                           ?window=30m and ?statistic=P90,MAX for other windows and statistics",
        "  GET /watcher/health      200 if the provider could answer now",
        "  GET /api/v1/snapshot     the same in columns; ?windows=5m,15m&statistics=AVG,P90, and ?wait=30 for the next one",
        "  GET /api/v1/nodes        every node with its state; /api/v1/nodes/NODE/history its past",
        "  GET /api/v1/status       how the service does",
        "  GET /livez  GET /readyz  the process makes progress; the snapshot is fresh enough",
        "  GET /metrics             the service's own metrics, for Prometheus",
        "",
        "examples:",
        "  load-watcher",
        "  METRICS_PROVIDER_NAME=KubernetesMetricsServer KUBE_CONFIG=~/.kube/config load-watcher",
        "  LOAD_WATCHER_HISTORY=/var/lib/load-watcher/history.db load-watcher",
        "  load-watcher doctor",
        "  load-watcher export /var/lib/load-watcher/history.db --last 1d --output day.jsonl",
        "  METRICS_PROVIDER_NAME=Recorded METRICS_PROVIDER_ADDRESS=day.jsonl LOAD_WATCHER_BIND=:2020 load-watcher",
    ]
    return "\n".join(lines)
