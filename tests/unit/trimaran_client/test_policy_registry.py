"""From a name and plain arguments to a policy."""

import math
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest

from trimaran_client import (
    LoadVariationRiskBalancing,
    LowRiskOverCommitment,
    Peaks,
    PolicyArgumentError,
    PowerModel,
    TargetLoadPacking,
    create_policy,
    list_policy_names,
)
from trimaran_client.policies import registry
from trimaran_client.policies.arguments import MetricChoice
from trimaran_client.policies.targets import ResourceTarget

MODELS = {"n1": {"k0": 100, "k1": 1, "k2": 0.02}}


class NotAPolicy:
    name = "x"


def make_half(args: Mapping[str, object]) -> NotAPolicy:
    return NotAPolicy()


def make_broken(args: Mapping[str, object]) -> None:
    raise KeyError("weight")


def refuse(args: Mapping[str, object]) -> None:
    raise PolicyArgumentError("Refusing: weight is -1; give a number above 0")


def register(monkeypatch: pytest.MonkeyPatch, *points: metadata.EntryPoint) -> None:
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    listed = metadata.EntryPoints(points)
    monkeypatch.setattr(metadata, "entry_points", lambda **filters: listed.select(**filters))


def point(name: str, value: str, package: str = "some-package") -> metadata.EntryPoint:
    made = metadata.EntryPoint(name, value, registry.ENTRY_POINT_GROUP)
    vars(made)["dist"] = SimpleNamespace(name=package)  # as metadata itself does for an installed package
    return made


def test_built_in_names() -> None:
    assert set(list_policy_names()) >= {"LoadVariationRiskBalancing", "LowRiskOverCommitment", "Peaks", "TargetLoadPacking"}


@pytest.mark.parametrize(
    ("kind", "args", "upstream"),
    [
        (TargetLoadPacking, {"target_percent": 60}, {"targetUtilization": 60}),
        (LoadVariationRiskBalancing, {"margin": 2}, {"safeVarianceMargin": 2}),
        (LowRiskOverCommitment, {"smoothing_window": 7}, {"smoothingWindowSize": 7}),
        (Peaks, {"models": MODELS}, {"nodePowerModel": MODELS}),
    ],
)
def test_each_is_made_of_its_own_names_or_those_of_the_plugin(kind: Any, args: dict[str, Any], upstream: dict[str, Any]) -> None:
    ours, theirs = create_policy(kind.name, args), create_policy(kind.name, upstream, "upstream")
    assert (type(ours), type(theirs)) == (kind, kind)
    field = next(iter(args))
    assert getattr(ours.args, field) == getattr(theirs.args, field)  # type: ignore[attr-defined]
    assert (ours.args.preset, theirs.args.preset) == ("default", "upstream")  # type: ignore[attr-defined]


def test_nested_arguments_are_plain_data_as_a_file_holds_it() -> None:
    policy = create_policy(
        "TargetLoadPacking",
        {
            "cpu_metric": {"statistic": "P90", "window": "15m"},
            "others": [{"resource": "memory", "target_percent": 60, "metric": {"statistic": "MAX"}, "fallback": "leave_out"}],
            "combine": "weights",
        },
    )
    assert isinstance(policy, TargetLoadPacking)
    assert policy.args.cpu_metric == MetricChoice("P90", "15m")
    assert policy.args.others == (ResourceTarget(resource="memory", target_percent=60, metric=MetricChoice("MAX"), fallback="leave_out"),)


def test_what_is_made_already_is_taken_and_a_function_may_predict() -> None:
    policy = create_policy("TargetLoadPacking", {"cpu_metric": MetricChoice("Latest"), "prediction": lambda *_: 7.0})
    assert isinstance(policy, TargetLoadPacking)
    assert policy.args.cpu_metric.statistic == "Latest"
    assert callable(policy.args.prediction)


