"""
What the suites of the Go plugins share: a case's reply to a snapshot, and the rules about how replies are read.

- ``reads_nearest_double``: the original computed with what its reader made of the text (``decoded``): with those values everything must
  agree, and with the nearest doubles, where they are that close, the scores must too.
- ``reads_valid_numbers``, ``rejects_invalid_json``: as in ``watcher_decode``; scores are then those of the formula, or of a reply that
  cannot be used.
- ``absent_is_not_zero``: a metric without a value does not count, as if it were not listed.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tests.conformance.cases import Case, Outcome, is_close, is_json
from trimaran_client import LoadSnapshot, PolicyArgumentError, SnapshotDecodeError
from trimaran_client.policies.base import NodeColumns
from trimaran_client.resources import Node
from trimaran_client.scorer import build_columns

READING_RULES = ("reads_nearest_double", "reads_valid_numbers", "rejects_invalid_json", "absent_is_not_zero")

Answer = dict[str, Any]
PolicyT = TypeVar("PolicyT")


@dataclass(frozen=True, slots=True)
class PluginSuite(Generic[PolicyT]):
    """
    How to run the cases of one plugin.

    ``make`` builds the policy, ``compute`` answers what the vectors expect under the same names, ``compare`` tells what differs, and
    ``scores_of`` takes out what a user sees. ``refuses`` tells whether arguments that the original accepts are refused on purpose.
    """

    make: Callable[[Case], PolicyT]
    compute: Callable[[PolicyT, Case, NodeColumns], Answer]
    compare: Callable[[Answer, Answer], str]
    scores_of: Callable[[Answer], object]
    refuses: Callable[[Case], bool] = lambda _: False

    def run(self, case: Case) -> Outcome:
        """Run one case."""
        case = {**case, "args": case.get("args") or {}}
        expected = case["expected"]
        try:
            policy = self.make(case)
        except PolicyArgumentError as error:
            if expected.get("error"):
                return Outcome()
            rules = ("rejects_invalid_arguments",) if self.refuses(case) else ()
            return Outcome(rules, "" if rules else f"refused: {error}")
        if expected.get("error"):
            return Outcome((), "accepted arguments that the original refuses")
        text = reply_text(case)
        ours = self._compute(policy, case, read_reply(case, text))
        if "decoded" in expected:
            return self._judge_decoded(policy, case, ours)
        problem = self.compare(ours, expected)
        if not problem:
            return Outcome()
        reply = case.get("watcher")
        if _has_absent_value(reply):
            without = self._compute(policy, case, LoadSnapshot.decode(json.dumps(_without_absent(reply))))
            as_zero = self._compute(policy, case, LoadSnapshot.decode(json.dumps(_with_zeros(reply))))
            # With zeros in their place the original's answer must come out, and ours as if they were not listed.
            return Outcome(("absent_is_not_zero",), self.compare(as_zero, expected) or self.compare(without, ours))
        unusable = self.scores_of(self._compute(policy, case, LoadSnapshot.empty()))
        if text and not is_json(text):
            return Outcome(("rejects_invalid_json",), "" if self.scores_of(ours) == unusable else "an unreadable reply was used")
        if self.scores_of(expected) == unusable and _has_number_that_go_refuses(text):
            return Outcome(("reads_valid_numbers",))
        return Outcome((), problem)

    def _compute(self, policy: PolicyT, case: Case, snapshot: LoadSnapshot) -> Answer:
        return self.compute(policy, case, build_columns(snapshot, now=0.0, nodes=[Node.from_manifest(node) for node in case_nodes(case)]))

    def _judge_decoded(self, policy: PolicyT, case: Case, nearest: Answer) -> Outcome:
        reply = json.loads(reply_text(case))
        decoded = case["expected"]["decoded"]
        if isinstance(decoded, list):
            decoded = {case["node"]["metadata"]["name"]: decoded}
        close = True
        for node, values in decoded.items():
            metrics = [metric if isinstance(metric, dict) else {} for metric in reply["data"]["NodeMetricsMap"][node]["metrics"]]
            for metric, value in zip(metrics, values, strict=True):
                close &= is_close(float(metric.get("value") or 0), value, 1e-12)
                metric["value"] = value
            reply["data"]["NodeMetricsMap"][node]["metrics"] = metrics
        expected = case["expected"]
        problem = self.compare(self._compute(policy, case, LoadSnapshot.decode(json.dumps(reply))), expected)
        if not problem and close and self.scores_of(nearest) != self.scores_of(expected):
            problem = f"with the nearest doubles: {self.scores_of(nearest)}, expected {self.scores_of(expected)}"
        return Outcome(("reads_nearest_double",), problem)


def case_nodes(case: Case) -> list[dict[str, Any]]:
    """List the candidate nodes of a case."""
    return case["nodes"] or [] if "nodes" in case else [case["node"]] if "node" in case else []


def reply_text(case: Case) -> str:
    """Answer the reply's body as text; empty where the case has none."""
    if "watcher_text" in case:
        return str(case["watcher_text"])
    return json.dumps(case["watcher"]) if case.get("watcher") is not None else ""


def read_reply(case: Case, text: str) -> LoadSnapshot:
    """Decode the reply; a status other than 200 and a body that is no reply leave nothing known."""
    if case.get("watcher_status", 200) != 200:
        return LoadSnapshot.empty()
    try:
        return LoadSnapshot.decode(text)
    except SnapshotDecodeError:
        return LoadSnapshot.empty()


def _node_map(reply: Any) -> dict[str, Any]:
    try:
        return reply["data"]["NodeMetricsMap"] or {}
    except (KeyError, TypeError):
        return {}


def _has_absent_value(reply: Any) -> bool:
    metrics = [metric for node in _node_map(reply).values() for metric in (node or {}).get("metrics") or []]
    return any(metric is None or metric.get("value") is None for metric in metrics)


def _without_absent(reply: Any) -> Any:
    cut = copy.deepcopy(reply)
    for node in _node_map(cut).values():
        if node:
            node["metrics"] = [metric for metric in node.get("metrics") or [] if metric and metric.get("value") is not None]
    return cut


def _with_zeros(reply: Any) -> Any:
    filled = copy.deepcopy(reply)
    for node in _node_map(filled).values():
        if node:
            metrics = [metric for metric in node.get("metrics") or [] if metric]
            node["metrics"] = [metric | {"value": metric.get("value") or 0} for metric in metrics]
    return filled


def _has_number_that_go_refuses(text: str) -> bool:
    """Tell whether there is a number with an exponent beyond 19, or an integer part beyond 64 bits."""
    refused = []

    def see(number: str) -> float:
        mantissa, _, exponent = number.lower().partition("e")
        whole = mantissa.partition(".")[0].lstrip("-")
        refused.append(abs(int(exponent or "0")) > 19 or int(whole) > 2**63 - 1)
        return 0.0

    json.loads(text, parse_float=see, parse_int=see)
    return any(refused)
