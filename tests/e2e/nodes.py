"""The six nodes whose load the end-to-end tests choose."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LoadedNode:
    """A node of 8 cores and 32 GiB and what its pods use."""

    name: str
    cpu_millicores: int
    memory_mebibytes: int
    cpu: str = "8"
    memory: str = "32Gi"

    @property
    def cpu_percent(self) -> float:
        """CPU utilization that a load watcher should report."""
        return 100 * self.cpu_millicores / 8000

    @property
    def memory_percent(self) -> float:
        """Memory utilization that a load watcher should report."""
        return 100 * self.memory_mebibytes / (32 * 1024)


# 1, 16, 31, 46, 61 and 76 % CPU; 5 % more memory on each node.
LOADED_NODES = tuple(LoadedNode(f"node-{i}", cpu_millicores=100 + i * 1200, memory_mebibytes=1024 + i * 1638) for i in range(6))
