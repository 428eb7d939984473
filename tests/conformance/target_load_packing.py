"""
Suite ``target_load_packing``: scores and intermediates of the Go plugin, by the ``upstream`` preset; everything compares exactly.

Rules: those of :mod:`tests.conformance.plugins`, and

- ``rejects_invalid_arguments``: a multiplier that is not finite (the original's result depends on the processor) is an error.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from tests.conformance.cases import Case, Outcome
from tests.conformance.plugins import READING_RULES, Answer, PluginSuite, case_nodes
from trimaran_client import Node, Pod, TargetLoadPacking
from trimaran_client.assigned import AssignedPods
from trimaran_client.policies.base import NodeColumns
from trimaran_client.policies.go_numbers import parse_go_float
from trimaran_client.scorer import build_columns

RULES = (*READING_RULES, "rejects_invalid_arguments")
_COMPARED = ("score", "pod_millis", "missing_millis", "util_millis", "capacity_millis", "predicted")


def run(case: Case) -> Outcome:
    """Run one case."""
    return _SUITE.run(case)


def _compute(policy: TargetLoadPacking, case: Case, columns: NodeColumns) -> Answer:
    pod = Pod.from_manifest(case["pod"])
    pods = AssignedPods(hold_seconds=0.0, bound_seconds=1e18)
    for index, each in enumerate(case.get("assigned") or ()):
        pod_there = dataclasses.replace(Pod.from_manifest(each["pod"]), uid=str(index))
        pods.assign(pod_there, at=each["seen_at"])
    columns = build_columns(columns.snapshot, now=0.0, nodes=[Node.from_manifest(node) for node in case_nodes(case)], pods=pods)
    terms = policy.compute_terms(pod, columns)
    answer: Answer = {"score": int(policy.score_nodes(pod, columns).values[0]), "pod_millis": terms.pod_amount}
    if terms.is_measured[0]:
        answer |= {
            "missing_millis": float(terms.in_flight_amount[0]),
            "util_millis": float(terms.measured_amount[0]),
            "capacity_millis": float(np.nan_to_num(columns.cpu.capacity[0])),
            "predicted": float(terms.predicted_percent[0]),
        }
    return answer


def _compare(ours: Answer, expected: Answer) -> str:
    wrong = [
        f"{key}: expected {expected[key]!r}, got {ours.get(key)!r}"
        for key in _COMPARED
        if key in expected and (key not in ours or ours[key] != expected[key])
    ]
    return "; ".join(wrong)


def _refuses(case: Case) -> bool:
    try:
        return not math.isfinite(parse_go_float(case["args"].get("defaultRequestsMultiplier", "1.5")))
    except ValueError:
        return False


_SUITE = PluginSuite(
    make=lambda case: TargetLoadPacking.upstream(case["args"]),
    compute=_compute,
    compare=_compare,
    scores_of=lambda answer: answer["score"],
    refuses=_refuses,
)
