"""The command ``trimaran``: score a pod from files or a live load watcher and show the result; no formulas."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Callable
from typing import IO, TypeVar

import click
import msgspec
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trimaran_client.errors import ManifestError, SnapshotDecodeError, TrimaranError
from trimaran_client.fetch import WatcherClient
from trimaran_client.policies.base import NodeColumns, Scores
from trimaran_client.policies.target_load_packing import TargetLoadPacking, TargetLoadPackingArgs
from trimaran_client.policies.targets import DEFAULT_TARGET_PERCENT, UtilizationTerms
from trimaran_client.resources import Node, Pod, manifest_items
from trimaran_client.scorer import build_columns
from trimaran_client.snapshot import LoadSnapshot

DEFAULT_WATCHER = "http://127.0.0.1:2020"

_T = TypeVar("_T")


class ScoredNode(msgspec.Struct, frozen=True):
    """One row of the result; absent numbers are null."""

    node: str
    score: int
    reason: str
    utilization_percent: float | None
    predicted_percent: float | None
    age_seconds: float | None


class ScoreReport(msgspec.Struct, frozen=True):
    """What ``trimaran score --output json`` prints; ``nodes`` best first."""

    pod: str
    policy: str
    preset: str
    target_percent: float
    pod_millicores: int
    source: str
    nodes: list[ScoredNode]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="trimaran")
def cli() -> None:
    """Place pods by the measured load of nodes."""


@cli.command()
@click.option(
    "--pod",
    "pod_file",
    type=click.File("rb"),
    required=True,
    help="The pod to place: a Pod, or a workload with a pod template; - reads stdin.",
)
@click.option("--watcher", "watcher_address", metavar="URL", help=f"A running load watcher.  [default: {DEFAULT_WATCHER}]")
@click.option("--snapshot", "snapshot_file", type=click.File("rb"), help="A saved reply of GET /watcher instead.")
@click.option(
    "--nodes",
    "nodes_file",
    type=click.File("rb"),
    help="Candidate nodes, as `kubectl get nodes -o yaml` prints them.  [default: those of the load watcher]",
)
@click.option(
    "--pods",
    "pods_file",
    type=click.File("rb"),
    help="All pods, as `kubectl get pods -A -o yaml` prints them: for requests and pods in flight.",
)
@click.option(
    "--target",
    "target_percent",
    type=float,
    default=DEFAULT_TARGET_PERCENT,
    show_default=True,
    help="CPU utilization to pack up to, percent.",
)
@click.option(
    "--preset",
    type=click.Choice(["default", "upstream"]),
    default="default",
    show_default=True,
    help="upstream computes exactly as the Go plugin.",
)
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def score(
    pod_file: IO[bytes],
    watcher_address: str | None,
    snapshot_file: IO[bytes] | None,
    nodes_file: IO[bytes] | None,
    pods_file: IO[bytes] | None,
    target_percent: float,
    preset: str,
    output: str,
) -> None:
    """
    Score nodes for a pod by TargetLoadPacking and print them, best first.

    Without --pods, a node without fresh metrics gets the neutral score 50 (reason pods_unknown): what its pods request is not known then.
    """
    if watcher_address is not None and snapshot_file is not None:
        raise click.UsageError("give --watcher or --snapshot, not both")
    policy = TargetLoadPacking(
        TargetLoadPackingArgs(target_percent=target_percent, preset="upstream" if preset == "upstream" else "default")
    )
    pods_in_file = _read_manifests(pod_file, Pod.from_manifest)
    if len(pods_in_file) != 1:
        raise ManifestError(f"{pod_file.name}: {len(pods_in_file)} objects; give exactly one pod")
    pod = pods_in_file[0]
    if not pod.containers:
        raise ManifestError(f"{pod_file.name}: no spec.containers; give a pod, or a workload with a pod template")
    if snapshot_file is not None:
        try:
            snapshot = LoadSnapshot.decode(snapshot_file.read())
        except SnapshotDecodeError as error:
            raise SnapshotDecodeError(f"{snapshot_file.name}: {error}") from error
    else:
        snapshot = asyncio.run(_fetch(watcher_address or DEFAULT_WATCHER))
    columns = build_columns(
        snapshot,
        now=time.time(),
        nodes=None if nodes_file is None else _read_manifests(nodes_file, Node.from_manifest),
        pods=None if pods_file is None else _read_manifests(pods_file, Pod.from_manifest),
    )
    report = _report(policy, pod, columns, policy.score_nodes(pod, columns), policy.compute_terms(pod, columns))
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(report), indent=2))
    else:
        _print_table(report)


def main() -> None:
    """Run the command line; an error of ours is one clear line and exit status 1."""
    try:
        cli.main()
    except TrimaranError as error:
        sys.stderr.write(f"trimaran: {error}\n")
        sys.exit(1)


async def _fetch(address: str) -> LoadSnapshot:
    async with WatcherClient(address) as client:
        return await client.fetch_snapshot()


def _read_manifests(file: IO[bytes], read: Callable[[object], _T]) -> list[_T]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster where libyaml is there; the same result
    try:
        documents = [document for document in yaml.load_all(file, Loader=loader) if document is not None]
        return [read(item) for document in documents for item in manifest_items(document)]
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ManifestError(f"{file.name}: not YAML or JSON: {error}") from error
    except ManifestError as error:
        raise ManifestError(f"{file.name}: {error}") from error


def _report(policy: TargetLoadPacking, pod: Pod, columns: NodeColumns, scores: Scores, terms: UtilizationTerms) -> ScoreReport:
    row_of = {name: row for row, name in reversed(list(enumerate(columns.names)))}
    nodes = [
        ScoredNode(
            node=ranked.node,
            score=ranked.score,
            reason=str(ranked.reason),
            utilization_percent=_number(terms.measured_percent[row]),
            predicted_percent=_number(terms.predicted_percent[row]),
            age_seconds=_number(columns.age_seconds[row]),
        )
        for ranked in scores.ranked()
        for row in (row_of[ranked.node],)
    ]
    return ScoreReport(
        pod=f"{pod.namespace}/{pod.name}",
        policy=policy.name,
        preset=policy.args.preset,
        target_percent=policy.args.target_percent,
        pod_millicores=terms.pod_amount,
        source=columns.snapshot.source,
        nodes=nodes,
    )


def _number(value: float) -> float | None:
    return round(float(value), 9) if math.isfinite(value) else None


def _print_table(report: ScoreReport) -> None:
    console = Console(width=None if sys.stdout.isatty() else 120, soft_wrap=True, highlight=False)
    console.print(
        f"{report.policy} ({report.preset}), target {report.target_percent:g} %, pod {report.pod}: "
        f"{report.pod_millicores}m predicted; load from {report.source or 'an unnamed source'}",
        markup=False,
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("NODE", overflow="fold")
    for title in ("CPU %", "WITH POD %", "SCORE", "AGE s"):
        table.add_column(title, justify="right")
    table.add_column("REASON")
    for node in report.nodes:
        table.add_row(
            Text(node.node),
            _cell(node.utilization_percent, ".1f"),
            _cell(node.predicted_percent, ".1f"),
            str(node.score),
            _cell(node.age_seconds, ".0f"),
            node.reason,
        )
    console.print(table)
    if not report.nodes:
        console.print("no candidate nodes: the load watcher serves none, or the --nodes file is empty", markup=False)


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
