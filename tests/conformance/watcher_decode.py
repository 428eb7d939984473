"""
Suite ``watcher_decode``: how a client reads one metric value.

Rules, each decided from the text of the value:

- ``reads_nearest_double``: the original's reader is off for long numbers (the vectors give the nearest double); we read the nearest.
- ``reads_valid_numbers``: the original refuses some JSON numbers (exponents beyond 19, integers beyond 64 bits); we read them.
- ``rejects_invalid_json``: the original reads on after text that is not JSON; we refuse the reply.
- ``absent_is_not_zero``: a value of null reads as 0 there; for us the metric is absent.
"""

from __future__ import annotations

import json
import math

from tests.conformance.cases import Case, Outcome, is_json, judge
from trimaran_client import LoadSnapshot, SnapshotDecodeError

RULES = (
    "reads_nearest_double",
    "reads_valid_numbers",
    "rejects_invalid_json",
    "absent_is_not_zero",
)

_REPLY = '{{"data":{{"NodeMetricsMap":{{"n1":{{"metrics":[{{"type":"CPU","operator":"AVG","value":{value}}}]}}}}}}}}'


def run(case: Case) -> Outcome:
    """Run one case."""
    text, expected = str(case["input"]), case["expected"]
    try:
        value = float(LoadSnapshot.decode(_REPLY.format(value=text)).column("CPU", ("AVG",))[0])
    except SnapshotDecodeError:
        if expected.get("error"):
            return Outcome()
        rules = () if is_json(text) else ("rejects_invalid_json",)
        return Outcome(rules, "" if rules else f"refused {text}, expected {expected}")
    if text.strip() == "null":
        return Outcome(("absent_is_not_zero",), "" if math.isnan(value) else f"null read as {value}")
    if expected.get("error"):
        return judge(value, float(json.loads(text)), "reads_valid_numbers")
    if "nearest" in expected:
        return judge(value, float(expected["nearest"]), "reads_nearest_double")
    return judge(value, float(expected["value"]))
