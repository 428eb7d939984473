"""
What every scoring policy must do, whatever it looks at.

A policy joins with a class of its own that gives one fixture::

    class TestMine(PolicyContract):
        @pytest.fixture
        def policy(self) -> ScoringPolicy:
            return create_policy("Mine", {"weight": 2})

Nothing but pytest, numpy and ``trimaran_client`` is needed: the file can be copied into another project.
"""

import functools
import itertools
import math
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from trimaran_client import (
    AssignedPods,
    LoadSnapshot,
    Node,
    NodeCapacities,
    NodeColumns,
    Pod,
    Reason,
    ScoringPolicy,
)
from trimaran_client.explain import explain_columns
from trimaran_client.scorer import build_columns
from trimaran_client.wire import Data, Metric, NodeMetrics, ResourceQuantities, WatcherMetrics, WireWindow, encode_json

NOW = 1_700_000_000.0
_VALUES = (None, 0.0, 5e-324, 35.5, 100.0, 100.1, -1.0, 1e308, -1e308, math.nan, math.inf, -math.inf)
_AMOUNTS = ("8", "0", "-1", "1m", "9E", "no quantity", None)
_REQUESTS: tuple[dict[str, object], ...] = (
    {},
    {"cpu": "500m", "memory": "1Gi"},
    {"cpu": 0},
    {"cpu": "9E", "memory": "9E"},
    {"cpu": "-5", "memory": "-1"},
)


def _pod(resources: object, **metadata: object) -> Pod:
    return Pod.from_manifest({"metadata": metadata, "spec": {"containers": [{"resources": {"requests": resources, "limits": resources}}]}})


def _snapshot(nodes: dict[str, NodeMetrics | None], end: float = NOW - 10) -> LoadSnapshot:
    return LoadSnapshot.from_metrics(WatcherMetrics(timestamp=NOW, window=WireWindow("15m", end - 900, end), data=Data(nodes)))


def _node(cpu: float | None, memory: float | None, amount: str | None) -> NodeMetrics:
    metrics: list[Metric | None] = [
        Metric(type=kind, operator=operator, rollup="15m" if operator in ("AVG", "STD") else "", value=value)
        for kind, value in (("CPU", cpu), ("Memory", memory))
        for operator in ("STD", "Latest", "AVG", "")
    ]
    has = ResourceQuantities(cpu=amount, memory=amount)
    return NodeMetrics(metrics=metrics, capacity=has, allocatable=has, sampled_at=NOW - 10, sample_seconds=30)


def _sound_nodes() -> dict[str, NodeMetrics | None]:
    return {f"n{index}": _node(7.0 * index, 50.0, "8") for index in range(12)} | {"silent": NodeMetrics(), "null": None}


def _hostile_nodes() -> dict[str, NodeMetrics | None]:
    pairs = itertools.product(_VALUES, _AMOUNTS)
    return {f"n{index}": _node(value, _VALUES[index % len(_VALUES)], amount) for index, (value, amount) in enumerate(pairs)}


def _assigned(names: tuple[str, ...]) -> AssignedPods:
    """Put pods of every kind on the nodes: long there, just bound, decided on, meant for it."""
    pods = AssignedPods()
    for index, (name, requests) in enumerate(zip(names, itertools.cycle(_REQUESTS), strict=False)):
        pods.assign(_pod(requests, uid=f"old-{index}"), name, at=NOW - 5000)
        pods.assign(_pod(requests, uid=f"new-{index}"), name, at=NOW - 7 * index)
        pods.assume(_pod(requests, uid=f"assumed-{index}"), name, now=NOW)
    return pods


def _columns(nodes: dict[str, NodeMetrics | None], *, with_pods: bool = True) -> NodeColumns:
    snapshot = _snapshot(nodes)
    return build_columns(snapshot, now=NOW, pods=_assigned(snapshot.nodes) if with_pods else None)


