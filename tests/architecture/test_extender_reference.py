"""The reference of the extender names everything that can be set, counted and asked."""

from pathlib import Path

import msgspec
import pytest

from tests.builders import make_snapshot
from tests.fakes.extender import make_decider
from trimaran_client.assigned import AssignedPods
from trimaran_client.extender.config import ExtenderConfig, FilterConfig, ProfileConfig
from trimaran_client.extender.telemetry import Telemetry

REFERENCE = (Path(__file__).parents[2] / "docs/extender.md").read_text()


@pytest.mark.parametrize("struct", [ExtenderConfig, ProfileConfig, FilterConfig])
def test_every_setting_is_there(struct: type[msgspec.Struct]) -> None:
    missing = [
        field.encode_name
        for field in msgspec.structs.fields(struct)
        if f"`{field.encode_name}`" not in REFERENCE and f"  {field.encode_name}: " not in REFERENCE
    ]
    assert missing == []


def test_every_metric_and_outcome_is_there() -> None:
    load = make_snapshot({"a": 1.0})
    counters = make_decider({}, load).counters
    telemetry = Telemetry(
        counters,
        load=load,
        pods=AssignedPods(),
        watch_silent_seconds=lambda: 0.0,
        event_outcomes={},
        clock=lambda: 0.0,
        is_degraded=lambda: False,
        version="1",
    )
    names = {family.name.removeprefix("trimaran_extender_") for family in telemetry.registry.collect()}
    undocumented = {name for name in names if f"trimaran_extender_{name}" not in REFERENCE and f"…_{name}" not in REFERENCE}
    assert {name for name in undocumented if not name.startswith("process_")} == set()
    assert [outcome for outcome in counters.outcomes if f"`{outcome}`" not in REFERENCE] == []


def test_report_74_that_a_scheduler_may_not_ask_is_there() -> None:
    assert "A scheduler does not ask where only one node is feasible" in REFERENCE
