"""Plain references, written from the documentation and not from the library: what we expect where we differ from the original."""

from __future__ import annotations

import math
import re
from fractions import Fraction

_EXPONENTS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_LARGEST = 2**63 - 1
_PARTS = re.compile(r"([+-]?)([0-9.]*)(.*)")


def quantity_amounts(text: str) -> tuple[int, int]:
    """Answer thousandths and whole units of a quantity: exact, held at the largest 64-bit amount, away from zero at nano and unit."""
    sign, number, suffix = _PARTS.fullmatch(text).groups()  # type: ignore[union-attr]
    amount = Fraction(number) if number.strip(".") else Fraction(0)
    if suffix.endswith("i"):
        amount *= 2 ** (10 * ("KMGTPE".index(suffix[0]) + 1))
    elif suffix in _EXPONENTS:
        amount *= Fraction(10) ** _EXPONENTS[suffix]
    elif abs(exponent := int(suffix[1:])) < 400:
        amount *= Fraction(10) ** exponent
    else:
        amount = Fraction(_LARGEST if exponent > 0 and amount else 0)
    amount = min(Fraction(math.ceil(amount * 10**9), 10**9), Fraction(_LARGEST))
    milli, units = math.ceil(amount * 1000), math.ceil(amount)
    return (-milli, -units) if sign == "-" else (milli, units)


def target_load_packing_score(predicted_percent: float, target_percent: float) -> int:
    """Score one node by the formula of KEP 61, in plain floats, halves away from zero."""
    if predicted_percent > 100:
        return 0
    if predicted_percent > target_percent:
        return _round(target_percent * (100 - predicted_percent) / (100 - target_percent))
    return _round((100 - target_percent) * predicted_percent / target_percent + target_percent)


def _round(value: float) -> int:
    return math.floor(value + Fraction(1, 2)) if value >= 0 else -math.floor(-value + Fraction(1, 2))
