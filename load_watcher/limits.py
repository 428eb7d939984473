"""
The limits of the rules, each with its unit and its reason.

A limit that is wider finds less, one that is narrower calls more that is real an error; ``docs/quality.md`` shows what the defaults reach
on real traces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Final, Self

from load_watcher.nearest import suggest

# Clocks of machines that run NTP agree to far less; a minute also covers a source that stamps the end of its interval.
MAX_AHEAD_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityLimits:
    """
    Hold the limits of all rules.

    Args:
        max_percent: Above it a value in percent is impossible. A rate of usage is a difference of two counters over a difference of two
            clocks, so that a busy node reads over 100 % (105.8 in the Bitbrains trace, more on one core and short windows). Rejecting
            a node that is really full would leave its earlier, lower value standing; so the limit is where no clock explains it.
        wrapped_percent: From it on the cause is told as a wrapped counter or a wrong unit: no clock error makes 10,000 times the
            capacity, and the smallest wrap, 2^32 in a minute, makes more.
        max_value: Above it a value in any other unit is impossible. The Go client refuses a whole reply for one number beyond 64 bits
            and garbles digits from 1e16 on; a wrapped 64-bit counter of an hour makes 5e15.
        ahead_seconds: How far after now a sample may be dated.
        late_seconds: The age from which a sample is late: two of the slowest usual intervals, 60 s.
        negligible_percent: Half a percent of the capacity changes no score. A value closer than this to 0 is idle and to 100 saturated,
            where not moving is natural; a fall that is smaller is no jump.
        history_samples: Fewer recent samples say nothing about what is usual for a node.
        stuck_samples: The shortest run of equal samples that is stuck, whatever the resolution of the source.
        stuck_seconds: The shortest time of such a run: the shortest window that policies average over.
        stuck_chance: A run is stuck when the share of repeats among the node's own earlier samples makes its length less likely than
            this. At a sample each 30 s, 5,000 nodes and 2 metrics give 3e7 values a day, but a run needs many of them, and repeats
            are correlated: the longest run of the traces in ``tests/data`` has 2e-6.
        stuck_steps: A stuck value is at least so many steps of its source's resolution: three digits. A calm node moves by a few percent
            of its usage, which is less than a step when the source gives two.
        jump_spreads: A value is a jump when it is this many times the range of the recent values above the highest of them.
        jump_percent: The least that a jump upwards adds: the step of a source that rounds, and five points of score.
        drop_factor: A value is a jump when the lowest recent one is more than this many times as large. Work that ends leaves the base
            load; a wrong unit (ratio for percent) makes 100.
        quarantine_samples: So many impossible samples in a row put a node into quarantine, and so many good ones end it. One or two are
            a restart of an agent.
        suspicion_nodes: With fewer nodes than this, most of them going away at once is nothing unusual.
        suspicion_share: More than this share lost or collapsed at once is suspect: "most".
        grace_seconds: How long that is not believed. Longer than a restart of Metrics Server (two scrapes at its default of 60 s),
            shorter than the age at which values count as stale (300 s).
        forget_seconds: How long a node that the source no longer names is listed as missing: the default age at which values expire.
    """

    max_percent: float = 150.0
    wrapped_percent: float = 1e6
    max_value: float = 1e15
    ahead_seconds: float = MAX_AHEAD_SECONDS
    late_seconds: float = 120.0
    negligible_percent: float = 0.5
    history_samples: int = 10
    stuck_samples: int = 10
    stuck_seconds: float = 300.0
    stuck_chance: float = 1e-8
    stuck_steps: float = 100.0
    jump_spreads: float = 3.0
    jump_percent: float = 5.0
    drop_factor: float = 10.0
    quarantine_samples: int = 3
    suspicion_nodes: int = 3
    suspicion_share: float = 0.5
    grace_seconds: float = 180.0
    forget_seconds: float = 900.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{each.name}={value:g}: a limit is a finite number above 0")

    @classmethod
    def parse(cls, text: str) -> Self:
        """
        Read limits as a setting holds them; those that are not named keep their defaults.

        Args:
            text: For example ``grace_seconds=60, max_percent=120``; may be empty.

        Raises:
            ValueError: If a name is not known or a value is not a number above 0.

        >>> QualityLimits.parse("grace_seconds=60").grace_seconds
        60.0
        """
        defaults = {each.name: each.default for each in fields(cls)}
        given: dict[str, float] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, _, value = (piece.strip() for piece in part.partition("="))
            if name not in defaults:
                raise ValueError(f"{name!r} is not a limit{suggest(name, defaults)}; write name=number, with commas between")
            read = int if isinstance(defaults[name], int) else float
            try:
                given[name] = read(value)
            except ValueError:
                kind = "a whole number" if read is int else "a number"
                raise ValueError(f"{name}: {value!r} is not {kind}; the default is {defaults[name]:g}") from None
        return cls(**given)  # type: ignore[arg-type] # counts were read as int


DEFAULT_LIMITS: Final = QualityLimits()
# How much of the history the rules look at: a stuck value of a source that repeats half of its samples is found after 28, beside
# `history_samples` of movement. More would only cost time.
RECENT_REFRESHES: Final = 60
