"""What a suite answers about a case, and the comparisons that several suites share."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Case = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    The result of one case.

    ``rules`` names the deliberate differences that applied, none where the original's answer was expected as it stands; ``problem`` is
    empty when the case passed.
    """

    rules: tuple[str, ...] = ()
    problem: str = ""


def judge(ours: object, expected: object, *rules: str) -> Outcome:
    """Pass where the two are equal, else say both."""
    return Outcome(rules, "" if ours == expected else f"expected {expected!r}, got {ours!r}")


def is_close(ours: float, expected: float | str, relative: float = 1e-9) -> bool:
    """Compare within a relative tolerance; the vectors write what is not finite as text, and equal ones of those are close."""
    wanted = float(expected)
    return ours == wanted or (math.isnan(ours) and math.isnan(wanted)) or math.isclose(ours, wanted, rel_tol=relative, abs_tol=0.0)


def is_json(text: str) -> bool:
    """Tell whether text is JSON as its standard defines it: no NaN, no bare words, nothing after the value."""
    try:
        json.loads(text, parse_constant=_refuse)
    except ValueError:
        return False
    return True


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")
