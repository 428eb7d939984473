"""``trimaran explain``: why every node has its score."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click
import msgspec
from click.core import ParameterSource

from trimaran_client.cli.explain_text import write_explanation
from trimaran_client.cli.extender_answer import fetch_explanation, write_answer
from trimaran_client.cli.inputs import Sources, source_options
from trimaran_client.cli.policy_options import policy_options
from trimaran_client.explain import explain_columns
from trimaran_client.policies.base import NodeScore, ScoringPolicy
from trimaran_client.scorer import Scorer

# Of a wide cluster people look at the winners, and at what is wrong with the last.
BEST_NODES = 10
WORST_NODES = 3
_WITH_EXTENDER = frozenset({"pod", "extender", "only", "shows_all", "output"})


@click.command()
@source_options
@policy_options
@click.option("--node", "only", metavar="NAME", multiple=True, help="Only this node; may be repeated.")
@click.option("--all", "shows_all", is_flag=True, help=f"Every node in full, instead of the best {BEST_NODES} and the worst {WORST_NODES}.")
@click.option(
    "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="json has all nodes, or those of --node."
)
@click.option("--extender", metavar="URL", help="Tell of the decision that this extender made on --pod NAMESPACE/NAME, by its own numbers.")
def explain(policy: ScoringPolicy, sources: Sources, *, only: tuple[str, ...], shows_all: bool, output: str, extender: str | None) -> None:
    """
    Tell why each node has its score for a pod: metrics, pods in flight, the arithmetic, and what is missing.

    With --pod NAMESPACE/NAME, and with --kubeconfig, nodes and pods come from the live cluster. All of its nodes are told of: whether a pod
    may go there at all (taints, affinity, volumes) is for the scheduler's filters to say.

    With --extender, it is told why a running extender decided as it did.
    """
    if extender is not None:
        _explain_decision(extender, sources.pod, only=only, shows_all=shows_all, output=output)
        return
    inputs = asyncio.run(sources.gather(policy, asks_status=True))
    scorer = Scorer(policy)
    columns = scorer.columns(inputs.load, now=inputs.now, nodes=inputs.nodes, pods=inputs.pods)
    unknown = [name for name in only if name not in columns.names]
    if unknown:
        raise click.BadParameter(f"{', '.join(unknown)}: not among the {len(columns.names)} candidates", param_hint="'--node'")
    scores = scorer.score_columns(inputs.pod, columns)
    ranked = scores.ranked()
    told = only or _choose(ranked, shows_all=shows_all or output == "json")
    explanation = explain_columns(policy, inputs.pod, columns, scores, only=told)
    explanation = msgspec.structs.replace(explanation, hints=[*inputs.hints, *explanation.hints])
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(explanation), indent=2))
    else:
        click.echo("\n".join(write_explanation(explanation, ranked)))


def _explain_decision(address: str, pod: str, *, only: tuple[str, ...], shows_all: bool, output: str) -> None:
    context = click.get_current_context()
    given = {name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    if others := sorted(given - _WITH_EXTENDER):
        told = ", ".join(f"--{name.replace('_', '-')}" for name in others)
        raise click.UsageError(f"--extender tells how it decided itself; leave {told} out")
    answer = asyncio.run(fetch_explanation(address, pod, only=only, shows_all=shows_all or output == "json"))
    click.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2) if output == "json" else "\n".join(write_answer(answer)))


def _choose(ranked: Sequence[NodeScore], *, shows_all: bool) -> list[str] | None:
    if shows_all or len(ranked) <= BEST_NODES + WORST_NODES:
        return None
    return [each.node for each in (*ranked[:BEST_NODES], *ranked[-WORST_NODES:])]
