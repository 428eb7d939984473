"""
Prometheus, and what speaks its API: Thanos, Mimir, VictoriaMetrics and the managed ones.

A refresh is three requests whatever the number of nodes: the newest values, the averages, and the deviations, each of all metrics and
windows at once. They run side by side in threads of our own; the event loop never waits for them.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Final, Self

import structlog

from load_watcher.errors import ProviderAuthError, ProviderConfigError, ProviderUnavailableError
from load_watcher.providers.catalogue import HOST_LABELS, Catalogue, load_catalogue
from load_watcher.providers.endpoint import ADDRESS_VARIABLE, TOKEN_VARIABLE, parse_address, read_secret
from load_watcher.providers.findings import Finding
from load_watcher.providers.nodes import ClusterNodes, NodeCapacity, NodeResolver
from load_watcher.providers.points import list_windows
from load_watcher.providers.prometheus_batch import TIMES, ChosenMetric, Column, Identity, JoinedBatch, build_batch
from load_watcher.providers.prometheus_discovery import Discovery
from load_watcher.providers.prometheus_http import PrometheusClient, QueryRefusedError
from load_watcher.providers.prometheus_options import PrometheusOptions, read_options
from load_watcher.providers.prometheus_plan import plan_queries
from load_watcher.providers.prometheus_report import RefreshState, describe
from load_watcher.providers.prometheus_vector import NAME, VectorDecoder, VectorReply
from load_watcher.providers.promql import PART_LABEL, Part, combine
from load_watcher.samples import SampleBatch, Window
from load_watcher.settings import Settings
from trimaran_client.wire import LATEST

# Three of a refresh, and a probe beside them.
THREADS: Final = 4
HEALTH_TIMEOUT_SECONDS: Final = 5.0
# A query that is refused, say because it loads too many samples, would be refused again.
REFUSED_SECONDS: Final = 600.0
# Enough to find a few bad ones among all parts; a server that refuses everything is not to be asked for each.
MAX_SPLITS: Final = 16
PASSWORD_VARIABLE: Final = "METRICS_PROVIDER_PASSWORD"  # noqa: S105 - a name

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


class PrometheusProvider:
    """
    Get all metrics of the catalogue: newest values, averages and deviations.

    Args:
        options: Where and how to ask.
        nodes: The node list; it is entered and left with the provider.
        clock: Answers Unix seconds.
    """

    name: Final = NAME

    def __init__(self, options: PrometheusOptions, nodes: ClusterNodes, *, clock: Callable[[], float] = time.time) -> None:
        if "://" not in options.address:
            raise ProviderConfigError(f"{NAME}: {options.address!r} has no scheme; set {ADDRESS_VARIABLE} to http://… or https://…")
        self._options = replace(options, address=parse_address(NAME, options.address))
        self._nodes = nodes
        self._clock = clock
        self._opened = AsyncExitStack()
        self._catalogue = Catalogue(())
        self._discovery = Discovery(self._catalogue)
        self._labels: tuple[str, ...] = ()
        self._client: PrometheusClient | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._refused: dict[str, tuple[float, str]] = {}
        self._state = RefreshState()

    async def __aenter__(self) -> Self:
        """
        Read the catalogue and the TLS files, and start the watch of the nodes; nothing is asked yet.

        Raises:
            ProviderConfigError: If a file cannot be used.
        """
        options = self._options
        if not options.tls.verify:
            _log.warning("the certificate of the server is not verified", provider=NAME, address=options.address)
        self._catalogue = await asyncio.to_thread(load_catalogue, options.catalogue_path)
        self._discovery = Discovery(self._catalogue)
        named = [label for metric in self._catalogue.metrics for expression in metric.expressions for label in expression.host_labels]
        self._labels = tuple(dict.fromkeys((*options.host_labels, *self._catalogue.host_labels, *named, *HOST_LABELS)))
        async with AsyncExitStack() as stack:
            self._client = await asyncio.to_thread(PrometheusClient, options.address, options.tls, VectorDecoder(PART_LABEL, self._labels))
            stack.callback(self._client.close)
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="prometheus")
            # A thread ends by the timeout of its request; nobody waits for that.
            stack.callback(self._threads.shutdown, wait=False, cancel_futures=True)
            await stack.enter_async_context(self._nodes)
            self._opened = stack.pop_all()
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        await self._opened.aclose()

    async def fetch(self, window: Window) -> SampleBatch:
        """
        Get the newest values, and averages and deviations over *window* and the shorter windows.

        Raises:
            ProviderError: If Prometheus does not answer, or answers none of the queries.
        """
        deadline = time.monotonic() + self._options.timeout_seconds
        await self._nodes.wait(self._options.timeout_seconds / 2)
        authorization = await self._authorize()
        try:
            return await self._refresh(window, _Call(authorization, deadline, self._clock()))
        except ProviderAuthError:
            renewed = await self._authorize()
            if renewed == authorization:
                raise
            return await self._refresh(window, _Call(renewed, deadline, self._clock()))

    async def check_health(self) -> None:
        """
        Ask, by GET at the configured address, whether queries are answered.

        Raises:
            ProviderError: If not.
        """
        timeout_seconds = min(HEALTH_TIMEOUT_SECONDS, self._options.timeout_seconds)
        client, threads = self._entered()
        authorization = await self._authorize()
        await asyncio.get_running_loop().run_in_executor(
            threads, lambda: client.probe(at=self._clock(), authorization=authorization, timeout_seconds=timeout_seconds)
        )

    def findings(self) -> tuple[Finding, ...]:
        """Tell what the last refresh found: the nodes, the expression of each metric and how its series joined, refusals and warnings."""
        return describe(self._state, now=self._clock())

    @property
    def requests_sent(self) -> int:
        """Answer how many HTTP requests were sent since the provider was entered."""
        return 0 if self._client is None else self._client.requests_sent

    def _entered(self) -> tuple[PrometheusClient, ThreadPoolExecutor]:
        if self._client is None or self._threads is None:
            raise ProviderConfigError(f"{NAME}: used outside of `async with`")
        return self._client, self._threads

    async def _authorize(self) -> str:
        token = await read_secret(NAME, TOKEN_VARIABLE, self._options.token)
        if token:
            return f"Bearer {token}"
        if not self._options.username:
            return ""
        password = await read_secret(NAME, PASSWORD_VARIABLE, self._options.password)
        return "Basic " + base64.b64encode(f"{self._options.username}:{password}".encode()).decode()

    async def _refresh(self, window: Window, call: _Call) -> SampleBatch:
        await self._discover(call)
        chosen = self._discovery.chosen
        plan = plan_queries(chosen, list_windows(window), self._catalogue)
        groups = [[part for part in group if self._refused.get(part.query, (0.0, ""))[0] <= call.now] for group in plan.queries]
        answers = await _gather(self._ask(group, call) for group in groups if group)
        replies = [reply for answer, _ in answers for reply in answer]
        refused = {query: error for _, errors in answers for query, error in errors.items()}
        if refused and not replies:
            raise QueryRefusedError(next(iter(refused.values())))
        self._refused = {query: (until, error) for query, (until, error) in self._refused.items() if until > call.now}
        self._refused |= {query: (call.now + REFUSED_SECONDS, error) for query, error in refused.items()}
        # The copy here, since the watch goes on; the rest in a thread, since 5,000 nodes are a hundred thousand series.
        joined = await asyncio.to_thread(self._join, replies, plan.columns, chosen, self._nodes.copy(), call.now)
        self._note(joined, replies, chosen)
        return joined.batch

    def _join(
        self,
        replies: Sequence[VectorReply],
        columns: Mapping[str, Column],
        chosen: dict[str, ChosenMetric],
        nodes: tuple[dict[str, NodeCapacity], dict[str, tuple[str, ...]]] | None,
        now: float,
    ) -> JoinedBatch:
        resolver = NodeResolver(None if nodes is None else nodes[1], suffix=self._options.host_suffix)
        return build_batch(
            replies,
            columns,
            chosen,
            identity=Identity(self._labels, self._options.host_labels or self._catalogue.host_labels, resolver),
            capacities=None if nodes is None else nodes[0],
            evaluated_at=float(int(now)),
            go_scaling=self._options.go_scaling,
        )

    async def _discover(self, call: _Call) -> None:
        questions = self._discovery.list_questions(call.now)
        if not questions:
            return
        before = self._discovery.chosen
        replies, refused = await self._ask(questions, call)
        if len(refused) == len({part.query for part in questions}) and not before:
            raise QueryRefusedError(next(iter(refused.values())))
        answered = {key for reply in replies for key in reply.parts}
        self._discovery.learn(answered, {part.key: refused[part.query] for part in questions if part.query in refused}, call.now)
        for key, (_, expression) in self._discovery.chosen.items():
            if key not in before:
                _log.info("expression chosen", provider=NAME, metric=key, query=expression.query, unit=expression.unit)

    async def _ask(self, parts: Sequence[Part], call: _Call) -> tuple[list[VectorReply], dict[str, str]]:
        """Ask all parts in one query; a query that is refused is halved until the parts that the server cannot answer stand alone."""
        try:
            return [await self._query(combine(parts), call)], {}
        except QueryRefusedError as error:
            if len(parts) == 1 or not call.splits_left:
                return [], {part.query: str(error) for part in parts}
            call.splits_left -= 1
        middle = len(parts) // 2
        halves = [await self._ask(half, call) for half in (parts[:middle], parts[middle:])]
        return [reply for replies, _ in halves for reply in replies], halves[0][1] | halves[1][1]

    async def _query(self, query: str, call: _Call) -> VectorReply:
        client, threads = self._entered()

        def ask() -> VectorReply:
            remaining_seconds = call.deadline - time.monotonic()
            if remaining_seconds <= 0:
                raise ProviderUnavailableError(f"{NAME}: no time left for a request; is the server overloaded?")
            return client.query(query, at=call.now, authorization=call.authorization, timeout_seconds=remaining_seconds)

        return await asyncio.get_running_loop().run_in_executor(threads, ask)

    def _note(self, joined: JoinedBatch, replies: Sequence[VectorReply], chosen: dict[str, ChosenMetric]) -> None:
        # Averages go on for a window after the last value, and the times may be those of other series.
        answered = {
            column.metric_key
            for column in joined.answered
            if column.operator == LATEST or (column.operator != TIMES and LATEST not in chosen[column.metric_key].metric.operators)
        }
        silent = tuple(each.metric for key, each in chosen.items() if key not in answered)
        self._discovery.note_silence({metric.key for metric in silent})
        warnings = tuple(sorted({warning for reply in replies for warning in reply.warnings}))
        if warnings and warnings != self._state.warnings:
            _log.warning("Prometheus says that the answer may be partial", provider=NAME, warnings=warnings)
        unmatched = {key: join.unmatched for key, join in joined.joins.items() if join.unmatched}
        if unmatched and unmatched != self._state.unmatched:
            examples = next(join.examples for join in joined.joins.values() if join.unmatched)
            _log.warning("series that join to no node", provider=NAME, counts=unmatched, examples=examples)
        absence = self._nodes.absence
        if absence is not None and absence != self._state.nodes_absence:
            _log.warning("the nodes are not known: names are served as Prometheus has them", provider=NAME, reason=absence)
        self._state = RefreshState(
            nodes_absence=absence,
            node_count=len(joined.batch.nodes),
            chosen=chosen,
            unanswered=tuple(dict.fromkeys((*silent, *self._discovery.unanswered))),
            joins=joined.joins,
            warnings=warnings,
            refused={query: error for query, (_, error) in self._refused.items()} | self._discovery.errors,
            sampled_at=joined.batch.sampled_at,
        )


@dataclass(slots=True)
class _Call:
    """
    What all requests of a refresh share.

    Args:
        authorization: The header.
        deadline: Monotonic seconds.
        now: The time of the queries, Unix seconds.
        splits_left: How many refused queries may still be halved.
    """

    authorization: str = field(repr=False)
    deadline: float
    now: float
    splits_left: int = MAX_SPLITS


_Answer = tuple[list[VectorReply], dict[str, str]]


async def _gather(asking: Iterable[Awaitable[_Answer]]) -> list[_Answer]:
    """Wait for all, also after a failure, so that no request is left running on its own; then raise the first failure."""
    results = await asyncio.gather(*asking, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


def create_provider(settings: Settings) -> PrometheusProvider:
    """
    Make the provider from the settings.

    Raises:
        ProviderConfigError: If the address is none.
    """
    nodes = ClusterNodes(settings.kubeconfig, request_timeout_seconds=settings.fetch_timeout_seconds)
    return PrometheusProvider(read_options(settings), nodes)
