"""
Suite ``low_risk_over_commitment``: scores of the Go plugin exactly, its intermediates to 1e-9, by the ``upstream`` preset.

Rules: those of :mod:`tests.conformance.plugins`.
"""

from __future__ import annotations

import dataclasses

from tests.conformance.cases import Case, Outcome, is_close
from tests.conformance.plugins import READING_RULES, Answer, PluginSuite, case_nodes
from trimaran_client import Node, Pod
from trimaran_client.assigned import AssignedPods
from trimaran_client.policies.base import NodeColumns
from trimaran_client.policies.low_risk_over_commitment import LowRiskOverCommitment, RiskTerms
from trimaran_client.policies.upstream_pods import upstream_limited, upstream_requested
from trimaran_client.scorer import build_columns

RULES = READING_RULES
_SHOWN = ("alloc_threshold", "alloc_prob", "risk_limit", "risk_load", "risk")


def run(case: Case) -> Outcome:
    """Run one case."""
    return _SUITE.run(case)


def _compute(policy: LowRiskOverCommitment, case: Case, columns: NodeColumns) -> Answer:
    pod = Pod.from_manifest(case["pod"])
    pods = AssignedPods(requested_of=upstream_requested, limited_of=upstream_limited)
    for index, each in enumerate(case.get("node_pods") or ()):
        pods.assign(dataclasses.replace(Pod.from_manifest(each), uid=str(index)), columns.names[0], at=0.0)
    nodes = [Node.from_manifest(node) for node in case_nodes(case)]
    columns = build_columns(columns.snapshot, now=0.0, nodes=nodes, pods=pods)
    cpu, memory = policy.compute_terms(pod, columns)
    answer: Answer = {"score": int(policy.score_nodes(pod, columns).values[0]), "pod": {}, "node": {}}
    for name, terms in (("cpu", cpu), ("memory", memory)):
        answer["pod"] |= {f"request_{name}": terms.pod_requested, f"limit_{name}": terms.pod_limited}
        answer["node"] |= {
            f"request_{name}": float(terms.node_requested[0]),
            f"limit_{name}": float(terms.node_limited[0]),
            f"capacity_{name}": float(terms.capacity[0]),
        }
        answer[name] = _shown(terms)
    return answer | {"rank": 1.0 - max(answer["cpu"]["risk"], answer["memory"]["risk"])}


def _shown(terms: RiskTerms) -> dict[str, float]:
    return {name: float(getattr(terms, name)[0]) for name in _SHOWN}


def _compare(ours: Answer, expected: Answer) -> str:
    wrong = [] if ours["score"] == expected["score"] else [f"score: expected {expected['score']}, got {ours['score']}"]
    for key, value in expected.items():
        if isinstance(value, dict) and key != "decoded":
            different = [name for name, each in value.items() if not _agrees(name, ours[key][name], each)]
            wrong += [f"{key}.{name}: expected {value[name]!r}, got {ours[key][name]!r}" for name in different]
    if "rank" in expected and not is_close(ours["rank"], expected["rank"]):
        wrong.append(f"rank: expected {expected['rank']!r}, got {ours['rank']!r}")
    return "; ".join(wrong)


def _agrees(name: str, ours: float, expected: float) -> bool:
    """A load risk is 1 minus a probability: near 0 only its distance to 1 has digits."""
    return is_close(ours, expected) or (name in ("risk_load", "risk") and abs(ours - float(expected)) < 1e-14)


_SUITE = PluginSuite(
    make=lambda case: LowRiskOverCommitment.upstream(case["args"]),
    compute=_compute,
    compare=_compare,
    scores_of=lambda answer: answer["score"],
)
