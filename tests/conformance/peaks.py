"""
Suite ``peaks``: normalised scores of the Go plugin exactly, raw ones to 1e-8 (exponentials differ in the last place), by ``upstream``.

Rules: those of :mod:`tests.conformance.plugins`.
"""

from __future__ import annotations

from tests.conformance.cases import Case, Outcome, is_close
from tests.conformance.plugins import READING_RULES, Answer, PluginSuite
from trimaran_client import Pod
from trimaran_client.policies.base import NodeColumns
from trimaran_client.policies.peaks import Peaks

RULES = READING_RULES


def run(case: Case) -> Outcome:
    """Run one case."""
    return _SUITE.run(case)


def _compute(policy: Peaks, case: Case, columns: NodeColumns) -> Answer:
    pod = Pod.from_manifest(case["pod"])
    terms = policy.compute_terms(pod, columns)
    return {
        "normalized": policy.score_nodes(pod, columns).values.tolist(),
        "pod_millis": terms.pod_millicores,
        "raw": policy.raw_scores(terms).tolist(),
    }


def _compare(ours: Answer, expected: Answer) -> str:
    wrong = [f"{key}: expected {expected[key]!r}, got {ours[key]!r}" for key in ("normalized", "pod_millis") if ours[key] != expected[key]]
    if len(ours["raw"]) != len(expected["raw"]) or not all(is_close(a, b, 1e-8) for a, b in zip(ours["raw"], expected["raw"], strict=True)):
        wrong.append(f"raw: expected {expected['raw']!r}, got {ours['raw']!r}")
    return "; ".join(wrong)


_SUITE = PluginSuite(
    make=lambda case: Peaks.upstream(case["args"]), compute=_compute, compare=_compare, scores_of=lambda answer: answer["normalized"]
)
