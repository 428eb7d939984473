"""
What is served: the last good values as bytes, node by node or in columns.

Pure: the time is an argument.
"""

from __future__ import annotations

from load_watcher.snapshot.choice import Choice
from load_watcher.snapshot.columns import build_columns
from load_watcher.snapshot.encoding import Encoded, Reply, Snapshot, encode
from load_watcher.snapshot.nodes import encode_snapshot
from load_watcher.snapshot.served import STATUSES, Withheld, find_withheld

__all__ = [
    "STATUSES",
    "Choice",
    "Encoded",
    "Reply",
    "Snapshot",
    "Withheld",
    "build_columns",
    "encode",
    "encode_snapshot",
    "find_withheld",
]
