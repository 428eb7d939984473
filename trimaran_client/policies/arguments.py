"""What the arguments of every policy have in common: presets, fallbacks, and problems that are told all at once."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Mapping
from typing import Literal, TypeGuard, get_args

from trimaran_client.errors import PolicyArgumentError

Preset = Literal["default", "upstream"]
Fallback = Literal["allocation", "neutral", "minimum"]

# Five refreshes of a one-minute agent: older values say little about now.
DEFAULT_MAX_AGE_SECONDS = 300.0


# Whole numbers of Python can be larger.
LARGEST_NUMBER = sys.float_info.max


def number_problems(**values: object) -> list[str]:
    """List the values that are not numbers, or not finite."""
    return [f"{name} is {reprlib.repr(value)}; give a finite number" for name, value in values.items() if not is_number(value)]


def is_number(value: object) -> TypeGuard[float]:
    """Tell whether a value is a finite number, and no boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST_NUMBER


def common_problems(*, preset: str, fallback: str, max_age_seconds: object) -> list[str]:
    """List what is wrong with the arguments that every policy has."""
    problems = []
    if isinstance(max_age_seconds, bool) or not isinstance(max_age_seconds, int | float) or not max_age_seconds > 0:
        problems.append(f"max_age_seconds is {max_age_seconds!r}; give a number above 0")
    for name, value, choices in (("fallback", fallback, get_args(Fallback)), ("preset", preset, get_args(Preset))):
        if value not in choices:
            problems.append(f"{name} is {value!r}; choose from {', '.join(choices)}")
    return problems


def raise_problems(policy: str, problems: list[str]) -> None:
    """
    Raise if there is any problem.

    Raises:
        PolicyArgumentError: Naming the policy and every problem.
    """
    if problems:
        raise PolicyArgumentError(f"{policy}: {'; '.join(problems)}")


def upstream_number(policy: str, args: Mapping[str, object], name: str, default: float) -> float:
    """
    Read a number from a plugin's own arguments; an absent or null one takes the default.

    Raises:
        PolicyArgumentError: If it is not a number.
    """
    value = args.get(name)
    if value is None:
        return default
    if not is_number(value):
        raise PolicyArgumentError(f"{policy}: {name} is {reprlib.repr(value)}; give a finite number")
    return float(value)
