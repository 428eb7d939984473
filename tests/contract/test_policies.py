"""Every policy of ours, and the one that the documentation shows, against the one suite."""

import importlib.util
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tests.contract.policy_suite import PolicyContract
from trimaran_client import PolicyArgumentError, ScoringPolicy, create_policy, list_policy_names
from trimaran_client.policies.registry import ENTRY_POINT_GROUP

EXAMPLE = Path(__file__).parents[2] / "docs/examples/toy_policy.py"
MODELS = {f"n{index}": {"k0": 100, "k1": 1 + index, "k2": 0.02} for index in range(0, 90, 2)}


class TestTargetLoadPacking(PolicyContract):
    @pytest.fixture
    def policy(self) -> ScoringPolicy:
        return create_policy("TargetLoadPacking")


class TestTargetLoadPackingUpstream(PolicyContract):
    keeps_the_range = False  # a utilization below 0 gives a score below 0, as in the Go plugin

    @pytest.fixture
    def policy(self) -> ScoringPolicy:
        return create_policy("TargetLoadPacking", preset="upstream")


@pytest.mark.parametrize(("combine", "fallback"), [("minimum", "leave_out"), ("weights", "allocation")])
class TestTargetLoadPackingOfSeveralResources(PolicyContract):
    @pytest.fixture
    def policy(self, combine: str, fallback: str) -> ScoringPolicy:
        others = [
            {"resource": "memory", "target_percent": 70, "weight": 3, "fallback": fallback, "metric": {"statistic": "Latest"}},
            {"resource": "network", "metric_type": "Memory", "full_amount": 200, "fallback": "leave_out"},
        ]
        return create_policy("TargetLoadPacking", {"others": others, "combine": combine, "prediction": "max"})


class TestLoadVariationRiskBalancing(PolicyContract):
    @pytest.fixture
    def policy(self) -> ScoringPolicy:
        return create_policy("LoadVariationRiskBalancing", {"margin": 2, "sensitivity": 3})


class TestLoadVariationRiskBalancingUpstream(PolicyContract):
    @pytest.fixture
    def policy(self) -> ScoringPolicy:
        return create_policy("LoadVariationRiskBalancing", preset="upstream")


class TestLowRiskOverCommitment(PolicyContract):
    @pytest.fixture
    def policy(self) -> ScoringPolicy:
        return create_policy("LowRiskOverCommitment", {"fallback": "minimum"})


class TestLowRiskOverCommitmentUpstream(PolicyContract):
    @pytest.fixture
    def policy(self) -> ScoringPolicy:
        return create_policy("LowRiskOverCommitment", preset="upstream")


class TestPeaks(PolicyContract):
    is_relative = True

    @pytest.fixture
    def policy(self) -> ScoringPolicy:
        return create_policy("Peaks", {"models": MODELS})


class TestPeaksUpstream(PolicyContract):
    is_relative = True

    @pytest.fixture
    def policy(self) -> ScoringPolicy:
        return create_policy("Peaks", {"nodePowerModel": MODELS}, preset="upstream")


class TestToy(PolicyContract):
    @pytest.fixture
    def policy(self, monkeypatch: pytest.MonkeyPatch) -> ScoringPolicy:
        install_toy(monkeypatch)
        return create_policy("MostIdle")


def install_toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the example importable under the name that an entry point gives, as an installed package is."""
    spec = importlib.util.spec_from_file_location("toy_policy", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "toy_policy", module)
    points = metadata.EntryPoints([metadata.EntryPoint("MostIdle", "toy_policy:create", ENTRY_POINT_GROUP)])
    monkeypatch.setattr(metadata, "entry_points", lambda **filters: points.select(**filters))


def test_the_toy_is_listed_and_refuses_arguments_that_it_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    install_toy(monkeypatch)
    assert "MostIdle" in list_policy_names()
    with pytest.raises(PolicyArgumentError, match="MostIdle takes no arguments, and got weight"):
        create_policy("MostIdle", {"weight": 2})
