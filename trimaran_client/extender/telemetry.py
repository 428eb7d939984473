"""The extender's own metrics, read at the scrape from where things are counted; all names begin with ``trimaran_extender_``."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trimaran_client.assigned import AssignedPods
from trimaran_client.extender.decider import Counters
from trimaran_client.snapshot import SnapshotSource

# A scheduling cycle without us takes 2 ms.
_DURATION_BUCKETS: Final = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0)
_PREFIX: Final = "trimaran_extender"


class Telemetry(Collector):
    """
    Show what the extender does.

    Args:
        counters: What was answered.
        load: The measured load.
        pods: The pods that hold a place.
        watch_silent_seconds: How long the watch of the pods has said nothing; infinite before its first list.
        event_outcomes: What became of events.
        clock: Unix seconds.
        is_degraded: Whether something is missing for good answers.
        version: The version, for the build information.
    """

    def __init__(
        self,
        counters: Counters,
        *,
        load: SnapshotSource,
        pods: AssignedPods,
        watch_silent_seconds: Callable[[], float],
        event_outcomes: Mapping[str, int],
        clock: Callable[[], float],
        is_degraded: Callable[[], bool],
        version: str,
    ) -> None:
        self._counters = counters
        self._load = load
        self._pods = pods
        self._watch_silent_seconds = watch_silent_seconds
        self._event_outcomes = event_outcomes
        self._clock = clock
        self._is_degraded = is_degraded
        self.registry = CollectorRegistry()
        self.durations = Histogram(
            f"{_PREFIX}_request_duration_seconds",
            "Time from the whole body to the answer, by verb.",
            ["verb"],
            buckets=_DURATION_BUCKETS,
            registry=self.registry,
        )
        build = Gauge(f"{_PREFIX}_build_info", "Version of the extender; always 1.", ["version", "python"], registry=self.registry)
        build.labels(version, platform.python_version()).set(1)
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def collect(self) -> Iterator[Metric]:
        """Make the series of one scrape."""
        counters = self._counters
        yield _counts("answers", "Answers, by what became of the question.", "outcome", counters.outcomes)
        yield _counts("failures", "Neutral answers by a failure of our own, by cause.", "cause", counters.failures)
        yield _counts("scored_nodes", "Nodes that were scored, by the reason of their score.", "reason", counters.reasons)
        yield _counts("events", "Events on pods, by what became of them.", "outcome", self._event_outcomes)
        yield CounterMetricFamily(f"{_PREFIX}_refused_nodes", "Nodes that /filter took out.", value=counters.refused_nodes)
        yield CounterMetricFamily(
            f"{_PREFIX}_ignored_overrides", "Wishes of pods and namespaces that could not be followed.", value=counters.ignored_wishes
        )
        yield GaugeMetricFamily(f"{_PREFIX}_degraded", "Whether something is missing for good answers.", value=self._is_degraded())
        snapshot = self._load.snapshot
        if snapshot.made_at:
            age_seconds = max(0.0, self._clock() - snapshot.made_at)
            yield GaugeMetricFamily(f"{_PREFIX}_snapshot_age_seconds", "Age of the load watcher's snapshot.", value=age_seconds)
        yield GaugeMetricFamily(f"{_PREFIX}_nodes", "Nodes of the load watcher's snapshot.", value=len(snapshot.nodes))
        yield GaugeMetricFamily(f"{_PREFIX}_pods", "Pods that hold a place.", value=len(self._pods))
        yield GaugeMetricFamily(f"{_PREFIX}_pods_in_flight", "Pods that the metrics do not fully show.", value=self._pods.in_flight_count)
        yield GaugeMetricFamily(
            f"{_PREFIX}_watch_silent_seconds", "Time since the watch of pods said anything.", value=self._watch_silent_seconds()
        )


def _counts(name: str, text: str, label: str, counts: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(f"{_PREFIX}_{name}", text, labels=[label])
    for value, count in list(counts.items()):  # at once: this runs beside the event loop, which counts on
        family.add_metric([value], count)
    return family
