"""
Print what the rules of quality reach on real traces: ``python -m tests.benchmarks.quality [INJECTIONS]``.

The two tables of ``docs/quality.md``; a few minutes with the default of 1,000 injections for each kind of fault.
"""

from __future__ import annotations

import sys
import time

from tests.quality_traces import KINDS, inject, load_traces, replay_clean, round_values

SEED = 20


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(count: int) -> None:
    started = time.perf_counter()
    traces = load_traces()
    _write("| trace | samples outside labels | rejected | share | marked as jump | in quarantine (nodes x refreshes) | suspect refreshes |")
    _write("|---|---|---|---|---|---|---|")
    for trace in [*traces, *map(round_values, traces)]:
        clean = replay_clean(trace)
        share, jumps = 100 * clean.rejected / clean.samples, 100 * clean.jumps / clean.samples
        numbers = f"{clean.samples:,} | {clean.rejected} | {share:.3f} % | {clean.jumps} ({jumps:.2f} %)"
        _write(f"| {clean.name} | {numbers} | {clean.quarantined_refreshes} | {clean.suspect_refreshes} |")
    _write("\n| fault | injected | found | share |")
    _write("|---|---|---|---|")
    missed = []
    for kind in KINDS:
        result = inject(kind, traces, count=count, seed=SEED)
        _write(f"| {result.name} | {result.injected} | {result.found} | {100 * result.found_ratio:.1f} % |")
        missed += [f"{result.name}: {place}" for place in result.missed]
    _write(f"\nseed {SEED}, {time.perf_counter() - started:.0f} s; not found, up to 20 of {len(missed)}:")
    _write("\n".join(missed[:: max(1, len(missed) // 20)][:20]))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
