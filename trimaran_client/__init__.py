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

Importing it loads nothing; each name is loaded when it is first asked for: what scores needs numpy, msgspec and cachetools, the clients and
feeds aiohttp besides.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trimaran_client.assigned import AssignedPods as AssignedPods
    from trimaran_client.capacities import NodeCapacities as NodeCapacities
    from trimaran_client.cluster import ClusterFeed as ClusterFeed
    from trimaran_client.errors import KubernetesError as KubernetesError
    from trimaran_client.errors import ManifestError as ManifestError
    from trimaran_client.errors import PolicyArgumentError as PolicyArgumentError
    from trimaran_client.errors import QuantityError as QuantityError
    from trimaran_client.errors import SnapshotDecodeError as SnapshotDecodeError
    from trimaran_client.errors import TrimaranError as TrimaranError
    from trimaran_client.errors import WatcherError as WatcherError
    from trimaran_client.errors import WatcherNotReadyError as WatcherNotReadyError
    from trimaran_client.errors import WatcherStatusError as WatcherStatusError
    from trimaran_client.errors import WatcherUnreachableError as WatcherUnreachableError
    from trimaran_client.explain import Explanation as Explanation
    from trimaran_client.fetch import BlockingSnapshotFeed as BlockingSnapshotFeed
    from trimaran_client.fetch import BlockingWatcherClient as BlockingWatcherClient
    from trimaran_client.fetch import SnapshotFeed as SnapshotFeed
    from trimaran_client.fetch import WatcherClient as WatcherClient
    from trimaran_client.policies.arguments import MetricChoice as MetricChoice
    from trimaran_client.policies.base import NodeColumns as NodeColumns
    from trimaran_client.policies.base import NodeScore as NodeScore
    from trimaran_client.policies.base import Reason as Reason
    from trimaran_client.policies.base import Reasoning as Reasoning
    from trimaran_client.policies.base import Scores as Scores
    from trimaran_client.policies.base import ScoringPolicy as ScoringPolicy
    from trimaran_client.policies.load_variation_risk_balancing import LoadVariationRiskBalancing as LoadVariationRiskBalancing
    from trimaran_client.policies.load_variation_risk_balancing import LoadVariationRiskBalancingArgs as LoadVariationRiskBalancingArgs
    from trimaran_client.policies.low_risk_over_commitment import LowRiskOverCommitment as LowRiskOverCommitment
    from trimaran_client.policies.low_risk_over_commitment import LowRiskOverCommitmentArgs as LowRiskOverCommitmentArgs
    from trimaran_client.policies.peaks import Peaks as Peaks
    from trimaran_client.policies.peaks import PeaksArgs as PeaksArgs
    from trimaran_client.policies.peaks import PowerModel as PowerModel
    from trimaran_client.policies.registry import create_policy as create_policy
    from trimaran_client.policies.registry import list_policy_names as list_policy_names
    from trimaran_client.policies.target_load_packing import TargetLoadPacking as TargetLoadPacking
    from trimaran_client.policies.target_load_packing import TargetLoadPackingArgs as TargetLoadPackingArgs
    from trimaran_client.policies.targets import ResourceTarget as ResourceTarget
    from trimaran_client.prediction import UsagePrediction as UsagePrediction
    from trimaran_client.resources import Node as Node
    from trimaran_client.resources import Pod as Pod
    from trimaran_client.resources import manifest_items as manifest_items
    from trimaran_client.scorer import Scorer as Scorer
    from trimaran_client.snapshot import LoadSnapshot as LoadSnapshot
    from trimaran_client.snapshot import SnapshotSource as SnapshotSource
    from trimaran_client.units import Quantity as Quantity

_NAMES = {
    "trimaran_client.assigned": ("AssignedPods",),
    "trimaran_client.capacities": ("NodeCapacities",),
    "trimaran_client.cluster": ("ClusterFeed",),
    "trimaran_client.errors": (
        "KubernetesError",
        "ManifestError",
        "PolicyArgumentError",
        "QuantityError",
        "SnapshotDecodeError",
        "TrimaranError",
        "WatcherError",
        "WatcherNotReadyError",
        "WatcherStatusError",
        "WatcherUnreachableError",
    ),
    "trimaran_client.explain": ("Explanation",),
    "trimaran_client.fetch": (
        "BlockingSnapshotFeed",
        "BlockingWatcherClient",
        "SnapshotFeed",
        "WatcherClient",
    ),
    "trimaran_client.policies.arguments": ("MetricChoice",),
    "trimaran_client.policies.base": (
        "NodeColumns",
        "NodeScore",
        "Reason",
        "Reasoning",
        "Scores",
        "ScoringPolicy",
    ),
    "trimaran_client.policies.load_variation_risk_balancing": (
        "LoadVariationRiskBalancing",
        "LoadVariationRiskBalancingArgs",
    ),
    "trimaran_client.policies.low_risk_over_commitment": (
        "LowRiskOverCommitment",
        "LowRiskOverCommitmentArgs",
    ),
    "trimaran_client.policies.peaks": (
        "Peaks",
        "PeaksArgs",
        "PowerModel",
    ),
    "trimaran_client.policies.registry": (
        "create_policy",
        "list_policy_names",
    ),
    "trimaran_client.policies.target_load_packing": (
        "TargetLoadPacking",
        "TargetLoadPackingArgs",
    ),
    "trimaran_client.policies.targets": ("ResourceTarget",),
    "trimaran_client.prediction": ("UsagePrediction",),
    "trimaran_client.resources": (
        "Node",
        "Pod",
        "manifest_items",
    ),
    "trimaran_client.scorer": ("Scorer",),
    "trimaran_client.snapshot": (
        "LoadSnapshot",
        "SnapshotSource",
    ),
    "trimaran_client.units": ("Quantity",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> object:
    """Load what is asked for only then: importing must not be work."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
