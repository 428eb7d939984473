"""Which policy the commands score by: its name, arguments and preset."""

from __future__ import annotations

import functools
import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import click
import yaml

from trimaran_client.errors import PolicyArgumentError
from trimaran_client.policies.arguments import Preset
from trimaran_client.policies.base import ScoringPolicy
from trimaran_client.policies.registry import create_policy
from trimaran_client.policies.target_load_packing import TargetLoadPacking
from trimaran_client.policies.targets import DEFAULT_TARGET_PERCENT

_P = ParamSpec("_P")

# What the target is called among the arguments of each preset.
_TARGET_NAMES = {"default": "target_percent", "upstream": "targetUtilization"}


def policy_options(command: Callable[Concatenate[ScoringPolicy, _P], None]) -> Callable[..., None]:
    """Give a command the options that choose a policy; it gets the policy as its first argument."""

    @functools.wraps(command)
    def collect(*args: Any, **options: Any) -> None:  # noqa: ANN401 - the options of a command have any types
        name, text, preset, target = (options.pop(each) for each in ("policy", "policy_args", "preset", "target"))
        command(make_policy(name, text, preset, target), *args, **options)

    return functools.reduce(lambda made, option: option(made), reversed(_OPTIONS), collect)


def make_policy(name: str, arguments: str | None, preset: Preset, target_percent: float | None) -> ScoringPolicy:
    """
    Make the policy that the options choose.

    Args:
        name: Of a policy of ours, or of an installed plug-in.
        arguments: YAML or JSON, or ``@`` and a file with it.
        preset: ``default`` or ``upstream``; the latter takes the Go plugin's own arguments.
        target_percent: Goes over the target among the arguments; TargetLoadPacking only.

    Raises:
        PolicyArgumentError: If it cannot be made; the message lists every problem.
    """
    known = {} if arguments is None else _parse_arguments(arguments)
    if target_percent is not None:
        if name != TargetLoadPacking.name:
            raise click.UsageError(f"--target belongs to {TargetLoadPacking.name}; give what {name} takes by --policy-args")
        known = {**known, _TARGET_NAMES[preset]: target_percent}
    return create_policy(name, known, preset)


_OPTIONS: tuple[Callable[[Callable[..., None]], Callable[..., None]], ...] = (
    click.option(
        "--policy",
        default=TargetLoadPacking.name,
        show_default=True,
        metavar="NAME",
        help="How to score: by one of ours (see docs/policies.md), or that of an installed package.",
    ),
    click.option(
        "--policy-args",
        metavar="YAML|@FILE",
        help="Its arguments, for example '{target_percent: 60}'; with --preset upstream the Go plugin's own ('{targetUtilization: 60}').",
    ),
    click.option(
        "--preset",
        type=click.Choice(["default", "upstream"]),
        default="default",
        show_default=True,
        help="upstream computes exactly as the Go plugin.",
    ),
    click.option(
        "--target",
        type=float,
        help=f"CPU utilization that TargetLoadPacking packs up to, percent.  [default: {DEFAULT_TARGET_PERCENT:g}]",
    ),
)


def _parse_arguments(text: str) -> Mapping[str, object]:
    origin = "--policy-args"
    if text.startswith("@"):
        origin = text[1:]
        try:
            text = Path(origin).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise PolicyArgumentError(f"--policy-args: {origin}: {error}; give YAML or JSON, or @ and a file with it") from error
    try:
        known = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise PolicyArgumentError(f"{origin}: not YAML or JSON: {error}") from error
    if not isinstance(known, dict):
        raise PolicyArgumentError(f"{origin}: {reprlib.repr(known)} is no mapping; write for example '{{target_percent: 60}}'")
    return known