def _strangers() -> NodeColumns:
    """Candidates that nobody has measured, some with a node object."""
    names = tuple(f"new-{index}" for index in range(5))
    capacities = NodeCapacities.of(
        Node.from_manifest({"metadata": {"name": name}, "status": {"capacity": {"cpu": "8", "memory": "8Gi"}}}) for name in names[:3]
    )
    return build_columns(_snapshot(_sound_nodes()), now=NOW, nodes=names, pods=_assigned(names), capacities=capacities)


SITUATIONS: dict[str, Callable[[], NodeColumns]] = {
    "sound": lambda: _columns(_sound_nodes()),
    "pods not known": lambda: _columns(_sound_nodes(), with_pods=False),
    "hostile": lambda: _columns(_hostile_nodes()),
    "hostile, pods not known": lambda: _columns(_hostile_nodes(), with_pods=False),
    "old": lambda: build_columns(_snapshot(_sound_nodes(), end=NOW - 86400), now=NOW + 86400, pods=[]),
    "from the future": lambda: build_columns(_snapshot(_sound_nodes(), end=NOW + 86400), now=NOW, pods=[]),
    "strangers": _strangers,
    "before the first snapshot": lambda: build_columns(LoadSnapshot.empty(), now=NOW, nodes=["a", "b"], pods=[]),
    "no candidates": lambda: build_columns(_snapshot(_sound_nodes()), now=NOW, nodes=[], pods=_assigned(("n1",))),
}
PODS = {
    "usual": _pod({"cpu": "300m", "memory": "64Mi"}),
    "without requests": Pod.from_manifest({"spec": {"containers": [{}]}}),
    "without containers": Pod(),
    "enormous": _pod({"cpu": "9E", "memory": "9E"}),
    "negative": _pod({"cpu": "-5", "memory": "-1Gi"}),
    "zero": _pod({"cpu": 0, "memory": 0}),
}


