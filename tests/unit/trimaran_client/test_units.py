"""Quantities and rounding beyond the vectors."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran_client.errors import QuantityError
from trimaran_client.units import MAX_AMOUNT_NANOS, Quantity, round_half_away


@pytest.mark.parametrize(
    ("text", "milli"),
    [("95647727n", 96), ("250u", 1), ("1", 1000), ("0.5", 500), ("2e3", 2_000_000), ("1E3", 1_000_000), ("-1500u", -2)],
)
def test_report_15_reads_every_suffix(text: str, milli: int) -> None:
    """Suffixes n and u are fractions, exponents come in both cases, and amounts round away from zero."""
    assert Quantity.parse(text).milli == milli


@pytest.mark.parametrize(("text", "value"), [("15864Ki", 15864 * 1024), ("1.5Gi", 1610612736), ("1E", 10**18), ("2Ei", 2 * 2**60)])
def test_reads_bytes(text: str, value: int) -> None:
    assert Quantity.parse(text).value == value


@pytest.mark.parametrize(
    "bad", ["", " ", "1e3m", "1 ", " 1", "1K", "1MB", "١", "1e", "0x1", "NaN", "inf", True, [], {}, math.nan, math.inf]
)
def test_refuses_what_is_not_a_quantity(bad: object) -> None:
    """The empty string is no zero, digits of other scripts are no digits; the message shows the value and a remedy."""
    with pytest.raises(QuantityError, match=r"is not a quantity; write a number"):
        Quantity.parse(bad)


def test_refuses_text_that_only_costs_time() -> None:
    with pytest.raises(QuantityError, match="longer than"):
        Quantity.parse("9" * 100_000)


@pytest.mark.parametrize("text", ["1e999999999999", "9" * 200, "9" * 200 + "Ei"])
def test_holds_an_amount_beyond_64_bits_at_the_largest(text: str) -> None:
    assert Quantity.parse(text).nanos == MAX_AMOUNT_NANOS


def test_an_amount_that_is_almost_nothing_is_one_nano() -> None:
    assert Quantity.parse("1e-999999999").nanos == 1


def test_amounts_add_exactly() -> None:
    """A third of a millicore three times is one millicore and not three."""
    third = Quantity.parse("333333n")
    assert (third + third + third).milli == 1


def test_rounds_halves_away_from_zero() -> None:
    values = np.array([2.5, -2.5, 0.49999999999999994, -0.5, 4503599627370497.5, 2.0])
    assert round_half_away(values).tolist() == [3.0, -3.0, 0.0, -1.0, 4503599627370498.0, 2.0]


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-300, 300).map(lambda halves: halves / 2), st.integers(-2, 2))
def test_rounds_every_number_as_exact_arithmetic_does(near: float, steps: int) -> None:
    """The numbers next to halves and to whole numbers above all."""
    value = near
    for _ in range(abs(steps)):
        value = math.nextafter(value, math.copysign(math.inf, steps))
    exact = math.floor(abs(Fraction(value)) + Fraction(1, 2)) if math.isfinite(value) else math.inf
    assert abs(round_half_away(np.array([value]))[0]) == exact
    assert math.copysign(1, round_half_away(np.array([value]))[0]) == math.copysign(1, value)
