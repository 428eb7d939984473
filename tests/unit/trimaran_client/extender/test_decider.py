"""From a question to the answer, without a network: what counts as a placement, and what becomes of failures."""

import json
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from tests.builders import NOW, make_pod, make_snapshot
from tests.fakes.extender import make_decider, make_manifest, make_node_manifest, make_question, read_scores
from trimaran_client.assigned import AssignedPods
from trimaran_client.extender.decider import Decider
from trimaran_client.policies.base import Reason, Scores
from trimaran_client.policies.target_load_packing import TargetLoadPacking
from trimaran_client.resources import Pod

NODES = {"a": 20.0, "b": 0.0, "hot": 90.0}
# 1500m of 8 cores: 60 · 38.75 / 40 + 40 = 98; 60 · 18.75 / 40 + 40 = 68; 108.75 % is over capacity.
SCORES = {"a": 98, "b": 68, "hot": 0}


def ask(decider: Decider, pod: Any = None, names: Iterable[str] = NODES) -> dict[str, int]:
    return read_scores(decider.prioritize(make_question(make_manifest() if pod is None else pod, names)))


def states(pods: AssignedPods) -> dict[str, str]:
    """Pod → where it is in flight."""
    return {f"{each.state} {each.pod.name}": each.node for each in pods.view(NOW).in_flight}


