"""What policies ask of a load watcher, beyond what it serves to everybody."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from trimaran_client.policies.arguments import metric_choices
from trimaran_client.policies.base import ScoringPolicy
from trimaran_client.wire import AVERAGE, LATEST, STANDARD_DEVIATION

# Where nothing is asked for, a reply has the longest of these that a node has; other metrics of the policies go by it.
_USUAL_WINDOWS: Final = ("5m", "10m", "15m")
_USUAL_STATISTICS: Final = (AVERAGE, STANDARD_DEVIATION)


def find_needs(policies: Iterable[ScoringPolicy]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """
    Find the windows and statistics that a :class:`trimaran_client.WatcherClient` is to ask for.

    Returns:
        Windows and statistics; both empty where the usual ones do.
    """
    choices = [each for policy in policies for each in metric_choices(getattr(policy, "args", None))]
    windows, statistics = {each.window for each in choices} - {""}, {each.statistic for each in choices} - {""}
    if not windows and not statistics:
        return (), ()
    return tuple(sorted(windows | {*_USUAL_WINDOWS})), tuple(sorted((statistics | {*_USUAL_STATISTICS}) - {LATEST}))
