"""
Run vector files: ``python -m tests.conformance FILE…``.

Prints each failing case, the rules that applied with their counts, and ``N passed, N failed``; exits 1 if a case failed, 2 if a file could
not be read.
"""

from __future__ import annotations

import asyncio
import collections
import inspect
import json
import logging
import sys
from pathlib import Path
from types import ModuleType

import structlog

from tests.conformance import (
    load_variation_risk_balancing,
    low_risk_over_commitment,
    peaks,
    quantity,
    target_load_packing,
    watcher_decode,
    wire,
)
from tests.conformance.cases import Case, Outcome

_MODULES = (
    load_variation_risk_balancing,
    low_risk_over_commitment,
    peaks,
    quantity,
    target_load_packing,
    watcher_decode,
    wire,
)
# Each module is named as its suite, runs a case, and lists its rules.
SUITES: dict[str, ModuleType] = {module.__name__.rpartition(".")[2]: module for module in _MODULES}


async def run_case(suite: str, case: Case) -> Outcome | None:
    """Run one case of a suite; ``None`` where the project does not have the part that the case is about."""
    try:
        answer = SUITES[suite].run(case)
        outcome: Outcome | None = await answer if inspect.isawaitable(answer) else answer
    except Exception as error:  # noqa: BLE001 - one odd case must not hide the verdicts of the others
        return Outcome((), f"the run ended with {type(error).__name__}: {error}")
    return outcome


async def run_file(path: Path) -> tuple[list[tuple[str, Outcome]], int]:
    """
    Run a vector file.

    Returns:
        The outcome of each case with its id, and how many cases are about parts that the project does not have.

    Raises:
        ValueError: If it is not a vector file, or of a suite that is not known.
    """
    document = json.loads(path.read_text(encoding="utf-8"))
    try:
        suite, cases = document["suite"], list(document["cases"])
        SUITES[suite]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: not a vector file of a known suite ({', '.join(SUITES)})") from error
    outcomes = [(case["id"], await run_case(suite, case)) for case in cases]
    if not outcomes:
        raise ValueError(f"{path}: it holds no cases")
    ran = [(case_id, outcome) for case_id, outcome in outcomes if outcome is not None]
    return ran, len(outcomes) - len(ran)


async def main(arguments: list[str]) -> int:
    """Run every file and report."""
    if not arguments:
        sys.stderr.write("usage: python -m tests.conformance FILE…\n")
        return 2
    failed = passed = skipped = 0
    rules: collections.Counter[str] = collections.Counter()
    for name in arguments:
        try:
            outcomes, left_out = await run_file(Path(name))
        except (OSError, ValueError) as error:
            sys.stderr.write(f"{error}\n")
            return 2
        skipped += left_out
        for case_id, outcome in outcomes:
            rules.update(outcome.rules)
            failed += bool(outcome.problem)
            passed += not outcome.problem
            if outcome.problem:
                sys.stdout.write(f"FAILED {case_id} {list(outcome.rules) or ''}: {outcome.problem}\n")
    for rule, count in sorted(rules.items()):
        sys.stdout.write(f"rule {rule}: {count}\n")
    sys.stdout.write(f"{passed} passed, {failed} failed{f', {skipped} skipped' if skipped else ''}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    # The service says in its log what the cases do to it on purpose.
    logging.disable()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    sys.exit(asyncio.run(main(sys.argv[1:])))
