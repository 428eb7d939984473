"""What an extender tells of a decision, asked over HTTP and written for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from trimaran_client.cli.explain_text import write_explanation
from trimaran_client.errors import TrimaranError
from trimaran_client.extender.decisions import ExplainView
from trimaran_client.policies.base import NodeScore, Reason

_TIMEOUT_SECONDS: Final = 10.0
_MOST_NODES: Final = 10_000


class ExtenderAnswerError(TrimaranError):
    """The extender did not tell of a decision."""


class _Failure(msgspec.Struct, frozen=True):
    message: str = ""


async def fetch_explanation(address: str, pod: str, *, only: Sequence[str] = (), shows_all: bool = False) -> ExplainView:
    """
    Ask an extender why the nodes had their scores for a pod.

    Args:
        address: The extender's, for example ``http://127.0.0.1:8888``.
        pod: Namespace and name, with a slash between.
        only: The nodes to tell of; by default those that the extender chooses.
        shows_all: Whether to tell of all of them.

    Raises:
        ExtenderAnswerError: If it does not answer, or knows of no decision.
    """
    import aiohttp

    query = [("pod", pod), *(("node", name) for name in only), *([("nodes", str(_MOST_NODES))] if shows_all else [])]
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)) as session,
            session.get(f"{address.rstrip('/')}/api/v1/explain", params=query) as response,
        ):
            status, body = response.status, await response.read()
        if status == 200:
            return msgspec.json.decode(body, type=ExplainView)
        reason = msgspec.json.decode(body, type=_Failure).message
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        reason = f"no answer of an extender: {str(error) or type(error).__name__}; see whether it runs there"
    raise ExtenderAnswerError(f"{address}: {reason}")


def write_answer(answer: ExplainView) -> Iterator[str]:
    """Write it line by line: the decision, and then the explanation."""
    decision = answer.decision
    when = datetime.fromtimestamp(decision.made_at, UTC).strftime("%Y-%m-%d %H:%M:%S")
    yield f"decided {when} UTC for {decision.scheduler_name}{' in shadow mode' if decision.shadow else ''}, {_bound(answer)}"
    if decision.degraded:
        yield f"degraded: {decision.degraded}"
    ranked = [NodeScore(each.node, each.score, Reason[each.reason.upper()]) for each in answer.candidates]
    yield from write_explanation(answer.explanation, ranked)


def _bound(answer: ExplainView) -> str:
    decision = answer.decision
    if not decision.bound_to:
        return "not seen bound yet"
    scored = "which was no candidate" if decision.bound_score is None else f"which had {decision.bound_score}"
    return f"bound to {decision.bound_to}, {scored}"