def test_power_models_come_as_mappings() -> None:
    policy = create_policy("Peaks", {"models": {"n1": {"k0": 1, "k1": 2, "k2": 3.5}}})
    assert isinstance(policy, Peaks)
    assert policy.args.models == {"n1": PowerModel(1, 2, 3.5)}


def test_what_stands_beside_the_plugins_arguments_in_a_scheduler_configuration_is_passed_over() -> None:
    args = {"apiVersion": "v1", "kind": "TargetLoadPackingArgs", "metricProvider": {"type": "SignalFx"}, "targetUtilization": 70}
    policy = create_policy("TargetLoadPacking", args, "upstream")
    assert isinstance(policy, TargetLoadPacking)
    assert policy.args.target_percent == 70


@pytest.mark.parametrize(
    ("name", "args", "preset", "told"),
    [
        ("TargetLoadPackin", {}, "default", "no policy 'TargetLoadPackin' (did you mean TargetLoadPacking?); use one of LoadVar"),
        ("TargetLoadPacking", {}, "go", "preset is 'go'; choose from default, upstream"),
        ("TargetLoadPacking", [], "default", "args is []; give a mapping"),
        ("TargetLoadPacking", {"targetPercent": 4}, "default", "no argument 'targetPercent' (did you mean target_percent?); use one of"),
        ("TargetLoadPacking", {"preset": "upstream"}, "default", "no argument 'preset'"),
        ("TargetLoadPacking", {"target_percent": "40"}, "default", "target_percent is '40'; give a finite number"),
        ("TargetLoadPacking", {"target_percent": True}, "default", "target_percent is True; give a finite number"),
        ("TargetLoadPacking", {"default_request_millicores": 0.5}, "default", "default_request_millicores is 0.5; give a whole number"),
        ("TargetLoadPacking", {"cpu_metric": "P90"}, "default", "cpu_metric is 'P90'; give a mapping"),
        ("TargetLoadPacking", {"cpu_metric": {"statistik": "P90"}}, "default", "no field of cpu_metric 'statistik' (did you mean stat"),
        ("TargetLoadPacking", {"cpu_metric": {"statistic": 90}}, "default", "cpu_metric.statistic is 90; give text"),
        ("TargetLoadPacking", {"cpu_metric": {"statistic": "P100"}}, "default", "cpu_metric.statistic is 'P100'; choose from AVG"),
        ("TargetLoadPacking", {"others": {"memory": {}}}, "default", "others is {'memory': {}}; give a list"),
        ("TargetLoadPacking", {"others": ["memory"]}, "default", "others[0] is 'memory'; give a mapping"),
        ("TargetLoadPacking", {"others": [{"target_percent": 50}]}, "default", "others[0].resource is missing"),
        ("TargetLoadPacking", {"others": [{"resource": "gpu", "metric_type": 5}]}, "default", "others[0].metric_type is 5; give text"),
        ("TargetLoadPacking", {"others": [{"resource": "memory", "weight": 0}]}, "default", "others[memory].weight is 0; give a number"),
        ("TargetLoadPacking", {"prediction": ["max"]}, "default", "prediction is ['max']; choose from limit_first"),
        ("TargetLoadPacking", {"fallback": []}, "default", "fallback is []; choose from allocation"),
        ("LowRiskOverCommitment", {"smoothing_window": 1.5}, "default", "smoothing_window is 1.5; give a whole number"),
        ("Peaks", {"models": ["n1"]}, "default", "models is ['n1']; give a mapping"),
        ("Peaks", {"models": {"n1": {"k0": 1, "k1": 2}}}, "default", "models[n1].k2 is missing"),
        ("Peaks", {"models": {"n1": {"k0": 1, "k1": 2, "k2": "x"}}}, "default", "model of node 'n1'"),
        ("TargetLoadPacking", {"targetUtilisation": 4}, "upstream", "no argument 'targetUtilisation' (did you mean targetUt"),
        ("TargetLoadPacking", {"targetUtilization": math.inf}, "upstream", "targetUtilization is inf; give a whole number"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_what_would_be_right(name: str, args: Any, preset: str, told: str) -> None:
    with pytest.raises(PolicyArgumentError) as caught:
        create_policy(name, args, preset)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("name", "args", "preset", "count"),
    [
        ("TargetLoadPacking", {"target_percent": "x", "request_multiplier": -1, "cpu_metric": 5, "hue": 1, "fallback": "no"}, "default", 5),
        ("TargetLoadPacking", {"others": [{"weight": 0}, {"resource": 5}]}, "default", 2),
        ("TargetLoadPacking", {"targetUtilization": "x", "defaultRequests": 5, "defaultRequestsMultiplier": "z", "w": 1}, "upstream", 4),
        ("LoadVariationRiskBalancing", {"safeVarianceMargin": "1", "safeVarianceSensitivity": "2"}, "upstream", 2),
        ("LowRiskOverCommitment", {"smoothingWindowSize": "1", "riskLimitWeights": {"cpu": "1", "memory": "2"}}, "upstream", 3),
        ("LowRiskOverCommitment", {"smoothing_window": 0, "cpu_risk_limit_weight": "x", "memory_risk_limit_weight": 2}, "default", 3),
        ("Peaks", {"nodePowerModel": {"a": {"k0": "x", "k1": "y"}, "b": {"k2": "z"}}}, "upstream", 3),
        ("Peaks", {"models": {"a": {"k0": 1}}}, "default", 2),
    ],
)  # fmt: skip
def test_every_problem_is_told_at_once(name: str, args: Any, preset: str, count: int) -> None:
    with pytest.raises(PolicyArgumentError) as caught:
        create_policy(name, args, preset)
    assert len(caught.value.problems) == count, caught.value
    assert str(caught.value).startswith(f"{name}: ")


def test_a_package_that_is_not_chosen_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, point("Mine", "no_such_package:create"))
    assert "Mine" in list_policy_names()
    assert create_policy("TargetLoadPacking").name == "TargetLoadPacking"


@pytest.mark.parametrize(
    ("value", "preset", "told"),
    [
        ("no_such_package:create", "default", "cannot load no_such_package:create of the package some-package"),
        ("json:no_such_attribute", "default", "cannot load json:no_such_attribute of the package some-package"),
        ("sys:version", "default", "the entry point of the package some-package is no function"),
        (f"{__name__}:make_half", "default", "what the package some-package makes has no resources, score_nodes, explain"),
        (f"{__name__}:make_broken", "default", "the package some-package cannot make it from these arguments: KeyError('weight')"),
        (f"{__name__}:refuse", "default", "Refusing: weight is -1"),
        (f"{__name__}:make_half", "upstream", "a policy of another package has only default"),
    ],
)
def test_what_a_package_brings_wrongly_is_told_with_its_name(monkeypatch: pytest.MonkeyPatch, value: str, preset: str, told: str) -> None:
    register(monkeypatch, point("Mine", value))
    with pytest.raises(PolicyArgumentError) as caught:
        create_policy("Mine", {}, preset)
    assert told in str(caught.value)


def test_two_packages_with_one_name_are_both_named(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, point("Mine", "json:loads", "one"), point("Mine", "json:dumps", "other"))
    with pytest.raises(PolicyArgumentError, match="the packages one and other both bring it"):
        create_policy("Mine")


def test_a_package_cannot_take_the_name_of_a_built_in(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, point("TargetLoadPacking", "no_such_package:create"))
    assert create_policy("TargetLoadPacking").name == "TargetLoadPacking"


def test_what_few_need_is_not_loaded_by_importing_the_library() -> None:
    """Each takes about as long as all of this library beside numpy."""
    code = "import sys, trimaran_client; print([name for name in ('importlib.metadata', 'numpy.polynomial') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], timeout=60, check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
