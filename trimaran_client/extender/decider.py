"""
From a scheduler's question to the answer: synchronous, from memory, and never an error.

Whatever fails in here, the scheduler gets the same score for every node, which leaves the choice to its other plugins, and the cause is
logged and counted.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from trimaran_client.assigned import AssignedPods
from trimaran_client.capacities import NodeCapacities
from trimaran_client.errors import ManifestError
from trimaran_client.extender.config import ExtenderConfig
from trimaran_client.extender.decisions import Candidates, Decision, DecisionLog
from trimaran_client.extender.hot_spots import HotSpots
from trimaran_client.extender.profiles import Choice, Profiles
from trimaran_client.extender.standings import Standing, Standings, gather
from trimaran_client.extender.wire import (
    ExtenderArgs,
    ExtenderBodyError,
    NumberT,
    PriorityEncoder,
    decode_args,
    encode_filtered,
    encode_priorities,
    hold_scores,
    to_short_scale,
)
from trimaran_client.objects import NodeMetaObject, NodeObject, PodObject, to_node, to_pod
from trimaran_client.policies.base import MAX_NODE_SCORE, NEUTRAL_NODE_SCORE, NodeColumns, Reason, Scores
from trimaran_client.resources import Node, Pod
from trimaran_client.scorer import find_rows
from trimaran_client.snapshot import LoadSnapshot, SnapshotSource, are_all_there
from trimaran_client.units import IntArray

logger = logging.getLogger(__name__)

NO_SCORES = b"[]"
_MOST_EQUALS = 8
_MEASURED = frozenset(
    {Reason.AT_OR_BELOW_TARGET, Reason.ABOVE_TARGET, Reason.OVER_CAPACITY, Reason.RISK, Reason.BEST_EFFORT, Reason.POWER, Reason.NO_MODEL}
)


class _NamedObject(msgspec.Struct, frozen=True):
    """A node of which only the name is read."""

    metadata: NodeMetaObject | None = None


_pod_decoder = msgspec.json.Decoder(PodObject)
_node_decoder = msgspec.json.Decoder(NodeObject)
_named_decoder = msgspec.json.Decoder(_NamedObject)
_LAST_REASON = int(max(Reason))
_POLICY_FAILED = int(Reason.POLICY_FAILED)
_REASON_NAMES = {int(reason): str(reason) for reason in Reason}
_OUTCOMES = ("scored", "neutral", "other_scheduler", "shadow", "filtered", "bad_body")


class PolicyAnswerError(Exception):
    """Scores of a policy that are none: not one whole number with a known reason for each candidate."""


class Sources(Protocol):
    """Whether what answers are made from can be relied on."""

    def problem(self) -> str:
        """Say what is missing or old; empty where nothing is."""
        ...


@dataclass(slots=True)
class Counters:
    """
    What was answered, for the metrics.

    Args:
        outcomes: ``scored``, ``neutral``, ``other_scheduler``, ``shadow``, ``filtered``, ``bad_body`` → count.
        failures: Cause of a neutral answer → count.
        reasons: Reason code → how many nodes had it.
        refused_nodes: How many nodes ``/filter`` took out.
        ignored_wishes: How many wishes of pods and namespaces could not be followed.
    """

    outcomes: Counter[str]
    failures: Counter[str]
    reasons: Counter[str]
    refused_nodes: int = 0
    ignored_wishes: int = 0


class _Scored(NamedTuple):
    """
    What one question came to.

    ``rows`` tell where the candidates stand in the snapshot, ``None`` where one does not; ``gather`` answers what the scores were
    computed from, and ``in_flight_count`` how many pods in flight that holds on to.
    """

    at: float
    pod: Pod
    choice: Choice
    bound_to: str
    names: tuple[str, ...]
    snapshot: LoadSnapshot
    rows: IntArray | None
    values: IntArray
    reasons: IntArray
    gather: Callable[[], NodeColumns]
    in_flight_count: int


class Decider:
    """
    Answer a scheduler.

    Args:
        config: What was set.
        load: The measured load.
        pods: The pods that hold a place.
        nodes: What nodes have; ``None`` where the cluster is not watched.
        profiles: What scores a pod.
        sources: Whether all of that is up to date.
        log: Where decisions are remembered.
        clock: Unix seconds.
        defer: Does what the scheduler need not wait for, at once or as soon as the answer is out.
    """

    def __init__(
        self,
        config: ExtenderConfig,
        *,
        load: SnapshotSource,
        pods: AssignedPods,
        nodes: NodeCapacities | None,
        profiles: Profiles,
        sources: Sources,
        log: DecisionLog,
        clock: Callable[[], float],
        defer: Callable[[Callable[[], None]], object] = lambda work: work(),
    ) -> None:
        # Those that did not happen are told too, as 0.
        self.counters = Counters(Counter(dict.fromkeys(_OUTCOMES, 0)), Counter(), Counter())
        self.log = log
        self._config = config
        self._load = load
        self._pods = pods
        self._nodes = nodes
        self._profiles = profiles
        self._sources = sources
        self._hot_spots = HotSpots(config.filter)
        self._clock = clock
        self._defer = defer
        self._encoder = PriorityEncoder()
        self._standings = Standings(load, pods, nodes, is_short=config.scale != MAX_NODE_SCORE)
        self._last_failures: dict[str, str] = {}

    def prioritize(self, body: bytes) -> bytes:
        """
        Answer ``/prioritize``: a score for each node that was received, none other.

        Raises:
            ExtenderBodyError: If the body is not a question.
        """
        args, names, manifests = self._read(body)
        pod: Pod | None = None
        try:
            pod = _read_pod(args.pod)
            choice = self._profiles.choose(pod)
            if choice is None:
                self.counters.outcomes["other_scheduler"] += 1
                return NO_SCORES
            now = self._clock()
            bound_to = self._pods.bound_node_of(pod.key)
            if self._assumes(pod) and not bound_to:
                self._pods.forget(pod)  # asked again, it is not where it was taken to go, and must not count beside itself
            standing = None if manifests or self._config.shadow else self._standings.find(choice.scorer, pod, now)
            ready = None if standing is None else standing.answer(names)
            if standing is not None and ready is not None:
                self._defer(partial(self._remember_ready, standing, now, pod, choice, bound_to, names))
                return ready
            scored = self._score(now, pod, choice, bound_to, names, manifests)
            answer = self._encode(scored)
        except Exception as error:  # noqa: BLE001 - a scheduler must go on, whatever we did wrong
            self._standings.clear()  # what is wrong in one must not fail the next question too
            self._note_failure(error, pod, "each node got the neutral score")
            self.counters.outcomes["neutral"] += 1
            return NO_SCORES if self._config.shadow else encode_priorities(names, [self._scaled(NEUTRAL_NODE_SCORE)] * len(names))
        self._defer(partial(self._remember, scored))
        return answer

    def filter(self, body: bytes) -> bytes:
        """
        Answer ``/filter``: which of the nodes that were received are not too hot.

        Raises:
            ExtenderBodyError: If the body is not a question.
        """
        args, names, _ = self._read(body)
        refused: dict[str, str] = {}
        pod: Pod | None = None
        try:
            pod = _read_pod(args.pod)
            if self._config.filter.enabled and self._profiles.choose(pod) is not None:
                refused = self._hot_spots.refused(pod, names, self._load.snapshot, now=self._clock())
        except Exception as error:  # noqa: BLE001 - as above: nothing is taken out then
            self._note_failure(error, pod, "no node was taken out")
        self.counters.outcomes["filtered"] += 1
        if self._config.shadow and refused and pod is not None:
            logger.info("would take out %s for pod %s/%s", refused, pod.namespace, pod.name)
            refused = {}
        self.counters.refused_nodes += len(refused)
        return encode_filtered(args, names, refused)

    def columns_now(self, decision: Decision) -> NodeColumns:
        """Gather what is known now of the candidates of a decision."""
        return decision.scorer.columns(self._load, now=self._clock(), nodes=decision.names, pods=self._pods, capacities=self._nodes)

    def _read(self, body: bytes) -> tuple[ExtenderArgs, tuple[str, ...], tuple[Node, ...]]:
        """Read a question: the candidates by name, each once, and those that came as objects as nodes."""
        try:
            args = decode_args(body)
            if args.names is not None:
                return args, args.names, ()
            nodes: dict[str, tuple[Node, bytes]] = {}
            for text in args.nodes or ():
                node = _read_node(text)
                nodes.setdefault(node.name, (node, text))
        except ExtenderBodyError:
            self.counters.outcomes["bad_body"] += 1
            raise
        manifests = tuple(node for node, _ in nodes.values())
        return replace(args, nodes=tuple(text for _, text in nodes.values())), tuple(nodes), manifests

    def _score(self, now: float, pod: Pod, choice: Choice, bound_to: str, names: tuple[str, ...], manifests: tuple[Node, ...]) -> _Scored:
        columns = choice.scorer.columns(self._load, now=now, nodes=manifests or names, pods=self._pods, capacities=self._nodes)
        scores = choice.scorer.score_columns(pod, columns)
        _check(scores, len(names))
        values = hold_scores(scores.values)
        rows = columns.rows if columns.whole is not None or (columns.rows is not None and are_all_there(columns.rows)) else None
        in_flight_count = 0 if columns.pods is None else columns.pods.in_flight_count
        return _Scored(
            now, pod, choice, bound_to, scores.names, columns.snapshot, rows, values, scores.reasons, lambda: columns, in_flight_count
        )

    def _remember_ready(self, standing: Standing, now: float, pod: Pod, choice: Choice, bound_to: str, names: tuple[str, ...]) -> None:
        columns, pods = standing.columns, self._pods.view(now)
        rows = find_rows(names, columns.snapshot.rows)
        how = partial(gather, columns, names, rows, pods, now)
        values, reasons = standing.scores_at(rows)
        self._remember(_Scored(now, pod, choice, bound_to, names, columns.snapshot, rows, values, reasons, how, pods.in_flight_count))

    def _remember(self, scored: _Scored) -> None:
        """Do what the scheduler need not wait for, but the next question must find done."""
        pod, values = scored.pod, scored.values
        try:
            # A binding that was told meanwhile cannot come of an answer that has only just gone out.
            bound_to = scored.bound_to or self._pods.bound_node_of(pod.key)
            is_neutral = bool((scored.reasons == _POLICY_FAILED).any())
            if len(values) and not is_neutral and self._assumes(pod):
                # Until its binding is seen, the pod counts where it will most likely go; else all pods of a burst would see the same nodes.
                best = int(values.argmax())
                self._pods.assume(pod, scored.names[best], now=scored.at, or_on=_list_equals(values, best, scored.names))
            self.log.add_later(partial(self._note, scored, bound_to, self._sources.problem()))
        except Exception as error:  # noqa: BLE001 - the answer is given; this must not end anything either
            self._note_failure(error, pod, "the answer is not remembered")

    def _note(self, scored: _Scored, bound_to: str, problem: str) -> None:
        """Note a decision, with what was missing for a good one."""
        try:
            self._note_all(scored, bound_to, problem)
        except Exception as error:  # noqa: BLE001 - as above
            self._note_failure(error, scored.pod, "the answer is not remembered")

    def _note_all(self, scored: _Scored, bound_to: str, problem: str) -> None:
        pod, choice, snapshot, log, rows = scored.pod, scored.choice, scored.snapshot, self.log, scored.rows
        candidates = Candidates(log.share(scored.names)) if rows is None else Candidates(log.share_nodes(snapshot.nodes), rows)
        counts = {code: count for code, count in enumerate(np.bincount(scored.reasons).tolist()) if count}
        is_neutral = _POLICY_FAILED in counts
        if is_neutral:
            self.counters.failures["policy"] += 1
        for code, count in counts.items():
            self.counters.reasons[_REASON_NAMES[code]] += count
        self.counters.ignored_wishes += choice.ignored
        is_shadow = self._config.shadow
        self.counters.outcomes["neutral" if is_neutral else "shadow" if is_shadow else "scored"] += 1
        self.log.add(
            Decision(
                made_at=scored.at,
                pod=pod,
                scheduler_name=choice.scheduler_name,
                policy=choice.scorer.policy.name,
                candidates=candidates,
                values=scored.values.astype(np.int8),
                reasons=scored.reasons.astype(np.int8),
                snapshot_age_seconds=max(0.0, scored.at - snapshot.made_at) if snapshot.made_at else None,
                degraded=_tell_degraded(problem, counts, bound_to),
                is_shadow=is_shadow,
                scorer=choice.scorer,
                gather=scored.gather,
                in_flight_count=scored.in_flight_count,
                bound_to=bound_to,
            )
        )
        if is_shadow:
            best = int(scored.values.argmax()) if candidates else -1
            where, score = (candidates[best], int(scored.values[best])) if candidates else ("none", 0)
            logger.info("shadow: pod %s/%s would go to %s with %s", pod.namespace, pod.name, where, score)

    def _assumes(self, pod: Pod) -> bool:
        return bool(self._config.assume_seconds and pod.uid) and not self._config.shadow

    def _encode(self, scored: _Scored) -> bytes:
        if self._config.shadow:
            return NO_SCORES
        values = self._scaled(scored.values)
        if scored.rows is None:
            return encode_priorities(scored.names, values.tolist())
        return self._encoder.encode(scored.snapshot.nodes, scored.rows, values)

    def _scaled(self, score: NumberT) -> NumberT:
        return score if self._config.scale == MAX_NODE_SCORE else to_short_scale(score)

    def _note_failure(self, error: Exception, pod: Pod | None, told: str) -> None:
        """Count a failure, and log it unless it is the last one of its cause again."""
        cause = "pod_unreadable" if pod is None else "policy" if isinstance(error, PolicyAnswerError) else type(error).__name__
        self.counters.failures[cause] += 1
        if self._last_failures.get(cause) != repr(error):
            self._last_failures[cause] = repr(error)
            name = "a pod that cannot be read" if pod is None else f"pod {pod.namespace}/{pod.name}"
            logger.error("the answer on %s failed: %s; the same again is only counted", name, told, exc_info=error)


def _read_pod(text: bytes) -> Pod:
    if text == b"null":
        return Pod()
    return to_pod(_pod_decoder.decode(text))


def _read_node(text: bytes) -> Node:
    """Read a node; of one that cannot be read the name, so that it spoils no other."""
    try:
        return to_node(_node_decoder.decode(text))
    except (ManifestError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            metadata = _named_decoder.decode(text).metadata
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ExtenderBodyError(f"a node that cannot be read: {error}") from error
    if metadata is None or not metadata.name:
        raise ExtenderBodyError("a node without a name")
    return Node(metadata.name)


def _tell_degraded(problem: str, counts: Mapping[int, int], bound_to: str) -> str:
    unmeasured = sum(count for code, count in counts.items() if code not in _MEASURED)
    sentences = [problem]
    if unmeasured:
        sentences.append(f"{unmeasured} of {sum(counts.values())} nodes without usable metrics")
    if bound_to:
        sentences.append(f"answered too late: the pod was bound to {bound_to} before")
    return "; ".join(filter(None, sentences))


def _list_equals(values: IntArray, best: int, candidates: Sequence[str]) -> list[str]:
    """
    List the candidates that are as good as the best one, of which a scheduler draws one by lot.

    None where there are many: it is hardly the same one twice then, and each would have to be counted with each pod.
    """
    equals = np.flatnonzero(values == values[best])
    return [candidates[row] for row in equals.tolist() if row != best] if 1 < len(equals) <= _MOST_EQUALS else []


def _check(scores: Scores, count: int) -> None:
    """Refuse what a policy of someone else's may answer by mistake."""
    if scores.values.shape != (count,) or scores.reasons.shape != (count,):
        raise PolicyAnswerError(f"{len(scores.values)} scores and {len(scores.reasons)} reasons for {count} candidates")
    if scores.values.dtype.kind not in "iu" or scores.reasons.dtype.kind not in "iu":
        raise PolicyAnswerError(f"scores of type {scores.values.dtype} and reasons of type {scores.reasons.dtype}; both are whole numbers")
    lowest, highest = (int(np.minimum.reduce(scores.reasons)), int(np.maximum.reduce(scores.reasons))) if count else (0, 0)
    if not 0 <= lowest <= highest <= _LAST_REASON:
        raise PolicyAnswerError(f"reasons from {lowest} to {highest}; the known ones go from 0 to {_LAST_REASON}")
