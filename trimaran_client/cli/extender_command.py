"""``trimaran extender``: serve the answers that an unmodified kube-scheduler asks for."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import click

from trimaran_client.errors import TrimaranError

_SHUTDOWN_SECONDS: Final = 5

logger = logging.getLogger(__name__)


class ListenError(TrimaranError):
    """The address cannot be listened on."""


@click.command()
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="The configuration, YAML; docs/extender.md describes it.")
@click.option("--watcher", metavar="URL", help="The load watcher's address.  [default: http://127.0.0.1:2020]")
@click.option("--bind", metavar="HOST:PORT", help="Where to listen.  [default: 127.0.0.1:8888]")
@click.option("--no-cluster", is_flag=True, help="Do not watch nodes and pods: capacities come from the load watcher, for a first try.")
@click.option("--kubeconfig", metavar="FILE", help="Access to the cluster.  [default: in-cluster files, $KUBECONFIG, ~/.kube/config]")
@click.option("--shadow", is_flag=True, help="Log what would be answered, and answer nothing.")
@click.option("--check", is_flag=True, help="Only check the configuration.")
def extender(
    config_file: Path | None,
    watcher: str | None,
    bind: str | None,
    kubeconfig: str | None,
    *,
    no_cluster: bool,
    shadow: bool,
    check: bool,
) -> None:
    """
    Serve POST /prioritize and /filter for a stock kube-scheduler, scoring nodes by measured load.

    Options on the command line take the place of those in the file. GET /api/v1/decisions and /api/v1/explain?pod=namespace/name tell why.
    """
    # Here, so that the other commands start without them.
    import msgspec

    from trimaran_client.extender.config import ExtenderConfig, load_config
    from trimaran_client.ops import choose_loop, configure_logging

    config = ExtenderConfig() if config_file is None else load_config(config_file)
    given: dict[str, Any] = {"watcher": watcher, "bind": bind, "kubeconfig": kubeconfig, "shadow": shadow or None}
    given["cluster"] = False if no_cluster else None
    config = msgspec.structs.replace(config, **{name: value for name, value in given.items() if value is not None}).check()
    if check:
        click.echo("the configuration is fine")
        return
    configure_logging(config.log_level, log_format=config.log_format)
    with asyncio.Runner(loop_factory=choose_loop()) as runner:
        runner.run(_serve(config))


async def _serve(config: Any) -> None:  # noqa: ANN401 - the configuration's module is imported on use only
    from trimaran_client.extender.app import running_extender, serving_extender
    from trimaran_client.ops import allow_connections, explain_os_error, return_memory, settle

    return_memory()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    allow_connections()
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(running_extender(config))
        host, port = config.address
        try:
            address = await stack.enter_async_context(serving_extender(running, host, port, shutdown_seconds=_SHUTDOWN_SECONDS))
        except OSError as error:
            raise ListenError(f"cannot listen on {config.bind}: {explain_os_error(error)}; give another --bind") from error
        logger.info("listening on %s:%s; load from %s", *address, config.watcher)
        settle()
        await stop.wait()
        logger.info("stopping")
