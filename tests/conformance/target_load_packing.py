"""
Suite ``target_load_packing``: scores and intermediates of the Go plugin, by the ``upstream`` preset.

Everything compares exactly. Rules, each decided from the case's data:

- ``reads_nearest_double``: the original computed with what its reader made of the text (``decoded``): with those values all must agree
  to the last bit, and with the nearest doubles, where they are that close, the score must too.
- ``reads_valid_numbers``, ``rejects_invalid_json``: as in ``watcher_decode``; scores are then those of the plain reference, or 0.
- ``absent_is_not_zero``: a metric without a value does not count, as if it were not listed.
- ``rejects_invalid_arguments``: a multiplier that is not finite (the original's result depends on the processor) is an error.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from typing import Any

import numpy as np

from tests.conformance.cases import Case, Outcome, is_close, is_json
from tests.conformance.reference import target_load_packing_score
from trimaran_client import LoadSnapshot, Node, Pod, PolicyArgumentError, SnapshotDecodeError, TargetLoadPacking
from trimaran_client.assigned import AssignedPod
from trimaran_client.policies.go_numbers import parse_go_float
from trimaran_client.scorer import build_columns

RULES = (
    "reads_nearest_double",
    "reads_valid_numbers",
    "rejects_invalid_json",
    "absent_is_not_zero",
    "rejects_invalid_arguments",
)

_INTERMEDIATES = ("pod_millis", "missing_millis", "util_millis", "capacity_millis", "predicted")


def run(case: Case) -> Outcome:
    """Run one case."""
    expected = case["expected"]
    try:
        policy = TargetLoadPacking.upstream(case["args"])
    except PolicyArgumentError as error:
        if expected.get("error"):
            return Outcome()
        rules = ("rejects_invalid_arguments",) if _has_infinite_multiplier(case["args"]) else ()
        return Outcome(rules, "" if rules else f"refused: {error}")
    if expected.get("error"):
        return Outcome((), "accepted arguments that the original refuses")
    reply = case.get("watcher")
    text = case["watcher_text"] if "watcher_text" in case else json.dumps(reply) if reply is not None else ""
    snapshot = _snapshot(case, text)
    ours = _compute(policy, case, snapshot)
    if "decoded" in expected:
        return _judge_decoded(policy, case, ours)
    problem = _compare(ours, expected)
    if not problem:
        return Outcome()
    if _has_absent_value(reply, case["node"]["metadata"]["name"]):
        without = _compute(policy, case, LoadSnapshot.decode(json.dumps(_without_absent(reply))))
        return Outcome(("absent_is_not_zero",), _compare(without, ours))
    if text and not is_json(text):
        return Outcome(("rejects_invalid_json",), "" if ours["score"] == 0 else f"an unreadable reply scored {ours['score']}")
    if expected.keys() == {"score"} and "predicted" in ours:
        score = target_load_packing_score(ours["predicted"], policy.args.target_percent)
        return Outcome(("reads_valid_numbers",), "" if ours["score"] == score else f"expected {score}, got {ours['score']}")
    return Outcome((), problem)


def _snapshot(case: Case, text: str) -> LoadSnapshot:
    if case.get("watcher_status", 200) != 200:
        return LoadSnapshot.empty()
    try:
        return LoadSnapshot.decode(text)
    except SnapshotDecodeError:
        return LoadSnapshot.empty()


def _compute(policy: TargetLoadPacking, case: Case, snapshot: LoadSnapshot) -> dict[str, float]:
    pod = Pod.from_manifest(case["pod"])
    columns = build_columns(snapshot, now=0.0, nodes=[Node.from_manifest(case["node"])])
    assigned = tuple(AssignedPod(Pod.from_manifest(each["pod"]), each["seen_at"]) for each in case.get("assigned") or ())
    columns = dataclasses.replace(columns, assigned=assigned)
    terms = policy.compute_terms(pod, columns)
    answer: dict[str, float] = {"score": int(policy.score_nodes(pod, columns).values[0]), "pod_millis": terms.pod_millicores}
    if terms.is_measured[0]:
        answer |= {
            "missing_millis": float(terms.unreported_millicores[0]),
            "util_millis": float(terms.measured_millicores[0]),
            "capacity_millis": float(np.nan_to_num(columns.cpu.capacity[0])),
            "predicted": float(terms.predicted_percent[0]),
        }
    return answer


def _compare(ours: dict[str, float], expected: dict[str, Any]) -> str:
    wrong = [
        f"{key}: expected {expected[key]!r}, got {ours.get(key)!r}"
        for key in ("score", *_INTERMEDIATES)
        if key in expected and (key not in ours or ours[key] != expected[key])
    ]
    return "; ".join(wrong)


def _judge_decoded(policy: TargetLoadPacking, case: Case, nearest: dict[str, float]) -> Outcome:
    reply = copy.deepcopy(case["watcher"])
    metrics = reply["data"]["NodeMetricsMap"][case["node"]["metadata"]["name"]]["metrics"]
    decoded = case["expected"]["decoded"]
    same_score_expected = all(is_close(float(metric["value"]), value, 1e-12) for metric, value in zip(metrics, decoded, strict=True))
    for metric, value in zip(metrics, decoded, strict=True):
        metric["value"] = value
    problem = _compare(_compute(policy, case, LoadSnapshot.decode(json.dumps(reply))), case["expected"])
    if not problem and same_score_expected and nearest["score"] != case["expected"]["score"]:
        problem = f"with the nearest doubles the score is {nearest['score']}, expected {case['expected']['score']}"
    return Outcome(("reads_nearest_double",), problem)


def _has_infinite_multiplier(args: dict[str, Any]) -> bool:
    try:
        return not math.isfinite(parse_go_float(args.get("defaultRequestsMultiplier", "1.5")))
    except ValueError:
        return False


def _has_absent_value(reply: Any, node: str) -> bool:
    return any(metric is None or metric.get("value") is None for metric in _metrics(reply, node))


def _metrics(reply: Any, node: str) -> list[Any]:
    try:
        return reply["data"]["NodeMetricsMap"][node]["metrics"] or []
    except (KeyError, TypeError):
        return []


def _without_absent(reply: Any) -> Any:
    cut = copy.deepcopy(reply)
    for node in cut["data"]["NodeMetricsMap"].values():
        node["metrics"] = [metric for metric in node.get("metrics") or [] if metric and metric.get("value") is not None]
    return cut
