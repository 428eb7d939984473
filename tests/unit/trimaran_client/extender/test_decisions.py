"""What was decided, for a while: bounded, and told with the node that the pod was bound to."""

from typing import Any

import pytest

from tests.builders import NOW, make_snapshot
from trimaran_client.assigned import AssignedPods
from trimaran_client.extender import decisions as module
from trimaran_client.extender.decisions import Candidates, Decision, DecisionLog, view_decision
from trimaran_client.extender.events import _make_event, tell
from trimaran_client.policies.target_load_packing import TargetLoadPacking
from trimaran_client.resources import Container, Pod
from trimaran_client.scorer import Scorer
from trimaran_client.units import Quantity

SNAPSHOT = make_snapshot({"idle": 0.0, "best": 20.0, "hot": 90.0})
# 1500m of 8 cores = 18.75 % more: 60 · 18.75 / 40 + 40 = 68; 60 · 38.75 / 40 + 40 = 98; over capacity.
SCORES = {"best": 98, "idle": 68, "hot": 0}
CORE = Container("c", {"cpu": Quantity.parse("1")})


def make_decision(name: str = "p", *, uid: str | None = None, **more: Any) -> Decision:
    pod, scorer = Pod(name, uid=f"uid-{name}" if uid is None else uid, containers=(CORE,)), Scorer(TargetLoadPacking())
    columns = scorer.columns(SNAPSHOT, now=NOW)
    scores = scorer.score_columns(pod, columns)
    fields: dict[str, Any] = {
        "made_at": NOW,
        "pod": pod,
        "scheduler_name": "trimaran",
        "policy": "TargetLoadPacking",
        "candidates": Candidates(SNAPSHOT.nodes, SNAPSHOT.rows_of(scores.names)),
    }
    fields |= {"values": scores.values, "reasons": scores.reasons, "snapshot_age_seconds": 3.25, "degraded": "", "is_shadow": False}
    return Decision(**fields | {"scorer": scorer, "gather": lambda: columns} | more)


def bind(log: DecisionLog, name: str, node: str) -> Decision | None:
    return log.note_bound(Pod(name, uid=f"uid-{name}", node_name=node))


