"""What was decided, for a while: the answer to "why that node?" after the fact."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from trimaran_client.explain import Explanation
from trimaran_client.extender.wire import pick
from trimaran_client.policies.base import NodeColumns, Reason, Scores
from trimaran_client.resources import Pod
from trimaran_client.scorer import Scorer
from trimaran_client.units import IntArray

# Columns hold on to snapshots and pods in flight; the last few decisions are those that people ask about, and fewer in a great burst: each
# remembers some 100 bytes of each pod in flight, and the pods of the last twenty minutes are.
_EXPLAINABLE = 64
_MOST_EXPLAINABLE_PODS = 500_000
# Ten times the nodes of the largest clusters, for those that come and go.
_MOST_SHARED_NAMES = 50_000
# Each holds on to the pods in flight of its time.
_MOST_PENDING = 32


class Candidates:
    """
    The candidates of a decision, by name.

    Args:
        nodes: Strings that are there already, so that decisions do not each hold theirs.
        rows: Where each candidate stands among them, shape (candidates,); ``None`` = they are the candidates.
    """

    __slots__ = ("_nodes", "_rows")

    def __init__(self, nodes: tuple[str, ...], rows: IntArray | None = None) -> None:
        self._nodes = nodes
        self._rows = None if rows is None else rows.astype(np.int32)

    def __len__(self) -> int:
        return len(self._nodes if self._rows is None else self._rows)

    def __getitem__(self, index: int) -> str:
        return self._nodes[index if self._rows is None else self._rows[index]]

    def names(self) -> tuple[str, ...]:
        """List all of them."""
        return self._nodes if self._rows is None else pick(self._nodes, self._rows.tolist())


@dataclass(slots=True, eq=False)
class Decision:
    """
    One answer to ``/prioritize``.

    Args:
        made_at: Unix seconds.
        pod: The pod.
        scheduler_name: Whose pod it is.
        policy: What scored it.
        candidates: The candidates.
        values: Their scores, 0 to 100, shape (nodes,).
        reasons: :class:`Reason` codes, shape (nodes,).
        snapshot_age_seconds: How old the measured load was; ``None`` where there was none.
        degraded: What was missing, in words; empty where nothing was.
        is_shadow: Whether it was only logged.
        scorer: What can explain it.
        gather: Answers what it was computed from; dropped after a while.
        in_flight_count: How many pods in flight that holds on to.
        bound_to: Where the pod was bound then; empty while it is not known.
    """

    made_at: float
    pod: Pod
    scheduler_name: str
    policy: str
    candidates: Candidates
    values: npt.NDArray[np.int8]
    reasons: npt.NDArray[np.int8]
    snapshot_age_seconds: float | None
    degraded: str
    is_shadow: bool
    scorer: Scorer = field(repr=False)
    gather: Callable[[], NodeColumns] | None = field(repr=False)
    in_flight_count: int = 0
    bound_to: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Answer the names of the candidates; made anew each time."""
        return self.candidates.names()

    def scores(self) -> Scores:
        """Answer the scores as a policy gives them."""
        return Scores(self.names, self.values.astype(np.int64), self.reasons.astype(np.int64))


class DecidedNode(msgspec.Struct, frozen=True, rename="camel"):
    """A candidate and its score."""

    node: str
    score: int
    reason: str


class DecisionView(msgspec.Struct, frozen=True, rename="camel"):
    """A decision as ``GET /api/v1/decisions`` tells it; ``nodes`` the best ones, ``nodeCount`` how many there were."""

    made_at: float
    pod: str
    uid: str
    scheduler_name: str
    policy: str
    node_count: int
    nodes: list[DecidedNode]
    reasons: dict[str, int]
    bound_to: str
    bound_score: int | None
    snapshot_age_seconds: float | None
    degraded: str
    shadow: bool


class ExplainView(msgspec.Struct, frozen=True, rename="camel"):
    """
    A decision and why, as ``GET /api/v1/explain`` tells it.

    ``candidates`` are all of them, best first, with the scores that are explained. ``asDecided`` tells whether these are the numbers of
    the decision itself; an older one is explained by what is known now.
    """

    decision: DecisionView
    as_decided: bool
    candidates: list[DecidedNode]
    explanation: Explanation


