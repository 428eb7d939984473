"""
Write PromQL: the newest value, the average and the deviation of an expression, and many expressions as one query.

Pure. Each part of a combined query carries a label that says which part a series belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from load_watcher.providers.catalogue import Catalogue, Expression
from load_watcher.samples import Window

PART_LABEL: Final = "load_watcher_part"
_SPAN: Final = "$window"


class Part(NamedTuple):
    """One of the expressions of a combined query; ``key`` tells its series from those of the others and holds no ``$`` and no quote."""

    key: str
    query: str


def write_newest(expression: Expression, catalogue: Catalogue) -> str:
    """Write the query for the newest values."""
    return expression.query.replace(_SPAN, str(catalogue.rate_window))


def write_average(expression: Expression, window: Window, catalogue: Catalogue) -> str:
    """
    Write the query for the averages over a window.

    A series is averaged as it stands. A rate is taken over the whole window, which is its average and costs no subquery. Only what is
    left needs one.
    """
    if expression.is_selector:
        return f"avg_over_time({expression.query}[{window}])"
    if _SPAN in expression.query:
        return expression.query.replace(_SPAN, str(window))
    return f"avg_over_time(({expression.query})[{window}:{catalogue.subquery_step}])"


def write_deviation(expression: Expression, window: Window, catalogue: Catalogue) -> str:
    """Write the query for the standard deviations over a window, of the whole (divisor n)."""
    if expression.is_selector:
        return f"stddev_over_time({expression.query}[{window}])"
    return f"stddev_over_time(({write_newest(expression, catalogue)})[{window}:{catalogue.subquery_step}])"


def write_times(expression: Expression) -> str:
    """Write the query for the times at which the newest values were measured; empty where the expression does not tell."""
    return f"timestamp({expression.dated_by})" if expression.dated_by else ""


def combine(parts: Sequence[Part]) -> str:
    """
    Write one query that answers all parts, each series with the key of its part in the label :data:`PART_LABEL`.

    As a balanced tree: in a chain each ``or`` would look at all series before it once more.

    >>> combine([Part("a", "x"), Part("b", "y")])
    'label_replace(x, "load_watcher_part", "a", "", "") or label_replace(y, "load_watcher_part", "b", "", "")'
    """
    if len(parts) == 1:
        part = parts[0]
        return f'label_replace({part.query}, "{PART_LABEL}", "{part.key}", "", "")'
    middle = len(parts) // 2
    left, right = combine(parts[:middle]), combine(parts[middle:])
    return f"{_group(left, middle)} or {_group(right, len(parts) - middle)}"


def _group(query: str, parts: int) -> str:
    return query if parts == 1 else f"({query})"
