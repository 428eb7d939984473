"""Which windows and statistics a reply has: the one place that decides what is served of that which the source averaged itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np

from load_watcher.history.aggregate import OPERATORS
from load_watcher.last_good import ColumnKey, LastGood
from load_watcher.samples import Window
from trimaran_client.units import BoolArray, FloatArray

_INSTANT: Final = Window(0)


class Choice(NamedTuple):
    """
    Which windows and statistics somebody asks for, in a fixed order.

    Without windows each node has of each metric the longest that there is, as the Go load-watcher serves 15 minutes, else 10, else 5;
    without statistics those that are usual.
    """

    windows: tuple[Window, ...] = ()
    statistics: tuple[str, ...] = ()

    @classmethod
    def of(cls, windows: Iterable[Window], statistics: Collection[str]) -> Choice:
        """Put what is asked in the one order that it has here, so that the same question is the same choice."""
        return cls(tuple(sorted(set(windows))), tuple(name for name in OPERATORS if name in statistics))

    def take(self, good: LastGood) -> dict[ColumnKey, FloatArray]:
        """Take what is asked for of the values of the source, NaN where a node has none; the newest are always there."""
        asked = {key: column.values for key, column in good.columns.items() if self._includes(key)}
        return asked if self.windows else _keep_longest(asked)

    def _includes(self, key: ColumnKey) -> bool:
        if key.window is None:
            return True
        return (not self.windows or key.window in self.windows) and (not self.statistics or key.operator in self.statistics)


def _keep_longest(columns: Mapping[ColumnKey, FloatArray]) -> dict[ColumnKey, FloatArray]:
    """Keep of each metric and node the value over the longest window; a column of which nothing is left goes."""
    kept: dict[ColumnKey, FloatArray] = {}
    taken: dict[ColumnKey, BoolArray] = {}
    for key in sorted(columns, key=lambda key: key.window or _INSTANT, reverse=True):
        values = columns[key]
        if key.window is None:
            kept[key] = values
            continue
        metric = key._replace(window=None)
        has_longer = taken.get(metric, np.zeros(len(values), dtype=np.bool_))
        is_longest = ~has_longer & ~np.isnan(values)
        if is_longest.any():
            kept[key] = np.where(is_longest, values, np.nan)
            taken[metric] = has_longer | is_longest
    return kept
