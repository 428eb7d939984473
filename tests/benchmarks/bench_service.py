"""
The service against the Go load-watcher, in one run: ``python -m tests.benchmarks.bench_service [--long] [--nodes 5000] [--output FILE]``.

Both read one real Prometheus that scrapes a page of ours. Figures are ratios within the run, medians of interleaved repeats; absolute
numbers stand beside them as context. Requests are sent by wrk over 8 connections that stay open. What is told as a share is a share of a
bare loop, of the same kind, that sends the same bytes and does nothing else. The short form takes about 5 minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from tests.benchmarks.load import LoadError, fetch_raw, measure_latencies, measure_rate, parse_header, wait_first_answer
from tests.benchmarks.programs import (
    STANDARD,
    UVLOOP,
    MissingError,
    Program,
    build_go_peer,
    make_settings,
    read_refreshes,
    running_bare,
    running_go_peer,
    running_service,
    running_watched,
    wait_quiet,
)
from tests.benchmarks.report import Row, at_least, at_most, describe_machine, for_context, format_table, say, write_json
from tests.benchmarks.sources import CountingProxy, counting, fill_history, name_nodes, write_page, write_recording
from tests.e2e.binaries import BinariesError
from tests.e2e.processes import choose_free_ports, running_process
from tests.e2e.prometheus import Prometheus, running_prometheus, serving_page
from tests.fakes.api_server import FakeApiServer, make_node

# Prometheus of clusters scrapes every 15 to 60 s; with this the first averages are there soon.
SCRAPE_SECONDS: Final = 5
# Two statistics of 17 metrics over three windows, one request each.
GO_CYCLE_REQUESTS: Final = 102
OUR_REQUESTS: Final = 3
# The Go load-watcher goes on collecting garbage after its last request, and the cores are few.
SETTLE_SECONDS: Final = 0.5
GROWTH: Final = 10
GROWTH_LIMIT: Final = 11.0
LATENCIES_PER_SECOND: Final = 100.0
CALM_REFRESHES: Final = 5  # the first ones find expressions and fill arrays
NEEDED: Final = {
    "go": "install it (https://go.dev/doc/install) to build the peer",
    "prometheus": "apt-get install --no-install-recommends prometheus",
    "wrk": "apt-get install --no-install-recommends wrk",
}
WINDOWS: Final = ("15m", "10m", "5m")
TAG: Final = "If-None-Match"
GZIP: Final = {"Accept-Encoding": "gzip"}


@dataclass(frozen=True)
class Length:
    """How long the parts of a run are."""

    seconds: int
    repeats: int
    refreshes: int
    calm_refreshes: int
    starts: int
    history_hours: float


SHORT: Final = Length(seconds=1, repeats=3, refreshes=100, calm_refreshes=20, starts=3, history_hours=1.0)
LONG: Final = Length(seconds=4, repeats=7, refreshes=1000, calm_refreshes=20, starts=7, history_hours=24.0)


@dataclass(frozen=True)
class Bench:
    """What all parts share."""

    folder: Path
    nodes: tuple[str, ...]
    length: Length
    readings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Question:
    """A request whose rate is measured; the goal is how many times as often it is answered as the peer answers *than*."""

    name: str
    path: str
    headers: Mapping[str, str]
    times: float
    than: str


def list_questions(bench: Bench, tag: str) -> tuple[Question, ...]:
    """List them; *tag* names the reply for all."""
    host = f"/watcher?host={bench.nodes[len(bench.nodes) // 2]}"
    return (
        Question("identity", "/watcher", {}, 8, "identity"),
        Question("gzip", "/watcher", GZIP, 70, "identity"),
        Question("If-None-Match", "/watcher", {TAG: tag}, 140, "identity"),
        Question("host", host, {}, 28, "host"),
    )


async def measure_requests(bench: Bench, services: Mapping[str, Program], peer: Program) -> list[Row]:
    """Measure how often each question is answered, by all in turn."""
    first = next(iter(services.values()))
    # Both refresh meanwhile, on their own schedules: a tag that is old by then is answered in full, so the answers are held.
    tag = parse_header(await asyncio.to_thread(fetch_raw, first.port, "/watcher", {}), "ETag")
    questions = list_questions(bench, tag)
    replies = {each.name: await asyncio.to_thread(fetch_raw, first.port, each.path, each.headers) for each in questions}
    peer_bytes = len(await asyncio.to_thread(fetch_raw, peer.port, "/watcher", {}))
    readings: dict[str, dict[str, Readings]] = {each.name: {} for each in questions}
    async with AsyncExitStack() as stack:
        bare = {loop: await stack.enter_async_context(running_bare(bench.folder, replies, loop=loop)) for loop in services}
        for repeat in range(bench.length.repeats):
            say(f"requests, {len(bench.nodes)} nodes, repeat {repeat + 1} of {bench.length.repeats}")
            for question in questions:
                programs = dict(services) | {f"bare {loop}": programs[question.name] for loop, programs in bare.items()}
                if question.than == question.name:
                    programs["peer"] = peer
                # The other way round in every second repeat, so that nobody always comes after the one that leaves most behind.
                for name, program in list(programs.items())[:: 1 if repeat % 2 else -1]:
                    await asyncio.sleep(SETTLE_SECONDS)
                    headers = dict(question.headers)
                    if TAG in headers and name in services:  # each has its own, and a new one after a refresh
                        headers[TAG] = parse_header(await asyncio.to_thread(fetch_raw, program.port, "/watcher", {}), "ETag")
                    readings[question.name].setdefault(name, Readings()).add(
                        *await measure_cost(program, question.path, headers, seconds=bench.length.seconds)
                    )
    bench.readings[f"requests, {len(bench.nodes)} nodes"] = {
        question: {name: asdict(each) for name, each in found.items()} for question, found in readings.items()
    }
    bench.readings[f"bytes, {len(bench.nodes)} nodes"] = {name: len(reply) for name, reply in replies.items()} | {"peer": peer_bytes}
    rows = []
    for question in questions:
        size = len(replies[question.name])
        base = readings[question.than]["peer"].rates
        for loop in services:
            ours, of_bare = readings[question.name][loop], readings[question.name][f"bare {loop}"]
            label = f"GET {question.name}, {loop}"
            times = _ratio(ours.rates, base)
            context = f"{median(ours.rates):.0f}/s of {_bytes(size)}; peer {median(base):.0f}/s" + (
                f" of {_bytes(peer_bytes)}: {times * size / peer_bytes:.1f} times its bytes" if question.name == "identity" else ""
            )
            rows.append(at_least(f"{label}, against the peer", times, question.times, unit=" times", context=context))
            context = (
                f"bare {median(of_bare.rates):.0f}/s; CPU of a request {_micros(ours)}, bare {_micros(of_bare)}: "
                f"{100 * _ratio(of_bare.cpu_seconds, ours.cpu_seconds):.0f} %"
            )
            share = 100 * _ratio(ours.rates, of_bare.rates)
            rows.append(at_least(f"{label}, share of a bare loop", share, 80, unit=" %", context=context))
    return rows


@dataclass(frozen=True)
class Readings:
    """Of each repeat the requests a second, and the CPU seconds of one."""

    rates: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)

    def add(self, rate: float, cpu_seconds: float) -> None:
        """Take those of one repeat."""
        self.rates.append(rate)
        self.cpu_seconds.append(cpu_seconds)


async def measure_cost(program: Program, path: str, headers: Mapping[str, str], *, seconds: int) -> tuple[float, float]:
    """Answer how many requests a second a program answers, and the CPU seconds that one costs it."""
    before = program.cpu_seconds()
    rate = await measure_rate(f"http://127.0.0.1:{program.port}{path}", headers, seconds=seconds)
    return rate, (program.cpu_seconds() - before) / (rate * seconds)


def _micros(readings: Readings) -> str:
    return f"{1e6 * median(readings.cpu_seconds):.0f} µs"


def _ratio(values: list[float], base: list[float]) -> float:
    return median(value / other for value, other in zip(values, base, strict=True))


def _bytes(count: float) -> str:
    return f"{count / 1e6:.2f} MB" if count >= 1e5 else f"{count:.0f} B"


async def measure_peer_refresh(bench: Bench, peer: Program, proxy: CountingProxy) -> tuple[float, float]:
    """Answer the requests and the CPU seconds of a refresh cycle of the peer, which nobody else asks meanwhile."""
    before = await wait_quiet(proxy, more_than=0, quiet_seconds=6, timeout_seconds=60)
    cpu = peer.cpu_seconds()
    after = await wait_quiet(proxy, more_than=before, quiet_seconds=6, timeout_seconds=120)
    cpu_seconds, requests = peer.cpu_seconds() - cpu, after - before
    bench.readings["peer refresh"] = {"requests": requests, "cpu_seconds": cpu_seconds}
    return requests, cpu_seconds * GO_CYCLE_REQUESTS / requests


async def measure_refreshes(bench: Bench, prometheus: Prometheus, peer: Program, peer_proxy: CountingProxy) -> list[Row]:
    """Measure what refreshes cost, ours by the hundred, with and without the Kubernetes client, while the peer makes its own."""
    count, calm = bench.length.refreshes, bench.length.calm_refreshes
    timeout_seconds = 30 + 5.0 * count
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(FakeApiServer())
        cluster.put_nodes(*(make_node(node) for node in bench.nodes))
        kubeconfig = cluster.write_kubeconfig(bench.folder / "kubeconfig")
        proxy, address = await stack.enter_async_context(counting(prometheus.url, remembers=True))
        say(f"{count} refreshes, twice at once, and a cycle of the peer")
        plain, plain_report = await stack.enter_async_context(running_watched(bench.folder, refreshes=count, address=address))
        kube, kube_report = await stack.enter_async_context(
            running_watched(bench.folder, refreshes=count, address=address, kubeconfig=kubeconfig)
        )
        peer_cycle = asyncio.create_task(measure_peer_refresh(bench, peer, peer_proxy))
        without = await read_refreshes(plain, plain_report, count, timeout_seconds=timeout_seconds)
        with_client = await read_refreshes(kube, kube_report, count, timeout_seconds=timeout_seconds)
        peer_requests, peer_cpu_seconds = await peer_cycle
    bench.readings["refreshes"] = {"without client": without, "with client": with_client}
    per_refresh = proxy.requests / (2 * count)  # beside what the first one asks to find the expressions
    cpu_seconds = median(line["cpu_seconds"] for line in without[calm:])
    rows = [
        at_most("provider requests for a refresh", round(per_refresh), OUR_REQUESTS, unit="", context=f"peer {peer_requests:.0f}"),
        at_most(
            "CPU of a refresh, against the peer",
            cpu_seconds / peer_cpu_seconds,
            1,
            unit=" times",
            context=f"{1000 * cpu_seconds:.0f} ms; peer {1000 * peer_cpu_seconds:.0f} ms for its cycle",
        ),
    ]
    for name, lines, goal in (("with the Kubernetes client", with_client, 110), ("without", without, 85)):
        at = min(100, count) - 1
        grown = lines[-1]["rss_bytes"] / lines[calm - 1]["rss_bytes"]
        context = f"from refresh {calm} to {count} times {grown:.2f}"
        rows.append(at_most(f"resident memory {name}, refresh {at + 1}", lines[at]["rss_bytes"] / 1e6, goal, unit=" MB", context=context))
    return rows


async def measure_meanwhile(bench: Bench, prometheus: Prometheus) -> list[Row]:
    """Measure how long requests and the event loop wait while refreshes follow one another, as in the worst second of a service."""
    seconds = 10 * bench.length.seconds
    async with (
        counting(prometheus.url, remembers=True) as (_, address),
        running_watched(bench.folder, refreshes=100_000, is_watching=True, address=address) as (program, report),
    ):
        await read_refreshes(program, report, CALM_REFRESHES, timeout_seconds=60)
        say(f"requests during refreshes, {seconds:g} s")
        taken = await asyncio.to_thread(measure_latencies, program.port, "/watcher", GZIP, per_second=LATENCIES_PER_SECOND, seconds=seconds)
        lines = await read_refreshes(program, report, len(report.read_text().splitlines()), timeout_seconds=5)
    stalls = [line["stall_seconds"] for line in lines[CALM_REFRESHES:]]
    bench.readings["meanwhile"] = {"stall_seconds": stalls, "latency_seconds": taken}
    p99 = sorted(taken)[int(0.99 * len(taken))]
    return [
        at_most(
            "longest loop stall in a refresh, median of refreshes",
            1000 * median(stalls),
            50,
            unit=" ms",
            context=f"longest of {len(stalls)} refreshes {1000 * max(stalls):.0f} ms",
        ),
        at_most("p99 of GET gzip meanwhile", 1000 * p99, 20, unit=" ms", context=f"median {1000 * median(taken):.1f} ms"),
    ]


async def measure_starts(bench: Bench, prometheus: Prometheus) -> list[Row]:
    """Measure how long it takes from the start of the process to its first answer, with history on disk."""
    path = bench.folder / "history.db"
    say(f"history of {bench.length.history_hours:g} h")
    await fill_history(path, bench.nodes, source="Prometheus", hours=bench.length.history_hours)
    taken = []
    for number in range(bench.length.starts):
        (port,) = choose_free_ports(1)
        settings = make_settings(bench.folder, port, provider="Prometheus", address=prometheus.url)
        started_at = time.monotonic()
        async with running_process(
            f"start-{number}",
            [sys.executable, "-m", "load_watcher"],
            folder=bench.folder,
            settings=settings | {"LOAD_WATCHER_HISTORY": str(path)},
        ):
            taken.append(await asyncio.to_thread(wait_first_answer, port, "/watcher", started_at=started_at, timeout_seconds=60))
    bench.readings["start seconds"] = taken
    return [at_most("from start to first answer, history on disk", median(taken), 2, unit=" s", context=f"longest {max(taken):.2f} s")]


async def measure_growth(bench: Bench) -> list[Row]:
    """Measure all that with ten times the nodes; a recording stands in for Prometheus, which would be the bottleneck."""
    figures: list[dict[str, float]] = []
    for count in (len(bench.nodes), GROWTH * len(bench.nodes)):
        say(f"{count} nodes from a recording")
        nodes = name_nodes(count)
        recording = bench.folder / f"{count}.jsonl"
        write_recording(recording, nodes, windows=WINDOWS)
        refreshes = bench.length.calm_refreshes
        started_at = time.monotonic()
        async with running_watched(bench.folder, refreshes=refreshes, provider="Recorded", address=str(recording)) as (program, report):
            start_seconds = time.monotonic() - started_at
            lines = await read_refreshes(program, report, refreshes, timeout_seconds=600)
            tag = parse_header(await asyncio.to_thread(fetch_raw, program.port, "/watcher", {}), "ETag")
            figure = {
                "CPU of a refresh": median(line["cpu_seconds"] for line in lines[CALM_REFRESHES:]),
                "memory": lines[-1]["rss_bytes"],
                "start to first answer": start_seconds,
            }
            for question in list_questions(Bench(bench.folder, nodes, bench.length), tag):
                url = f"http://127.0.0.1:{program.port}{question.path}"
                seconds = max(2, bench.length.seconds)
                figure[f"GET {question.name}"] = 1 / await measure_rate(url, question.headers, seconds=seconds)
            figures.append(figure)
    bench.readings["growth"] = figures
    small, large = figures
    what = f"growth {len(bench.nodes)} → {GROWTH * len(bench.nodes)} nodes (recording)"
    return [
        at_most(
            f"{what}: {name}",
            large[name] / small[name],
            GROWTH_LIMIT,
            unit=" times",
            context=_bytes(small[name]) + " at first" if name == "memory" else f"{1000 * small[name]:.3g} ms at first",
        )
        for name in small
    ]


async def run(bench: Bench, sizes: tuple[int, ...]) -> list[Row]:
    """Measure everything."""
    rows: list[Row] = []
    for count in sizes:
        rows += await measure_size(Bench(bench.folder, name_nodes(count), bench.length, bench.readings), is_last=count == sizes[-1])
    return rows + await measure_growth(bench)


async def measure_size(bench: Bench, *, is_last: bool) -> list[Row]:
    """Measure with one number of nodes: requests, and for the last size everything else."""
    async with AsyncExitStack() as stack:
        folder = bench.folder / f"prometheus-{len(bench.nodes)}"
        page = await stack.enter_async_context(serving_page(lambda: write_page(bench.nodes)))
        prometheus = await stack.enter_async_context(running_prometheus(folder, {page: ""}, scrape_seconds=SCRAPE_SECONDS))
        await prometheus.wait_for("count_over_time(instance:node_memory_utilisation:ratio[1m]) >= 2")
        peer_proxy, peer_source = await stack.enter_async_context(counting(prometheus.url))
        peer = await stack.enter_async_context(running_go_peer(bench.folder, address=peer_source))
        async with AsyncExitStack() as services_stack:
            services = {
                loop: await services_stack.enter_async_context(running_service(bench.folder, loop=loop, address=prometheus.url))
                for loop in (UVLOOP, STANDARD)
            }
            rows = await measure_requests(bench, services, peer)
            memory = {"peer": peer.rss_bytes()} | {loop: service.rss_bytes() for loop, service in services.items()}
        bench.readings[f"resident bytes after the requests, {len(bench.nodes)} nodes"] = memory
        if not is_last:
            return [Row(f"{row.what}, {len(bench.nodes)} nodes", "", row.result, row.value) for row in rows]
        rows.append(for_context("resident memory of the peer", memory["peer"] / 1e6, unit=" MB", context="after the requests"))
        rows += await measure_refreshes(bench, prometheus, peer, peer_proxy)
        rows += await measure_meanwhile(bench, prometheus)
        rows += await measure_starts(bench, prometheus)
    return rows


def main() -> int:
    """Run it; 1 if something is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true", help="also 100 and 1,000 nodes, 1,000 refreshes, more repeats: about an hour")
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--output", type=Path, help="write rows, machine and single readings as JSON")
    arguments = parser.parse_args()
    for program, remedy in NEEDED.items():
        if shutil.which(program) is None:
            say(f"{program} is missing; {remedy}")
            return 1
    machine = describe_machine()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), name_nodes(arguments.nodes), LONG if arguments.long else SHORT)
        started = time.monotonic()
        try:
            build_go_peer()
            rows = asyncio.run(run(bench, (100, 1000, arguments.nodes) if arguments.long else (arguments.nodes,)))
        except (BinariesError, LoadError, MissingError) as error:
            say(str(error))
            return 1
    machine["minutes"] = f"{(time.monotonic() - started) / 60:.1f}"
    sys.stdout.write(format_table(rows) + "\n\n" + "\n".join(f"{name}: {value}" for name, value in machine.items()) + "\n")
    if arguments.output is not None:
        write_json(arguments.output, rows, machine, bench.readings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
