"""
Suite ``load_variation_risk_balancing``: scores of the Go plugin exactly, its intermediates to 1e-9, by the ``upstream`` preset.

Rules: those of :mod:`tests.conformance.plugins`.
"""

from __future__ import annotations

from tests.conformance.cases import Case, Outcome, is_close
from tests.conformance.plugins import READING_RULES, Answer, PluginSuite
from trimaran_client import Pod
from trimaran_client.policies.base import NodeColumns
from trimaran_client.policies.load_variation_risk_balancing import (
    LoadVariationRiskBalancing,
    LoadVariationRiskBalancingArgs,
    VariationTerms,
)

RULES = READING_RULES


def run(case: Case) -> Outcome:
    """Run one case."""
    return _SUITE.run(case)


def _make(case: Case) -> LoadVariationRiskBalancing:
    args = LoadVariationRiskBalancingArgs.from_upstream(case["args"], defaulting=case.get("defaulting", True))
    return LoadVariationRiskBalancing(args)


def _compute(policy: LoadVariationRiskBalancing, case: Case, columns: NodeColumns) -> Answer:
    pod = Pod.from_manifest(case["pod"])
    answer: Answer = {"score": int(policy.score_nodes(pod, columns).values[0])}
    for name, terms in zip(("cpu", "memory"), policy.compute_terms(pod, columns), strict=True):
        answer[f"{name}_score"] = float(terms.score[0]) if terms.is_known[0] else 0.0
        if terms.is_known[0]:
            answer[name] = _terms(terms)
    return answer


def _terms(terms: VariationTerms) -> Answer:
    mu, sigma = float(terms.mu[0]), float(terms.sigma[0])
    return {
        "capacity": float(terms.capacity[0]),
        "requested": terms.requested,
        "used_avg": float(terms.used[0]),
        "used_stdev": float(terms.deviation[0]),
        "mu": mu,
        "sigma": sigma,
        "risk": (mu + sigma) / 2,
    }


def _compare(ours: Answer, expected: Answer) -> str:
    wrong = [] if ours["score"] == expected["score"] else [f"score: expected {expected['score']}, got {ours['score']}"]
    for key, value in expected.items():
        if key in ("cpu", "memory"):
            mine = ours.get(key, {})
            different = [name for name, each in value.items() if name not in mine or not is_close(mine[name], each)]
            wrong += [f"{key}.{name}: expected {value[name]!r}, got {mine.get(name)!r}" for name in different]
        elif key.endswith("_score") and not is_close(ours[key], value):
            wrong.append(f"{key}: expected {value!r}, got {ours[key]!r}")
    return "; ".join(wrong)


_SUITE = PluginSuite(make=_make, compute=_compute, compare=_compare, scores_of=lambda answer: answer["score"])
