"""Prometheus providers for tests: without access to a cluster, unless a test gives one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from load_watcher.providers.nodes import ClusterNodes
from load_watcher.providers.prometheus import PrometheusProvider
from load_watcher.providers.prometheus_options import PrometheusOptions

RULE = "instance:node_cpu_utilisation:rate5m"
OTHER_RULE = "instance:node_cpu_utilisation:rate1m"
MEMORY_RULE = "instance:node_memory_utilisation:ratio"


def make_provider(address: str, folder: Path, *, kubeconfig: Path | None = None, clock: Any = None, **options: Any) -> PrometheusProvider:
    """Make a provider; *options* are those of PrometheusOptions."""
    nodes = ClusterNodes(kubeconfig or folder / "no-kubeconfig", request_timeout_seconds=5)
    arguments = {"timeout_seconds": 5.0, **options}
    return PrometheusProvider(PrometheusOptions(address, **arguments), nodes, **({"clock": clock} if clock else {}))