class TestAssumptions:
    """A scheduler does not tell what became of its question; until the binding is seen, the best node counts."""

    pods: AssignedPods
    decider: Decider

    @pytest.fixture(autouse=True)
    def _decider(self) -> None:
        self.pods = AssignedPods(assume_seconds=10)
        self.decider = make_decider({}, make_snapshot(NODES), pods=self.pods)

    def test_a_decision_counts_on_its_best_node(self) -> None:
        assert ask(self.decider, make_manifest("one")) == SCORES
        assert states(self.pods) == {"assumed one": "a"}
        # a has 38.75 % now: 40 · (100 - 57.5) / 60 = 28.
        assert ask(self.decider, make_manifest("two")) == SCORES | {"a": 28}
        assert states(self.pods) == {"assumed one": "a", "assumed two": "b"}

    def test_a_decision_counts_on_each_of_a_few_that_are_equally_good(self) -> None:
        """A scheduler draws one of them by lot, and tells nobody which."""
        decider = make_decider({}, make_snapshot({"a": 30, "b": 20, "c": 20, "d": 30}), pods=self.pods)
        ask(decider, make_manifest("one"), ["a", "b", "c", "d"])
        assert [(each.node, each.state) for each in self.pods.view(NOW).in_flight] == [("b", "assumed"), ("c", "assumed")]
        ask(decider, make_manifest("one"), ["a", "b"])
        assert states(self.pods) == {"assumed one": "b"}

    def test_of_many_that_are_equally_good_it_counts_on_the_first(self) -> None:
        names = [f"n{number}" for number in range(9)]
        ask(make_decider({}, make_snapshot(dict.fromkeys(names, 20)), pods=self.pods), make_manifest("one"), names)
        assert states(self.pods) == {"assumed one": "n0"}

    @pytest.mark.parametrize("late", [0, 1, 10, 40])
    def test_no_node_passes_the_target_in_a_burst_however_late_bindings_are_told(self, late: int) -> None:
        """
        As kube-scheduler does it: each time for the next 42 % of the nodes, and one of the best by lot.

        20 % of 8 cores are used; ten pods of 100m, taken for 150m, make 38.75 %, one more would be above the target of 40.
        """
        names = [f"n{number:03}" for number in range(300)]
        decider = make_decider({}, make_snapshot(dict.fromkeys(names, 20)), pods=self.pods)
        lots, counts, untold = np.random.default_rng(1), Counter[str](), deque[tuple[str, str]]()
        for number in range(300):
            offered = [names[(number * 126 + place) % 300] for place in range(126)]
            scores = ask(decider, make_manifest(f"p{number}", cpu="100m"), offered)
            best = max(scores.values())
            node = str(lots.choice([name for name in offered if scores[name] == best]))
            counts[node] += 1
            untold.append((f"p{number}", node))
            if len(untold) > late:
                name, node = untold.popleft()
                self.pods.assign(Pod.from_manifest(make_manifest(name, cpu="100m")), node, at=NOW)
        assert max(counts.values()) <= 10
        assert len(counts) <= 32 + late // 4  # ten pods on each of 30 would do

    def test_a_pod_that_is_asked_again_does_not_count_beside_itself(self) -> None:
        for _ in range(3):
            assert ask(self.decider, make_manifest("one")) == SCORES
            assert states(self.pods) == {"assumed one": "a"}

    def test_a_nominated_pod_does_not_count_beside_itself(self) -> None:
        nominated = make_manifest("one") | {"status": {"nominatedNodeName": "a"}}
        self.pods.update(Pod.from_manifest(nominated), now=NOW)
        assert ask(self.decider, nominated) == SCORES

    def test_a_pod_without_a_uid_is_not_assumed(self) -> None:
        """No binding would take its place: a watch tells of pods by their UIDs."""
        assert ask(self.decider, make_manifest("one", uid="")) == SCORES
        assert states(self.pods) == {}

    def test_a_binding_takes_the_place_of_the_assumption(self) -> None:
        ask(self.decider, make_manifest("one"))
        self.pods.update(make_pod(metadata={"name": "one", "uid": "uid-one"}, node_name="b", scheduled_at="2023-11-14T22:13:20Z"), now=NOW)
        assert states(self.pods) == {"bound one": "b"}

    def test_a_pod_that_is_known_to_be_bound_stays_there(self) -> None:
        self.pods.update(make_pod(metadata={"name": "one", "uid": "uid-one"}, node_name="b", scheduled_at="2023-11-14T22:13:20Z"), now=NOW)
        ask(self.decider, make_manifest("one"))
        assert states(self.pods) == {"bound one": "b"}

    def test_an_answer_that_comes_after_the_binding_says_so_and_where_the_pod_is(self) -> None:
        """The scheduler gave up waiting; nobody took these scores."""
        self.pods.update(make_pod(metadata={"name": "one", "uid": "uid-one"}, node_name="b", scheduled_at="2023-11-14T22:13:20Z"), now=NOW)
        ask(self.decider, make_manifest("one"))
        (decision,) = self.decider.log
        assert decision.bound_to == "b"
        assert decision.degraded == "answered too late: the pod was bound to b before"

    def test_a_binding_that_is_told_in_the_same_moment_is_not_lost(self) -> None:
        """As when the extender could not run for a while: question and binding wait together, and nobody takes the answer any more."""
        waiting: list[Callable[[], None]] = []
        decider = make_decider({}, make_snapshot(NODES), pods=self.pods, defer=waiting.append)
        ask(decider, make_manifest("one"))
        self.pods.update(make_pod(metadata={"name": "one", "uid": "uid-one"}, node_name="b", scheduled_at="2023-11-14T22:13:20Z"), now=NOW)
        for work in waiting:
            work()
        (decision,) = decider.log
        assert (decision.bound_to, states(self.pods)) == ("b", {"bound one": "b"})
        assert decision.degraded == "answered too late: the pod was bound to b before"

    def test_a_pod_that_is_deleted_meanwhile_is_forgotten(self) -> None:
        ask(self.decider, make_manifest("one"))
        self.pods.remove("uid-one")
        assert ask(self.decider, make_manifest("two")) == SCORES

    def test_an_assumption_ends(self) -> None:
        ask(self.decider, make_manifest("one"))
        assert self.pods.view(NOW + 10.1).in_flight == ()

    @pytest.mark.parametrize("document", [{"assumeSeconds": 0}, {"shadow": True}])
    def test_nothing_is_assumed_where_nothing_should_be(self, document: dict[str, Any]) -> None:
        decider = make_decider(document, make_snapshot(NODES), pods=self.pods)
        decider.prioritize(make_question(make_manifest("one"), NODES))
        assert states(self.pods) == {}

    def test_other_schedulers_pods_are_not_assumed(self) -> None:
        assert ask(self.decider, make_manifest("one", scheduler="default-scheduler")) == {}
        assert states(self.pods) == {}

    def test_no_candidates_are_no_placement(self) -> None:
        assert ask(self.decider, make_manifest("one"), names=[]) == {}
        assert states(self.pods) == {}


