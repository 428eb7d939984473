"""The rules of quality on real traces: what ``docs/quality.md`` promises, with fewer injections than the benchmark."""

from __future__ import annotations

import pytest

from tests.quality_traces import KINDS, Kind, Trace, inject, load_traces, replay_clean, round_values

MAX_FALSE_RATIO = 0.001
MIN_FOUND_RATIO = 0.95
TRACES = load_traces()
COARSE_TRACES = [round_values(trace) for trace in TRACES]


@pytest.mark.slow
@pytest.mark.parametrize("trace", [*TRACES, *COARSE_TRACES], ids=lambda trace: trace.name)
def test_of_the_real_samples_nearly_none_is_rejected(trace: Trace) -> None:
    clean = replay_clean(trace)
    assert clean.samples > 18_000
    assert clean.rejected <= MAX_FALSE_RATIO * clean.samples
    # A mark costs nothing, but must not be ordinary.
    assert clean.jumps <= 0.01 * clean.samples
    assert (clean.quarantined_refreshes, clean.suspect_refreshes) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_nearly_every_injected_fault_is_found_within_two_refreshes(kind: Kind) -> None:
    result = inject(kind, TRACES, count=80, seed=5)
    assert result.injected == 80
    assert result.found_ratio >= MIN_FOUND_RATIO, result.missed
