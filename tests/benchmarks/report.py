"""A table of goals and results, as text and JSON, with the machine and the versions that it came from."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from tests.benchmarks.pairs import Spread, write_digits

_LIBRARIES: Final = ("aiohttp", "uvloop", "msgspec", "numpy", "kubernetes-asyncio", "prometheus-api-client")


@dataclass(frozen=True)
class Row:
    """
    One line of the table.

    Args:
        what: What was measured.
        goal: What is to be reached, in words.
        result: What was, in words.
        value: The number that decides.
        reached: Whether it is; ``None`` for context, which has no goal.
        is_ratio: Whether the number compares two readings of this run, so that another run should find the same.
        quartiles: Between which half of the readings behind it lie; ``None`` where there is one reading, or readings of something else.
    """

    what: str
    goal: str
    result: str
    value: float
    reached: bool | None = None
    is_ratio: bool = False
    quartiles: tuple[float, float] | None = None


def at_least(what: str, value: Spread | float, goal: float, *, unit: str, context: str = "", is_ratio: bool = False) -> Row:
    """Make a row whose value should be large."""
    row = for_context(what, value, unit=unit, context=context, is_ratio=is_ratio)
    return replace(row, goal=f"at least {goal:g}{unit}", reached=row.value >= goal)


def at_most(what: str, value: Spread | float, goal: float, *, unit: str, context: str = "", is_ratio: bool = False) -> Row:
    """Make a row whose value should be small."""
    row = for_context(what, value, unit=unit, context=context, is_ratio=is_ratio)
    return replace(row, goal=f"at most {goal:g}{unit}", reached=row.value <= goal)


def for_context(what: str, value: Spread | float, *, unit: str, context: str = "", is_ratio: bool = False) -> Row:
    """Make a row without a goal."""
    spread = value if isinstance(value, Spread) else None
    number = value.value if isinstance(value, Spread) else value
    words = "; ".join(part for part in (f"quartiles {spread}" if spread else "", context) if part)
    result = f"{write_digits(number)}{unit}" + (f" ({words})" if words else "")
    return Row(what, "", result, number, is_ratio=is_ratio, quartiles=None if spread is None else (spread.low, spread.high))


def format_table(rows: Sequence[Row]) -> str:
    """Write the rows as a Markdown table."""
    words = {True: "yes", False: "**no**", None: ""}
    return write_table([("what", "goal", "result", "reached"), *((row.what, row.goal, row.result, words[row.reached]) for row in rows)])


def write_table(cells: Sequence[Sequence[str]]) -> str:
    """Write a Markdown table, whose first row is its head."""
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def write_json(path: Path, rows: Sequence[Row], machine: Mapping[str, str], raw: Mapping[str, object]) -> None:
    """Write everything: the rows, the machine, and the single readings behind the medians."""
    path.write_text(json.dumps({"machine": machine, "rows": [asdict(row) for row in rows], "readings": raw}, indent=1) + "\n")


def describe_machine() -> dict[str, str]:
    """Say what the figures came from: processor, system, load of the moment, versions."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    found = {
        "cores": str(len(os.sched_getaffinity(0))),
        "processor": model[1].strip() if model else platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "load at the start": " ".join(f"{load:.1f}" for load in os.getloadavg()),
        "Python": platform.python_version(),
    }
    for library in _LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            found[library] = "not installed"
    for program, argument in (("go", "version"), ("prometheus", "--version"), ("wrk", "-v")):
        if shutil.which(program):
            answer = subprocess.run([program, argument], capture_output=True, text=True, check=False)
            found[program] = next(iter(re.findall(r"\d+\.\d+[\w.]*", answer.stdout + answer.stderr)), "unknown")
    return found


def say(line: str) -> None:
    """Tell how far it is."""
    sys.stderr.write(f"bench: {line}\n")
    sys.stderr.flush()
