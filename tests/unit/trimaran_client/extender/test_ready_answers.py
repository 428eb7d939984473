"""Answers that were ready: told, counted, explained and failed as all others."""

from collections.abc import Callable

import pytest

from tests.builders import NOW, make_snapshot
from tests.fakes.extender import make_decider, make_manifest, make_question, read_scores
from trimaran_client.assigned import AssignedPods
from trimaran_client.extender import decisions as module
from trimaran_client.extender.decider import Decider
from trimaran_client.extender.decisions import DecisionLog
from trimaran_client.extender.standings import Standing
from trimaran_client.policies.kept_target import KeptTarget
from trimaran_client.resources import Pod

NODES = {"a": 20.0, "b": 5.0, "c": 1.0, "hot": 90.0}


def ask(decider: Decider, name: str) -> dict[str, int]:
    return read_scores(decider.prioritize(make_question(make_manifest(name), NODES)))


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[bytes | None]:
    """What standings answered."""
    answers: list[bytes | None] = []
    answer = Standing.answer

    def note(standing: Standing, names: tuple[str, ...]) -> bytes | None:
        answers.append(answer(standing, names))
        return answers[-1]

    monkeypatch.setattr(Standing, "answer", note)
    return answers


def test_each_answer_is_that_of_a_decider_that_was_never_asked(answered: list[bytes | None]) -> None:
    pods = AssignedPods(assume_seconds=10)
    decider = make_decider({}, make_snapshot(NODES), pods=pods)
    for number in range(6):
        expected = ask(make_decider({"assumeSeconds": 0}, make_snapshot(NODES), pods=pods), f"other-{number}")
        assert ask(decider, f"web-{number}") == expected
    assert len(answered) == 5
    assert pods.in_flight_count == 6
    assert decider.counters.outcomes["scored"] == 6


def test_each_decision_is_explained_by_what_it_was_made_from(answered: list[bytes | None]) -> None:
    decider = make_decider({}, make_snapshot(NODES))
    given = [ask(decider, f"web-{number}") for number in range(5)]
    assert len(answered) == 4
    for decision, scores in zip(decider.log, reversed(given), strict=True):
        assert decision.gather is not None
        assert decision.scorer.score_columns(decision.pod, decision.gather()).by_node() == scores == decision.scores().by_node()


def test_shadow_and_another_scheduler_have_none(answered: list[bytes | None]) -> None:
    decider = make_decider({"shadow": True}, make_snapshot(NODES))
    assert [ask(decider, f"web-{number}") for number in range(3)] == [{}] * 3
    assert answered == []


def test_one_that_fails_is_neutral_once_and_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    decider = make_decider({}, make_snapshot(NODES))
    before = [ask(decider, f"web-{number}") for number in range(2)]

    def fail(*_: object) -> None:
        raise ZeroDivisionError("by design")

    monkeypatch.setattr(KeptTarget, "update", fail)
    assert ask(decider, "web-2") == dict.fromkeys(NODES, 50)
    assert ask(decider, "web-3") not in (before[0], dict.fromkeys(NODES, 50))
    assert decider.counters.failures == {"ZeroDivisionError": 1}


class TestPutOff:
    """Decisions are noted together, and nobody who looks can tell."""

    def setup_method(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.done: list[int] = []
        self.log = DecisionLog(10, put_off=self.waiting.append)

    def add(self, number: int) -> None:
        self.log.add_later(lambda: self.done.append(number))

    def test_they_wait_for_their_time_in_their_order(self) -> None:
        for number in range(3):
            self.add(number)
        assert (self.done, len(self.waiting)) == ([], 1)
        self.waiting[0]()
        assert self.done == [0, 1, 2]
        self.add(3)
        assert len(self.waiting) == 2

    @pytest.mark.parametrize(
        "look", [len, list, lambda log: log.find("default", "p"), lambda log: log.note_bound(Pod("p")), DecisionLog.settle]
    )
    def test_whoever_looks_finds_them(self, look: Callable[[DecisionLog], object]) -> None:
        self.add(0)
        look(self.log)
        assert self.done == [0]

    def test_they_do_not_pile_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_MOST_PENDING", 3)
        for number in range(4):
            self.add(number)
        assert self.done == [0, 1, 2]


def test_what_came_since_is_forgotten_after_a_while() -> None:
    pods = AssignedPods()
    version = pods.version
    pods.assume(Pod("p", uid="u"), "a", now=NOW)
    assert [(change.sign, change.node) for change in pods.changes_since(version) or ()] == [(1, "a")]
    assert pods.changes_since(pods.version) == []
    for number in range(512):
        pods.assume(Pod("p", uid=f"u-{number}"), "a", now=NOW)
    assert pods.changes_since(version) is None
    version = pods.version
    pods.add_node("b")
    assert pods.changes_since(version) is None