class DecisionLog:
    """
    Remember the last decisions.

    Args:
        limit: How many.
        put_off: Takes what is to be called in a moment; by default at once. Ten decisions noted together cost a third of ten times one.
    """

    def __init__(self, limit: int, *, put_off: Callable[[Callable[[], None]], object] = lambda work: work()) -> None:
        self._put_off = put_off
        self._pending: list[Callable[[], None]] = []
        self._decisions: deque[Decision] = deque(maxlen=limit)
        self._explainable: deque[Decision] = deque()
        self._explainable_pods = 0
        self._latest: dict[str, Decision] = {}
        self._shared_names: dict[str, str] = {}
        self._given_nodes: tuple[str, ...] = ()
        self._shared_nodes: tuple[str, ...] = ()

    def __len__(self) -> int:
        self.settle()
        return len(self._decisions)

    def __iter__(self) -> Iterator[Decision]:
        """Go through them, newest first."""
        self.settle()
        return reversed(self._decisions)

    def add_later(self, work: Callable[[], None]) -> None:
        """Have *work* add a decision in a moment, and before anybody looks; it must not raise."""
        self._pending.append(work)
        if len(self._pending) == 1:
            self._put_off(self.settle)
        elif len(self._pending) >= _MOST_PENDING:
            self.settle()

    def settle(self) -> None:
        """Do now what was put off."""
        pending, self._pending = self._pending, []
        for work in pending:
            work()

    def add(self, decision: Decision) -> None:
        """Remember a decision; the oldest is forgotten where there are too many."""
        if len(self._decisions) == self._decisions.maxlen:
            oldest = self._decisions[0]
            if self._latest.get(oldest.pod.key) is oldest:
                del self._latest[oldest.pod.key]
        self._decisions.append(decision)
        self._latest[decision.pod.key] = decision
        self._explainable.append(decision)
        self._explainable_pods += decision.in_flight_count
        while len(self._explainable) > 1 and (len(self._explainable) > _EXPLAINABLE or self._explainable_pods > _MOST_EXPLAINABLE_PODS):
            oldest = self._explainable.popleft()
            self._explainable_pods -= oldest.in_flight_count
            oldest.gather = None

    def share_nodes(self, nodes: tuple[str, ...]) -> tuple[str, ...]:
        """Answer the nodes of a snapshot as the decisions before have them: each snapshot brings its own names, and they stay the same."""
        if nodes is not self._given_nodes:
            self._given_nodes = nodes
            if nodes != self._shared_nodes:
                self._shared_nodes = self.share(nodes)
        return self._shared_nodes

    def share(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Answer the same names as strings that other decisions have too: their own would be ten times as large as all the rest."""
        if len(self._shared_names) > _MOST_SHARED_NAMES:
            self._shared_names = {}
        return tuple(map(self._shared_names.setdefault, names, names))

    def note_bound(self, pod: Pod) -> Decision | None:
        """Learn where a pod was bound; answer the decision on it, if this is news."""
        self.settle()
        decision = self._latest.get(pod.key)
        if decision is None or decision.bound_to:
            return None
        decision.bound_to = pod.node_name
        return decision

    def find(self, namespace: str, name: str) -> Decision | None:
        """Answer the newest decision on a pod."""
        return next((each for each in self if (each.pod.namespace, each.pod.name) == (namespace, name)), None)


def view_ranked(scores: Scores) -> list[DecidedNode]:
    """Tell all candidates with their scores, best first."""
    return [DecidedNode(each.node, each.score, str(each.reason)) for each in scores.ranked()]


def view_decision(decision: Decision, *, most_nodes: int) -> DecisionView:
    """Tell a decision with its best *most_nodes* candidates."""
    order = np.argsort(-decision.values.astype(np.int64), kind="stable")[:most_nodes].tolist()
    names = decision.names
    nodes = [DecidedNode(names[row], int(decision.values[row]), str(Reason(int(decision.reasons[row])))) for row in order]
    row_of_bound = names.index(decision.bound_to) if decision.bound_to in names else None
    return DecisionView(
        made_at=round(decision.made_at, 3),
        pod=f"{decision.pod.namespace}/{decision.pod.name}",
        uid=decision.pod.uid,
        scheduler_name=decision.scheduler_name,
        policy=decision.policy,
        node_count=len(names),
        nodes=nodes,
        reasons={str(Reason(code)): count for code, count in enumerate(np.bincount(decision.reasons, minlength=1).tolist()) if count},
        bound_to=decision.bound_to,
        bound_score=None if row_of_bound is None else int(decision.values[row_of_bound]),
        snapshot_age_seconds=None if decision.snapshot_age_seconds is None else round(decision.snapshot_age_seconds, 3),
        degraded=decision.degraded,
        shadow=decision.is_shadow,
    )
