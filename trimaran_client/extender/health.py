"""What is missing for good answers: told with every decision, to whoever asks for readiness, and in the log when it changes."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Final

from trimaran_client.cluster import ClusterFeed
from trimaran_client.extender.namespaces import Namespaces
from trimaran_client.fetch import SnapshotFeed

logger = logging.getLogger(__name__)

# API servers send a bookmark about every minute.
_SILENT_SECONDS: Final = 120.0
# As old as policies take metrics by default.
_STALE_SECONDS: Final = 300.0


class Health:
    """
    Look at what answers are made from.

    Args:
        load: The measured load.
        cluster: Nodes and pods; ``None`` where the cluster is not watched: nothing is expected of it.
        namespaces: What namespaces wish; ``None`` where they are not watched.
        clock: Unix seconds.
    """

    def __init__(
        self, load: SnapshotFeed, *, cluster: ClusterFeed | None, namespaces: Namespaces | None, clock: Callable[[], float]
    ) -> None:
        self._load = load
        self._cluster = cluster
        self._namespaces = namespaces
        self._clock = clock
        self._told: dict[str, bool] = {}

    def problem(self) -> str:
        """Say what is missing or old, in words; empty where nothing is. A change of that is logged."""
        problems = {"load": self._load_problem(), "cluster": self._cluster_problem(), "namespaces": self._namespaces_problem()}
        for part, sentence in problems.items():
            if self._told.get(part, False) != bool(sentence):
                self._told[part] = bool(sentence)
                if sentence:
                    logger.warning("answers are degraded: %s", sentence)
                else:
                    logger.info("answers are no longer degraded by the %s", part)
        return "; ".join(filter(None, problems.values()))

    def obstacle(self) -> str | None:
        """Say what answers cannot do without, for readiness; ``None`` where it is there."""
        self.problem()  # probes come where no pods do
        missing = [] if self._load.snapshot.nodes else [self._load_problem()]
        return "; ".join(filter(None, [*missing, self._cluster_problem()])) or None

    def _load_problem(self) -> str:
        snapshot, failure = self._load.snapshot, self._load.failure
        cause = "" if failure is None else f": {failure}"
        if not snapshot.nodes:
            return f"no snapshot of the load watcher{cause}"
        if failure is not None:
            return f"the load watcher gives no news{cause}"
        age_seconds = self._load.age_seconds(self._clock())
        if math.isinf(age_seconds):
            return "the load watcher knows nodes, and has no metrics of any: its /api/v1/status tells why"
        if age_seconds > _STALE_SECONDS:
            return f"the load watcher's newest metrics are {age_seconds:.0f} s old: its source gives no news"
        return ""

    def _cluster_problem(self) -> str:
        feed = self._cluster
        if feed is None:
            return ""
        cause = "" if feed.last_error is None else f": {feed.last_error}"
        if not feed.synced.is_set():
            return f"the pods and nodes of the cluster are not known yet{cause}"
        if cause:
            return f"the view of the cluster is not kept up to date{cause}"
        if feed.silent_seconds > _SILENT_SECONDS:
            return f"the API server has said nothing for {feed.silent_seconds:.0f} s"
        return ""

    def _namespaces_problem(self) -> str:
        error = None if self._namespaces is None else self._namespaces.last_error
        return "" if error is None else f"what namespaces wish is not kept up to date: {error}"
