"""Laws of quantities."""

from hypothesis import given
from hypothesis import strategies as st

from tests.conformance.reference import quantity_amounts
from trimaran_client import Quantity, QuantityError

suffixes = st.one_of(
    st.sampled_from(["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]),
    st.builds("{}{}".format, st.sampled_from(["e", "E", "e+", "E-"]), st.integers(0, 30)),
)
numbers = st.one_of(st.from_regex(r"[0-9]{1,20}(\.[0-9]{0,12})?", fullmatch=True), st.from_regex(r"\.[0-9]{1,12}", fullmatch=True))


@given(st.sampled_from(["", "+", "-"]), numbers, suffixes)
def test_every_quantity_agrees_with_exact_fractions(sign: str, number: str, suffix: str) -> None:
    quantity = Quantity.parse(sign + number + suffix)
    assert (quantity.milli, quantity.value) == quantity_amounts(sign + number + suffix)


@given(st.one_of(st.text(max_size=12), st.text(alphabet="0123456789.eEkKmMiIn+-", max_size=12)))
def test_any_text_is_a_quantity_or_an_error_of_ours(text: str) -> None:
    try:
        quantity = Quantity.parse(text)
    except QuantityError:
        return
    assert (quantity.milli, quantity.value) == quantity_amounts(text)
