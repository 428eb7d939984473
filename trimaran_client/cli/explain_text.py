"""An explanation as text for people: plain lines of at most 120 columns, fit for a terminal and for a file."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from trimaran_client.explain import (
    ExplainedMetric,
    ExplainedNode,
    ExplainedPodInFlight,
    ExplainedPrediction,
    ExplainedResource,
    Explanation,
)
from trimaran_client.policies.base import NodeScore
from trimaran_client.policies.wording import amount

WIDTH = 120
_LABEL_WIDTH = 14
# A node after a burst can have hundreds of pods, and Peaks a model for each of thousands of nodes; JSON has them all.
_MOST_PODS = 10
_MOST_ENTRIES = 5


def write_explanation(explanation: Explanation, ranked: Sequence[NodeScore]) -> Iterator[str]:
    """
    Write an explanation line by line.

    Args:
        explanation: Of all candidates, or of some of them.
        ranked: All candidates, best first; where the explanation leaves some out, a line says so.
    """
    yield from _write_head(explanation)
    for prediction in explanation.predictions:
        yield from _write_prediction(prediction)
    yield from _write_list("hint", explanation.hints)
    rank_of = {each.node: rank for rank, each in reversed(list(enumerate(ranked, 1)))}
    told = 0
    for node in explanation.nodes:
        rank = rank_of[node.node]
        yield from _write_gap(ranked[told : rank - 1])
        told = rank
        yield ""
        yield f"#{rank} of {len(ranked)}: {node.node}, score {node.score}, {node.reason}{f', status {node.status}' if node.status else ''}"
        yield from _write_node(node, explanation.source)
    yield from _write_gap(ranked[told:])
    if not ranked:
        yield "no candidate nodes: the load watcher serves none, or the list of nodes is empty"


def _write_head(explanation: Explanation) -> Iterator[str]:
    preset = f" ({explanation.preset})" if explanation.preset else ""
    age = "" if explanation.snapshot_age_seconds is None else f", its reply {max(0.0, explanation.snapshot_age_seconds):.0f} s old"
    yield f"{explanation.policy}{preset} for pod {explanation.pod}; load from {explanation.source or 'an unnamed source'}{age}"
    arguments = [f"{name}={_argument(value)}" for name, value in explanation.arguments.items() if name != "preset"]
    if arguments:
        yield from _write_list("arguments", [", ".join(arguments)])


def _argument(value: object) -> str:
    if isinstance(value, dict):
        told = _join([f"{key}: {_argument(each)}" for key, each in value.items() if each != ""])
        return f"{{{told}}}" if told else "any"
    if isinstance(value, list):
        return f"[{_join(list(map(_argument, value)))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _join(entries: Sequence[str]) -> str:
    more = [f"{len(entries) - _MOST_ENTRIES} more"] if len(entries) > _MOST_ENTRIES else []
    return ", ".join([*entries[:_MOST_ENTRIES], *more])


def _write_prediction(prediction: ExplainedPrediction) -> Iterator[str]:
    resource = prediction.resource
    parts = [f"{each.kind} {each.part}: {amount(each.amount, resource)} ({each.rule})" for each in prediction.parts]
    whole = f"{resource}: the pod is taken to use {amount(prediction.amount, resource)}"
    yield from _write_list("prediction", [f"{whole}, part by part:" if parts else whole, *(f"  {part}" for part in parts)])


def _write_node(node: ExplainedNode, source: str) -> Iterator[str]:
    yield from _write_list("metric", [_tell_metric(each, source) for each in node.metrics])
    yield from _write_list("resources", [_tell_resource(each) for each in node.resources])
    yield from _write_list("in flight", list(_tell_in_flight(node.in_flight)))
    yield from _write_list("arithmetic", node.steps)
    yield from _write_list("hint", node.hints)


def _tell_metric(metric: ExplainedMetric, source: str) -> str:
    window = f" over {metric.window}" if metric.window else ""
    name = f"{metric.resource}: {' '.join(filter(None, (metric.type, metric.statistic)))}{window}"
    if metric.value is None:
        return f"{name}: none"
    value = f"{metric.value:.6g} {'%' if metric.unit == 'percent' else metric.unit}"
    age = "of unknown age" if metric.age_seconds is None else f"{metric.age_seconds:.0f} s old"
    return f"{name} = {value}, {age}, from {metric.source or source or 'an unnamed source'}"


def _tell_resource(resource: ExplainedResource) -> str:
    held = {"capacity": resource.capacity, "allocatable": resource.allocatable, "requested by its pods": resource.requested}
    told = ", ".join(f"{name} {'not known' if value is None else amount(value, resource.resource)}" for name, value in held.items())
    if resource.requested is not None and resource.allocatable:
        told += f" ({100 * resource.requested / resource.allocatable:.3g} % of allocatable)"
    return f"{resource.resource}: {told}"


def _tell_in_flight(pods: Sequence[ExplainedPodInFlight]) -> Iterator[str]:
    most = sorted(pods, key=lambda each: -each.amount * each.share)
    for each in most[:_MOST_PODS]:
        counted, whole = amount(each.amount * each.share, each.resource), amount(each.amount, each.resource)
        yield f"{each.pod}: {counted} of {each.resource} = {100 * each.share:.3g} % of {whole}; {each.state} {each.age_seconds:.0f} s ago"
    if len(most) > _MOST_PODS:
        yield f"{len(most) - _MOST_PODS} more, of which each counts for less; --output json lists them"


def _write_gap(left_out: Sequence[NodeScore]) -> Iterator[str]:
    if left_out:
        scores = (
            f"score {left_out[0].score}"
            if left_out[0].score == left_out[-1].score
            else (f"scores from {left_out[0].score} down to {left_out[-1].score}")
        )
        yield ""
        yield f"... {len(left_out)} node{'s' if len(left_out) > 1 else ''} left out, {scores}; --all shows every node, --node NAME one"


def _write_list(label: str, entries: Iterable[str]) -> Iterator[str]:
    """Write entries in a column beside their label, wrapped."""
    margin = " " * (_LABEL_WIDTH + 2)
    for entry in entries:
        head = f"  {label:<{_LABEL_WIDTH}}"
        indent = " " * (len(entry) - len(entry.lstrip()))
        yield from textwrap.wrap(
            entry.strip(),
            WIDTH,
            initial_indent=head + indent,
            subsequent_indent=f"{margin}{indent}  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        label = ""
