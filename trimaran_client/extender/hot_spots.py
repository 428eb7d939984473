"""Which nodes are too hot for further pods, for ``/filter``: by measured load only, and never by old load."""

from __future__ import annotations

import numpy as np

from trimaran_client import wire
from trimaran_client.extender.config import FilterConfig
from trimaran_client.resources import Pod
from trimaran_client.snapshot import LoadSnapshot

_OPERATORS = (wire.AVERAGE, wire.LATEST)


class HotSpots:
    """
    Remember which nodes are hot, so that one near its threshold does not go in and out with each sample.

    Args:
        config: The thresholds, and who is exempt.
    """

    def __init__(self, config: FilterConfig) -> None:
        self._config = config
        self._snapshot: LoadSnapshot | None = None
        self._hot: dict[str, str] = {}

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
        for name in names:
            if name in self._hot and now - snapshot.sampled_at[snapshot.rows[name]] <= config.max_age_seconds:
                refused[name] = self._hot[name]
        return refused

    def _find(self, snapshot: LoadSnapshot) -> dict[str, str]:
        hot: dict[str, str] = {}
        for metric_type, threshold in ((wire.CPU, self._config.cpu_percent), (wire.MEMORY, self._config.memory_percent)):
            if threshold is None:
                continue
            column = snapshot.column(metric_type, _OPERATORS)
            again = threshold - self._config.hysteresis_percent
            for row in np.flatnonzero(column > again).tolist():
                name, percent = snapshot.nodes[row], float(column[row])
                if percent > threshold:
                    hot[name] = f"{metric_type} {percent:.1f} % is above the threshold of {threshold:g} %"
                elif name in self._hot:
                    told = f"{metric_type} {percent:.1f} % has not come down to {again:g} % since it was above {threshold:g} %"
                    hot.setdefault(name, told)
        return hot
