"""
Read what the HTTP API of Prometheus answers to a query: an instant vector, series by series, into columns.

No reply is ever there as objects: the replies of a refresh hold a hundred thousand series, and several come at the same time.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np

from load_watcher.errors import ProviderReplyError
from load_watcher.providers.endpoint import shorten
from trimaran_client.units import FloatArray, IntArray

NAME: Final = "Prometheus"

# As Go prints numbers; Python's float reads much more.
_NUMBER: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?|Inf)|NaN")

# The values of the labels that may name a node, in the order asked for; empty where a series lacks one.
Hosts = tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PartSeries:
    """
    The series of one part of a query, in the order in which they came.

    Args:
        host_codes: Where the labels of each series stand among the distinct ones, shape (series,).
        values: Shape (series,); NaN for what is not finite or is no number.
        odd_texts: Row → the value as printed, for just these.
    """

    host_codes: IntArray
    values: FloatArray
    odd_texts: Mapping[int, str]


@dataclass(frozen=True, slots=True, eq=False)
class VectorReply:
    """
    An instant vector.

    Args:
        parts: Key of a part → its series; no part without one.
        hosts: Each distinct set of labels once.
        warnings: What the server said beside the data: a partial answer, a query that may not mean what it says.
    """

    parts: Mapping[str, PartSeries]
    hosts: Sequence[Hosts]
    warnings: tuple[str, ...] = ()


def parse_number(text: str) -> float | None:
    """
    Read a number as Prometheus prints it, ``NaN`` and ``+Inf`` too; ``None`` if it is none.

    >>> parse_number("1e-3"), parse_number("+Inf"), parse_number("1_0")
    (0.001, inf, None)
    """
    return float(text) if _NUMBER.fullmatch(text) else None


class VectorDecoder:
    """
    Reads an instant vector, and of each series only the labels that are asked for.

    Args:
        part_label: The label that holds the key of a part.
        host_labels: Those that may name a node.
    """

    def __init__(self, part_label: str, host_labels: Sequence[str]) -> None:
        # Labels may have names that Python gives to something else.
        fields = [
            (f"label_{number}", str, msgspec.field(name=label, default="")) for number, label in enumerate((part_label, *host_labels))
        ]
        metric = msgspec.defstruct("Metric", fields, frozen=True, gc=False)
        printed = msgspec.defstruct("Series", [("metric", metric), ("value", tuple[float, str])], frozen=True, gc=False)
        number = msgspec.defstruct("Series", [("metric", metric), ("value", tuple[float, float])], frozen=True, gc=False)
        data = msgspec.defstruct("Data", [("resultType", str), ("result", msgspec.Raw)], frozen=True)
        optional = list[str] | None
        body = msgspec.defstruct(
            "Body", [("data", data), ("status", str, ""), ("warnings", optional, None), ("infos", optional, None)], frozen=True
        )
        self._printed: msgspec.json.Decoder[Any] = msgspec.json.Decoder(printed)
        # A number that looks like one of JSON is read from its text at once, which saves almost half of the CPU of a reply.
        self._number: msgspec.json.Decoder[Any] = msgspec.json.Decoder(number, strict=False)
        self._list = msgspec.json.Decoder(list[msgspec.Raw])
        self._body: msgspec.json.Decoder[Any] = msgspec.json.Decoder(body)

    def decode(self, body: bytes | bytearray) -> VectorReply:
        """
        Read a reply.

        Raises:
            ProviderReplyError: If it is not one.
        """
        try:
            reply = self._body.decode(body)
            if reply.data.resultType != "vector":
                raise ProviderReplyError(
                    f"{NAME}: the result is a {reply.data.resultType}, not a vector; check the expressions of the catalogue"
                )
            parts, hosts = self._read(self._list.decode(reply.data.result))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            start = bytes(body[:80])
            raise ProviderReplyError(
                f"{NAME}: not a reply of the Prometheus API: {error}; it starts {start!r}; check METRICS_PROVIDER_ADDRESS"
            ) from error
        return VectorReply(parts, hosts, tuple(shorten(text) for text in (*(reply.warnings or ()), *(reply.infos or ()))))

    def _read(self, series: Sequence[msgspec.Raw]) -> tuple[dict[str, PartSeries], tuple[Hosts, ...]]:
        code_of: dict[Hosts, int] = {}
        parts: defaultdict[str, tuple[list[int], list[float | str]]] = defaultdict(lambda: ([], []))
        for raw in series:
            item = self._read_one(raw)
            labels = msgspec.structs.astuple(item.metric)
            host_codes, values = parts[labels[0]]
            host_codes.append(code_of.setdefault(labels[1:], len(code_of)))
            values.append(item.value[1])
        return {key: _make_part(host_codes, values) for key, (host_codes, values) in parts.items()}, tuple(code_of)

    def _read_one(self, raw: msgspec.Raw) -> Any:  # noqa: ANN401 - a struct made at run time
        """Read a series; its value is a number where that is plain, else the text as printed."""
        try:
            item = self._number.decode(raw)
        except msgspec.ValidationError:
            return self._printed.decode(raw)
        # NaN and infinities are told as they were printed; and the decoder takes -0 for 0.
        return item if item.value[1] and math.isfinite(item.value[1]) else self._printed.decode(raw)


def _make_part(host_codes: Sequence[int], values: Sequence[float | str]) -> PartSeries:
    numbers = np.array([value if isinstance(value, float) else _parse_finite(value) for value in values], dtype=np.float64)
    odd_texts = {row: str(values[row]) for row in np.flatnonzero(np.isnan(numbers)).tolist()}
    return PartSeries(np.array(host_codes, dtype=np.int64), numbers, odd_texts)


def _parse_finite(text: str) -> float:
    number = parse_number(text)
    return math.nan if number is None or not math.isfinite(number) else number
