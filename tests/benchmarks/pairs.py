"""
Ratios on a machine whose speed changes: each is taken between two readings that were made one right after the other.

The speed of a shared machine changes by half within minutes, so a median of one program's readings divided by a median of another's says
as much about the minute as about the programs. A pair shares its second. What is told is the mean of the middle half of the pairs' ratios:
it leaves out the pairs in which something else ran, as a median does, and repeats better (drawn again and again from the pairs of one run
it spread by 4.2 %, the median by 5.0). The quartiles beside it tell how much the pairs differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, quantiles


@dataclass(frozen=True)
class Spread:
    """
    What several readings of one figure came to.

    Args:
        value: Their middle.
        low: The lower quartile.
        high: The upper quartile.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{write_digits(self.low)} to {write_digits(self.high)}"

    def scaled(self, factor: float) -> Spread:
        """Answer the same in another unit."""
        return Spread(factor * self.value, factor * self.low, factor * self.high)


def spread_of(readings: Sequence[float]) -> Spread:
    """
    Answer the median and the quartiles; those of a single reading are itself.

    >>> str(spread_of([1.0, 2.0, 3.0, 4.0, 100.0]))
    '2 to 4'
    """
    if len(readings) == 1:
        return Spread(readings[0], readings[0], readings[0])
    low, _, high = quantiles(readings, n=4, method="inclusive")
    return Spread(median(readings), low, high)


def pair(values: Sequence[float], bases: Sequence[float]) -> Spread:
    """
    Answer how many times its base each value is, of readings that were made two by two: the mean of the middle half, and the quartiles.

    A machine that is slow in the second pair does not move the ratio, nor does a pair that something disturbed:

    >>> pair([10.0, 5.0, 30.0, 10.0], [1.0, 0.5, 1.0, 1.0]).value
    10.0

    Raises:
        ValueError: If a reading has no partner.
    """
    ratios = sorted(value / base for value, base in zip(values, bases, strict=True))
    outer = len(ratios) // 4
    return replace(spread_of(ratios), value=fmean(ratios[outer : len(ratios) - outer]))


def write_digits(value: float) -> str:
    """Write three digits, more where a number has more before its point."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
