"""``trimaran score``: a table of nodes, best first."""

from __future__ import annotations

import asyncio
import math
import sys

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trimaran_client.cli.inputs import Sources, source_options
from trimaran_client.cli.policy_options import policy_options
from trimaran_client.policies.base import NodeColumns, Scores, ScoringPolicy
from trimaran_client.policies.target_load_packing import TargetLoadPacking
from trimaran_client.policies.targets import UtilizationTerms
from trimaran_client.resources import Pod
from trimaran_client.scorer import Scorer


class ScoredNode(msgspec.Struct, frozen=True):
    """One row of the result; absent numbers are null, and of another policy than TargetLoadPacking the percentages."""

    node: str
    score: int
    reason: str
    utilization_percent: float | None
    predicted_percent: float | None
    age_seconds: float | None


class ScoreReport(msgspec.Struct, frozen=True):
    """What ``trimaran score --output json`` prints; ``nodes`` best first, null what only TargetLoadPacking has."""

    pod: str
    policy: str
    preset: str
    target_percent: float | None
    pod_millicores: int | None
    source: str
    nodes: list[ScoredNode]


@click.command()
@source_options
@policy_options
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def score(policy: ScoringPolicy, sources: Sources, *, output: str) -> None:
    """
    Score nodes for a pod and print them, best first.

    Without --pods, a node without fresh metrics gets the neutral score 50 (reason pods_unknown): what its pods request is not known then.
    """
    inputs = asyncio.run(sources.gather(policy))
    scorer = Scorer(policy)
    columns = scorer.columns(inputs.load, now=inputs.now, nodes=inputs.nodes, pods=inputs.pods)
    report = _report(policy, inputs.pod, columns, scorer.score_columns(inputs.pod, columns))
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(report), indent=2))
    else:
        _print_table(report)


def _report(policy: ScoringPolicy, pod: Pod, columns: NodeColumns, scores: Scores) -> ScoreReport:
    packing = policy if isinstance(policy, TargetLoadPacking) else None
    terms = None if packing is None else packing.compute_terms(pod, columns)
    row_of = {name: row for row, name in reversed(list(enumerate(columns.names)))}
    nodes = [
        ScoredNode(ranked.node, ranked.score, str(ranked.reason), *_percents(terms, row), _number(columns.age_seconds[row]))
        for ranked in scores.ranked()
        for row in (row_of[ranked.node],)
    ]
    return ScoreReport(
        pod=f"{pod.namespace}/{pod.name}",
        policy=policy.name,
        preset=str(getattr(getattr(policy, "args", None), "preset", "")),
        target_percent=None if packing is None else packing.args.target_percent,
        pod_millicores=None if terms is None else terms.pod_amount,
        source=columns.snapshot.source,
        nodes=nodes,
    )


def _percents(terms: UtilizationTerms | None, row: int) -> tuple[float | None, float | None]:
    return (None, None) if terms is None else (_number(terms.measured_percent[row]), _number(terms.predicted_percent[row]))


def _number(value: float) -> float | None:
    return round(float(value), 9) if math.isfinite(value) else None


def _print_table(report: ScoreReport) -> None:
    console = Console(width=None if sys.stdout.isatty() else 120, soft_wrap=True, highlight=False)
    preset = f" ({report.preset})" if report.preset else ""
    target = "" if report.target_percent is None else f", target {report.target_percent:g} %"
    predicted = "" if report.pod_millicores is None else f": {report.pod_millicores}m predicted"
    source = report.source or "an unnamed source"
    console.print(f"{report.policy}{preset}{target}, pod {report.pod}{predicted}; load from {source}", markup=False)
    has_percents = report.target_percent is not None
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("NODE", overflow="fold")
    for title in (*(("CPU %", "WITH POD %") if has_percents else ()), "SCORE", "AGE s"):
        table.add_column(title, justify="right")
    table.add_column("REASON")
    for node in report.nodes:
        percents = [_cell(value, ".1f") for value in (node.utilization_percent, node.predicted_percent)] if has_percents else []
        table.add_row(Text(node.node), *percents, str(node.score), _cell(node.age_seconds, ".0f"), node.reason)
    console.print(table)
    if not report.nodes:
        console.print("no candidate nodes: the load watcher serves none, or the --nodes file is empty", markup=False)


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
