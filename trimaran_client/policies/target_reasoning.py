"""Why a node has its score against targets, in words and numbers; made on demand from the same columns, never for a score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from trimaran_client.policies.base import MetricUse, NodeColumns, PodUse, Reason, Reasoning
from trimaran_client.policies.targets import Target, UtilizationTerms, allocated_percent, compute_terms, score_target, utilization_score
from trimaran_client.policies.wording import BASE_UNITS, Sentences, amount
from trimaran_client.resources import Pod
from trimaran_client.units import FloatArray, IntArray


@np.errstate(all="ignore")
def explain_targets(targets: Sequence[Target], pod: Pod, nodes: NodeColumns, *, max_age_seconds: float) -> Reasoning:
    """Lay open the arithmetic of some targets for every candidate."""
    computed = [(target, compute_terms(target, pod, nodes, max_age_seconds=max_age_seconds)) for target in targets]
    columns: dict[str, FloatArray] = {}
    reasons: list[tuple[Target, IntArray]] = []
    for target, terms in computed:
        scores, codes = score_target(target, pod, nodes, terms)
        columns |= _columns_of(target, pod, nodes, terms, scores)
        reasons.append((target, codes))

    def tell(row: int) -> list[str]:
        known = {key: float(column[row]) for key, column in columns.items()}
        return [line for target, codes in reasons for line in _tell(target, Reason(int(codes[row])), known)]

    return Reasoning(
        metrics=tuple(MetricUse(target.resource, target.selector, terms.selection) for target, terms in computed),
        pods=tuple(_pod_use(target, pod, nodes, terms) for target, terms in computed),
        terms=columns,
        sentences=Sentences(len(nodes.names), tell),
    )


def _pod_use(target: Target, pod: Pod, nodes: NodeColumns, terms: UtilizationTerms) -> PodUse:
    usage = np.empty(0) if nodes.pods is None else nodes.pods.usage(target.prediction)
    return PodUse(target.resource, target.prediction.explain(pod), float(terms.pod_amount), usage, terms.shares)


def _columns_of(target: Target, pod: Pod, nodes: NodeColumns, terms: UtilizationTerms, scores: FloatArray) -> dict[str, FloatArray]:
    name, unit = target.resource, BASE_UNITS.get(target.resource, "units")
    return {
        f"{name}_measured_percent": terms.measured_percent,
        f"{name}_capacity_{unit}": nodes.resource(name).capacity,
        f"{name}_measured_{unit}": terms.measured_amount,
        f"{name}_in_flight_{unit}": terms.in_flight_amount,
        f"{name}_pod_{unit}": np.full(len(nodes.names), float(terms.pod_amount)),
        f"{name}_predicted_percent": terms.predicted_percent,
        f"{name}_allocated_percent": allocated_percent(target, pod, nodes),
        f"{name}_score": scores,
    }


def _tell(target: Target, reason: Reason, terms: Mapping[str, float]) -> list[str]:
    """Tell one resource of one node."""
    name, unit = target.resource, BASE_UNITS.get(target.resource, "units")
    score = terms[f"{name}_score"]
    if reason is Reason.CAPACITY_UNKNOWN:
        return [f"{name}: what the node has of it is zero or not known: score 0"]
    if reason is Reason.PODS_UNKNOWN:
        return [f"{name}: no fresh metric, and the pods of the node are not known: the neutral score 50"]
    if reason in (Reason.FALLBACK_NEUTRAL, Reason.FALLBACK_MINIMUM):
        return [f"{name}: no fresh metric; the fallback {target.fallback} gives {score:g}"]
    if np.isnan(score):
        return [f"{name}: no fresh metric, and nothing else to go by: the other resources decide"]
    if reason is Reason.NO_METRICS:
        return [f"{name}: no metric: score 0"]
    if reason is Reason.FALLBACK_ALLOCATION:
        percent = terms[f"{name}_allocated_percent"]
        return [
            f"{name}: no fresh metric; requests with the pod are {percent:.4g} % of allocatable, taken for utilization",
            _formula(target, percent),
        ]
    predicted = terms[f"{name}_predicted_percent"]
    parts = " + ".join(amount(terms[f"{name}_{part}_{unit}"], name) for part in ("measured", "in_flight", "pod"))
    whole = amount(terms[f"{name}_capacity_{unit}"], name)
    measured = terms[f"{name}_measured_percent"]
    told = f"{name}: measured {measured:.4g} %; measured + in flight + pod: 100 × ({parts}) / {whole} = {predicted:.4g} % predicted"
    return [told, _formula(target, predicted)]


@np.errstate(all="ignore")
def _formula(target: Target, percent: float) -> str:
    aim = target.target_percent
    score = float(utilization_score(np.array([percent]), aim)[0])
    if percent > 100:
        return f"{target.resource}: more than 100 %: score 0"
    if percent > aim:
        return f"{target.resource}: above the target of {aim:g} %: {aim:g} × (100 - {percent:.4g}) / (100 - {aim:g}) = {score:.4g}"
    return f"{target.resource}: at or below the target of {aim:g} %: (100 - {aim:g}) × {percent:.4g} / {aim:g} + {aim:g} = {score:.4g}"
