"""Which queries make up a refresh: one for the newest values, one for the averages, one for the deviations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from load_watcher.providers.catalogue import Catalogue
from load_watcher.providers.prometheus_batch import TIMES, ChosenMetric, Column
from load_watcher.providers.promql import Part, write_average, write_deviation, write_newest, write_times
from load_watcher.samples import Window
from trimaran_client.wire import AVERAGE, LATEST, STANDARD_DEVIATION


class Plan(NamedTuple):
    """The parts of each query, and for the key of each part what its series are."""

    queries: tuple[Sequence[Part], ...]
    columns: Mapping[str, Column]


def plan_queries(chosen: Mapping[str, ChosenMetric], windows: Sequence[Window], catalogue: Catalogue) -> Plan:
    """Write the parts of the three queries."""
    columns: dict[str, Column] = {}
    newest: list[Part] = []
    averages: list[Part] = []
    deviations: list[Part] = []

    def add(group: list[Part], column: Column, query: str) -> None:
        key = f"{column.metric_key}/{column.operator}/{column.window or ''}"
        columns[key] = column
        group.append(Part(key, query))

    for key, (metric, expression) in chosen.items():
        if LATEST in metric.operators:
            add(newest, Column(key, LATEST), write_newest(expression, catalogue))
            if times := write_times(expression):
                add(newest, Column(key, TIMES), times)
        for window in windows:
            if AVERAGE in metric.operators:
                add(averages, Column(key, AVERAGE, window), write_average(expression, window, catalogue))
            if STANDARD_DEVIATION in metric.operators:
                add(deviations, Column(key, STANDARD_DEVIATION, window), write_deviation(expression, window, catalogue))
    return Plan((newest, averages, deviations), columns)
