"""Numbers of nodes by name, kept as columns that change one cell at a time and are frozen for each decision at no cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trimaran_client.units import FloatArray, freeze

_FIRST_ROWS = 16


@dataclass(frozen=True, slots=True, eq=False)
class FrozenNodeTable:
    """
    A node table at one moment.

    Args:
        rows: Node name → its row.
        values: Shape (columns, rows); NaN in rows that no node has.
    """

    rows: Mapping[str, int]
    values: FloatArray


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
        self._names_shared = self._values_shared = False
        self._free: list[int] = []
        self._values = np.full((columns, _FIRST_ROWS), np.nan)
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
        self._own_values()[column, row] = value

    def discard(self, name: str) -> None:
        """Forget a node, if it is there."""
        if name in self._rows:
            row = self._own_names().pop(name)
            self._own_values()[:, row] = np.nan
            self._free.append(row)

    def freeze(self) -> FrozenNodeTable:
        """Answer the table as it is now."""
        self._names_shared = self._values_shared = True
        values = self._values[:, : self._next_row]
        freeze(values)
        return FrozenNodeTable(self._rows, values)

    def _add(self, name: str) -> int:
        if self._free:
            row = self._free.pop()
        else:
            row, self._next_row = self._next_row, self._next_row + 1
            if row == self._values.shape[1]:
                self._values = np.concatenate([self._values, np.full_like(self._values, np.nan)], axis=1)
                self._values_shared = False
        self._own_names()[name] = row
        self._own_values()[:, row] = self._fill
        return row

    def _own_names(self) -> dict[str, int]:
        if self._names_shared:
            self._rows, self._names_shared = dict(self._rows), False
        return self._rows

    def _own_values(self) -> FloatArray:
        if self._values_shared:
            self._values, self._values_shared = self._values.copy(), False
        return self._values
