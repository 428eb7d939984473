"""What the stage of quality hands on, and what it has to know from one refresh to the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from load_watcher.history.columns import SampleColumns
from load_watcher.samples import Rejection, SampleBatch
from trimaran_client.units import IntArray

# Metric type → the last samples, a column for each node of the batch in its order.
Recent = Mapping[str, SampleColumns]


class Verdict(IntEnum):
    """
    What a sample is. The later ones do not count: their value is NaN in the clean batch.

    ``FRESH``: new and usual. ``LATE``: old when it came, or before one that is held. ``REPEATED``: of a time that is held. ``JUMP``: new,
    and far outside what the node did lately; kept, but marked. ``ABSENT``: no value. ``IMPOSSIBLE``, ``STUCK``: see the rules.
    ``SUSPECT``: one of most that fell at once, not yet believed.
    """

    FRESH = 0
    LATE = 1
    REPEATED = 2
    JUMP = 3
    ABSENT = 4
    IMPOSSIBLE = 5
    STUCK = 6
    SUSPECT = 7


class Jump(NamedTuple):
    """A value that counts although it is far outside the range of the node's recent ones."""

    node: str
    metric_type: str
    value: float
    lowest: float
    highest: float


class Quarantine(NamedTuple):
    """Why the data of a node cannot be trusted, and since when, Unix seconds."""

    reason: str
    since_at: float


class StuckValue(NamedTuple):
    """A value that does not move, and since when, Unix seconds."""

    value: float
    since_at: float


class BadRun(NamedTuple):
    """Impossible samples in a row, then good ones in a row, and the time of the last that was counted, Unix seconds."""

    impossible: int
    good: int
    counted_at: float


@dataclass(frozen=True, slots=True, eq=False)
class QualityState:
    """
    What one refresh leaves to the next; small, since it names only nodes in trouble.

    Args:
        served: The nodes that had a good value when nothing was suspect.
        missing: Nodes that were served and that the source no longer names → since when.
        lost_since_at: Since when most nodes are without a good value; ``None`` if they are not.
        collapsed_since_at: Metric type → since when most of its values are collapsed.
        stuck: Node and metric type → the value that does not move.
        bad_runs: Node → its impossible samples in a row.
        quarantined: Node → why and since when.
    """

    served: frozenset[str] = frozenset()
    missing: Mapping[str, float] = field(default_factory=dict)
    lost_since_at: float | None = None
    collapsed_since_at: Mapping[str, float] = field(default_factory=dict)
    stuck: Mapping[tuple[str, str], StuckValue] = field(default_factory=dict)
    bad_runs: Mapping[str, BadRun] = field(default_factory=dict)
    quarantined: Mapping[str, Quarantine] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class QualityReport:
    """
    A batch with a verdict for every sample.

    Args:
        batch: Every sample that does not count is NaN. While something is suspect, ``members_known`` is off, so that a node that the
            batch lacks is not taken for gone.
        rejections: The samples that do not count, with their value: those of the provider first.
        verdicts: Metric type → codes of :class:`Verdict`, shape (nodes,).
        jumps: The samples that are marked, but count.
        suspicion: What is not believed, as a sentence; ``None`` if nothing is suspect.
        state: For the next call.
    """

    batch: SampleBatch
    rejections: tuple[Rejection, ...]
    verdicts: Mapping[str, IntArray] = field(default_factory=dict)
    jumps: tuple[Jump, ...] = ()
    suspicion: str | None = None
    state: QualityState = field(default_factory=QualityState)

    @property
    def counts(self) -> Mapping[str, int]:
        """Answer how many samples each rule rejected."""
        return Counter(rejection.rule for rejection in self.rejections)

    @property
    def verdict_counts(self) -> Mapping[str, int]:
        """Answer how many samples have each verdict, every verdict a key in lower case."""
        totals = sum((np.bincount(codes, minlength=len(Verdict)) for codes in self.verdicts.values()), np.zeros(len(Verdict), dtype=int))
        return {verdict.name.lower(): int(totals[verdict]) for verdict in Verdict}

    @property
    def quarantined(self) -> Mapping[str, Quarantine]:
        """Answer which nodes are not to be trusted, why, and since when."""
        return self.state.quarantined

    @property
    def missing(self) -> Mapping[str, float]:
        """Answer which nodes were served and are no longer named by the source, and since when, Unix seconds."""
        return self.state.missing
