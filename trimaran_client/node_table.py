"""Numbers of nodes by name, kept as columns that change one cell at a time and are frozen for each decision at no cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from trimaran_client.units import FloatArray, freeze

_FIRST_ROWS = 16
# A decision that changes one node out of thousands copies its block, not all of them: those copies pushed everything else out of the
# processor's caches, the scheduler's own data too.
_BLOCK_ROWS = 256


@dataclass(frozen=True, eq=False)
class FrozenNodeTable:
    """
    A node table at one moment.

    Args:
        rows: Node name → its row.
        row_count: How many rows there are, those of no node included.
    """

    rows: Mapping[str, int]
    row_count: int
    _blocks: tuple[FloatArray, ...] = field(repr=False)

    @cached_property
    def values(self) -> FloatArray:
        """Answer the numbers, shape (columns, rows); NaN in rows that no node has."""
        values = np.concatenate(self._blocks, axis=1)[:, : self.row_count]
        freeze(values)
        return values


class NodeTable:
    """
    Hold a few numbers for each of many nodes.

    Rows of nodes that are gone are used again, so that memory does not grow with the names that ever were. What :meth:`freeze` hands out
    never changes: the next write after it goes to a copy.

    Args:
        columns: How many numbers each node has.
        fill: What a new node starts with.
    """

    def __init__(self, columns: int, *, fill: float = np.nan) -> None:
        self._fill = fill
        self._rows: dict[str, int] = {}
        self._names_shared = False
        self._free: list[int] = []
        self._blocks = [np.full((columns, _FIRST_ROWS), np.nan)]
        self._owned = {0}  # the blocks that nobody else has
        self._frozen: FrozenNodeTable | None = None
        self._next_row = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def row_of(self, name: str) -> int:
        """Answer the row of a node that is there; it stays the same as long as the node does."""
        return self._rows[name]

    def write(self, name: str, column: int, value: float) -> None:
        """Set one number of a node, which is added if it is new."""
        row = self._rows.get(name)
        if row is None:
            row = self._add(name)
        self._own_block(row // _BLOCK_ROWS)[column, row % _BLOCK_ROWS] = value

    def discard(self, name: str) -> None:
        """Forget a node, if it is there."""
        if name in self._rows:
            row = self._own_names().pop(name)
            self._own_block(row // _BLOCK_ROWS)[:, row % _BLOCK_ROWS] = np.nan
            self._free.append(row)

    def freeze(self) -> FrozenNodeTable:
        """Answer the table as it is now, the same while nothing changes."""
        if self._frozen is None:
            for block in self._owned:
                freeze(self._blocks[block])
            self._owned.clear()
            self._names_shared = True
            self._frozen = FrozenNodeTable(self._rows, self._next_row, tuple(self._blocks))
        return self._frozen

    def _add(self, name: str) -> int:
        if self._free:
            row = self._free.pop()
        else:
            row, self._next_row = self._next_row, self._next_row + 1
            self._make_room(row)
        self._own_names()[name] = row
        self._own_block(row // _BLOCK_ROWS)[:, row % _BLOCK_ROWS] = self._fill
        return row

    def _make_room(self, row: int) -> None:
        """Make sure that the row after the last one has its place: in the last block, which grows to its full size, or in a new one."""
        last = self._blocks[-1]
        begin = (len(self._blocks) - 1) * _BLOCK_ROWS
        if row < begin + last.shape[1]:
            return
        if last.shape[1] < _BLOCK_ROWS:
            self._blocks[-1] = np.concatenate([last, np.full_like(last, np.nan)], axis=1)
        else:
            self._blocks.append(np.full_like(last, np.nan))
        self._owned.add(len(self._blocks) - 1)

    def _own_names(self) -> dict[str, int]:
        self._frozen = None
        if self._names_shared:
            self._rows, self._names_shared = dict(self._rows), False
        return self._rows

    def _own_block(self, block: int) -> FloatArray:
        self._frozen = None
        if block not in self._owned:
            self._blocks[block] = self._blocks[block].copy()
            self._owned.add(block)
        return self._blocks[block]
