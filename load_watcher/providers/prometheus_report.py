"""What the last refresh of Prometheus found, as findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from load_watcher.providers.catalogue import CatalogueMetric
from load_watcher.providers.findings import FAILURE, OK, WARNING, Finding
from load_watcher.providers.prometheus_batch import ChosenMetric, MetricJoin
from trimaran_client.units import FloatArray
from trimaran_client.wire import CPU, MEMORY


@dataclass(frozen=True, slots=True, eq=False)
class RefreshState:
    """
    What a refresh left behind.

    Args:
        nodes_absence: Why the nodes of the cluster are not known; ``None`` if they are.
        node_count: Rows of the batch.
        chosen: Metric key → the expression in use.
        unanswered: Metrics for which nothing answers.
        joins: Metric key → how its series joined to nodes.
        warnings: What the server said beside the data.
        refused: Query → why the server does not answer it.
        sampled_at: When the samples of each node were measured, Unix seconds; ``None`` before the first refresh.
    """

    nodes_absence: str | None = None
    node_count: int = 0
    chosen: Mapping[str, ChosenMetric] = field(default_factory=dict)
    unanswered: tuple[CatalogueMetric, ...] = ()
    joins: Mapping[str, MetricJoin] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    sampled_at: FloatArray | None = None

    @property
    def unmatched(self) -> dict[str, int]:
        """Answer how many series joined to no node, by metric key, where there are any."""
        return {key: join.unmatched for key, join in self.joins.items() if join.unmatched}


def describe(state: RefreshState, *, now: float) -> tuple[Finding, ...]:
    """Tell a refresh as findings, in the order in which one would look for a cause."""
    if state.sampled_at is None:
        return (Finding(WARNING, "refresh", "none has succeeded yet"),)
    findings = [_describe_nodes(state)]
    silent = {metric.key for metric in state.unanswered}
    findings += [_describe_metric(key, chosen, state) for key, chosen in state.chosen.items() if key not in silent]
    findings += [
        Finding(
            FAILURE if metric.metric_type in {CPU, MEMORY} else WARNING,
            f"metric {metric.key}",
            "none of its expressions answers",
            "install node_exporter or the recording rules, or give the expression that your dashboards use in LOAD_WATCHER_CATALOGUE",
        )
        for metric in state.unanswered
    ]
    findings += [
        Finding(WARNING, "query", f"{query}: {error}", "correct the expression, or make it cheaper by a recording rule")
        for query, error in state.refused.items()
    ]
    findings += [
        Finding(WARNING, "answer", warning, "the answer may be partial; look at the health of the store behind the address")
        for warning in state.warnings
    ]
    times = state.sampled_at[~np.isnan(state.sampled_at)]
    if times.size:
        findings.append(Finding(OK, "newest sample", f"{max(0.0, now - float(times.max())):.0f} s old"))
    else:
        findings.append(Finding(FAILURE, "newest sample", "no node has a value", "see the findings above"))
    return tuple(findings)


def _describe_nodes(state: RefreshState) -> Finding:
    if state.nodes_absence is None:
        return Finding(OK, "nodes", f"{state.node_count} from the API server")
    return Finding(
        WARNING,
        "nodes",
        f"not known ({state.nodes_absence}): the {state.node_count} names are served as Prometheus has them",
        "give access to the API server, with list and watch on nodes, so that addresses become names and nodes that are gone are dropped",
    )


def _describe_metric(key: str, chosen: ChosenMetric, state: RefreshState) -> Finding:
    join, expression = state.joins[key], chosen.expression
    said = f"{join.nodes} nodes from {expression.query} ({expression.unit})"
    if join.unmatched:
        said += f"; {join.unmatched} sets of labels name no node, for example {', '.join(join.examples)}"
        remedy = "set LOAD_WATCHER_HOST_LABEL to the label that names the node, or the suffix of the names as LOAD_WATCHER_HOST_SUFFIX"
        return Finding(WARNING if join.nodes else FAILURE, f"metric {key}", said, remedy)
    if join.addresses:
        said += f"; {join.addresses} nodes are named by an address"
        return Finding(WARNING, f"metric {key}", said, "relabel `instance` to the node's name, or give access to the API server")
    return Finding(OK, f"metric {key}", said)
