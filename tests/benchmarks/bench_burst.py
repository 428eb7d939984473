"""
What a burst of pods costs the scheduler: ``python -m tests.benchmarks.bench_burst [--nodes 1000 5000] [--busy-loops 0 2] [--output FILE]``.

A real control plane and a real kube-scheduler, no kubelets. For every burst the pods are made first and the scheduler starts after, so that
making them is not what is measured; the mean cycle is the scheduler's own metric. The contenders take turns within one run, as a machine's
speed changes from run to run. Processes get the CPU weights that their containers would have on a node, and while a burst runs nothing is
watched: the scheduler is asked once a second how many pods it has placed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tests.benchmarks.burst_extender import SchedulerSetup, make_shipped_setup, running_constant, running_trimaran
from tests.benchmarks.cpu_weights import CpuWeights, weighing
from tests.e2e.binaries import Binaries, build_all
from tests.e2e.cluster import Cluster
from tests.e2e.control_plane import running_cluster
from tests.e2e.extender import make_scheduler_config
from tests.e2e.processes import ManagedProcess, running_process
from tests.e2e.scheduler import running_scheduler
from tests.e2e.workloads import create_nodes, create_pods, delete_pods, make_node, make_pod, wait_until_bound

NODE_CPU: Final = "8"
POD_CPU: Final = "100m"
APP: Final = "burst"
BURST_SECONDS: Final = 120.0  # also the end of a busy loop whose parent forgot it
POLL_SECONDS: Final = 1.0
# What kubeadm requests for its static pods, each of one container (kubeadm, ``phases/controlplane`` and ``phases/etcd``).
API_SERVER_MILLICORES: Final = 250
ETCD_MILLICORES: Final = 100
BUSY_LOOP_MILLICORES: Final = 100
BUSY_LOOP: Final = """
import sys, time
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    pass
"""

Contender = Callable[[Cluster, Sequence[str]], AbstractAsyncContextManager[SchedulerSetup]]
"""From the cluster and the names of its nodes: start what the scheduler calls, if anything, and yield what it is started with."""


@dataclass(frozen=True)
class Burst:
    """
    One measured burst.

    Attributes:
        contender: Whose.
        node_count: Nodes of the cluster.
        pod_count: Pods of the burst.
        busy_loops: Processes beside it that did nothing but take CPU.
        cycle_milliseconds: Mean time of the scheduling algorithm for a pod, by the scheduler.
        scheduler_cpu_milliseconds: CPU that the scheduler itself used for a pod, its binding and all else included.
        scheduler_megabytes: What it held of memory at the end.
        node_counts: Number of pods → how many nodes got that many, those without any left out.
    """

    contender: str
    node_count: int
    pod_count: int
    busy_loops: int
    cycle_milliseconds: float
    scheduler_cpu_milliseconds: float
    scheduler_megabytes: float
    node_counts: Mapping[int, int]


@asynccontextmanager
async def running_stock(cluster: Cluster, nodes: Sequence[str]) -> AsyncIterator[SchedulerSetup]:
    """The default profile, and nothing beside it."""
    yield SchedulerSetup()


@asynccontextmanager
async def running_stock_tuned(cluster: Cluster, nodes: Sequence[str]) -> AsyncIterator[SchedulerSetup]:
    """The default profile in the environment and with the CPU requests that we ship."""
    yield make_shipped_setup({})


@asynccontextmanager
async def running_profile(cluster: Cluster, nodes: Sequence[str]) -> AsyncIterator[SchedulerSetup]:
    """What we ship, without an extender."""
    config = make_scheduler_config("")
    del config["extenders"]
    yield make_shipped_setup(config)


CONTENDERS: Final[Mapping[str, Contender]] = {
    "stock": running_stock,
    # What the variables that we ship save, what is collected of garbage, and what its weight among the pods gives.
    "stock-tuned": running_stock_tuned,
    # What the profile saves: it disables two plugins.
    "profile": running_profile,
    # What HTTP and JSON alone cost: the least that any extender of Python does.
    "constant": running_constant,
    "trimaran": running_trimaran,
    # What it would be if a decision did not count until its binding is seen.
    "trimaran-unassumed": partial(running_trimaran, settings={"assumeSeconds": 0}),
}


@dataclass(frozen=True)
class Place:
    """
    Where bursts take place.

    Attributes:
        cluster: Its control plane.
        binaries: Where kube-scheduler is.
        nodes: The names of its nodes.
        weights: What weighs its processes.
    """

    cluster: Cluster
    binaries: Binaries
    nodes: Sequence[str]
    weights: CpuWeights


async def bench(options: argparse.Namespace) -> list[Burst]:
    """Measure all bursts, a cluster for each number of nodes, and print each."""
    binaries = build_all()
    bursts = []
    with nullcontext(CpuWeights()) if options.equal_weights else weighing() as weights:
        say(f"{weights.description}\n")
        say("| nodes | busy loops | contender | cycle, ms | scheduler's CPU a pod, ms | its memory, MB | nodes used | most on one |")
        say("|---|---|---|---|---|---|---|---|")
        for node_count in options.nodes:
            async with running_place(binaries, weights, node_count) as place:
                for turn in range(options.rounds):
                    for busy_loops in options.busy_loops:
                        # Every other turn backwards, so that none is always first.
                        for name in options.contenders[:: -1 if turn % 2 else 1]:
                            burst = await measure(place, name, pod_count=options.pods, busy_loops=busy_loops)
                            bursts.append(burst)
                            say(format_burst(burst))
    return bursts


@asynccontextmanager
async def running_place(binaries: Binaries, weights: CpuWeights, node_count: int) -> AsyncIterator[Place]:
    """Run a weighed control plane with that many nodes."""
    nodes = [f"node-{i:05}" for i in range(node_count)]
    with tempfile.TemporaryDirectory() as folder:
        async with running_cluster(binaries, Path(folder), with_kwok=False, with_metrics=False) as cluster:
            with (
                weigh_alone(weights, "kube-apiserver", API_SERVER_MILLICORES, cluster.api_server),
                weigh_alone(weights, "etcd", ETCD_MILLICORES, cluster.etcd),
            ):
                await create_nodes(cluster.api, [make_node(name, cpu=NODE_CPU, has_kubelet=False) for name in nodes])
                yield Place(cluster, binaries, nodes, weights)


async def measure(place: Place, contender: str, *, pod_count: int, busy_loops: int) -> Burst:
    """Make the pods, let the contender place them, and remove them."""
    cluster = place.cluster
    async with CONTENDERS[contender](cluster, place.nodes) as setup, AsyncExitStack() as stack:
        config = setup.config
        scheduler_name = config["profiles"][0]["schedulerName"] if "profiles" in config else "default-scheduler"
        pods = [make_pod(f"{APP}-{i:05}", app=APP, cpu_request=POD_CPU, scheduler_name=scheduler_name) for i in range(pod_count)]
        await create_pods(cluster.api, pods)
        for i in range(busy_loops):
            command = [sys.executable, "-c", BUSY_LOOP, f"{BURST_SECONDS:g}"]
            loop = await stack.enter_async_context(running_process(f"busy-loop-{i}", command, folder=cluster.folder))
            stack.enter_context(weigh_alone(place.weights, loop.name, BUSY_LOOP_MILLICORES, loop))
        scheduler = await stack.enter_async_context(running_scheduler(cluster, place.binaries, config, settings=setup.settings))
        processes = {**setup.processes, "kube-scheduler": scheduler.process}
        pids = {container: process.pid for container, process in processes.items()}
        stack.enter_context(place.weights.pod(contender, setup.requests_millicores, pids))
        metrics = await scheduler.wait_for_scheduled(pod_count, timeout_seconds=BURST_SECONDS, poll_seconds=POLL_SECONDS)
        node_of = await wait_until_bound(cluster.api, APP, count=pod_count)
    await delete_pods(cluster.api, APP)
    return Burst(
        contender=contender,
        node_count=len(place.nodes),
        pod_count=pod_count,
        busy_loops=busy_loops,
        cycle_milliseconds=metrics.cycle_seconds * 1e3,
        scheduler_cpu_milliseconds=metrics.cpu_seconds / pod_count * 1e3,
        scheduler_megabytes=metrics.resident_bytes / 1e6,
        node_counts=dict(Counter(sorted(Counter(node_of.values()).values()))),
    )


def weigh_alone(weights: CpuWeights, name: str, request_millicores: int, process: ManagedProcess) -> AbstractContextManager[None]:
    """Weigh a process as the only container of its pod."""
    return weights.pod(name, {name: request_millicores}, {name: process.pid})


def format_burst(burst: Burst) -> str:
    """Write a row of the table."""
    used, most = sum(burst.node_counts.values()), max(burst.node_counts)
    scheduler = f"{burst.cycle_milliseconds:.2f} | {burst.scheduler_cpu_milliseconds:.2f} | {burst.scheduler_megabytes:.0f}"
    return f"| {burst.node_count} | {burst.busy_loops} | {burst.contender} | {scheduler} | {used} | {most} |"


def summarize(bursts: Iterable[Burst]) -> list[str]:
    """Write the median of the mean cycles of each kind of burst, and of the scheduler's own CPU."""
    kinds: dict[str, list[Burst]] = {}
    for burst in bursts:
        kinds.setdefault(f"{burst.contender}, {burst.node_count} nodes, {burst.busy_loops} busy loops", []).append(burst)
    return [
        f"medians of {len(found)}, {kind}: mean cycle {statistics.median(each.cycle_milliseconds for each in found):.2f} ms,"
        f" scheduler's CPU {statistics.median(each.scheduler_cpu_milliseconds for each in found):.2f} ms a pod"
        for kind, found in kinds.items()
    ]


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3, help="turns of every contender")
    parser.add_argument("--busy-loops", type=int, nargs="+", default=[0], help="measure with that many processes beside it that take CPU")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--equal-weights", action="store_true", help="leave out the CPU weights of a cluster's containers")
    parser.add_argument("--output", type=Path, help="where to write the bursts as JSON")
    options = parser.parse_args()
    bursts = asyncio.run(bench(options))
    for line in summarize(bursts):
        say(line)
    if options.output:
        options.output.write_text(json.dumps([asdict(burst) for burst in bursts], indent=2))


if __name__ == "__main__":
    main()
