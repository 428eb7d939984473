"""
Suite ``quantity``: parsing, thousandths, whole units.

Rule ``quantity_artefact``: where the original's 64-bit arithmetic wrapped (the vectors mark it), our own expectation is exact arithmetic,
held at the largest amount.
"""

from __future__ import annotations

from tests.conformance.cases import Case, Outcome, judge
from tests.conformance.reference import quantity_amounts
from trimaran_client.errors import QuantityError
from trimaran_client.units import Quantity

RULES = ("quantity_artefact",)


def run(case: Case) -> Outcome:
    """Run one case."""
    expected = dict(case["expected"])
    rules: tuple[str, ...] = ()
    if expected.pop("artefact", False) and not expected.get("error"):
        milli, value = quantity_amounts(str(case["input"]))
        rules, expected = ("quantity_artefact",), {"milli": str(milli), "value": str(value), "zero": value == 0}
    try:
        quantity = Quantity.parse(case.get("input"))
    except QuantityError:
        return judge({"error": True}, expected, *rules)
    return judge({"milli": str(quantity.milli), "value": str(quantity.value), "zero": quantity.nanos == 0}, expected, *rules)