class TestLog:
    def test_keeps_the_newest(self) -> None:
        log = DecisionLog(3)
        for name in "abcde":
            log.add(make_decision(name))
        assert [each.pod.name for each in log] == ["e", "d", "c"]
        assert (len(log), log.find("default", "a"), len(log._latest)) == (3, None, 3)

    def test_only_the_newest_few_keep_what_they_were_computed_from(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_EXPLAINABLE", 2)
        log = DecisionLog(10)
        for name in "abc":
            log.add(make_decision(name))
        assert [each.gather is not None for each in log] == [True, True, False]

    def test_fewer_keep_it_while_many_pods_are_in_flight(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_MOST_EXPLAINABLE_PODS", 5)
        log, pods = DecisionLog(10), AssignedPods()
        for name in "abcd":
            log.add(make_decision(name, in_flight_count=pods.in_flight_count))
            pods.assume(Pod(name, containers=(CORE,)), "best", now=NOW)
        assert [each.gather is not None for each in log] == [True, True, False, False]  # 3 + 2 pods, and no room for one more

    def test_names_are_one_string_for_all_decisions(self) -> None:
        log = DecisionLog(10)
        first, second = (log.share(("".join(["no", "de"]), "other")) for _ in range(2))
        assert first == ("node", "other")
        assert first[0] is second[0]

    def test_names_that_are_shared_do_not_fill_the_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_MOST_SHARED_NAMES", 10)
        log = DecisionLog(10)
        for step in range(50):
            log.share((f"node-{step}",))
        assert len(log._shared_names) <= 11

    def test_finds_the_newest_decision_on_a_pod(self) -> None:
        log = DecisionLog(10)
        for uid in ("1", "2"):
            log.add(make_decision("p", uid=uid))
        found = log.find("default", "p")
        assert found is not None
        assert found.pod.uid == "2"
        assert log.find("other", "p") is None

    def test_learns_where_a_pod_was_bound_once(self) -> None:
        log = DecisionLog(10)
        log.add(make_decision("p"))
        decision = bind(log, "p", "best")
        assert decision is log.find("default", "p")
        assert decision is not None
        assert decision.bound_to == "best"
        assert bind(log, "p", "best") is None
        assert bind(log, "stranger", "best") is None

    def test_of_several_decisions_on_a_pod_the_last_one_is_bound(self) -> None:
        log = DecisionLog(10)
        for _ in range(2):
            log.add(make_decision("p"))
        bind(log, "p", "idle")
        assert [each.bound_to for each in log] == ["idle", ""]

    def test_forgetting_an_old_decision_leaves_the_newer_one_on_the_same_pod(self) -> None:
        log = DecisionLog(2)
        for name in ("p", "p", "q"):
            log.add(make_decision(name))
        assert bind(log, "p", "best") is not None


class TestNames:
    def test_of_many_snapshots_of_the_same_nodes_are_held_once(self) -> None:
        """Each snapshot brings 5,000 names of its own: half a megabyte for each of a thousand decisions."""
        log = DecisionLog(10)
        first, *others = [log.share_nodes(tuple(f"node-{number}" for number in range(3))) for _ in range(3)]
        assert all(other is first for other in others)

    def test_of_nodes_that_changed_are_the_same_strings(self) -> None:
        log = DecisionLog(10)
        before, after = (log.share_nodes(tuple(f"node-{number}" for number in numbers)) for numbers in ((0, 1, 2), (2, 1, 3)))
        assert (before, after) == (("node-0", "node-1", "node-2"), ("node-2", "node-1", "node-3"))
        assert (after[0], after[1]) == (before[2], before[1])
        assert (after[0] is before[2], after[1] is before[1]) == (True, True)


class TestView:
    def test_has_the_best_candidates_and_the_count_of_all(self) -> None:
        view = view_decision(make_decision(), most_nodes=2)
        assert [(each.node, each.score, each.reason) for each in view.nodes] == [
            ("best", 98, "at_or_below_target"),
            ("idle", 68, "at_or_below_target"),
        ]
        assert (view.node_count, view.reasons) == (3, {"at_or_below_target": 2, "over_capacity": 1})
        assert (view.pod, view.bound_to, view.bound_score, view.snapshot_age_seconds) == ("default/p", "", None, 3.25)

    @pytest.mark.parametrize(("bound_to", "score"), [("hot", 0), ("elsewhere", None)])
    def test_has_the_score_of_the_node_that_it_was_bound_to(self, bound_to: str, score: int | None) -> None:
        assert view_decision(make_decision(bound_to=bound_to), most_nodes=1).bound_score == score


class TestEvent:
    @pytest.mark.parametrize(
        ("bound_to", "line"),
        [
            ("best", "TargetLoadPacking scored best 98 (at_or_below_target), the best of 3 nodes"),
            ("idle", "TargetLoadPacking scored idle 68 (at_or_below_target), the best of 3 nodes had 98, and other plugins weighed more"),
            ("elsewhere", "TargetLoadPacking did not score elsewhere; it scored 3 others"),
        ],
    )
    def test_tells_in_one_line_why_the_pod_is_there(self, bound_to: str, line: str) -> None:
        assert tell(make_decision(bound_to=bound_to)) == line

    def test_tells_what_was_missing(self) -> None:
        decision = make_decision(bound_to="best", degraded="no snapshot of the load watcher")
        assert tell(decision).endswith("; degraded: no snapshot of the load watcher")

    def test_is_about_the_pod_and_never_too_long(self) -> None:
        event = _make_event(make_decision(bound_to="best", degraded="x" * 5000), at=NOW)
        assert (event.involved_object.kind, event.involved_object.name, event.involved_object.uid) == ("Pod", "p", "uid-p")
        assert event.first_timestamp == event.last_timestamp == "2023-11-14T22:13:20Z"
        assert len(event.message.encode()) <= 1024
