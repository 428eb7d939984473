"""``trimaran check-scheduler-config``: what would go wrong with a scheduler's configuration."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Final

import click

_PROBE_SECONDS: Final = 5.0


@click.command("check-scheduler-config")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="The extender's own configuration, to compare the two.")
@click.option("--probe", is_flag=True, help="Ask the extender for scores too, as the scheduler would.")
def check_scheduler_config(file: Path, config_file: Path | None, *, probe: bool) -> None:
    """
    Tell what would go wrong with FILE, the KubeSchedulerConfiguration of a scheduler that asks the extender.

    A line for each finding, and exit status 1 if there is any. Most of it a scheduler does not tell: pods just go elsewhere.
    """
    # Here, so that the other commands start without it.
    from trimaran_client.extender import scheduler_config as module
    from trimaran_client.extender.config import load_config

    document = module.load_scheduler_config(file)
    findings = module.check_scheduler_config(document, None if config_file is None else load_config(config_file))
    lines = [f"{where}: {told}" for where, told in findings]
    if probe:
        lines += asyncio.run(_probe(module.list_questions(document)))
    click.echo("\n".join(lines) or "the configuration is fine")
    if lines:
        sys.exit(1)


async def _probe(questions: list[tuple[str, str]]) -> list[str]:
    """Ask for the score of one node that there is not, for a pod of each scheduler's name; answer what is wrong."""
    import aiohttp

    lines: list[str] = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_PROBE_SECONDS)) as session:
        for address, name in questions:
            question = {"Pod": {"spec": {"schedulerName": name}}, "Nodes": None, "NodeNames": ["trimaran-check"]}
            try:
                async with session.post(address, json=question) as response:
                    status, body = response.status, await response.read()
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                lines.append(f"{address}: no answer: {str(error) or type(error).__name__}; see whether the extender runs there")
                continue
            if status != 200 or not _is_array(body):
                lines.append(f"{address}: {status}, which is no answer of the extender; see what listens there")
            elif not json.loads(body):
                lines.append(f"{address}: pods of {name} are left alone: it has no profile of that schedulerName, or runs in shadow mode")
    return lines


def _is_array(body: bytes) -> bool:
    try:
        return isinstance(json.loads(body), list)
    except ValueError:
        return False
