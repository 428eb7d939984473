"""What nodes have and offer, by name: the node objects of the API server in columns, for candidates that come as mere names."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from trimaran_client.node_table import FrozenNodeTable, NodeTable
from trimaran_client.resources import CPU, MEMORY, Node
from trimaran_client.units import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class CapacitiesView:
    """Capacity and allocatable of each resource in turn, base units (millicores, else whole units); NaN = unknown; never changes."""

    resources: tuple[str, ...]
    table: FrozenNodeTable

    def columns(self, resource: str) -> tuple[FloatArray, FloatArray] | None:
        """Answer capacity and allocatable by row of ``table``; ``None`` where the resource is not kept."""
        if resource not in self.resources:
            return None
        column = 2 * self.resources.index(resource)
        return self.table.values[column], self.table.values[column + 1]


class NodeCapacities:
    """
    Keep what nodes have and offer, as it is told; calls from several threads are fine.

    Args:
        resources: The resources to keep.
    """

    def __init__(self, resources: tuple[str, ...] = (CPU, MEMORY)) -> None:
        self._resources = resources
        self._table = NodeTable(2 * len(resources))
        self._view: CapacitiesView | None = None
        self._lock = threading.Lock()

    @classmethod
    def of(cls, nodes: Iterable[Node], resources: tuple[str, ...] = (CPU, MEMORY)) -> NodeCapacities:
        """Take nodes as they are now."""
        capacities = cls(resources)
        for node in nodes:
            capacities.update(node)
        return capacities

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, name: object) -> bool:
        return name in self._table

    def update(self, node: Node) -> None:
        """Take a node that is new or has changed."""
        with self._lock:
            self._view = None
            for index, resource in enumerate(self._resources):
                for offset, amounts in enumerate((node.capacity, node.allocatable)):
                    quantity = amounts.get(resource)
                    amount = float("nan") if quantity is None else float(quantity.milli if resource == CPU else quantity.value)
                    self._table.write(node.name, 2 * index + offset, amount)

    def remove(self, name: str) -> None:
        """Forget a node, if it is there."""
        with self._lock:
            self._view = None
            self._table.discard(name)

    def view(self) -> CapacitiesView:
        """Answer the nodes as they are now; the same view while nothing changes."""
        with self._lock:
            if self._view is None:
                self._view = CapacitiesView(self._resources, self._table.freeze())
            return self._view
