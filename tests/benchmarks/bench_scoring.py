"""
What scoring costs: ``python -m tests.benchmarks.bench_scoring [--rounds 5] [--output FILE]``.

Every policy over clusters of several sizes, with and without pods in flight; TargetLoadPacking against the same formula in plain Python;
decoding a reply; importing the library. A time is the median of a round, and of several rounds the least is told, since others may use
the machine; what is compared is timed in turns within each round, and of a ratio the median of the rounds is told.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from tests.benchmarks.reference_scoring import PlainCluster, score_plainly
from tests.builders import NOW, make_pod
from trimaran_client.assigned import AssignedPods
from trimaran_client.policies.base import ScoringPolicy
from trimaran_client.policies.load_variation_risk_balancing import LoadVariationRiskBalancing
from trimaran_client.policies.low_risk_over_commitment import LowRiskOverCommitment
from trimaran_client.policies.peaks import Peaks, PeaksArgs, PowerModel
from trimaran_client.policies.target_load_packing import TargetLoadPacking
from trimaran_client.resources import Pod
from trimaran_client.scorer import Scorer
from trimaran_client.snapshot import LoadSnapshot
from trimaran_client.wire import (
    Data,
    Metric,
    MetricColumn,
    NodeMetrics,
    QuantityColumns,
    ResourceQuantities,
    SnapshotColumns,
    WatcherMetrics,
    WireWindow,
    encode_json,
)

SIZES: Final = (1, 100, 1_000, 5_000, 50_000)
PODS: Final = 3_000
CLUSTER: Final = 5_000
# Of the issue: milliseconds, and how many times.
SCORE_GOAL_MILLISECONDS: Final = 0.3
RATIO_GOAL: Final = 10.0
GROWTH_GOAL: Final = 12.0
DECODE_GOAL_MILLISECONDS: Final = 5.0
IMPORT_GOAL_MILLISECONDS: Final = 100.0
IMPORT_GOAL_MEGABYTES: Final = 45.0
# At least this much is timed at once, so that the clock's steps do not count.
_SHORTEST_SECONDS: Final = 0.002
_REPEATS: Final = 21
_IMPORTS: Final = 7

_IMPORT: Final = """
import time
started = time.perf_counter()
import trimaran_client
imported = time.perf_counter()
trimaran_client.Pod, trimaran_client.LoadSnapshot, trimaran_client.AssignedPods, trimaran_client.Scorer, trimaran_client.TargetLoadPacking
loaded = time.perf_counter()
kilobytes = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print((imported - started) * 1000, (loaded - started) * 1000, kilobytes / 1000)
"""


class Row(msgspec.Struct, frozen=True):
    """A measured number; ``goal`` says what it is held to, and ``met`` whether it is."""

    name: str
    value: float
    unit: str
    goal: str = ""
    met: bool | None = None

    @classmethod
    def at_most(cls, name: str, value: float, unit: str, goal: float) -> Row:
        """Make one that should be small."""
        return cls(name, value, unit, f"<= {goal:g}", value <= goal)

    @classmethod
    def at_least(cls, name: str, value: float, unit: str, goal: float) -> Row:
        """Make one that should be large."""
        return cls(name, value, unit, f">= {goal:g}", value >= goal)


class Timing:
    """The seconds of some contenders, timed in turns: of each the median of every round."""

    def __init__(self, contenders: Mapping[str, Callable[[], object]], *, rounds: int) -> None:
        counts = {name: _count(call) for name, call in contenders.items()}
        self._medians: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(rounds):
            taken: dict[str, list[float]] = {name: [] for name in contenders}
            for _ in range(_REPEATS):
                for name, call in contenders.items():
                    taken[name].append(_time(call, counts[name]))
            for name, seconds in taken.items():
                self._medians[name].append(statistics.median(seconds))

    def milliseconds(self, name: str) -> float:
        """Answer the least median."""
        return min(self._medians[name]) * 1000

    def ratio(self, slow: str, fast: str) -> float:
        """Answer how many times as long one takes as the other."""
        return statistics.median(a / b for a, b in zip(self._medians[slow], self._medians[fast], strict=True))


def _time(call: Callable[[], object], count: int) -> float:
    started = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - started) / count


def _count(call: Callable[[], object]) -> int:
    call()
    return max(1, round(_SHORTEST_SECONDS / max(_time(call, 3), 1e-9)))


def make_reply(size: int) -> WatcherMetrics:
    """Make a reply with the six usual metrics of each node."""
    nodes: dict[str, NodeMetrics | None] = {}
    for number in range(size):
        cpu, memory = (number * 37) % 9700 / 100, (number * 53) % 9000 / 100
        kinds = {"CPU": (cpu, cpu * 0.9 + 3, cpu / 11), "Memory": (memory, memory * 0.95 + 2, memory / 20)}
        nodes[f"node-{number}.example.internal"] = NodeMetrics(
            metrics=[
                Metric(type=kind, operator=operator, rollup="" if operator == "Latest" else "15m", value=value)
                for kind, values in kinds.items()
                for operator, value in zip(("Latest", "AVG", "STD"), values, strict=True)
            ],
            capacity=ResourceQuantities(cpu=str(4 + 4 * (number % 8)), memory="64Gi"),
            allocatable=ResourceQuantities(cpu=f"{3900 + 4000 * (number % 8)}m", memory="62Gi"),
            sampled_at=int(NOW) - number % 40,
            sample_seconds=15.0,
            status="ok",
        )
    window = WireWindow(duration="15m", start=int(NOW) - 900, end=int(NOW))
    return WatcherMetrics(timestamp=int(NOW), window=window, source="bench", data=Data(node_metrics_map=nodes))


def fill(names: Sequence[str]) -> AssignedPods:
    """Put pods on nodes, all bound within the last quarter of an hour."""
    pods = AssignedPods()
    for number in range(PODS):
        pods.assign(make_pod(cpu_request="250m"), names[number * 7 % len(names)], at=NOW - number % 900)
    return pods


def make_policies(names: Sequence[str]) -> tuple[ScoringPolicy, ...]:
    """Make each policy; Peaks with a model for every node."""
    peaks = Peaks(PeaksArgs(models={name: PowerModel(300.0, -90.0, -0.07) for name in names}))
    return TargetLoadPacking(), LoadVariationRiskBalancing(), LowRiskOverCommitment(), peaks


def bench_policies(rounds: int) -> list[Row]:
    """Time every policy on every size."""
    rows = []
    pod = make_pod(cpu_request="500m")
    for size in SIZES:
        snapshot = LoadSnapshot.from_metrics(make_reply(size))
        for label, pods in (("", AssignedPods()), (f", {PODS:,} pods in flight", fill(snapshot.nodes))):
            calls = {policy.name: _scoring(Scorer(policy), pod, snapshot, pods) for policy in make_policies(snapshot.nodes)}
            timing = Timing(calls, rounds=rounds)
            for name in calls:
                row = f"{name}, {size:,} nodes{label}"
                has_goal = name == TargetLoadPacking.name and size == CLUSTER
                value = timing.milliseconds(name)
                rows.append(Row.at_most(row, value, "ms", SCORE_GOAL_MILLISECONDS) if has_goal else Row(row, value, "ms"))
    return rows


def _scoring(scorer: Scorer, pod: Pod, snapshot: LoadSnapshot, pods: AssignedPods) -> Callable[[], object]:
    return lambda: scorer.score_nodes(pod, snapshot, now=NOW, pods=pods)


def bench_uses(rounds: int) -> list[Row]:
    """Time what schedulers do: name the candidates anew for each pod, and tell of each decision before the next."""
    snapshot, pod, scorer = LoadSnapshot.from_metrics(make_reply(CLUSTER)), make_pod(cpu_request="500m"), Scorer(TargetLoadPacking())
    pods, burst = fill(snapshot.nodes), fill(snapshot.nodes)

    def decide() -> None:
        fresh = make_pod(cpu_request="500m")
        scores = scorer.score_nodes(fresh, snapshot, now=NOW, pods=burst)
        burst.assume(fresh, scores.names[int(scores.values.argmax())], now=NOW)
        burst.forget(fresh)

    calls: dict[str, Callable[[], object]] = {
        "named": lambda: scorer.score_nodes(pod, snapshot, now=NOW, pods=pods, nodes=list(snapshot.nodes)),
        "burst": decide,
        "explain": lambda: scorer.explain(pod, snapshot, now=NOW, pods=pods, only=snapshot.nodes[:1]),
    }
    timing = Timing(calls, rounds=rounds)
    title = f"TargetLoadPacking, {CLUSTER:,} nodes, {PODS:,} pods in flight"
    return [
        Row(f"{title}, candidates as a new list of names", timing.milliseconds("named"), "ms"),
        Row(f"{title}: read a pod, score, assume, forget", timing.milliseconds("burst"), "ms"),
        Row(f"{title}: explain one node", timing.milliseconds("explain"), "ms"),
    ]


def bench_reference(rounds: int) -> list[Row]:
    """Time TargetLoadPacking against plain Python, and against itself on ten times the nodes."""
    rows = []
    pod = make_pod(cpu_request="500m")
    policy = TargetLoadPacking()
    snapshot, larger = LoadSnapshot.from_metrics(make_reply(CLUSTER)), LoadSnapshot.from_metrics(make_reply(10 * CLUSTER))
    for label, pods, pods_of_larger in (
        ("", AssignedPods(), AssignedPods()),
        (f", {PODS:,} pods in flight", fill(snapshot.nodes), fill(larger.nodes)),
    ):
        plain = PlainCluster.of(snapshot, pods, policy, now=NOW)
        ours, ours_of_larger = Scorer(policy), Scorer(policy)
        if ours.score_nodes(pod, snapshot, now=NOW, pods=pods).by_node() != score_plainly(pod, plain, policy):
            raise AssertionError("the reference scores otherwise; the times would compare different things")
        calls: dict[str, Callable[[], object]] = {
            "plain": _plain_scoring(pod, plain, policy),
            "ours": _scoring(ours, pod, snapshot, pods),
            "larger": _scoring(ours_of_larger, pod, larger, pods_of_larger),
        }
        timing = Timing(calls, rounds=rounds)
        rows += [
            Row(f"plain Python, {CLUSTER:,} nodes{label}", timing.milliseconds("plain"), "ms"),
            Row.at_least(f"plain Python to ours, {CLUSTER:,} nodes{label}", timing.ratio("plain", "ours"), "times", RATIO_GOAL),
            Row.at_most(f"{10 * CLUSTER:,} nodes to {CLUSTER:,}{label}", timing.ratio("larger", "ours"), "times", GROWTH_GOAL),
        ]
    return rows


def _plain_scoring(pod: Pod, plain: PlainCluster, policy: TargetLoadPacking) -> Callable[[], object]:
    return lambda: score_plainly(pod, plain, policy)


def bench_decode(rounds: int) -> list[Row]:
    """Time how the two replies become a snapshot: the one that the library asks for, and that of ``GET /watcher``."""
    reply = make_reply(CLUSTER)
    columns, nodes = encode_json(make_columns(reply)), encode_json(reply)
    calls: dict[str, Callable[[], object]] = {
        "columns": lambda: LoadSnapshot.decode_columns(columns),
        "nodes": lambda: LoadSnapshot.decode(nodes),
    }
    timing = Timing(calls, rounds=rounds)
    name = f"decode GET /api/v1/snapshot, {CLUSTER:,} nodes, {len(columns) / 1e6:.1f} MB"
    return [
        Row.at_most(name, timing.milliseconds("columns"), "ms", DECODE_GOAL_MILLISECONDS),
        Row(f"decode GET /watcher, {CLUSTER:,} nodes, {len(nodes) / 1e6:.1f} MB", timing.milliseconds("nodes"), "ms"),
    ]


def make_columns(reply: WatcherMetrics) -> SnapshotColumns:
    """Make the same metrics in columns, with memory as nodes have it: a little different on each."""
    nodes = {} if reply.data is None else reply.data.node_metrics_map or {}
    listed = [[each for each in (node and node.metrics) or () if each is not None] for node in nodes.values()]
    columns = [
        MetricColumn(each.type or "", each.operator or "", each.rollup or "", "", [metrics[index].value for metrics in listed])
        for index, each in enumerate(listed[0])
    ]
    memory = [f"{32 * 2**20 - (number * 37) % 4096}Ki" for number in range(len(nodes))]
    quantities = QuantityColumns(["8"] * len(nodes), [*memory])
    return SnapshotColumns(
        id="id",
        made_at=NOW,
        window_end_at=NOW,
        source="Prometheus",
        nodes=list(nodes),
        sampled_at=[int(NOW) - number % 30 for number in range(len(nodes))],
        sample_seconds=[None] * len(nodes),
        statuses=["ok"] * len(nodes),
        capacity=quantities,
        allocatable=quantities,
        columns=columns,
        not_held=[],
    )


def bench_import() -> list[Row]:
    """Time ``import trimaran_client`` in fresh interpreters, and weigh it; Linux only."""
    if not Path("/proc/self/status").exists():
        return []
    command = [sys.executable, "-c", _IMPORT]
    subprocess.run(command, check=True, capture_output=True)  # compiles what is not compiled yet
    told = [subprocess.run(command, check=True, capture_output=True, text=True).stdout.split() for _ in range(_IMPORTS)]
    times, with_names, sizes = ([float(each[column]) for each in told] for column in range(3))
    return [
        Row("import trimaran_client, fresh interpreter", min(times), "ms"),
        Row.at_most("the same with the names that score, which load numpy", min(with_names), "ms", IMPORT_GOAL_MILLISECONDS),
        Row.at_most("peak memory of that interpreter", statistics.median(sizes), "MB", IMPORT_GOAL_MEGABYTES),
    ]


def print_rows(rows: Sequence[Row]) -> None:
    """Print a table."""
    verdicts = {None: "", True: "met", False: "missed"}
    for row in rows:
        sys.stdout.write(f"| {row.name:<84} | {row.value:>9.3f} {row.unit:<5} | {row.goal:>7} | {verdicts[row.met]:<6} |\n")
    sys.stdout.flush()


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, help="where to write the rows as JSON")
    arguments = parser.parse_args()
    rows: list[Row] = []
    for bench in (bench_policies, bench_uses, bench_reference, bench_decode):
        found = bench(arguments.rounds)
        print_rows(found)
        rows += found
    found = bench_import()
    print_rows(found)
    if arguments.output is not None:
        arguments.output.write_bytes(msgspec.json.format(msgspec.json.encode([*rows, *found]), indent=2))


if __name__ == "__main__":
    main()
