"""The scoring call goes on whatever it is given, and whoever else works on the same pods and nodes."""

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.builders import NOW, make_node, make_pod, make_snapshot
from trimaran_client import (
    AssignedPods,
    LoadSnapshot,
    Node,
    NodeColumns,
    Pod,
    Reason,
    Scorer,
    Scores,
    TargetLoadPacking,
    TargetLoadPackingArgs,
)
from trimaran_client.capacities import NodeCapacities
from trimaran_client.prediction import GuardedEstimator, UsagePrediction
from trimaran_client.resources import CPU, MEMORY, Container
from trimaran_client.units import Quantity

BEYOND_DOUBLES = Quantity(10**400)
HUGE = Container(requests={CPU: BEYOND_DOUBLES, MEMORY: BEYOND_DOUBLES})
NEGATIVE = Container(requests={CPU: Quantity(-(10**400))})
ROUNDS = 300


class BrokenSource:
    """Fails where the newest snapshot is asked for."""

    @property
    def snapshot(self) -> LoadSnapshot:
        raise RuntimeError("no snapshot")


@pytest.mark.parametrize("container", [HUGE, NEGATIVE])
def test_amounts_that_no_float_holds_are_scored(container: Container) -> None:
    pod = Pod(name="p", containers=(container,))
    node = Node("n1", {CPU: BEYOND_DOUBLES}, {CPU: BEYOND_DOUBLES})
    scorer = Scorer(TargetLoadPacking())
    for nodes in (None, [node]):
        scores = scorer.score_nodes(pod, make_snapshot({"n1": 20.0}), now=NOW, nodes=nodes, pods=[replace(pod, uid="1", node_name="n1")])
        assert 0 <= scores.values[0] <= 100
    assert not scorer.failures


def test_a_default_request_that_no_float_holds_twice_is_scored() -> None:
    scorer = Scorer(TargetLoadPacking(TargetLoadPackingArgs(default_request_millicores=10**308)))
    pods = AssignedPods()
    for name in ("one", "two"):
        pod = Pod(name=name, containers=(Container(), Container()))
        assert scorer.score_nodes(pod, make_snapshot({"n1": 20.0}), now=NOW, pods=pods).reasons[0] == Reason.OVER_CAPACITY
        pods.assume(pod, "n1", now=NOW)
    assert not scorer.failures


def test_what_cannot_be_gathered_leaves_every_candidate_neutral_and_is_counted() -> None:
    scorer = Scorer(TargetLoadPacking())
    scores = scorer.score_nodes(make_pod(), BrokenSource(), now=NOW, nodes=["n1", make_node("n2")])
    assert (scores.names, scores.values.tolist()) == (("n1", "n2"), [50, 50])
    assert set(scores.reasons.tolist()) == {Reason.POLICY_FAILED}
    assert scorer.score_nodes(make_pod(), BrokenSource(), now=NOW).names == ()
    assert (scorer.failures, repr(scorer.last_error)) == (2, "RuntimeError('no snapshot')")


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Let threads take turns as often as the interpreter can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("eager_threads")
def test_threads_that_score_and_threads_that_place_pods_do_not_disturb_each_other() -> None:
    names = [f"n{number}" for number in range(40)]
    snapshot = make_snapshot(dict.fromkeys(names[:30], 20.0))
    scorer, pods, capacities = Scorer(TargetLoadPacking()), AssignedPods(), NodeCapacities.of(map(make_node, names))
    told: list[object] = []

    def score(number: int) -> None:
        asked = names[number % 30 :: 7] if number % 2 else names[number % 7 :]
        scores = scorer.score_nodes(make_pod(), snapshot, now=NOW, nodes=asked, pods=pods, capacities=capacities)
        if scores.names != tuple(asked):
            told.append(scores.names)

    def place(number: int) -> None:
        pod = Pod(name=f"p{number % 50}", containers=(Container(requests={CPU: Quantity.parse("1")}),))
        pods.assume(pod, names[number % 40], now=NOW)
        pods.forget(f"default/p{(number * 7) % 50}")
        capacities.update(make_node(names[number % 40], 8 + number % 2))

    def repeat(work: Callable[[int], None]) -> None:
        try:
            for number in range(ROUNDS):
                work(number)
        except Exception as error:  # noqa: BLE001 - what a thread raises is what the test is about
            told.append(error)

    threads = [threading.Thread(target=repeat, args=(work,)) for work in (score, place, score, place)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not told
    assert not scorer.failures, scorer.last_error


def test_a_view_taken_while_another_thread_adds_a_pod_is_whole() -> None:
    """The estimator is asked in the middle of adding; the other thread waits for the end of that, or would see a pod of unknown usage."""
    pods, seen, threads = AssignedPods(), [], []

    def look() -> None:
        seen.append(pods.view(NOW).usage(prediction).tolist())

    def estimate(pod: Pod, resource: str) -> float:
        if pod.name == "second":
            threads.append(threading.Thread(target=look))
            threads[0].start()
            threads[0].join(0.1)  # as long as it may take without a lock; with one it only begins to wait
        return 700.0

    prediction = UsagePrediction(estimator=GuardedEstimator(estimate, budget_seconds=60.0))
    pods.assume(Pod(name="first"), "n1", now=NOW)
    pods.view(NOW).usage(prediction)
    pods.assume(Pod(name="second"), "n1", now=NOW)
    threads[0].join()
    assert seen == [[700.0, 700.0]]


def test_what_a_score_was_made_from_goes_without_the_collector_of_cycles() -> None:
    """Views of thousands of pods in flight hang on it: hundreds stayed, and collecting them took 40 ms of a question."""
    scorer, snapshot = Scorer(TargetLoadPacking()), make_snapshot({"a": 20.0})
    columns = scorer.columns(snapshot, now=NOW, nodes=["a"])
    scorer.score_columns(Pod("p"), columns)
    gone = weakref.ref(columns)
    gc.disable()
    try:
        del columns
        assert gone() is None
    finally:
        gc.enable()


def test_a_failure_of_one_kind_is_logged_once_and_counted_each_time(caplog: pytest.LogCaptureFixture) -> None:
    """The words of an error often name the pod; a traceback for each pod of a burst would drown everything else."""

    class Failing(TargetLoadPacking):
        def score_nodes(self, pod: Pod, nodes: NodeColumns) -> Scores:
            raise KeyError(pod.uid)

    scorer = Scorer(Failing())
    for _ in range(5):
        scorer.score_nodes(make_pod(), make_snapshot({"n1": 10}), now=NOW)
    assert scorer.failures == 5
    assert [record.levelname for record in caplog.records] == ["ERROR"]
