"""
What is served: the last good values as the wire model, and that model as bytes.

Pure: the time is an argument.
"""

from __future__ import annotations

from load_watcher.snapshot.choice import Choice
from load_watcher.snapshot.columns import build_columns
from load_watcher.snapshot.encoding import Encoded, Reply, Snapshot, encode, encode_snapshot
from load_watcher.snapshot.metrics import build_metrics
from load_watcher.snapshot.served import STATUSES, Withheld, find_withheld

__all__ = [
    "STATUSES",
    "Choice",
    "Encoded",
    "Reply",
    "Snapshot",
    "Withheld",
    "build_columns",
    "build_metrics",
    "encode",
    "encode_snapshot",
    "find_withheld",
]
