"""
The service's own metrics, in a registry of their own: several watchers can live in one process.

All names are ``load_watcher_<thing>_<unit>[_total]``; ``docs/operations.md`` says what to watch.
"""

from __future__ import annotations

import collections
import platform
from collections.abc import Iterator, Mapping
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from load_watcher.clock import Clock
from load_watcher.errors import ProviderError
from load_watcher.history.errors import HistoryFileError
from load_watcher.history.memory import Memory
from load_watcher.quality import QualityReport

# A refresh is one or two requests in a cluster, or a few queries of a large one; the longest bucket is past every sensible deadline.
_DURATION_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
# Anything else is a label that a client could choose freely.
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})


RequestLabels = tuple[str, str, str]
"""Route, method and status of answered requests."""


def label_request(route: str, method: str, status: int) -> RequestLabels:
    """Make the labels of an answered request; *route* is the pattern that matched, never the path that was asked for."""
    return route, method if method in _METHODS else "other", str(status)


class SnapshotFacts(Protocol):
    """What of a snapshot shows in the metrics."""

    @property
    def made_at(self) -> float:
        """Answer when it was made, Unix seconds."""
        ...

    @property
    def newest_sampled_at(self) -> float | None:
        """Answer the time of its newest sample."""
        ...

    @property
    def status_counts(self) -> Mapping[str, int]:
        """Answer how many nodes have each status."""
        ...


class Telemetry:
    """
    Count what the service does.

    Args:
        clock: Where ages are measured at a scrape.
        version: The version of the service, for the build information.
    """

    def __init__(self, clock: Clock, *, version: str) -> None:
        self.registry = CollectorRegistry()
        self.snapshot: SnapshotFacts | None = None
        self.memory: Memory | None = None
        self.quality: QualityReport | None = None
        self._clock = clock
        self._refreshes = Histogram(
            "load_watcher_refresh_duration_seconds",
            "Time of one refresh: from the request to the provider to the published snapshot.",
            buckets=_DURATION_BUCKETS,
            registry=self.registry,
        )
        self._failures = Counter(
            "load_watcher_refresh_failures_total",
            "Refreshes that brought nothing; the last good values are still served.",
            ["cause"],
            registry=self.registry,
        )
        for kind in ProviderError.__subclasses__():
            self._failures.labels(kind.cause)
        self._rejections = Counter(
            "load_watcher_rejected_samples_total", "Samples that do not count, by the rule that says so.", ["rule"], registry=self.registry
        )
        # Counted without locks and labels, which take longer than the answer; a scrape makes the series of it.
        self._requests: collections.Counter[RequestLabels] = collections.Counter()
        build = Gauge("load_watcher_build_info", "Version of the service; always 1.", ["version", "python"], registry=self.registry)
        build.labels(version, platform.python_version()).set(1)
        self.registry.register(_StateCollector(self))
        ProcessCollector(registry=self.registry)

    def observe_refresh(self, duration_seconds: float) -> None:
        """Note how long a refresh took, also one that failed."""
        self._refreshes.observe(duration_seconds)

    def count_failure(self, cause: str) -> None:
        """Note a refresh that brought nothing."""
        self._failures.labels(cause).inc()

    def count_rejections(self, counts: Mapping[str, int]) -> None:
        """Note the samples that a refresh rejected, by rule."""
        for rule, count in counts.items():
            self._rejections.labels(rule).inc(count)

    def count_request(self, labels: RequestLabels) -> None:
        """Note an answered request."""
        self._requests[labels] += 1

    def list_requests(self) -> list[tuple[RequestLabels, int]]:
        """List how many requests of each route, method and status were answered."""
        return list(self._requests.items())

    def now(self) -> float:
        """Answer the instant by the clock of the service, Unix seconds."""
        return self._clock.time()


class _StateCollector(Collector):
    """Read what is there at the scrape, so that ages are those of that moment; what there is nothing of has no series."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def collect(self) -> Iterator[Metric]:
        """Make the series of one scrape."""
        made = GaugeMetricFamily("load_watcher_snapshot_age_seconds", "Time since the published snapshot was made.")
        newest = GaugeMetricFamily("load_watcher_newest_sample_age_seconds", "Age of the newest sample that is served.")
        nodes = GaugeMetricFamily("load_watcher_nodes", "Nodes that are served, by status.", labels=["status"])
        requests = CounterMetricFamily("load_watcher_requests", "Answered requests.", labels=["route", "method", "status"])
        for labels, count in self._telemetry.list_requests():
            requests.add_metric(labels, count)
        yield requests
        yield from _collect_history(self._telemetry.memory)
        yield from _collect_quality(self._telemetry.quality)
        snapshot = self._telemetry.snapshot
        if snapshot is not None:
            now = self._telemetry.now()
            made.add_metric([], max(0.0, now - snapshot.made_at))
            if snapshot.newest_sampled_at is not None:
                newest.add_metric([], max(0.0, now - snapshot.newest_sampled_at))
            for status, count in snapshot.status_counts.items():
                nodes.add_metric([status], count)
        yield from (made, newest, nodes)


def _collect_quality(report: QualityReport | None) -> Iterator[Metric]:
    verdicts = GaugeMetricFamily("load_watcher_samples", "Samples of the last refresh, by verdict.", labels=["verdict"])
    suspect = GaugeMetricFamily("load_watcher_source_suspect", "Whether the last answers of the source are not believed yet.")
    if report is not None:
        for verdict, count in report.verdict_counts.items():
            verdicts.add_metric([verdict], count)
        suspect.add_metric([], float(report.suspicion is not None))
    yield from (verdicts, suspect)


def _collect_history(memory: Memory | None) -> Iterator[Metric]:
    held = GaugeMetricFamily("load_watcher_history_memory_bytes", "Memory that the samples take.")
    failure = GaugeMetricFamily(
        "load_watcher_history_failure",
        "Whether the history file cannot be used, by cause; the service goes on from memory.",
        labels=["cause"],
    )
    lost = CounterMetricFamily("load_watcher_history_lost_refreshes", "Refreshes that the history file will never have.")
    if memory is not None:
        held.add_metric([], memory.ring.memory_bytes)
        file = memory.file_status
        if file is not None:
            now = None if file.failure is None else file.failure.cause
            for kind in HistoryFileError.__subclasses__():
                failure.add_metric([kind.cause], float(kind.cause == now))
            lost.add_metric([], file.lost_refreshes)
    yield from (held, failure, lost)
