"""How amounts are told to people."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, overload

from trimaran_client.policies.base import Reason
from trimaran_client.resources import CPU, MEMORY
from trimaran_client.units import FloatArray, IntArray

# The unit in which a resource is computed.
BASE_UNITS: Final[Mapping[str, str]] = {CPU: "millicores", MEMORY: "bytes"}
_MEBIBYTE: Final = 2**20
# What a score comes from where not from the policy's formula on measured load.
_INSTEAD: Final[Mapping[Reason, str]] = {
    Reason.NO_METRICS: "no usable metric: score 0",
    Reason.CAPACITY_UNKNOWN: "what the node has is zero or not known: score 0",
    Reason.FALLBACK_ALLOCATION: "no fresh metrics: what its pods request is taken for what they use, steadily, in the same formula",
    Reason.FALLBACK_NEUTRAL: "no fresh metrics: the fallback neutral gives 50",
    Reason.FALLBACK_MINIMUM: "no fresh metrics: the fallback minimum gives 0",
    Reason.PODS_UNKNOWN: "the pods of the node are not known: the neutral score 50",
    Reason.BEST_EFFORT: "the pod has neither requests nor limits, so nothing can be said of its risk: score 0",
    Reason.OVER_CAPACITY: "with the pod it would be over 100 %: score 0",
    Reason.NO_MODEL: "the node has no power model: the mean of the others",
}


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


class Sentences(Sequence[Sequence[str]]):
    """
    The sentences of each candidate, made when they are asked for: of thousands of nodes mostly one is.

    Args:
        count: How many candidates there are.
        tell: Answers the sentences of one row.
    """

    def __init__(self, count: int, tell: Callable[[int], Sequence[str]]) -> None:
        self._rows = range(count)
        self._tell = tell

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Sequence[str]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Sequence[str]]: ...

    def __getitem__(self, index: int | slice) -> Sequence[str] | Sequence[Sequence[str]]:
        return [self._tell(row) for row in self._rows[index]] if isinstance(index, slice) else self._tell(self._rows[index])


def tell_terms(terms: Mapping[str, FloatArray], formula: str, reasons: IntArray) -> Sentences:
    """
    Tell the known terms of each node, and what its score comes from.

    Args:
        terms: Name with its unit → intermediate, shape (nodes,).
        formula: What the terms go into, where the score comes from it.
        reasons: :class:`Reason` codes, shape (nodes,); most say that it does not.
    """

    def tell(row: int) -> list[str]:
        known = {name: float(column[row]) for name, column in terms.items()}
        told = ", ".join(f"{name} {value:.4g}" for name, value in known.items() if not math.isnan(value))
        return [told, _INSTEAD.get(Reason(int(reasons[row])), formula)]

    return Sentences(len(reasons), tell)
