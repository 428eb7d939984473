"""
The tables of the history file, version by version.

``user_version`` of the file counts the migrations that it has had. A migration is never changed once it is released: a later one is added.
"""

from __future__ import annotations

from typing import Final

# "LWHI": tells our files from those of other programs.
APPLICATION_ID: Final = 0x4C574849

# A refresh is one blob of times and one for each metric, and a list of nodes that later refreshes share. Averages are refreshes as well.
# All times are Unix milliseconds. span_seconds is 0 for samples as they were fetched, else what each value averages. Samples have times of
# their own only where the source dates that metric by itself.
_VERSION_1: Final = (
    "CREATE TABLE node_sets (id INTEGER PRIMARY KEY, members BLOB NOT NULL)",
    """CREATE TABLE refreshes (
        id INTEGER PRIMARY KEY,
        span_seconds INTEGER NOT NULL,
        fetched_ms INTEGER NOT NULL,
        oldest_ms INTEGER NOT NULL,
        newest_ms INTEGER NOT NULL,
        source TEXT NOT NULL,
        node_set INTEGER NOT NULL REFERENCES node_sets (id),
        sampled_at BLOB NOT NULL)""",
    "CREATE INDEX refreshes_newest ON refreshes (span_seconds, newest_ms)",
    "CREATE INDEX refreshes_node_set ON refreshes (node_set)",
    """CREATE TABLE samples (
        id INTEGER PRIMARY KEY,
        refresh INTEGER NOT NULL REFERENCES refreshes (id),
        metric_type TEXT NOT NULL,
        sampled_at BLOB,
        data BLOB NOT NULL)""",
    "CREATE UNIQUE INDEX samples_refresh ON samples (refresh, metric_type)",
)
MIGRATIONS: Final = (_VERSION_1,)
