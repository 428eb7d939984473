"""
SignalFx (Splunk Observability Cloud): one SignalFlow program for CPU and memory of all nodes.

The program puts out a point a minute of each node over the window, and the averages are computed here: a computation within SignalFlow
would put out seven times as many series, and no sign of when each was measured.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from concurrent import futures
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlsplit

import numpy as np
import structlog

from load_watcher.clock import Clock, SystemClock
from load_watcher.errors import ProviderAuthError, ProviderConfigError, ProviderUnavailableError
from load_watcher.providers.allowance import Allowance
from load_watcher.providers.coverage import Coverage
from load_watcher.providers.endpoint import TOKEN_VARIABLE, Secret, choose_secret, make_tls_context, parse_address, read_secret
from load_watcher.providers.findings import WARNING, Finding
from load_watcher.providers.nodes import ClusterNodes
from load_watcher.providers.points import POINT_SECONDS, NodeView, PointTable, build_batch
from load_watcher.samples import Rejection, SampleBatch, Window
from load_watcher.settings import Settings
from trimaran_client.wire import CPU, MEMORY

if TYPE_CHECKING:  # it imports the signalfx package, which is done when the provider is opened
    from load_watcher.providers.signalflow import Computation, Output

NAME: Final = "SignalFx"
DEFAULT_ADDRESS: Final = "https://stream.signalfx.com"
HOST_SUFFIX_VARIABLE: Final = "SIGNALFX_HOST_NAME_SUFFIX"
CLUSTER_VARIABLE: Final = "SIGNALFX_CLUSTER_NAME"
# Metric type → metric; both are percent of the host's capacity, 0 to 100, as the SignalFx agents send them.
METRICS: Final = {CPU: "cpu.utilization", MEMORY: "memory.utilization"}
# What the Go load-watcher serves as the names of its metrics.
METRIC_NAMES: Final = {metric_type: f'sf_metric:"{metric}"' for metric_type, metric in METRICS.items()}

NO_METADATA: Final = "no_metadata"
NOT_A_NUMBER: Final = "not_a_number"

# Programs run behind another name than the REST API (Splunk's developer documentation, "Realms in endpoints").
_API_DOMAINS: Final = (".signalfx.com", ".observability.splunkcloud.com")
_STOP_SECONDS: Final = 2.0
_HEALTH_SPAN_SECONDS: Final = 2 * POINT_SECONDS
_AUTH_REMEDY: Final = f"renew {TOKEN_VARIABLE}: an access token with the API scope, or a session token, of the realm in the address"

_FILTER_REMEDY: Final = f"read only this cluster: set {CLUSTER_VARIABLE} or {HOST_SUFFIX_VARIABLE}"
_SILENT_REMEDY: Final = (
    f"check {CLUSTER_VARIABLE} and {HOST_SUFFIX_VARIABLE}, and that the agents send {' and '.join(METRICS.values())}"
    " with the dimension host"
)

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


class SignalFxProvider:
    """
    Get utilization of CPU and memory of each host: the newest, and averages and deviations over windows.

    Args:
        address: Of the SignalFlow API, ``https://stream.REALM.signalfx.com``; that of the REST API is understood too.
        token: The access token, or what reads it; ``None`` sends none.
        host_suffix: What the hosts' names have after the nodes' names; only such hosts are read.
        cluster_name: The value of the dimension ``cluster``; empty reads all.
        nodes: The cluster's node list, entered and left with the provider; ``None`` takes hosts as they stand, without the suffix.
        ca_file: The only CAs to trust; ``None`` for those of the system.
        verify_tls: False admits every certificate.
        timeout_seconds: For one computation from start to end, and for each read.
        clock: The time.

    Raises:
        ProviderConfigError: If the address is none.
    """

    name: Final = NAME

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        token: Secret | None = None,
        host_suffix: str = "",
        cluster_name: str = "",
        nodes: ClusterNodes | None = None,
        ca_file: Path | None = None,
        verify_tls: bool = True,
        timeout_seconds: float = 10.0,
        clock: Clock | None = None,
    ) -> None:
        self._address = find_stream_address(parse_address(NAME, address))
        self._token = token
        self._host_suffix = host_suffix
        self._cluster_name = cluster_name
        self._nodes = nodes
        self._ca_file = ca_file
        self._verify_tls = verify_tls
        self._timeout_seconds = timeout_seconds
        self._clock = clock or SystemClock()
        self._allowance = Allowance(NAME, self._clock)
        self._make_computation: Callable[[str], Computation] | None = None
        self._runs: dict[futures.Future[Output], Computation] = {}
        self._opened = AsyncExitStack()
        self._coverage = Coverage(NAME, silent_remedy=_SILENT_REMEDY, host_remedy=_FILTER_REMEDY)

    async def __aenter__(self) -> Self:
        """
        Load the package and the CAs; nothing is asked yet.

        Raises:
            ProviderConfigError: If the package is not installed or the CA file cannot be used.
        """
        if not self._verify_tls:
            _log.warning("TLS certificates are not verified: whoever answers gets the token", provider=NAME)
        if self._address.startswith("http:"):
            _log.warning("the address is plain http: the token can be read on the way", provider=NAME)
        make_computation = await asyncio.to_thread(self._load)
        if self._nodes is not None:
            await self._opened.enter_async_context(self._nodes)
        self._make_computation = make_computation
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        """Abort what runs; a thread that still waits for a name to resolve or a connection to open ends by itself later."""
        self._make_computation = None
        await self._opened.aclose()
        for computation in list(self._runs.values()):
            computation.abort()
        if self._runs:
            _, left = await asyncio.to_thread(futures.wait, list(self._runs), _STOP_SECONDS)
            if left:
                _log.warning("a connection attempt goes on in the background", provider=NAME, threads=len(left))

    async def fetch(self, window: Window) -> SampleBatch:
        """
        Run the program over *window*.

        Raises:
            ProviderError: If there is no complete output before the deadline.
        """
        end_at = self._clock.time()
        text = build_program(host_suffix=self._host_suffix, cluster_name=self._cluster_name)
        output = await self._compute(text, end_at - window.duration_seconds, end_at)
        if self._nodes is not None:
            await self._nodes.wait(self._timeout_seconds / 2)
        view = NodeView.of(self._nodes, host_suffix=self._host_suffix)
        batch = await asyncio.to_thread(build_signalfx_batch, output, window=window, end_at=end_at, view=view)
        self._coverage.note(batch, self._nodes, _find_gap(output))
        return batch

    async def check_health(self) -> None:
        """
        Run a program with a single output series: it tests address, TLS, token and filter alike.

        Raises:
            ProviderError: If it does not end as it should.
        """
        end_at = self._clock.time()
        text = build_health_program(host_suffix=self._host_suffix, cluster_name=self._cluster_name)
        await self._compute(text, end_at - _HEALTH_SPAN_SECONDS, end_at)

    def findings(self) -> tuple[Finding, ...]:
        """Tell what the last refresh found: the nodes, each metric, hosts that are no nodes, and what is left of the allowance."""
        return (*self._coverage.findings(self._clock.time()), *self._allowance.findings())

    def _load(self) -> Callable[[str], Computation]:
        try:
            from load_watcher.providers import signalflow
        except ModuleNotFoundError as error:
            raise ProviderConfigError(f"{NAME}: the package {error.name} is not installed: pip install 'trimaran[signalfx]'") from error
        tls = make_tls_context(NAME, self._ca_file, verify_tls=self._verify_tls)

        def make_computation(token: str) -> Computation:
            endpoint = signalflow.Endpoint(NAME, self._address, token, tls, self._allowance, _AUTH_REMEDY)
            return signalflow.Computation(endpoint, read_timeout_seconds=self._timeout_seconds)

        return make_computation

    async def _compute(self, program: str, start_at: float, stop_at: float) -> Output:
        self._allowance.check()
        token = await read_secret(NAME, TOKEN_VARIABLE, self._token)
        try:
            return await self._run(token, program, start_at, stop_at)
        except ProviderAuthError:
            renewed = await read_secret(NAME, TOKEN_VARIABLE, self._token)
            if renewed == token:
                raise
            return await self._run(renewed, program, start_at, stop_at)

    async def _run(self, token: str, program: str, start_at: float, stop_at: float) -> Output:
        if self._make_computation is None:
            raise ProviderConfigError(f"{NAME}: used outside of `async with`")
        computation = self._make_computation(token)
        run = _start_thread(
            partial(
                computation.run,
                program,
                start_ms=int(start_at // POINT_SECONDS) * POINT_SECONDS * 1000,
                stop_ms=int(stop_at * 1000),
                resolution_ms=POINT_SECONDS * 1000,
            )
        )
        self._runs[run] = computation
        run.add_done_callback(lambda ended: self._runs.pop(ended, None))
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await asyncio.wrap_future(run)
        except TimeoutError as error:
            raise ProviderUnavailableError(
                f"{NAME}: {self._address}: no complete answer within {self._timeout_seconds:g} s; check the network, or set"
                " LOAD_WATCHER_FETCH_TIMEOUT_SECONDS higher"
            ) from error
        finally:
            computation.abort()


def find_stream_address(address: str) -> str:
    """
    Answer where programs run, for the address of Splunk's REST API; any other address is taken as it is.

    >>> find_stream_address("https://api.eu0.signalfx.com")
    'https://stream.eu0.signalfx.com'
    """
    host = urlsplit(address).hostname or ""
    if host.startswith("api.") and host.endswith(_API_DOMAINS):
        return address.replace("://api.", "://stream.", 1)
    return address


def build_program(*, host_suffix: str = "", cluster_name: str = "") -> str:
    """
    Write the program that puts out both metrics, one series a host, under the metric types as labels.

    >>> print(build_program(host_suffix=".example.org", cluster_name="blue"))
    nodes = filter('host', '*.example.org') and filter('cluster', 'blue')
    data('cpu.utilization', filter=nodes, rollup='average').mean(by=['host']).publish('CPU')
    data('memory.utilization', filter=nodes, rollup='average').mean(by=['host']).publish('Memory')
    """
    lines = [_build_filter(host_suffix, cluster_name)]
    lines += [f"{_build_data(metric)}.mean(by=['host']).publish('{metric_type}')" for metric_type, metric in METRICS.items()]
    return "\n".join(lines)


def build_health_program(*, host_suffix: str = "", cluster_name: str = "") -> str:
    """Write the program that puts out how many hosts report."""
    return f"{_build_filter(host_suffix, cluster_name)}\n{_build_data(METRICS[CPU])}.count().publish('hosts')"


def _build_filter(host_suffix: str, cluster_name: str) -> str:
    cluster = f" and filter('cluster', {_quote(cluster_name)})" if cluster_name else ""
    return f"nodes = filter('host', {_quote('*' + host_suffix)}){cluster}"


def _build_data(metric: str) -> str:
    return f"data('{metric}', filter=nodes, rollup='average')"


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def build_signalfx_batch(output: Output, *, window: Window, end_at: float, view: NodeView) -> SampleBatch:
    """
    Make the batch of what the program put out.

    Args:
        output: Of :func:`build_program`.
        window: The longest window.
        end_at: Its end, Unix seconds.
        view: Which node a host is.

    Returns:
        The batch; series without metadata or a host, and values that are no numbers, are among the rejections.
    """
    rejections: list[Rejection] = []
    hosts: dict[str, dict[str, str]] = {metric_type: {} for metric_type in METRICS}  # metric type → series → host
    for series, properties in output.properties.items():
        label, host = properties.get("sf_streamLabel"), properties.get("host")
        if isinstance(label, str) and label in hosts and isinstance(host, str) and host:
            hosts[label][series] = host
        else:
            detail = f"published as {label!r}, host {host!r}"
            rejections.append(Rejection(series, str(label), NO_METADATA, detail))
    times_ms = sorted(output.points)
    unknown = {series for points in output.points.values() for series in points} - set(output.properties)
    rejections += [Rejection(series, "", NO_METADATA, "points of a series that was never described") for series in sorted(unknown)]
    tables = []
    unreadable: Counter[tuple[str, str, str]] = Counter()
    for metric_type, host_of in hosts.items():
        rows = {series: row for row, series in enumerate(host_of)}
        values = np.full((len(rows), len(times_ms)), np.nan)
        for column, time_ms in enumerate(times_ms):
            for series, value in output.points[time_ms].items():
                row = rows.get(series)
                if row is None or value is None:
                    continue
                number = _read_number(value)
                if number is None:
                    unreadable[host_of[series], metric_type, type(value).__name__] += 1
                else:
                    values[row, column] = number
        times = np.array(times_ms, dtype=np.float64) / 1000
        tables.append(PointTable(metric_type, METRIC_NAMES[metric_type], tuple(host_of.values()), times, values))
    rejections += [Rejection(host, kind, NOT_A_NUMBER, f"{count} points of type {of}") for (host, kind, of), count in unreadable.items()]
    return build_batch(NAME, tables, window=window, end_at=end_at, view=view, rejections=rejections)


def _read_number(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:  # JSON knows no limit for whole numbers
        return None


def _find_gap(output: Output) -> Finding | None:
    if output.matched is None:
        return None
    matched, limit = output.matched
    return Finding(WARNING, "answer", f"only {limit} of the {matched} series that match were read", _FILTER_REMEDY)


def _start_thread(work: Callable[[], Output]) -> futures.Future[Output]:
    """Run it in a thread of its own, which does not keep the process alive: an executor would wait for it at exit."""
    future: futures.Future[Output] = futures.Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - it goes to whoever waits
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name=f"load-watcher {NAME}", daemon=True).start()
    return future


def create_provider(settings: Settings) -> SignalFxProvider:
    """
    Make the provider from the settings.

    Raises:
        ProviderConfigError: If the address is none.
    """
    return SignalFxProvider(
        settings.provider_address or DEFAULT_ADDRESS,
        token=choose_secret(settings.provider_token_file, settings.provider_token),
        host_suffix=settings.signalfx_host_suffix,
        cluster_name=settings.signalfx_cluster,
        nodes=ClusterNodes(settings.kubeconfig, request_timeout_seconds=settings.fetch_timeout_seconds),
        ca_file=settings.provider_ca_file,
        verify_tls=not settings.insecure_skip_verify,
        # A little less than the refresh has, so that the error says what was waited for.
        timeout_seconds=0.9 * settings.fetch_timeout_seconds,
    )
