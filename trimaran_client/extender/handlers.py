"""What is answered over HTTP: to the scheduler its two verbs, to people what was decided and why."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler
from cachetools import TTLCache

from trimaran_client import ops
from trimaran_client.direct import Answer, Head
from trimaran_client.explain import explain_columns
from trimaran_client.extender.decider import Decider
from trimaran_client.extender.decisions import DecisionView, ExplainView, view_decision, view_ranked
from trimaran_client.extender.telemetry import Telemetry
from trimaran_client.extender.wire import ExtenderBodyError
from trimaran_client.policies.base import Scores

logger = logging.getLogger(__name__)

DECIDER: Final = web.AppKey("decider", Decider)
TELLER: Final = web.AppKey("teller", ThreadPoolExecutor)
# Full node objects of some thousand nodes.
MAX_BODY_BYTES: Final = 64 * 1024 * 1024
VERB_PATHS: Final = ("/prioritize", "/filter")
_DEFAULT_DECISIONS: Final = 50
_MOST_DECISIONS: Final = 1000
_DEFAULT_NODES: Final = 10
_MOST_NODES: Final = 10_000
_MOST_TOLD: Final = 100_000
_WORST_NODES: Final = 3
_MOST_SHOWN: Final = 100
_MOST_WARNINGS: Final = 100
_REPEAT_SECONDS: Final = 60.0
_JSON: Final = {"Content-Type": "application/json"}
_OLD_HINT: Final = "the numbers of this decision are gone: it is explained by what is known now, when the pod itself counts where it is"


class Warnings:
    """Log what a scheduler itself does not show, and the same again not for a while: it may come with every pod."""

    def __init__(self) -> None:
        self._told: TTLCache[str, bool] = TTLCache(_MOST_WARNINGS, _REPEAT_SECONDS)

    def tell(self, sentence: str) -> None:
        """Log a sentence, unless it was logged a moment ago."""
        if sentence not in self._told:
            self._told[sentence] = True
            logger.warning(sentence)


class Verbs:
    """
    Answer a scheduler's two verbs, however its question came.

    Args:
        decider: What decides.
        telemetry: Where the time that it takes is told.
        warnings: Where what is wrong with a question is told.
    """

    def __init__(self, decider: Decider, telemetry: Telemetry, warnings: Warnings) -> None:
        self._warnings = warnings
        decides = (decider.prioritize, decider.filter)
        self._verbs = {path: (decide, telemetry.durations.labels(path[1:])) for path, decide in zip(VERB_PATHS, decides, strict=True)}

    def respond(self, head: Head, body: bytes) -> Answer | None:
        """Answer a usual request; ``None`` where it is another path or method."""
        return self.answer(head.target, body) if head.method == "POST" and head.target in self._verbs else None

    async def post(self, request: web.Request) -> web.Response:
        """Answer one that is not usual."""
        answer = self.answer(request.path, await request.read())
        return web.Response(status=answer.status, headers=answer.headers, body=answer.body)

    def answer(self, path: str, body: bytes) -> Answer:
        """Answer the body of a question to one of the two paths."""
        decide, durations = self._verbs[path]
        started = time.perf_counter()
        try:
            answer = decide(body)
        except ExtenderBodyError as error:
            self._warnings.tell(f"{path}: a body that cannot be read is answered with 400: {error}")
            return Answer(400, {}, b"")
        durations.observe(time.perf_counter() - started)
        return Answer(200, _JSON, answer)


WARNINGS: Final = web.AppKey("warnings", Warnings)
VERBS: Final = web.AppKey("verbs", Verbs)


class DecisionsView(msgspec.Struct, frozen=True):
    """Answer of ``GET /api/v1/decisions``: newest first; ``total`` counts those that are remembered."""

    decisions: list[DecisionView]
    total: int


async def get_decisions(request: web.Request) -> web.Response:
    """Answer the last decisions, newest first; ``pod=namespace/name`` those on one pod, ``nodes`` how many candidates of each."""
    log = request.app[DECIDER].log
    limit = _count(request, "limit", default=_DEFAULT_DECISIONS, most=_MOST_DECISIONS)
    most_nodes = _count(request, "nodes", default=_DEFAULT_NODES, most=_MOST_NODES)
    if limit * most_nodes > _MOST_TOLD:
        raise ops.HttpError(400, "bad_parameter", f"limit={limit} and nodes={most_nodes}: at most {_MOST_TOLD} nodes in all; ask for fewer")
    pod = request.query.get("pod", "")
    remembered = list(log)

    def tell() -> DecisionsView:
        wanted = (each for each in remembered if not pod or pod == f"{each.pod.namespace}/{each.pod.name}")
        found = list(itertools.islice(wanted, limit))
        return DecisionsView([view_decision(each, most_nodes=most_nodes) for each in found], len(remembered))

    return await _json(request, tell)


async def get_explain(request: web.Request) -> web.Response:
    """
    Answer why candidates of ``pod=namespace/name`` had their scores.

    The best ``nodes`` are told of, the last few, and where it was bound; with ``node=NAME``, several times, these and no others.
    """
    decider = request.app[DECIDER]
    text = request.query.get("pod", "")
    namespace, slash, name = text.partition("/")
    if not (slash and namespace and name):
        raise ops.HttpError(400, "bad_parameter", f"pod={text!r}: write namespace/name")
    most_nodes = _count(request, "nodes", default=_DEFAULT_NODES, most=_MOST_NODES)
    decision = decider.log.find(namespace, name)
    if decision is None:
        told = "there is no decision on it; the scheduler does not ask where only one node is feasible, and old decisions are forgotten"
        raise ops.HttpError(404, "unknown_pod", f"pod {text}: {told}; GET /api/v1/decisions lists those that are known")
    only, candidates = request.query.getall("node", []), decision.names
    if unknown := sorted(set(only).difference(candidates)):
        raise ops.HttpError(404, "unknown_node", f"node {', '.join(unknown)}: not among the {len(candidates)} candidates of pod {text}")
    as_decided, scorer = decision.gather is not None, decision.scorer
    columns = decider.columns_now(decision) if decision.gather is None else decision.gather()

    def explain() -> ExplainView:
        scores = decision.scores() if as_decided else scorer.score_columns(decision.pod, columns)
        told = only or [*_choose(scores, most_nodes), *filter(None, [decision.bound_to])]
        explanation = explain_columns(scorer.policy, decision.pod, columns, scores, only=told)
        if not as_decided:
            explanation = msgspec.structs.replace(explanation, hints=[_OLD_HINT, *explanation.hints])
        return ExplainView(view_decision(decision, most_nodes=_DEFAULT_NODES), as_decided, view_ranked(scores), explanation)

    return await _json(request, explain)


def _choose(scores: Scores, most_nodes: int) -> list[str]:
    """Choose the best nodes, and the last few: people look at the winners, and at what is wrong with the others."""
    ranked = [each.node for each in scores.ranked()]
    return [*ranked[:most_nodes], *ranked[-_WORST_NODES:]]


@web.middleware
async def refuse_quietly(request: web.Request, handler: Handler) -> web.StreamResponse:
    """
    Keep errors of the scheduler's verbs empty, and those of other paths in the JSON shape.

    A scheduler drops its connection over a reply that it does not read to the end.
    """
    if request.path not in VERB_PATHS:
        if request.method == "POST":
            told = "a scheduler is to ask for /prioritize or /filter: check its urlPrefix, prioritizeVerb and filterVerb"
            request.app[WARNINGS].tell(f"POST {request.path[:_MOST_SHOWN]} is answered with 404; {told}")
        return await ops.error_middleware(request, handler)
    try:
        return await handler(request)
    except web.HTTPRequestEntityTooLarge:
        told = "is refused with 413; set nodeCacheCapable: true, so that only names are sent"
        request.app[WARNINGS].tell(f"{request.path}: a body of more than {MAX_BODY_BYTES} bytes {told}")
        return web.Response(status=413, headers={"Connection": "close"})
    except web.HTTPException as error:
        return web.Response(status=error.status, headers={"Allow": "POST"} if error.status == 405 else None)


def _count(request: web.Request, name: str, *, default: int, most: int) -> int:
    text = request.query.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
        raise ops.HttpError(400, "bad_parameter", f"{name}={text!r}: write a whole number of at least 1")
    return min(int(text), most)


async def _json(request: web.Request, make: Callable[[], object]) -> web.Response:
    """Answer what *make* makes, beside the event loop: of thousands of nodes that takes a while, and the scheduler must not wait for it."""
    body = await asyncio.get_running_loop().run_in_executor(request.app[TELLER], lambda: msgspec.json.encode(make()))
    return web.Response(body=body, content_type="application/json")


def make_teller() -> ThreadPoolExecutor:
    """Make the thread in which answers to people are made: one, since each more takes its share of the interpreter from the scheduler."""
    return ThreadPoolExecutor(1, thread_name_prefix="teller")
