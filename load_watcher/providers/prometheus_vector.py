"""Read what the HTTP API of Prometheus answers to a query: an instant vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import msgspec

from load_watcher.errors import ProviderReplyError
from load_watcher.providers.endpoint import shorten

NAME: Final = "Prometheus"


@dataclass(frozen=True, slots=True)
class VectorReply:
    """
    An instant vector.

    Args:
        labels: The chosen labels of each series, in the order asked for; empty where a series lacks one.
        values: As printed by the server.
        warnings: What the server said beside the data: a partial answer, a query that may not mean what it says.
    """

    labels: Sequence[tuple[str, ...]]
    values: Sequence[str]
    warnings: tuple[str, ...] = ()


class VectorDecoder:
    """Reads an instant vector, and of each series only the labels that were asked for."""

    def __init__(self, labels: Sequence[str]) -> None:
        # Labels may have names that Python gives to something else.
        fields = [(f"label_{number}", str, msgspec.field(name=label, default="")) for number, label in enumerate(labels)]
        metric = msgspec.defstruct("Metric", fields, frozen=True, gc=False)
        series = msgspec.defstruct("Series", [("metric", metric), ("value", tuple[float, str])], frozen=True, gc=False)
        data = msgspec.defstruct("Data", [("resultType", str), ("result", msgspec.Raw)], frozen=True)
        optional = list[str] | None
        body = msgspec.defstruct(
            "Body", [("data", data), ("status", str, ""), ("warnings", optional, None), ("infos", optional, None)], frozen=True
        )
        self._series: msgspec.json.Decoder[Any] = msgspec.json.Decoder(list[series])  # type: ignore[valid-type]
        self._body: msgspec.json.Decoder[Any] = msgspec.json.Decoder(body)
        names = [name for name, _, _ in fields]
        self._labels_of: Callable[[Any], Any] = attrgetter(*names)
        self._is_single = len(names) == 1

    def decode(self, body: bytes) -> VectorReply:
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
            series = self._series.decode(reply.data.result)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            start = body[:80]
            raise ProviderReplyError(
                f"{NAME}: not a reply of the Prometheus API: {error}; it starts {start!r}; check METRICS_PROVIDER_ADDRESS"
            ) from error
        labels = [self._labels_of(item.metric) for item in series]
        return VectorReply(
            labels=[(label,) for label in labels] if self._is_single else labels,
            values=[item.value[1] for item in series],
            warnings=tuple(shorten(text) for text in (*(reply.warnings or ()), *(reply.infos or ()))),
        )
