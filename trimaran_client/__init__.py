"""
Score Kubernetes nodes by measured load: the library that a scheduler imports.

>>> from trimaran_client import LoadSnapshot, Pod, Scorer, TargetLoadPacking
>>> snapshot = LoadSnapshot.decode(
...     b'{"window": {"end": 1700000000}, "data": {"NodeMetricsMap": {"worker-1": {"capacity": {"cpu": "8"},'
...     b' "metrics": [{"type": "CPU", "operator": "AVG", "value": 20}]}}}}'
... )
>>> pod = Pod.from_manifest({"spec": {"containers": [{"resources": {"requests": {"cpu": "1"}}}]}})
>>> Scorer(TargetLoadPacking()).score_nodes(pod, snapshot, now=1700000030).by_node()  # 20 + 18.75 = 38.75 %: 60 · 38.75 / 40 + 40
{'worker-1': 98}

Importing it loads the standard library, numpy, msgspec and cachetools only; the clients that need aiohttp are resolved on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimaran_client.assigned import AssignedPods
from trimaran_client.capacities import NodeCapacities
from trimaran_client.errors import (
    KubernetesError,
    ManifestError,
    PolicyArgumentError,
    QuantityError,
    SnapshotDecodeError,
    TrimaranError,
    WatcherError,
    WatcherNotReadyError,
    WatcherStatusError,
    WatcherUnreachableError,
)
from trimaran_client.explain import Explanation
from trimaran_client.policies.arguments import MetricChoice
from trimaran_client.policies.base import NodeColumns, NodeScore, Reason, Reasoning, Scores, ScoringPolicy
from trimaran_client.policies.load_variation_risk_balancing import LoadVariationRiskBalancing, LoadVariationRiskBalancingArgs
from trimaran_client.policies.low_risk_over_commitment import LowRiskOverCommitment, LowRiskOverCommitmentArgs
from trimaran_client.policies.peaks import Peaks, PeaksArgs, PowerModel
from trimaran_client.policies.registry import create_policy, list_policy_names
from trimaran_client.policies.target_load_packing import TargetLoadPacking, TargetLoadPackingArgs
from trimaran_client.policies.targets import ResourceTarget
from trimaran_client.prediction import UsagePrediction
from trimaran_client.resources import Node, Pod, manifest_items
from trimaran_client.scorer import Scorer
from trimaran_client.snapshot import LoadSnapshot, SnapshotSource
from trimaran_client.units import Quantity

if TYPE_CHECKING:
    from trimaran_client.cluster import ClusterFeed
    from trimaran_client.fetch import BlockingSnapshotFeed, BlockingWatcherClient, SnapshotFeed, WatcherClient

__all__ = [
    "AssignedPods",
    "BlockingSnapshotFeed",
    "BlockingWatcherClient",
    "ClusterFeed",
    "Explanation",
    "KubernetesError",
    "LoadSnapshot",
    "LoadVariationRiskBalancing",
    "LoadVariationRiskBalancingArgs",
    "LowRiskOverCommitment",
    "LowRiskOverCommitmentArgs",
    "ManifestError",
    "MetricChoice",
    "Node",
    "NodeCapacities",
    "NodeColumns",
    "NodeScore",
    "Peaks",
    "PeaksArgs",
    "Pod",
    "PolicyArgumentError",
    "PowerModel",
    "Quantity",
    "QuantityError",
    "Reason",
    "Reasoning",
    "ResourceTarget",
    "Scorer",
    "Scores",
    "ScoringPolicy",
    "SnapshotDecodeError",
    "SnapshotFeed",
    "SnapshotSource",
    "TargetLoadPacking",
    "TargetLoadPackingArgs",
    "TrimaranError",
    "UsagePrediction",
    "WatcherClient",
    "WatcherError",
    "WatcherNotReadyError",
    "WatcherStatusError",
    "WatcherUnreachableError",
    "create_policy",
    "list_policy_names",
    "manifest_items",
]

_NEED_AIOHTTP = ("BlockingSnapshotFeed", "BlockingWatcherClient", "SnapshotFeed", "WatcherClient")


def __getattr__(name: str) -> object:
    if name in _NEED_AIOHTTP:
        from trimaran_client import fetch

        return getattr(fetch, name)
    if name == "ClusterFeed":
        from trimaran_client.cluster import ClusterFeed

        return ClusterFeed
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
