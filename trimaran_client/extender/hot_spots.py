"""Which nodes are too hot for further pods, for ``/filter``: by measured load only, and never by old load."""

from __future__ import annotations

import math

import numpy as np

from trimaran_client import wire
from trimaran_client.extender.config import FilterConfig
from trimaran_client.resources import Pod
from trimaran_client.snapshot import LoadSnapshot


class HotSpots:
    """
    Remember which nodes are hot, so that one near its threshold does not go in and out with each sample.

    Args:
        config: The thresholds, and who is exempt.
    """

    def __init__(self, config: FilterConfig) -> None:
        self._config = config
        self._snapshot: LoadSnapshot | None = None
        # Metric type → node → why it is hot; empty of one that was, and has no value now.
        self._hot: dict[str, dict[str, str]] = {}

    def refused(self, pod: Pod, names: tuple[str, ...], snapshot: LoadSnapshot, *, now: float) -> dict[str, str]:
        """
        Tell which candidates are too hot for a pod: node → the reason in words; none for a pod that is exempt.

        Args:
            pod: The pod.
            names: The candidates.
            snapshot: The measured load.
            now: Unix seconds; of a node whose metrics are too old by then nothing is said.
        """
        config = self._config
        if not config.enabled or pod.is_daemon:
            return {}
        if pod.priority_class in config.exempt_priority_classes or pod.namespace in config.exempt_namespaces:
            return {}
        if snapshot is not self._snapshot:
            self._hot, self._snapshot = self._find(snapshot), snapshot
        refused: dict[str, str] = {}
        for hot in self._hot.values():
            for name in names:
                if hot.get(name) and now - snapshot.sampled_at[snapshot.rows[name]] <= config.max_age_seconds:
                    refused.setdefault(name, hot[name])
        return refused

    def _find(self, snapshot: LoadSnapshot) -> dict[str, dict[str, str]]:
        thresholds = ((wire.CPU, self._config.cpu_percent), (wire.MEMORY, self._config.memory_percent))
        return {metric: self._find_by(snapshot, metric, threshold) for metric, threshold in thresholds if threshold is not None}

    def _find_by(self, snapshot: LoadSnapshot, metric: str, threshold: float) -> dict[str, str]:
        average, latest = (snapshot.column(metric, (operator,)) for operator in (wire.AVERAGE, wire.LATEST))
        column = np.where(np.isnan(average), latest, average)
        again = threshold - self._config.hysteresis_percent
        before = self._hot.get(metric, {})
        hot: dict[str, str] = {}
        for row in np.flatnonzero(~(column <= again)).tolist():
            name, percent = snapshot.nodes[row], float(column[row])
            if percent > threshold:
                hot[name] = f"{metric} {percent:.1f} % is above the threshold of {threshold:g} %"
            elif name in before:
                told = f"{metric} {percent:.1f} % has not come down to {again:g} % since it was above {threshold:g} %"
                hot[name] = "" if math.isnan(percent) else told
        return hot
