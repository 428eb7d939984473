"""The command ``trimaran``: what the library computes, for people and scripts; no formulas."""

from __future__ import annotations

import sys

import click

from trimaran_client.cli.explain_command import explain
from trimaran_client.cli.extender_command import extender
from trimaran_client.cli.scheduler_config_command import check_scheduler_config
from trimaran_client.cli.score_command import score
from trimaran_client.errors import TrimaranError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="trimaran")
def cli() -> None:
    """Place pods by the measured load of nodes."""


cli.add_command(score)
cli.add_command(explain)
cli.add_command(extender)
cli.add_command(check_scheduler_config)


def main() -> None:
    """Run the command line; an error of ours is one clear line and exit status 1."""
    try:
        cli.main()
    except TrimaranError as error:
        sys.stderr.write(f"trimaran: {error}\n")
        sys.exit(1)