def answering(answer: Any) -> Any:
    """Make what answers always the same, or fails."""

    def call(*_: Any, **__: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return call


class TestFailures:
    NEUTRAL = dict.fromkeys(NODES, 50)

    def test_report_75_a_policy_that_raises_is_neutral_counted_and_logged_with_the_pod(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(TargetLoadPacking, "score_nodes", answering(ZeroDivisionError("by design")))
        decider = make_decider({}, make_snapshot(NODES))
        for _ in range(3):
            assert ask(decider, make_manifest("web")) == self.NEUTRAL
        assert (decider.counters.failures, decider.counters.outcomes["neutral"]) == ({"policy": 3}, 3)
        assert decider.counters.outcomes["scored"] == 0
        [record] = [each for each in caplog.records if each.levelno == logging.ERROR]
        assert "default/web" in record.getMessage()
        assert "by design" in caplog.text

    @pytest.mark.parametrize(
        "answer",
        [
            None,
            Scores(("a",), np.array([1]), np.array([0])),
            Scores(("a", "b", "hot"), np.array([1, 2, 3]), np.array([0])),
            Scores(("a", "b", "hot"), np.array([1, 2, 3, 4]), np.array([0, 0, 0, 0])),
            Scores(("a", "b", "hot"), np.array([[1, 2, 3]]), np.array([[0, 0, 0]])),
            Scores(("a", "b", "hot"), np.array([1.5, np.nan, 3]), np.array([0, 0, 0])),
            Scores(("a", "b", "hot"), np.array([1, 2, 3]), np.array([0, -1, 0])),
            Scores(("a", "b", "hot"), np.array([1, 2, 3]), np.array([0, 99, 0])),
            Scores(("a", "b", "hot"), np.array(["1", "2", "3"]), np.array([0, 0, 0])),
        ],
        ids=["nothing", "too few", "few reasons", "too many", "a table", "fractions", "bad reason", "unknown reason", "texts"],
    )
    def test_a_policy_whose_answer_is_none_is_neutral_and_no_placement(self, monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
        monkeypatch.setattr(TargetLoadPacking, "score_nodes", answering(answer))
        pods = AssignedPods()
        decider = make_decider({}, make_snapshot(NODES), pods=pods)
        assert ask(decider) == self.NEUTRAL
        assert (sum(decider.counters.failures.values()), decider.counters.outcomes["neutral"], len(decider.log)) == (1, 1, 0)
        assert states(pods) == {}

    def test_scores_beyond_the_range_are_brought_into_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A scheduler would take them as they are, and one plugin outweigh all others."""
        reasons = np.zeros(3, dtype=np.int64)
        scores = Scores(tuple(NODES), np.array([-5, 1000, 2**62]), reasons)
        monkeypatch.setattr(TargetLoadPacking, "score_nodes", answering(scores))
        assert ask(make_decider({}, make_snapshot(NODES))) == {"a": 0, "b": 100, "hot": 100}

    @pytest.mark.parametrize(
        "pod",
        [
            make_manifest(cpu="1x"),
            {"spec": {"containers": 7}},
            {"metadata": {"labels": []}},
            "text",
            [],
            {"spec": {"schedulerName": 5}},
        ],
    )
    def test_a_pod_that_cannot_be_read_is_neutral(self, pod: Any) -> None:
        decider = make_decider({}, make_snapshot(NODES))
        assert ask(decider, pod) == self.NEUTRAL
        assert decider.counters.failures == {"pod_unreadable": 1}

    def test_a_new_cause_of_the_same_kind_is_logged_again(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        decider = make_decider({}, make_snapshot(NODES))
        for text in ("one", "one", "two", "two"):
            monkeypatch.setattr(decider._profiles, "choose", answering(ValueError(text)))
            ask(decider, make_manifest("web"))
        assert [str(each.exc_info[1]) for each in caplog.records if each.exc_info] == ["one", "two"]
        assert decider.counters.failures == {"ValueError": 4}

    def test_a_filter_that_fails_takes_nothing_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        decider = make_decider({"filter": {"enabled": True}}, make_snapshot(NODES))
        monkeypatch.setattr(decider._hot_spots, "refused", answering(RuntimeError("by design")))
        assert json.loads(decider.filter(make_question(make_manifest(), NODES)))["NodeNames"] == list(NODES)
        assert decider.counters.failures == {"RuntimeError": 1}


class TestWholeNodes:
    def test_one_that_cannot_be_read_spoils_no_other(self) -> None:
        nodes: list[Any] = [
            make_node_manifest("a"),
            {"metadata": {"name": "b"}, "status": {"allocatable": {"cpu": "many"}}},
            {"metadata": {"name": "c"}, "status": []},
        ]
        decider = make_decider({}, make_snapshot({"a": 20.0}))
        scores = read_scores(decider.prioritize(make_question(make_manifest(), nodes=nodes)))
        assert (scores["a"], set(scores)) == (98, {"a", "b", "c"})
        kept = json.loads(decider.filter(make_question(make_manifest(), nodes=nodes)))
        assert kept["Nodes"]["items"] == nodes

    def test_one_that_comes_twice_is_one_candidate(self) -> None:
        nodes = [{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}, {"metadata": {"name": "a"}}]
        decider = make_decider({}, make_snapshot(NODES))
        assert list(read_scores(decider.prioritize(make_question(make_manifest(), nodes=nodes)))) == ["a", "b"]
        assert json.loads(decider.filter(make_question(make_manifest(), nodes=nodes)))["Nodes"]["items"] == nodes[:2]


def test_what_was_missing_is_told_with_the_decision() -> None:
    decider = make_decider({}, make_snapshot({"a": 20.0, "mute": None}))
    ask(decider, names=["a", "mute", "stranger"])
    [decision] = decider.log
    assert decision.degraded == "2 of 3 nodes without usable metrics"


def test_reasons_are_counted_by_node() -> None:
    decider = make_decider({}, make_snapshot(NODES))
    ask(decider)
    assert decider.counters.reasons == {str(Reason.AT_OR_BELOW_TARGET): 2, str(Reason.OVER_CAPACITY): 1}


def test_report_78_opting_in_takes_nothing_but_the_schedulers_name() -> None:
    decider = make_decider({}, make_snapshot(NODES))
    assert ask(decider, make_manifest(scheduler="default-scheduler")) == {}
    assert ask(decider, make_manifest(scheduler="")) == {}
    assert ask(decider, make_manifest()) == SCORES
    assert {name: count for name, count in decider.counters.outcomes.items() if count} == {"other_scheduler": 2, "scored": 1}


def test_decisions_hold_one_string_of_each_node_that_has_no_metrics_yet() -> None:
    """One new node among thousands, and each decision had strings of its own: half a megabyte of them."""
    decider = make_decider({}, make_snapshot(NODES))
    for name in ("one", "two"):
        ask(decider, make_manifest(name), ["a", "brand-new"])
    second, first = decider.log
    assert all(mine is other for mine, other in zip(first.names, second.names, strict=True))
