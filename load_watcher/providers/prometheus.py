"""
Prometheus, and what speaks its API: Thanos, Mimir, VictoriaMetrics and the managed ones.

A refresh is three requests whatever the number of nodes: the newest values, the averages, and the deviations, each of all metrics and
windows at once. They run side by side in threads of our own; the event loop never waits for them.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import structlog
from pydantic import SecretStr

from load_watcher.errors import ProviderAuthError, ProviderConfigError, ProviderUnavailableError
from load_watcher.providers.catalogue import HOST_LABELS, Catalogue, load_catalogue
from load_watcher.providers.endpoint import ADDRESS_VARIABLE, TOKEN_VARIABLE, Secret, parse_address, read_secret
from load_watcher.providers.findings import Finding
from load_watcher.providers.nodes import ClusterNodes, NodeResolver
from load_watcher.providers.points import list_windows
from load_watcher.providers.prometheus_batch import TIMES, ChosenMetric, Column, Identity, JoinedBatch, build_batch
from load_watcher.providers.prometheus_discovery import Discovery
from load_watcher.providers.prometheus_http import NAME, PrometheusClient, QueryRefusedError, TlsSettings, VectorReply
from load_watcher.providers.prometheus_report import RefreshState, describe
from load_watcher.providers.promql import PART_LABEL, Part, combine, write_average, write_deviation, write_newest, write_times
from load_watcher.samples import SampleBatch, Window
from load_watcher.settings import Settings
from trimaran_client.wire import AVERAGE, LATEST, STANDARD_DEVIATION

# As in the Go load-watcher.
DEFAULT_ADDRESS: Final = "http://prometheus-k8s:9090"
# Kubernetes puts these files into every pod that does not refuse them.
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# Three of a refresh, and a probe beside them.
THREADS: Final = 4
HEALTH_TIMEOUT_SECONDS: Final = 5.0
# A query that is refused, say because it loads too many samples, would be refused again.
REFUSED_SECONDS: Final = 600.0
# Enough to find a few bad ones among all parts; a server that refuses everything is not to be asked for each.
MAX_SPLITS: Final = 16
PASSWORD_VARIABLE: Final = "METRICS_PROVIDER_PASSWORD"  # noqa: S105 - a name

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PrometheusOptions:
    """
    Where Prometheus is and how to ask it.

    Args:
        address: With its scheme, and with the path prefix if it has one.
        token: Bearer token, or what reads it; ``None`` for none.
        username: For basic authentication, where there is no token.
        password: Belongs to the user name.
        tls: How the server is checked.
        catalogue_path: The user's catalogue; ``None`` for the built-in one alone.
        host_labels: Labels that name the node, before those of the catalogue's own file.
        host_suffix: What the source appends to the names of nodes.
        go_scaling: Multiply every value by 100 whatever its unit, as the Go load-watcher does.
        timeout_seconds: For a whole refresh.
    """

    address: str = DEFAULT_ADDRESS
    token: Secret | None = field(default=None, repr=False)
    username: str = ""
    password: Secret | None = field(default=None, repr=False)
    tls: TlsSettings = field(default_factory=TlsSettings)
    catalogue_path: Path | None = None
    host_labels: tuple[str, ...] = ()
    host_suffix: str = ""
    go_scaling: bool = False
    timeout_seconds: float = 10.0


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
            self._client = await asyncio.to_thread(PrometheusClient, options.address, options.tls, (PART_LABEL, *self._labels))
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
        columns: dict[str, Column] = {}
        groups = [
            [part for part in group if self._refused.get(part.query, (0.0, ""))[0] <= call.now]
            for group in _plan(chosen, list_windows(window), self._catalogue, columns)
        ]
        answers = await _gather(self._ask(group, call) for group in groups if group)
        replies = [reply for answer, _ in answers for reply in answer]
        refused = {query: error for _, errors in answers for query, error in errors.items()}
        if refused and not replies:
            raise QueryRefusedError(next(iter(refused.values())))
        self._refused = {query: (until, error) for query, (until, error) in self._refused.items() if until > call.now}
        self._refused |= {query: (call.now + REFUSED_SECONDS, error) for query, error in refused.items()}
        joined = await asyncio.to_thread(self._join, replies, columns, chosen, call.now)
        self._note(joined, replies, chosen, columns)
        return joined.batch

    def _join(self, replies: Sequence[VectorReply], columns: dict[str, Column], chosen: dict[str, ChosenMetric], now: float) -> JoinedBatch:
        nodes = self._nodes.copy()
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
        answered = {labels[0] for reply in replies for labels in reply.labels}
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

    def _note(
        self, joined: JoinedBatch, replies: Sequence[VectorReply], chosen: dict[str, ChosenMetric], columns: dict[str, Column]
    ) -> None:
        answering = {columns[key] for key in {labels[0] for reply in replies for labels in reply.labels} if key in columns}
        # Averages go on for a window after the last value, and the times may be those of other series.
        answered = {
            column.metric_key
            for column in answering
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


def _plan(
    chosen: dict[str, ChosenMetric], windows: Sequence[Window], catalogue: Catalogue, columns: dict[str, Column]
) -> tuple[list[Part], list[Part], list[Part]]:
    """Write the parts of the three queries, and enter in *columns* what the series of each part are."""
    newest: list[Part] = []
    averages: list[Part] = []
    deviations: list[Part] = []

    def add(group: list[Part], column: Column, query: str) -> None:
        key = f"{column.metric_key}/{column.operator}/{column.window or ''}"
        columns[key] = column
        group.append(Part(key, query))

    for key, (metric, expression) in chosen.items():
        if LATEST in metric.operators:
            add(newest, Column(key, LATEST), write_newest(expression, catalogue))
            if times := write_times(expression):
                add(newest, Column(key, TIMES), times)
        for window in windows:
            if AVERAGE in metric.operators:
                add(averages, Column(key, AVERAGE, window), write_average(expression, window, catalogue))
            if STANDARD_DEVIATION in metric.operators:
                add(deviations, Column(key, STANDARD_DEVIATION, window), write_deviation(expression, window, catalogue))
    return newest, averages, deviations


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
    Make the provider from the settings; with ENABLE_OPENSHIFT_AUTH what is not set comes from the pod's service account.

    Raises:
        ProviderConfigError: If the address is none.
    """
    token_file, ca_file = settings.provider_token_file, settings.provider_ca_file
    if settings.openshift_auth:
        ca_file = ca_file or SERVICE_ACCOUNT / "ca.crt"
        token_file = token_file or SERVICE_ACCOUNT / "token"
    options = PrometheusOptions(
        address=settings.provider_address or DEFAULT_ADDRESS,
        token=_choose_secret(settings.provider_token, token_file),
        username=settings.provider_username,
        password=_choose_secret(settings.provider_password, settings.provider_password_file),
        tls=TlsSettings(
            ca_file=ca_file,
            verify=not settings.insecure_skip_verify,
            certificate=settings.provider_cert_file,
            key=settings.provider_key_file,
            server_name=settings.provider_server_name,
        ),
        catalogue_path=settings.catalogue,
        host_labels=settings.host_labels,
        host_suffix=settings.host_suffix,
        go_scaling=settings.go_scaling,
        # A little less than the watcher's own deadline, so that the error says more than that time is over.
        timeout_seconds=0.9 * settings.fetch_timeout_seconds,
    )
    return PrometheusProvider(options, ClusterNodes(settings.kubeconfig, request_timeout_seconds=settings.fetch_timeout_seconds))


def _choose_secret(value: SecretStr | None, path: Path | None) -> Secret | None:
    if value is not None:
        return value.get_secret_value()
    return None if path is None else path.read_text
