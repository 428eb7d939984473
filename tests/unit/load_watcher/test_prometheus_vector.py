import json
import math
from typing import Any

import pytest

from load_watcher.errors import ProviderReplyError
from load_watcher.providers.prometheus_vector import VectorDecoder, VectorReply
from tests.builders import NOW


def decode(*series: tuple[dict[str, str], Any]) -> VectorReply:
    result = [{"metric": labels, "value": [NOW, value]} for labels, value in series]
    body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}})
    return VectorDecoder("part", ("node", "instance")).decode(body.encode())


def test_series_are_parted_and_each_set_of_labels_is_kept_once() -> None:
    n1, n2 = {"node": "n1", "device": "sda"}, {"instance": "n2"}
    reply = decode(
        ({"part": "a", **n1}, "1"), ({"part": "b", **n2}, "2"), ({"part": "a", **n2}, "3"), ({"part": "a", **n1}, "4"), (n1, "5")
    )
    assert reply.hosts == (("n1", ""), ("", "n2"))
    columns = {key: (part.host_codes.tolist(), part.values.tolist()) for key, part in reply.parts.items()}
    assert columns == {"a": ([0, 1, 0], [1.0, 3.0, 4.0]), "b": ([1], [2.0]), "": ([0], [5.0])}


@pytest.mark.parametrize(
    ("text", "value"), [("0.1", 0.1), ("1e-3", 1e-3), ("+3", 3.0), ("01", 1.0), ("1.", 1.0), ("1E+5", 1e5), ("0", 0.0), ("-0", -0.0)]
)
def test_a_number_is_read_as_go_prints_it(text: str, value: float) -> None:
    part = decode(({}, text)).parts[""]
    assert part.values.tolist() == [value]
    assert math.copysign(1, part.values[0]) == math.copysign(1, value)
    assert not part.odd_texts


@pytest.mark.parametrize("text", ["NaN", "+Inf", "-Inf", "Inf", "1e999", "inf", "nan", "", ".5", " 1", "1\n", "1_0", "0x10", "٣"])
def test_what_is_not_finite_or_no_number_stays_as_it_was_printed(text: str) -> None:
    part = decode(({}, "1"), ({}, text)).parts[""]
    assert (part.values[0], math.isnan(part.values[1]), part.odd_texts) == (1.0, True, {1: text})


@pytest.mark.parametrize("value", [None, True, [1], {}])
def test_a_value_that_is_no_text_makes_the_reply_unreadable(value: object) -> None:
    with pytest.raises(ProviderReplyError, match="not a reply of the Prometheus API"):
        decode(({}, "1"), ({}, value))
