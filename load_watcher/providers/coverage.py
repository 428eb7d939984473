"""How much of the cluster the last refresh of a hosted source covered, as findings; what is new among them goes to the log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import structlog

from load_watcher.providers.findings import FAILURE, OK, WARNING, Finding
from load_watcher.providers.nodes import UNKNOWN_NODE, ClusterNodes
from load_watcher.samples import SampleBatch
from trimaran_client.wire import AVERAGE, CPU, MEMORY

_MAX_EXAMPLES: Final = 3
_NODES_REMEDY: Final = (
    "give access to the API server, with list and watch on nodes, so that hosts become names of nodes and nodes that are gone are dropped"
)

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


class Coverage:
    """
    Remember what the last refresh brought.

    Args:
        provider: Whose refresh it is.
        silent_remedy: What to do when a metric has no value.
        host_remedy: What to do when hosts are no nodes.
    """

    def __init__(self, provider: str, *, silent_remedy: str, host_remedy: str) -> None:
        self._provider = provider
        self._silent_remedy = silent_remedy
        self._host_remedy = host_remedy
        self._batch: SampleBatch | None = None
        self._absence: str | None = None
        self._gap: Finding | None = None
        self._logged: frozenset[tuple[str, str]] = frozenset()

    def note(self, batch: SampleBatch, nodes: ClusterNodes | None, gap: Finding | None) -> None:
        """
        Note a refresh, and log what is wrong with it, unless that was already so the last time.

        Args:
            batch: What it brought.
            nodes: The node list that it was joined with.
            gap: What the source itself says that it left out.
        """
        self._batch, self._gap = batch, gap
        self._absence = "no access to a cluster is configured" if nodes is None else nodes.absence
        wrong = [finding for finding in self._list(batch) if finding.level != OK]
        for finding in wrong:
            if (finding.level, finding.subject) not in self._logged:
                _log.warning(
                    "refresh is not as it should be",
                    provider=self._provider,
                    subject=finding.subject,
                    detail=finding.detail,
                    remedy=finding.remedy,
                )
        self._logged = frozenset((finding.level, finding.subject) for finding in wrong)

    def findings(self, now: float) -> tuple[Finding, ...]:
        """Tell the last refresh, in the order in which one would look for a cause; *now* in Unix seconds."""
        if self._batch is None:
            return (Finding(WARNING, "refresh", "none has succeeded yet"),)
        times = self._batch.sampled_at[~np.isnan(self._batch.sampled_at)]
        age = f"{max(0.0, now - float(times.max())):.0f} s old" if times.size else "no node has a value"
        newest = Finding(OK if times.size else FAILURE, "newest sample", age, "" if times.size else "see the findings above")
        return (*self._list(self._batch), newest)

    def _list(self, batch: SampleBatch) -> Iterable[Finding]:
        if self._absence is None:
            yield Finding(OK, "nodes", f"{len(batch.nodes)} from the API server")
        else:
            detail = f"not known ({self._absence}): {len(batch.nodes)} hosts are served under the names they have"
            yield Finding(WARNING, "nodes", detail, _NODES_REMEDY)
        for metric_type in (CPU, MEMORY):
            yield self._describe_metric(batch, metric_type)
        unknown = sorted({rejection.node for rejection in batch.rejections if rejection.rule == UNKNOWN_NODE})
        if unknown:
            detail = f"{len(unknown)} are no nodes, for example {', '.join(unknown[:_MAX_EXAMPLES])}"
            yield Finding(WARNING, "hosts", detail, self._host_remedy)
        if self._gap is not None:
            yield self._gap

    def _describe_metric(self, batch: SampleBatch, metric_type: str) -> Finding:
        values = batch.latest.get(metric_type)
        count = 0 if values is None else int((~np.isnan(values)).sum())
        if not count:
            return Finding(FAILURE, f"metric {metric_type}", "no node has it", self._silent_remedy)
        names = dict.fromkeys(item.name for item in batch.aggregates if (item.metric_type, item.operator) == (metric_type, AVERAGE))
        return Finding(OK, f"metric {metric_type}", f"{count} nodes from {' and '.join(names)}")
