"""
CPU weights as a kubelet sets them, so that processes of one machine share its cores as the containers of a node do.

Left alone, Linux weighs all of them alike (autogroup, a group for each session), whatever their containers would request. Here, as on a
node, a group for all pods weighs what the cores do, a pod's group in it the sum of its requests, and a container's group in that its own.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Where Linux has its CPU controller: control groups of version 1, and of version 2.
CONTROLLERS: Final = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))
# The kernel's own bounds of cpu.shares and cpu.weight.
MIN_SHARES: Final = 2
MAX_SHARES: Final = 2**18
MIN_WEIGHT: Final = 1
MAX_WEIGHT: Final = 10_000


def compute_shares(request_millicores: int) -> int:
    """
    Turn a CPU request into ``cpu.shares``, the weight in control groups of version 1: 1024 for a core.

    Source: kubelet, ``pkg/kubelet/cm/helpers_linux.go``, ``MilliCPUToShares``.

    >>> compute_shares(250), compute_shares(100), compute_shares(0)
    (256, 102, 2)
    """
    return min(max(request_millicores * 1024 // 1000, MIN_SHARES), MAX_SHARES)


def compute_weight(shares: int) -> int:
    """
    Turn ``cpu.shares`` into ``cpu.weight``, the weight in control groups of version 2: 100 for a core.

    10 to the power of (l² + 125 l) / 612 - 7/34 with l = log2(shares), rounded up: 1 at the least shares, 100 at 1024, 10,000 at the most.
    It is no line: half the request is more than half the weight.

    Source: opencontainers/cgroups #20, ``ConvertCPUSharesToCgroupV2Value``; for containers in runc since 1.3.2, for pods in the kubelet
    since 1.35 (kubernetes/enhancements #5246). Before, it was 1 + (shares - 2) · 9999 / 262142, which gave a core 39.

    >>> compute_weight(1024), compute_weight(compute_shares(250)), compute_weight(compute_shares(100))
    (100, 35, 17)
    """
    if shares <= MIN_SHARES:
        return MIN_WEIGHT
    if shares >= MAX_SHARES:
        return MAX_WEIGHT
    log = math.log2(shares)
    return math.ceil(10 ** ((log**2 + 125 * log) / 612 - 7 / 34))


class CpuWeights:
    """The pods of this machine; weighing() makes it, and without arguments it weighs nothing."""

    def __init__(self, node: _Group | None = None, description: str = "CPU weights: all processes equal") -> None:
        self.description = description
        self._node = node

    @contextmanager
    def pod(self, name: str, requests_millicores: Mapping[str, int], pids: Mapping[str, int]) -> Iterator[None]:
        """
        Weigh running processes as the containers of one pod, for the time of the context; those that they start belong to it too.

        Args:
            name: Of the pod; no other has it at that time.
            requests_millicores: Container → its CPU request. One without a process adds to the weight of its pod, as an idle one does.
            pids: Container → its process.
        """
        with ExitStack() as stack:
            if self._node:
                group = stack.enter_context(self._node.child(name, sum(requests_millicores.values())))
                containers = {each: stack.enter_context(group.child(each, request)) for each, request in requests_millicores.items()}
                for container, pid in pids.items():
                    _move(pid, containers[container].folder)
            yield


@contextmanager
def weighing(controllers: Iterable[Path] = CONTROLLERS) -> Iterator[CpuWeights]:
    """Give the first of the controllers in which groups can be made a group for all pods; without any, nothing is weighed."""
    # Of this process, as another may measure at the same time.
    name, millicores = f"trimaran-pods-{os.getpid()}", 1000 * (os.cpu_count() or 1)
    with ExitStack() as stack:
        for folder in controllers:
            try:
                node = stack.enter_context(_find_top(folder).child(name, millicores))
            except OSError:
                continue
            yield CpuWeights(node, f"CPU weights: as in a cluster, by {node.folder}")
            return
        yield CpuWeights(description="CPU weights: all processes equal, as no CPU controller of control groups is writable here")


@dataclass(frozen=True)
class _Group:
    folder: Path
    controller: Path
    is_v2: bool

    @contextmanager
    def child(self, name: str, request_millicores: int) -> Iterator[_Group]:
        """Make a group in this one, and remove it at the end; what still runs in it then goes to the group that all processes start in."""
        if self.is_v2:
            (self.folder / "cgroup.subtree_control").write_text("+cpu")
        group = _Group(self.folder / name, self.controller, self.is_v2)
        group.folder.mkdir()
        try:
            group.weigh(compute_shares(request_millicores))
            yield group
        finally:
            for pid in (group.folder / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):  # it has ended since
                    _move(int(pid), self.controller)
            group.folder.rmdir()

    def weigh(self, shares: int) -> None:
        """Set its weight among the groups beside it."""
        if self.is_v2:
            (self.folder / "cpu.weight").write_text(str(compute_weight(shares)))
        else:
            (self.folder / "cpu.shares").write_text(str(shares))


def _find_top(folder: Path) -> _Group:
    """Return the group that all processes start in; an OSError tells that *folder* is no CPU controller."""
    is_v2 = not (folder / "cpu.shares").exists()
    if is_v2 and "cpu" not in (folder / "cgroup.controllers").read_text().split():
        raise FileNotFoundError(f"{folder} controls no CPU")
    return _Group(folder, folder, is_v2)


def _move(pid: int, folder: Path) -> None:
    """Move a process with all its threads."""
    (folder / "cgroup.procs").write_text(str(pid))
