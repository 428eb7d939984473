"""What the arguments of every policy have in common: presets, fallbacks, and problems that are told all at once."""

from __future__ import annotations

import dataclasses
import math
import re
import reprlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeGuard, get_args

from trimaran_client.errors import PolicyArgumentError
from trimaran_client.snapshot import MetricSelector, Pick
from trimaran_client.units import parse_span_seconds

Preset = Literal["default", "upstream"]
Fallback = Literal["allocation", "neutral", "minimum"]

# Five refreshes of a one-minute agent: older values say little about now.
DEFAULT_MAX_AGE_SECONDS = 300.0


# Whole numbers of Python can be larger.
LARGEST_NUMBER = sys.float_info.max


_STATISTIC = re.compile(r"Latest|AVG|MAX|P[0-9]{1,2}")


@dataclass(frozen=True, slots=True)
class MetricChoice:
    """
    Which metric of a resource a policy goes by.

    Args:
        statistic: ``AVG``, ``Latest``, ``MAX`` or a percentile such as ``P90``; empty for the choice of the policy's upstream.
        window: Only over this one, such as ``15m``; empty for whatever window is served.
    """

    statistic: str = ""
    window: str = ""

    def problems(self, name: str) -> list[str]:
        """List what is wrong with it; *name* is what its user calls it."""
        found = []
        if self.statistic and not _STATISTIC.fullmatch(self.statistic):
            found.append(f"{name}.statistic is {self.statistic!r}; choose from AVG, Latest, MAX, P50, P90, P95, P99")
        if self.window and math.isnan(parse_span_seconds(self.window)):
            found.append(f"{name}.window is {self.window!r}; write a number with s, m, h or d, for example 15m")
        return found

    def selector(self, metric_type: str, operators: tuple[str, ...], *, pick: Pick = "last") -> MetricSelector:
        """Make the selector of a metric type; *operators* are those that count where no statistic is chosen."""
        return MetricSelector(metric_type, (self.statistic,) if self.statistic else operators, self.window, pick)


ANY_METRIC: Final = MetricChoice()


@dataclass(frozen=True, slots=True)
class NumberRange:
    """What a number may be, and how that is told."""

    is_inside: Callable[[float], bool]
    told: str

    def problems(self, **values: object) -> list[str]:
        """List the values that are not finite numbers, or out of the range."""
        return [
            f"{name} is {reprlib.repr(value)}; give {self.told if is_number(value) else 'a finite number'}"
            for name, value in values.items()
            if not is_number(value) or not self.is_inside(value)
        ]


ANY_NUMBER: Final = NumberRange(lambda _: True, "a finite number")
AT_LEAST_ZERO: Final = NumberRange(lambda value: value >= 0, "a number of at least 0")
ABOVE_ZERO: Final = NumberRange(lambda value: value > 0, "a number above 0")
WHOLE: Final = NumberRange(lambda value: isinstance(value, int) and value >= 0, "a whole number of at least 0")
WHOLE_ABOVE_ZERO: Final = NumberRange(lambda value: isinstance(value, int) and value >= 1, "a whole number of at least 1")
PERCENT: Final = NumberRange(lambda value: 0 < value < 100, "a percentage above 0 and below 100")
SHARE: Final = NumberRange(lambda value: 0 <= value <= 1, "a number from 0 to 1")


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
        raise PolicyArgumentError.of(policy, problems)


def upstream_number(args: Mapping[str, object], name: str, default: float, problems: list[str]) -> float:
    """Read a number from a plugin's own arguments; an absent or null one takes the default, and what is no number goes to *problems*."""
    value = args.get(name)
    if value is None:
        return default
    if is_number(value):
        return float(value)
    problems.append(f"{name} is {reprlib.repr(value)}; give a finite number")
    return default


def metric_choices(args: object) -> Iterator[MetricChoice]:
    """Go through the metrics that arguments of a policy choose, those of nested targets too."""
    if isinstance(args, MetricChoice):
        yield args
    elif isinstance(args, tuple | list):
        for each in args:
            yield from metric_choices(each)
    elif dataclasses.is_dataclass(args) and not isinstance(args, type):
        for field in dataclasses.fields(args):
            yield from metric_choices(getattr(args, field.name))
