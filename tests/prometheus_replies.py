"""Replies of Prometheus as the service gets them: JSON that its decoder reads."""

import json
from collections.abc import Iterable, Mapping, Sequence

from load_watcher.providers.prometheus_vector import VectorDecoder, VectorReply
from load_watcher.providers.promql import PART_LABEL
from tests.builders import NOW

# Key of the part, labels, value as printed.
PrintedSeries = tuple[str, Mapping[str, str], str]


def make_reply(series: Iterable[PrintedSeries], labels: Sequence[str]) -> VectorReply:
    """Print series as Prometheus does, and read of each the given *labels*."""
    result = [{"metric": dict(named) | {PART_LABEL: key}, "value": [NOW, text]} for key, named, text in series]
    body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}})
    return VectorDecoder(PART_LABEL, labels).decode(body.encode())
