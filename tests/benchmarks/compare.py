"""
Two runs of a benchmark side by side: ``python -m tests.benchmarks.compare FIRST.json SECOND.json [--percent 20]``.

Ratios compare two readings of one run, so a second run should find the same: the exit status is 1 if a ratio differs by more than the
limit, or is there in one run only. Seconds and bytes belong to one machine and one hour, and are shown for context.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.benchmarks.pairs import write_digits
from tests.benchmarks.report import Row, write_table

LIMIT_PERCENT: Final = 20.0


@dataclass(frozen=True)
class Difference:
    """
    One row of two runs.

    Args:
        what: What was measured.
        first: What the first run found; ``None`` if it did not measure that.
        second: What the second run found.
        is_ratio: Whether the two should be the same.
    """

    what: str
    first: float | None
    second: float | None
    is_ratio: bool

    @property
    def percent(self) -> float | None:
        """Answer by how much the larger exceeds the smaller; ``None`` where there is nothing to compare."""
        if self.first is None or self.second is None or min(self.first, self.second) <= 0:
            return None
        return 100 * (max(self.first, self.second) / min(self.first, self.second) - 1)

    def is_within(self, limit_percent: float) -> bool | None:
        """Tell whether a ratio repeats; ``None`` for what need not."""
        if not self.is_ratio:
            return None
        return self.percent is not None and self.percent <= limit_percent


def compare(first: Sequence[Row], second: Sequence[Row]) -> list[Difference]:
    """Put the rows of two runs side by side, in the order of the first, and then what only the second has."""
    ones, others = {row.what: row for row in first}, {row.what: row for row in second}
    differences = []
    for what in ones | others:
        one, other = ones.get(what), others.get(what)
        found = [row for row in (one, other) if row is not None]
        values = (None if one is None else one.value, None if other is None else other.value)
        differences.append(Difference(what, *values, is_ratio=any(row.is_ratio for row in found)))
    return differences


def format_differences(differences: Sequence[Difference], *, limit_percent: float) -> str:
    """Write them as a Markdown table."""
    words: Mapping[bool | None, str] = {True: "yes", False: "**no**", None: ""}
    cells = [("what", "first", "second", "differ by", f"within {limit_percent:g} %")]
    for each in differences:
        first, second = ("" if value is None else write_digits(value) for value in (each.first, each.second))
        percent = "" if each.percent is None else f"{each.percent:.0f} %"
        cells.append((each.what, first, second, percent, words[each.is_within(limit_percent)]))
    return write_table(cells)


def read_rows(path: Path) -> list[Row]:
    """Read the rows that a benchmark wrote with ``--output``."""
    return [Row(**row) for row in json.loads(path.read_text())["rows"]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare; 1 if a ratio did not repeat."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--percent", type=float, default=LIMIT_PERCENT, help="by how much two ratios may differ")
    given = parser.parse_args(arguments)
    differences = compare(read_rows(given.first), read_rows(given.second))
    within = [verdict for each in differences if (verdict := each.is_within(given.percent)) is not None]
    sys.stdout.write(format_differences(differences, limit_percent=given.percent) + "\n\n")
    sys.stdout.write(f"{sum(within)} of {len(within)} ratios are within {given.percent:g} %\n")
    return 0 if all(within) else 1


if __name__ == "__main__":
    sys.exit(main())
