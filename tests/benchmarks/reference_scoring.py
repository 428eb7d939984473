"""TargetLoadPacking in plain Python, node by node: what a scoring loop costs that is written in the usual way."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from trimaran_client.assigned import AssignedPods
from trimaran_client.pod_table import AssignedPod
from trimaran_client.policies.target_load_packing import TargetLoadPacking
from trimaran_client.resources import Pod
from trimaran_client.snapshot import LoadSnapshot

WINDOW_SECONDS = 900.0


@dataclass(slots=True)
class PlainNode:
    """What the loop reads of a node; ``in_flight`` holds its pods with what each is taken to use, millicores."""

    cpu_percent: float
    capacity_millicores: float
    sampled_at: float
    in_flight: list[tuple[AssignedPod, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PlainCluster:
    """Node name → what is known of it, and the present, Unix seconds."""

    nodes: Mapping[str, PlainNode]
    now: float

    @classmethod
    def of(cls, snapshot: LoadSnapshot, pods: AssignedPods, policy: TargetLoadPacking, *, now: float) -> PlainCluster:
        """Lay out a snapshot whose every node has an average over 15 minutes; done before the time is taken."""
        percents = snapshot.column("CPU", ("AVG",)).tolist()
        capacities = snapshot.capacity.millicores.tolist()
        times = snapshot.sampled_at.tolist()
        nodes = {name: PlainNode(*values) for name, *values in zip(snapshot.nodes, percents, capacities, times, strict=True)}
        for each in pods.view(now).in_flight:
            nodes[each.node].in_flight.append((each, float(policy.predict_pod_millicores(each.pod))))
        return cls(nodes, now)


def score_plainly(pod: Pod, cluster: PlainCluster, policy: TargetLoadPacking) -> dict[str, int]:
    """Score every node, node name → score."""
    target, longest = policy.args.target_percent, policy.args.max_age_seconds
    pod_millicores = float(policy.predict_pod_millicores(pod))
    scores = {}
    for name, node in cluster.nodes.items():
        if math.isnan(node.cpu_percent) or cluster.now - node.sampled_at > longest or not node.capacity_millicores > 0:
            raise ValueError(f"{name}: the reference knows no fallbacks; give fresh metrics")
        in_flight = 0.0
        for each, millicores in node.in_flight:
            share = 1.0 - (node.sampled_at - each.started_at) / WINDOW_SECONDS
            in_flight += millicores * min(max(share, 0.0), 1.0)
        used = node.cpu_percent / 100.0 * node.capacity_millicores
        predicted = 100.0 * (used + pod_millicores + in_flight) / node.capacity_millicores
        if predicted > 100.0:
            score = 0.0
        elif predicted > target:
            score = target * (100.0 - predicted) / (100.0 - target)
        else:
            score = (100.0 - target) * predicted / target + target
        scores[name] = math.floor(score + 0.5)
    return scores
