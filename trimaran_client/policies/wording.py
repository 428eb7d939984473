"""How amounts are told to people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from trimaran_client.resources import CPU, MEMORY
from trimaran_client.units import FloatArray

# The unit in which a resource is computed.
BASE_UNITS: Final[Mapping[str, str]] = {CPU: "millicores", MEMORY: "bytes"}
_MEBIBYTE: Final = 2**20


def amount(value: float, resource: str) -> str:
    """
    Write an amount in base units as people read it.

    >>> amount(1500, "cpu"), amount(3 * 2**30, "memory"), amount(2, "nvidia.com/gpu")
    ('1500m', '3072Mi', '2')
    """
    if math.isnan(value):
        return "unknown"
    if resource == CPU:
        return f"{value:.6g}m"
    return f"{value / _MEBIBYTE:.6g}Mi" if resource == MEMORY else f"{value:.6g}"


def tell_terms(terms: Mapping[str, FloatArray], formula: str, count: int) -> Sequence[Sequence[str]]:
    """Tell the known terms of each of *count* nodes, and the formula that they go into."""
    lists: list[list[str]] = []
    for row in range(count):
        known = {name: float(column[row]) for name, column in terms.items()}
        lists.append([", ".join(f"{name} {value:.4g}" for name, value in known.items() if not math.isnan(value)), formula])
    return lists