class PolicyContract:
    """
    The suite; see the module.

    Attributes:
        keeps_the_range: Whether scores are from 0 to 100 whatever is measured; a preset that copies another's formula need not.
        is_relative: Whether a score depends on the other candidates, so that one node alone scores otherwise.
    """

    keeps_the_range = True
    is_relative = False

    @pytest.fixture(autouse=True)
    def _no_warnings(self) -> Iterator[None]:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield

    @pytest.fixture(params=SITUATIONS)
    def columns(self, request: pytest.FixtureRequest) -> NodeColumns:
        return make_situation(request.param)

    def test_it_has_a_name_and_says_which_resources_it_needs(self, policy: ScoringPolicy) -> None:
        assert policy.name.strip()
        assert isinstance(policy.resources, tuple)
        assert all(each.strip() for each in policy.resources)

    def test_every_candidate_has_a_score_and_a_reason_in_order_and_frozen(self, policy: ScoringPolicy, columns: NodeColumns) -> None:
        for about, pod in PODS.items():
            scores = policy.score_nodes(pod, columns)
            assert scores.names == columns.names
            assert scores.values.dtype == np.int64
            assert scores.values.shape == (len(columns.names),)
            assert scores.reasons.shape == (len(columns.names),)
            assert {int(each) for each in scores.reasons} <= set(Reason)
            assert not scores.values.flags.writeable
            assert not scores.reasons.flags.writeable
            if self.keeps_the_range:
                assert ((scores.values >= 0) & (scores.values <= 100)).all(), about

    def test_the_same_inputs_give_the_same_scores_and_stay_as_they_were(self, policy: ScoringPolicy, columns: NodeColumns) -> None:
        before = [each.copy() for each in list_inputs(columns)]
        for pod in PODS.values():
            one = policy.score_nodes(pod, columns)
            policy.explain(pod, columns)
            other = policy.score_nodes(pod, columns)
            np.testing.assert_array_equal(one.values, other.values)
            np.testing.assert_array_equal(one.reasons, other.reasons)
        for was, is_now in zip(before, list_inputs(columns), strict=True):
            np.testing.assert_array_equal(was, is_now)

    @pytest.mark.parametrize("situation", ["sound", "pods not known", "hostile"])
    def test_permuting_the_candidates_permutes_the_scores(self, policy: ScoringPolicy, situation: str) -> None:
        columns = make_situation(situation)
        order = np.random.default_rng(7).permutation(len(columns.names))
        for pod in PODS.values():
            scores, permuted = policy.score_nodes(pod, columns), policy.score_nodes(pod, take(columns, order))
            np.testing.assert_array_equal(permuted.values, scores.values[order])
            np.testing.assert_array_equal(permuted.reasons, scores.reasons[order])

    @pytest.mark.parametrize("situation", ["sound", "hostile"])
    def test_one_node_is_its_row_of_a_column(self, policy: ScoringPolicy, situation: str) -> None:
        columns, pod = make_situation(situation), PODS["usual"]
        scores, terms = policy.score_nodes(pod, columns), policy.explain(pod, columns).terms
        for row in range(0, len(columns.names), 3):
            alone = take(columns, np.array([row]))
            if not self.is_relative:
                assert policy.score_nodes(pod, alone).values[0] == scores.values[row], columns.names[row]
            for name, column in policy.explain(pod, alone).terms.items():
                np.testing.assert_array_equal(column[0], terms[name][row], err_msg=f"{name} of {columns.names[row]}")

    def test_a_candidate_given_twice_scores_the_same_twice(self, policy: ScoringPolicy) -> None:
        for pod in PODS.values():
            scores = policy.score_nodes(pod, take(make_situation("sound"), np.array([3, 1, 3])))
            assert scores.names[0] == scores.names[2]
            assert scores.values[0] == scores.values[2]

    def test_an_explanation_tells_of_every_candidate(self, policy: ScoringPolicy, columns: NodeColumns) -> None:
        for pod in PODS.values():
            reasoning = policy.explain(pod, columns)
            assert len(reasoning.sentences) == len(columns.names)
            assert all(isinstance(sentence, str) for sentences in reasoning.sentences for sentence in sentences)
            assert {name: column.shape for name, column in reasoning.terms.items()} == dict.fromkeys(reasoning.terms, (len(columns.names),))

    def test_an_explanation_can_be_written_as_json(self, policy: ScoringPolicy, columns: NodeColumns) -> None:
        scores = policy.score_nodes(PODS["usual"], columns)
        explanation = explain_columns(policy, PODS["usual"], columns, scores)
        assert {each.node: each.score for each in explanation.nodes} == scores.by_node()
        assert b"NaN" not in encode_json(explanation)


@functools.cache
def make_situation(name: str) -> NodeColumns:
    """Make the columns of a situation once: no policy may change them."""
    return SITUATIONS[name]()


def take(columns: NodeColumns, rows: np.ndarray) -> NodeColumns:
    """Take some of the candidates, in another order."""
    rows_before = np.arange(len(columns.names)) if columns.rows is None else columns.rows
    return NodeColumns(
        names=tuple(columns.names[row] for row in rows.tolist()),
        snapshot=columns.snapshot,
        now=columns.now,
        rows=rows_before[rows],
        pods=columns.pods,
        pod_rows=columns.pod_rows[rows] if len(columns.pod_rows) else columns.pod_rows,
        capacities=columns.capacities,
        capacity_rows=columns.capacity_rows[rows] if len(columns.capacity_rows) else columns.capacity_rows,
    )


def list_inputs(columns: NodeColumns) -> list[np.ndarray]:
    """List every array that a policy can reach."""
    snapshot, pods = columns.snapshot, columns.pods
    arrays = [snapshot.metrics.values, snapshot.metrics.rows, snapshot.sampled_at, snapshot.sample_seconds, columns.age_seconds]
    arrays += [snapshot.capacity.millicores, snapshot.capacity.bytes, snapshot.allocatable.millicores, snapshot.allocatable.bytes]
    for resource in ("cpu", "memory"):
        held = columns.resource(resource)
        arrays += [held.capacity, held.allocatable, held.requested, held.limited]
    return arrays if pods is None else [*arrays, pods.node_rows, pods.assigned_at, pods.started_at, pods.totals.values]
