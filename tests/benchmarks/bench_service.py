"""
The service against the Go load-watcher, in one run: ``python -m tests.benchmarks.bench_service [--long] [--parts …] [--output FILE]``.

Both read one real Prometheus that scrapes a page of ours. Figures are ratios within the run, of two readings that were taken one right
after the other, since the speed of a shared machine changes within seconds (``pairs.py``); absolute numbers stand beside them as context.
Requests are sent by wrk over 8 connections that stay open. What is told as a share is a share of a bare loop, of the same kind, that sends
the same bytes and does nothing else. The short form takes about 10 minutes; ``tests.benchmarks.compare`` compares two runs.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from tests.benchmarks.load import LoadError, fetch_raw, measure_latencies, measure_load, parse_header
from tests.benchmarks.pairs import pair, spread_of
from tests.benchmarks.programs import (
    STANDARD,
    UVLOOP,
    MissingError,
    Program,
    build_go_peer,
    measure_start,
    measure_turn,
    read_refreshes,
    running_bare,
    running_go_peer,
    running_service,
    running_watched,
    settle,
    wait_due,
    wait_quiet,
)
from tests.benchmarks.report import Row, at_least, at_most, describe_machine, for_context, format_table, say, write_json
from tests.benchmarks.sources import CountingProxy, counting, fill_history, name_nodes, write_page, write_recording
from tests.e2e.binaries import BinariesError
from tests.e2e.prometheus import Prometheus, running_prometheus, serving_page
from tests.fakes.api_server import FakeApiServer, make_node

# Prometheus of clusters scrapes every 15 to 60 s; with this the first averages are there soon.
SCRAPE_SECONDS: Final = 5
# Two statistics of 17 metrics over three windows, one request each.
GO_CYCLE_REQUESTS: Final = 102
OUR_REQUESTS: Final = 3
# How long requests are sent for one reading. Many short ones say more than few long ones, since what disturbs them lasts for seconds; but
# with large answers the buffers of a connection go on growing, so that the rate of another length is another figure.
SECONDS: Final = 0.25
LARGE_SECONDS: Final = 1.0
GROWTH_SECONDS: Final = 2.0
LARGE: Final = ("identity", "gzip")
# Longer than it takes to the next question of the same refresh.
QUIET_SECONDS: Final = 0.5
CYCLE_TIMEOUT_SECONDS: Final = 90.0  # the peer refreshes once a minute
SLICES: Final = 7
GROWTH: Final = 10
GROWTH_LIMIT: Final = 11.0
LATENCIES_PER_SECOND: Final = 100.0
CALM_REFRESHES: Final = 5  # the first ones find expressions and fill arrays
NEEDED: Final = {
    "go": "install it (https://go.dev/doc/install) to build the peer",
    "prometheus": "apt-get install --no-install-recommends prometheus",
    "wrk": "apt-get install --no-install-recommends wrk",
}
CPU: Final = "CPU of a refresh"
MEMORY: Final = "memory"
START: Final = "start to first answer"
WINDOWS: Final = ("15m", "10m", "5m")
PEER: Final = "peer"
# Refreshes have rows of their own; one that falls into a reading of requests makes it another reading.
HOURLY: Final = {"LOAD_WATCHER_REFRESH_SECONDS": "3600", "LOAD_WATCHER_STALE_SECONDS": "7200", "LOAD_WATCHER_EXPIRED_SECONDS": "9000"}
REQUESTS: Final = "requests"
REFRESHES: Final = "refreshes"
GROWTH_PART: Final = "growth"
PARTS: Final = (REQUESTS, REFRESHES, GROWTH_PART)
TAG: Final = "If-None-Match"
GZIP: Final = {"Accept-Encoding": "gzip"}


@dataclass(frozen=True)
class Length:
    """How much is measured: of each figure so many readings."""

    rounds: int
    cycles: int
    refreshes: int
    calm_refreshes: int
    slice_seconds: float
    starts: int
    turns: int
    history_hours: float


# As many rounds in one direction as in the other.
SHORT: Final = Length(rounds=16, cycles=4, refreshes=100, calm_refreshes=20, slice_seconds=3.0, starts=5, turns=8, history_hours=1.0)
LONG: Final = Length(rounds=16, cycles=4, refreshes=1000, calm_refreshes=20, slice_seconds=10.0, starts=7, turns=8, history_hours=24.0)


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


@dataclass(frozen=True)
class Readings:
    """Of each round the requests a second, and the CPU seconds of one."""

    rates: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)

    async def take(self, program: Program, path: str, headers: Mapping[str, str], *, seconds: float) -> None:
        """Send requests to a program, and note what they cost."""
        before = program.cpu_seconds()
        load = await measure_load(f"http://127.0.0.1:{program.port}{path}", headers, seconds=seconds)
        self.rates.append(load.rate)
        self.cpu_seconds.append((program.cpu_seconds() - before) / load.requests)


@dataclass(frozen=True)
class Peer:
    """The Go load-watcher, and what stands between it and its source."""

    program: Program
    proxy: CountingProxy


@dataclass(frozen=True)
class Cycles:
    """CPU seconds of refreshes that were made in turn: one of ours, and a whole cycle of the peer."""

    ours: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)

    async def take(self, peer: Peer, watched: Program, report: Path, prometheus: Prometheus) -> None:
        """Let the peer, whose requests wait, have its answers, then let ours refresh; Prometheus, which was stopped, runs meanwhile."""
        prometheus.process.send_signal(signal.SIGCONT)
        cpu_seconds, requests = peer.program.cpu_seconds(), peer.proxy.requests
        with peer.proxy.passing():
            await wait_quiet(peer.proxy, quiet_seconds=QUIET_SECONDS, timeout_seconds=CYCLE_TIMEOUT_SECONDS)
            await settle(peer.program)
        # Its three windows come one soon after another; a turn may have one of them, or all.
        share = (peer.proxy.requests - requests) / GO_CYCLE_REQUESTS
        self.peer.append((peer.program.cpu_seconds() - cpu_seconds) / share)
        self.ours.append(await measure_turn(watched, report))
        prometheus.process.send_signal(signal.SIGSTOP)


async def measure_requests(
    bench: Bench, prometheus: Prometheus, services: Mapping[str, Program], peer: Peer, watched: tuple[Program, Path]
) -> list[Row]:
    """
    Measure how often each question is answered, by all in turn, and between two questions what a refresh costs.

    Nobody refreshes while requests are counted: our service does so once an hour, the peer has to wait for its source. When it waits, it
    may refresh after the reading; then *watched*, another service of ours, makes a turn of refreshes.
    """
    first = next(iter(services.values()))
    tag = parse_header(await asyncio.to_thread(fetch_raw, first.port, "/watcher", {}), "ETag")
    questions = list_questions(bench, tag)
    replies = {each.name: await asyncio.to_thread(fetch_raw, first.port, each.path, each.headers) for each in questions}
    peer_bytes = len(await asyncio.to_thread(fetch_raw, peer.program.port, "/watcher", {}))
    readings: dict[str, dict[str, Readings]] = {each.name: {} for each in questions}
    cycles = Cycles()
    async with AsyncExitStack() as stack:
        bare = {loop: await stack.enter_async_context(running_bare(bench.folder, replies, loop=loop)) for loop in services}
        stack.enter_context(peer.proxy.holding())
        stack.enter_context(prometheus.process.hanging())  # its scraping, and the page for it, would take turns of their own
        is_cold = True
        for number in range(bench.length.rounds):
            say(f"requests, {len(bench.nodes)} nodes, round {number + 1} of {bench.length.rounds}")
            for question in questions:
                contenders = _line_up(services, {loop: of_loop[question.name] for loop, of_loop in bare.items()}, peer.program)
                # The other way round in every second round, so that nobody always comes after the one that leaves most behind.
                for name, program in list(contenders.items())[:: 1 if number % 2 else -1]:
                    if peer.proxy.waiting:
                        await cycles.take(peer, *watched, prometheus)
                        is_cold = True
                    asked = next(each for each in questions if each.name == question.than) if name == PEER else question
                    headers = dict(asked.headers)
                    if TAG in headers and name in services:  # each has its own
                        headers[TAG] = parse_header(await asyncio.to_thread(fetch_raw, program.port, "/watcher", {}), "ETag")
                    if is_cold:  # after a pause the first reading is slower, by a tenth and more
                        await measure_load(f"http://127.0.0.1:{program.port}{asked.path}", headers, seconds=SECONDS)
                    seconds = LARGE_SECONDS if name == PEER or question.name in LARGE else SECONDS
                    await readings[question.name].setdefault(name, Readings()).take(program, asked.path, headers, seconds=seconds)
                    is_cold = name == PEER
                    if is_cold:
                        await settle(program)
        say("refreshes, until there are enough of the peer")
        while len(cycles.peer) < bench.length.cycles:
            await wait_due(peer.proxy, timeout_seconds=CYCLE_TIMEOUT_SECONDS)
            await cycles.take(peer, *watched, prometheus)
    bench.readings[f"requests, {len(bench.nodes)} nodes"] = {
        question: {name: asdict(each) for name, each in found.items()} for question, found in readings.items()
    }
    bench.readings[f"bytes, {len(bench.nodes)} nodes"] = {name: len(reply) for name, reply in replies.items()} | {"peer": peer_bytes}
    bench.readings[f"CPU seconds of a refresh, {len(bench.nodes)} nodes"] = asdict(cycles)
    rows = [
        row
        for question in questions
        for loop in services
        for row in _compare(question, loop, readings[question.name], len(replies[question.name]), peer_bytes)
    ]
    return [*rows, _compare_cycles(cycles)]


def _line_up(services: Mapping[str, Program], bare: Mapping[str, Program], peer: Program) -> dict[str, Program]:
    """Line up all contenders of a question, so that the two of every pair come one right after the other: the peer in the middle."""
    one, other = services
    return {_bare(one): bare[one], one: services[one], PEER: peer, other: services[other], _bare(other): bare[other]}


def _bare(loop: str) -> str:
    return f"bare {loop}"


def _compare(question: Question, loop: str, readings: Mapping[str, Readings], size: int, peer_bytes: int) -> list[Row]:
    """Make the two rows of a question and a loop."""
    label = f"GET {question.name}, {loop}"
    ours, of_bare, of_peer = readings[loop], readings[_bare(loop)], readings[PEER]
    times = pair(ours.rates, of_peer.rates)
    in_bytes = f" of {_bytes(peer_bytes)}: {times.value * size / peer_bytes:.1f} times its bytes" if question.name == "identity" else ""
    context = f"{median(ours.rates):.0f}/s of {_bytes(size)}; peer {median(of_peer.rates):.0f}/s{in_bytes}"
    share = pair(ours.rates, of_bare.rates).scaled(100)
    in_cpu = pair(of_bare.cpu_seconds, ours.cpu_seconds).scaled(100)
    bare_context = (
        f"{median(ours.rates):.0f}/s, bare {median(of_bare.rates):.0f}/s; CPU of a request {_micros(ours)}, bare {_micros(of_bare)}: "
        f"{in_cpu.value:.0f} %, quartiles {in_cpu}"
    )
    return [
        at_least(f"{label}, against the peer", times, question.times, unit=" times", context=context, is_ratio=True),
        at_least(f"{label}, share of a bare loop", share, 80, unit=" %", context=bare_context, is_ratio=True),
    ]


def _compare_cycles(cycles: Cycles) -> Row:
    ours, peer = 1000 * median(cycles.ours), 1000 * median(cycles.peer)
    context = f"{ours:.0f} ms; peer {peer:.0f} ms for its cycle; {len(cycles.ours)} pairs"
    return at_most("CPU of a refresh, against the peer", pair(cycles.ours, cycles.peer), 1, unit=" times", context=context, is_ratio=True)


def _micros(readings: Readings) -> str:
    return f"{1e6 * median(readings.cpu_seconds):.0f} µs"


def _bytes(count: float) -> str:
    return f"{count / 1e6:.2f} MB" if count >= 1e5 else f"{count:.0f} B"


async def measure_refreshes(bench: Bench, prometheus: Prometheus) -> list[Row]:
    """Measure what refreshes by the hundred ask and keep, with and without the Kubernetes client."""
    count, calm = bench.length.refreshes, bench.length.calm_refreshes
    timeout_seconds = 30 + 5.0 * count
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(FakeApiServer())
        cluster.put_nodes(*(make_node(node) for node in bench.nodes))
        kubeconfig = cluster.write_kubeconfig(bench.folder / "kubeconfig")
        proxy, address = await stack.enter_async_context(counting(prometheus.url, remembers=True))
        say(f"{count} refreshes, twice at once")
        plain, plain_report = await stack.enter_async_context(running_watched(bench.folder, refreshes=count, address=address))
        kube, kube_report = await stack.enter_async_context(
            running_watched(bench.folder, refreshes=count, address=address, kubeconfig=kubeconfig)
        )
        without = await read_refreshes(plain, plain_report, count, timeout_seconds=timeout_seconds)
        with_client = await read_refreshes(kube, kube_report, count, timeout_seconds=timeout_seconds)
    bench.readings["refreshes"] = {"without client": without, "with client": with_client}
    per_refresh = proxy.requests / (2 * count)  # beside what the first one asks to find the expressions
    rows = [at_most("provider requests for a refresh", round(per_refresh), OUR_REQUESTS, unit="")]
    for name, lines, goal in (("with the Kubernetes client", with_client, 110), ("without", without, 85)):
        at = min(100, count) - 1
        grown = lines[-1]["rss_bytes"] / lines[calm - 1]["rss_bytes"]
        context = f"from refresh {calm} to {count} times {grown:.2f}"
        rows.append(at_most(f"resident memory {name}, refresh {at + 1}", lines[at]["rss_bytes"] / 1e6, goal, unit=" MB", context=context))
    return rows


async def measure_meanwhile(bench: Bench, prometheus: Prometheus) -> list[Row]:
    """Measure how long requests and the event loop wait while refreshes follow one another, as in the worst second of a service."""
    seconds = bench.length.slice_seconds
    async with (
        counting(prometheus.url, remembers=True) as (_, address),
        running_watched(bench.folder, refreshes=100_000, is_watching=True, address=address) as (program, report),
    ):
        await read_refreshes(program, report, CALM_REFRESHES, timeout_seconds=60)
        say(f"requests during refreshes, {SLICES} times {seconds:g} s")
        slices = [
            await asyncio.to_thread(measure_latencies, program.port, "/watcher", GZIP, per_second=LATENCIES_PER_SECOND, seconds=seconds)
            for _ in range(SLICES)
        ]
        lines = await read_refreshes(program, report, len(report.read_text().splitlines()), timeout_seconds=5)
    stalls = [1000 * line["stall_seconds"] for line in lines[CALM_REFRESHES:]]
    bench.readings["meanwhile"] = {"stall_milliseconds": stalls, "latency_seconds": slices}
    p99 = spread_of([1000 * sorted(taken)[int(0.99 * len(taken))] for taken in slices])
    middle = 1000 * median(seconds for taken in slices for seconds in taken)
    stall_context = f"longest of {len(stalls)} refreshes {max(stalls):.0f} ms"
    return [
        at_most("longest loop stall in a refresh, median of refreshes", spread_of(stalls), 50, unit=" ms", context=stall_context),
        at_most("p99 of GET gzip meanwhile, median of slices", p99, 20, unit=" ms", context=f"median of all {middle:.1f} ms"),
    ]


async def measure_starts(bench: Bench, prometheus: Prometheus) -> list[Row]:
    """Measure how long it takes from the start of the process to its first answer, with history on disk."""
    path = bench.folder / "history.db"
    say(f"history of {bench.length.history_hours:g} h")
    await fill_history(path, bench.nodes, source="Prometheus", hours=bench.length.history_hours)
    history = {"LOAD_WATCHER_HISTORY": str(path)}
    taken = [
        await measure_start(bench.folder, provider="Prometheus", address=prometheus.url, variables=history)
        for _ in range(bench.length.starts)
    ]
    bench.readings["start seconds"] = taken
    context = f"longest {max(taken):.2f} s"
    return [at_most("from start to first answer, history on disk", spread_of(taken), 2, unit=" s", context=context)]


async def measure_growth(bench: Bench) -> list[Row]:
    """Measure all that with ten times the nodes, in turn with the once; a recording stands in for Prometheus, the bottleneck otherwise."""
    sizes = (len(bench.nodes), GROWTH * len(bench.nodes))
    readings: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in (CPU, MEMORY, START)}
    recordings = [bench.folder / f"{count}.jsonl" for count in sizes]
    for recording, count in zip(recordings, sizes, strict=True):
        write_recording(recording, name_nodes(count), windows=WINDOWS)
    say(f"{sizes[0]} and {sizes[1]} nodes from a recording, {bench.length.starts} starts")
    for number in range(bench.length.starts):
        for index in _both(number):
            started = await measure_start(bench.folder, provider="Recorded", address=str(recordings[index]))
            readings[START][index].append(started)
    say(f"the same, {bench.length.turns} turns of refreshes and requests")
    async with AsyncExitStack() as stack:
        watched = [
            await stack.enter_async_context(
                running_watched(bench.folder, refreshes=CALM_REFRESHES, provider="Recorded", address=str(recording))
            )
            for recording in recordings
        ]
        for program, report in watched:
            await read_refreshes(program, report, CALM_REFRESHES, timeout_seconds=120)
        for number in range(bench.length.turns):
            for index in _both(number):
                readings[CPU][index].append(await measure_turn(*watched[index]))
                readings[MEMORY][index].append(watched[index][0].rss_bytes())
        asked = []
        for (program, _), count in zip(watched, sizes, strict=True):
            tag = parse_header(await asyncio.to_thread(fetch_raw, program.port, "/watcher", {}), "ETag")
            asked.append(list_questions(Bench(bench.folder, name_nodes(count), bench.length), tag))
        for number in range(bench.length.turns):
            for position, question in enumerate(asked[0]):
                for index in _both(number):
                    program, each = watched[index][0], asked[index][position]
                    seconds = GROWTH_SECONDS if question.name in LARGE else SECONDS
                    load = await measure_load(f"http://127.0.0.1:{program.port}{each.path}", each.headers, seconds=seconds)
                    readings.setdefault(f"GET {question.name}", ([], []))[index].append(1 / load.rate)
    bench.readings["growth"] = readings
    what = f"growth {sizes[0]} → {sizes[1]} nodes (recording)"
    return [
        at_most(
            f"{what}: {name}",
            pair(large, small),
            GROWTH_LIMIT,
            unit=" times",
            context=_bytes(median(small)) + " at first" if name == MEMORY else f"{1000 * median(small):.3g} ms at first",
            is_ratio=True,
        )
        for name, (small, large) in readings.items()
    ]


def _both(number: int) -> tuple[int, int]:
    """Answer in which order the two of a pair take their turn."""
    return (1, 0) if number % 2 else (0, 1)


async def run(bench: Bench, sizes: tuple[int, ...], parts: Collection[str]) -> list[Row]:
    """Measure the parts that were asked for: requests with every number of nodes, the others with the last."""
    rows: list[Row] = []
    for count in sizes:
        is_last = count == sizes[-1]
        length = bench.length if is_last else replace(bench.length, rounds=bench.length.rounds // 2, cycles=2)
        of_size = Bench(bench.folder, name_nodes(count), length, bench.readings)
        if REQUESTS in parts:
            found = await measure_against_peer(of_size)
            rows += found if is_last else [replace(row, what=f"{row.what}, {count} nodes", goal="", reached=None) for row in found]
        if REFRESHES in parts and is_last:
            async with scraping(of_size) as prometheus:
                rows += await measure_refreshes(of_size, prometheus)
                rows += await measure_meanwhile(of_size, prometheus)
                rows += await measure_starts(of_size, prometheus)
    return rows + (await measure_growth(bench) if GROWTH_PART in parts else [])


@asynccontextmanager
async def scraping(bench: Bench) -> AsyncIterator[Prometheus]:
    """Run a Prometheus that has scraped the nodes twice, so that it has averages."""
    folder = bench.folder / f"prometheus-{len(bench.nodes)}"
    async with (
        serving_page(lambda: write_page(bench.nodes)) as page,
        running_prometheus(folder, {page: ""}, scrape_seconds=SCRAPE_SECONDS) as prometheus,
    ):
        await prometheus.wait_for("count_over_time(instance:node_memory_utilisation:ratio[1m]) >= 2")
        yield prometheus


async def measure_against_peer(bench: Bench) -> list[Row]:
    """Measure requests and refreshes of ours and of the peer, which read one Prometheus."""
    calm = bench.length.calm_refreshes
    async with AsyncExitStack() as stack:
        prometheus = await stack.enter_async_context(scraping(bench))
        proxy, source = await stack.enter_async_context(counting(prometheus.url, remembers=True))
        peer = Peer(await stack.enter_async_context(running_go_peer(bench.folder, address=source)), proxy)
        services = {
            loop: await stack.enter_async_context(running_service(bench.folder, loop=loop, address=prometheus.url, variables=HOURLY))
            for loop in (UVLOOP, STANDARD)
        }
        _, source = await stack.enter_async_context(counting(prometheus.url, remembers=True))
        watched = await stack.enter_async_context(running_watched(bench.folder, refreshes=calm, address=source))
        await read_refreshes(*watched, calm, timeout_seconds=60)
        await wait_quiet(peer.proxy, quiet_seconds=QUIET_SECONDS, timeout_seconds=60)
        rows = await measure_requests(bench, prometheus, services, peer, watched)
        memory = {PEER: peer.program.rss_bytes()} | {loop: service.rss_bytes() for loop, service in services.items()}
    bench.readings[f"resident bytes after the requests, {len(bench.nodes)} nodes"] = memory
    return [
        *rows,
        for_context("provider requests for a cycle of the peer", peer.proxy.questions, unit=""),
        for_context("resident memory of the peer", memory[PEER] / 1e6, unit=" MB", context="after the requests"),
    ]


def main() -> int:
    """Run it; 1 if something is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true", help="also 100 and 1,000 nodes, 1,000 refreshes, more history: half an hour")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure, by default all")
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
            rows = asyncio.run(run(bench, (100, 1000, arguments.nodes) if arguments.long else (arguments.nodes,), arguments.parts))
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
