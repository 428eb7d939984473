"""Which policy scores a pod: the profile's, or what the pod or its namespace wishes where that is allowed."""

import itertools
import logging
from collections.abc import Mapping

import pytest

from trimaran_client.extender import profiles as module
from trimaran_client.extender.config import Override, ProfileConfig
from trimaran_client.extender.profiles import Choice, Profiles
from trimaran_client.policies.base import ScoringPolicy
from trimaran_client.policies.registry import create_policy
from trimaran_client.policies.target_load_packing import TargetLoadPacking
from trimaran_client.resources import Pod

BOTH = ProfileConfig(args={"target_percent": 60, "request_multiplier": 2}, overrides=("policy", "target-cpu-percent"))
POLICY, TARGET = "trimaran.io/policy", "trimaran.io/target-cpu-percent"


def make_profiles(*configs: ProfileConfig, namespace: Mapping[str, str] | None = None) -> Profiles:
    return Profiles(configs, namespace_entries=lambda name: (namespace or {}) if name == "team" else {})


def choose(profiles: Profiles, *, labels: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None) -> Choice:
    pod = Pod("p", "team", scheduler_name="trimaran", labels=labels or {}, annotations=annotations or {})
    choice = profiles.choose(pod)
    assert choice is not None
    return choice


def target_of(choice: Choice) -> float:
    assert isinstance(choice.scorer.policy, TargetLoadPacking)
    return choice.scorer.policy.args.target_percent


def test_the_schedulers_name_decides() -> None:
    profiles = make_profiles(ProfileConfig("a"), ProfileConfig("b", "LoadVariationRiskBalancing"))
    chosen = {name: profiles.choose(Pod(scheduler_name=name)) for name in ("a", "b", "c", "")}
    assert {name: choice and choice.scorer.policy.name for name, choice in chosen.items()} == {
        "a": "TargetLoadPacking",
        "b": "LoadVariationRiskBalancing",
        "c": None,
        "": None,
    }


def test_a_pod_that_names_none_is_the_default_schedulers() -> None:
    choice = make_profiles(ProfileConfig("default-scheduler")).choose(Pod())
    assert choice is not None
    assert choice.scheduler_name == "default-scheduler"


@pytest.mark.parametrize(("annotated", "labelled", "spaced"), [*itertools.product([False, True], repeat=3)])
def test_an_annotation_comes_before_a_label_before_the_namespace(*, annotated: bool, labelled: bool, spaced: bool) -> None:
    profiles = make_profiles(BOTH, namespace={TARGET: "30"} if spaced else None)
    choice = choose(profiles, annotations={TARGET: "10"} if annotated else {}, labels={TARGET: "20"} if labelled else {})
    assert target_of(choice) == (10 if annotated else 20 if labelled else 30 if spaced else 60)
    assert choice.ignored == 0


def test_other_arguments_of_the_profile_stay() -> None:
    policy = choose(make_profiles(BOTH), labels={TARGET: "20", POLICY: "TargetLoadPacking"}).scorer.policy
    assert isinstance(policy, TargetLoadPacking)
    assert policy.args.request_multiplier == 2


def test_another_policy_has_its_own_defaults() -> None:
    assert choose(make_profiles(BOTH), labels={POLICY: "LoadVariationRiskBalancing"}).scorer.policy.name == "LoadVariationRiskBalancing"


@pytest.mark.parametrize(("overrides", "expected"), [((), ("TargetLoadPacking", 40)), (("target-cpu-percent",), ("TargetLoadPacking", 20))])
def test_what_the_profile_does_not_allow_is_not_looked_at(overrides: tuple[Override, ...], expected: tuple[str, float]) -> None:
    choice = choose(make_profiles(ProfileConfig(overrides=overrides)), labels={TARGET: "20", POLICY: "Peaks"})
    assert (choice.scorer.policy.name, target_of(choice), choice.ignored) == (*expected, 0)


@pytest.mark.parametrize("text", ["", "abc", "0", "100", "-3", "nan", "inf", "1e999", "50%", "9" * 5000, "٣٠٠"])
def test_a_target_that_cannot_be_is_ignored_and_counted(text: str, caplog: pytest.LogCaptureFixture) -> None:
    choice = choose(make_profiles(BOTH), annotations={TARGET: text})
    assert (target_of(choice), choice.ignored) == (60, 1)
    [record] = caplog.records
    assert f"{TARGET} is " in record.getMessage()
    assert len(record.getMessage()) < 300


def test_each_wish_stands_by_itself() -> None:
    profiles = make_profiles(BOTH)
    assert target_of(choose(profiles, labels={POLICY: "Nope", TARGET: "20"})) == 20
    choice = choose(profiles, labels={POLICY: "LoadVariationRiskBalancing", TARGET: "20"})
    assert (choice.scorer.policy.name, choice.ignored) == ("LoadVariationRiskBalancing", 1)
    assert choose(profiles, labels={POLICY: "Nope", TARGET: "x"}).ignored == 2


def test_a_bad_wish_is_told_once_for_all_pods_of_a_namespace(caplog: pytest.LogCaptureFixture) -> None:
    profiles = make_profiles(BOTH)
    for name, namespace in (("a", "x"), ("b", "x"), ("a", "y")):
        profiles.choose(Pod(name, namespace, scheduler_name="trimaran", labels={POLICY: "Nope"}))
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [line.split(" or ")[0] for line in told] == ["pod x/a", "pod y/a"]
    assert "choose from LoadVariationRiskBalancing, LowRiskOverCommitment, Peaks, TargetLoadPacking" in told[0]


def test_pods_that_each_wish_for_something_else_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    profiles = make_profiles(BOTH)
    ignored = [choose(profiles, labels={POLICY: f"Nope{step}", TARGET: f"x{step}"}).ignored for step in range(50)]
    assert ignored == [2] * 50
    assert len(caplog.records) == 2


def test_a_wish_costs_no_look_through_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes milliseconds, and anyone who may create pods can wish."""
    profiles = make_profiles(BOTH)
    made: list[str] = []

    def create(name: str, args: Mapping[str, object], preset: str) -> ScoringPolicy:
        made.append(name)
        return create_policy(name, args, preset)

    monkeypatch.setattr(module, "create_policy", create)
    for wish in ("Nope", "Nope", "Peaks", "Peaks"):
        choose(profiles, labels={POLICY: wish})
    assert made == ["Peaks"]


def test_wishes_do_not_fill_the_memory() -> None:
    profiles = make_profiles(BOTH)
    for step in range(1200):
        choose(profiles, labels={TARGET: f"{step / 20 + 1}", POLICY: f"Nope{step}"})
    assert len(profiles._overridden) <= module._MOST_SCORERS
    assert len(profiles._told) <= module._MOST_TOLD


def test_what_the_policies_need_is_asked_of_the_load_watcher() -> None:
    assert make_profiles(ProfileConfig("a")).needs() == ((), ())
    windows, statistics = make_profiles(
        ProfileConfig("a"), ProfileConfig("b", args={"cpu_metric": {"statistic": "P90", "window": "30m"}})
    ).needs()
    assert "30m" in windows
    assert {"P90", "AVG"} <= set(statistics)
