"""A policy in thirty lines: the node with the most CPU left, by its newest measurement."""

from collections.abc import Mapping

import numpy as np

from trimaran_client.errors import PolicyArgumentError
from trimaran_client.policies.base import NodeColumns, Reason, Reasoning, Scores, to_score
from trimaran_client.resources import Pod


class MostIdle:
    """``create_policy("MostIdle")`` makes it once an entry point of the group ``trimaran_client.policies`` names ``create``."""

    name = "MostIdle"
    resources = ("cpu",)

    def score_nodes(self, pod: Pod, nodes: NodeColumns) -> Scores:
        idle = self._idle_percent(nodes)
        reasons = np.where(np.isnan(idle), Reason.NO_METRICS, Reason.RISK)
        return Scores(nodes.names, to_score(np.round(idle)), reasons)  # to_score makes 0 of what is not known

    def explain(self, pod: Pod, nodes: NodeColumns) -> Reasoning:
        idle = self._idle_percent(nodes)
        return Reasoning((), (), {"idle_percent": idle}, [[f"{percent:.3g} % of its CPU is idle"] for percent in idle.tolist()])

    def _idle_percent(self, nodes: NodeColumns) -> np.ndarray:
        busy = nodes.metric("CPU", ("Latest", "AVG"))
        return np.where((busy >= 0) & (nodes.age_seconds < 300), np.maximum(100 - busy, 0), np.nan)


def create(args: Mapping[str, object]) -> MostIdle:
    if args:
        raise PolicyArgumentError(f"MostIdle takes no arguments, and got {', '.join(args)}")
    return MostIdle()
