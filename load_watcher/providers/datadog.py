"""
Datadog: one query for the points of CPU and memory of all nodes.

On aiohttp and msgspec: the official client takes seconds of CPU to decode what is one POST and one reply.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import msgspec
import structlog

from load_watcher.clock import Clock, SystemClock
from load_watcher.errors import ProviderAuthError, ProviderConfigError, ProviderReplyError, ProviderUnavailableError
from load_watcher.providers.allowance import Allowance, parse_number
from load_watcher.providers.coverage import Coverage
from load_watcher.providers.datadog_points import NAME, build_datadog_batch, build_queries, build_request
from load_watcher.providers.endpoint import (
    CA_FILE_REMEDY,
    TOKEN_VARIABLE,
    Secret,
    choose_secret,
    make_status_error,
    make_tls_context,
    parse_address,
    read_secret,
    shorten,
)
from load_watcher.providers.findings import WARNING, Finding
from load_watcher.providers.nodes import ClusterNodes
from load_watcher.providers.points import NodeView
from load_watcher.samples import SampleBatch, Window
from load_watcher.settings import Settings

DEFAULT_ADDRESS: Final = "https://api.datadoghq.com"
QUERY_PATH: Final = "/api/v2/query/timeseries"
VALIDATE_PATH: Final = "/api/v2/validate_keys"
APP_KEY_VARIABLE: Final = "METRICS_PROVIDER_APP_KEY"
HOST_SUFFIX_VARIABLE: Final = "DATADOG_HOST_NAME_SUFFIX"
CLUSTER_VARIABLE: Final = "DATADOG_CLUSTER_NAME"

# The sites of Datadog's documentation, "Datadog site"; the API of each answers at api.SITE.
_SITES: Final = re.compile(r"(app\.)?((?:[a-z]{2}[0-9]\.)?(?:datadoghq\.com|datadoghq\.eu|ddog-gov\.com))")
# What a tag may hold (Datadog's documentation, "Getting started with tags"), so that a setting cannot end the filter it stands in.
_TAG_VALUE: Final = re.compile(r"[\w.:/-]*")
_AUTH_REMEDY: Final = (
    f"check that {TOKEN_VARIABLE} is an API key and {APP_KEY_VARIABLE} an application key with the scope timeseries_query, both of the"
    " site in METRICS_PROVIDER_ADDRESS"
)
_FILTER_REMEDY: Final = f"read only this cluster: set {CLUSTER_VARIABLE} or {HOST_SUFFIX_VARIABLE}"
_SILENT_REMEDY: Final = f"check {CLUSTER_VARIABLE} and {HOST_SUFFIX_VARIABLE}, and that the Agents run their System check"

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


class DatadogProvider:
    """
    Get utilization of CPU and memory of each host: the newest, and averages and deviations over windows, all from one POST.

    Args:
        address: Of the API, ``https://api.SITE``; a site alone is understood too.
        api_key: The API key, or what reads it; ``None`` sends none.
        app_key: The application key, likewise.
        host_suffix: What the hosts' names have after the nodes' names; only such hosts are read.
        cluster_name: The value of the tag ``cluster_name``; empty reads all.
        nodes: The cluster's node list, entered and left with the provider; ``None`` takes hosts as they stand, without the suffix.
        ca_file: The only CAs to trust; ``None`` for those of the system.
        verify_tls: False admits every certificate.
        timeout_seconds: For one request from start to end.
        clock: The time.

    Raises:
        ProviderConfigError: If the address is none, or the suffix or the cluster's name holds what no tag can.
    """

    name: Final = NAME

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        api_key: Secret | None = None,
        app_key: Secret | None = None,
        host_suffix: str = "",
        cluster_name: str = "",
        nodes: ClusterNodes | None = None,
        ca_file: Path | None = None,
        verify_tls: bool = True,
        timeout_seconds: float = 10.0,
        clock: Clock | None = None,
    ) -> None:
        for variable, value in ((HOST_SUFFIX_VARIABLE, host_suffix), (CLUSTER_VARIABLE, cluster_name)):
            if not _TAG_VALUE.fullmatch(value):
                raise ProviderConfigError(f"{NAME}: {variable}={value!r} cannot be part of a tag; use letters, digits and _ . : / -")
        self._address = find_api_address(parse_address(NAME, address))
        self._secrets = {"DD-API-KEY": (TOKEN_VARIABLE, api_key), "DD-APPLICATION-KEY": (APP_KEY_VARIABLE, app_key)}
        self._host_suffix = host_suffix
        self._queries = build_queries(host_suffix=host_suffix, cluster_name=cluster_name)
        self._nodes = nodes
        self._ca_file = ca_file
        self._verify_tls = verify_tls
        self._timeout_seconds = timeout_seconds
        self._clock = clock or SystemClock()
        self._allowance = Allowance(NAME, self._clock)
        self._session: aiohttp.ClientSession | None = None
        self._opened = AsyncExitStack()
        self._coverage = Coverage(NAME, silent_remedy=_SILENT_REMEDY, host_remedy=_FILTER_REMEDY)

    async def __aenter__(self) -> Self:
        """
        Load the CAs and open the session; nothing is asked yet.

        Raises:
            ProviderConfigError: If the CA file cannot be used.
        """
        if not self._verify_tls:
            _log.warning("TLS certificates are not verified: whoever answers gets the keys", provider=NAME)
        if self._address.startswith("http:"):
            _log.warning("the address is plain http: the keys can be read on the way", provider=NAME)
        tls = await asyncio.to_thread(make_tls_context, NAME, self._ca_file, verify_tls=self._verify_tls)
        if self._nodes is not None:
            await self._opened.enter_async_context(self._nodes)
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls),
            timeout=aiohttp.ClientTimeout(total=self._timeout_seconds),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self._session = await self._opened.enter_async_context(session)
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        """Close the session."""
        self._session = None
        await self._opened.aclose()

    async def fetch(self, window: Window) -> SampleBatch:
        """
        Query the points of *window* and average them.

        Raises:
            ProviderError: If there is no reply that can be used.
        """
        end_at = self._clock.time()
        body = build_request(self._queries, window=window, end_at=end_at)
        reply, keys = await self._ask("POST", QUERY_PATH, body)
        if self._nodes is not None:
            await self._nodes.wait(self._timeout_seconds / 2)
        view = NodeView.of(self._nodes, host_suffix=self._host_suffix)
        build = partial(build_datadog_batch, reply, window=window, end_at=end_at, view=view, secrets=keys.values())
        try:
            batch, error = await asyncio.to_thread(build)
        except msgspec.DecodeError as failure:
            raise ProviderReplyError(f"{NAME}: the reply cannot be read: {failure}; check METRICS_PROVIDER_ADDRESS") from failure
        gap = Finding(WARNING, "answer", f"it may be partial: {error}", _FILTER_REMEDY) if error else None
        self._coverage.note(batch, self._nodes, gap)
        return batch

    async def check_health(self) -> None:
        """
        Ask whether both keys are valid, which counts against another allowance than the query.

        Raises:
            ProviderError: If not, or if the allowance is used up.
        """
        await self._ask("GET", VALIDATE_PATH)

    def findings(self) -> tuple[Finding, ...]:
        """Tell what the last refresh found: the nodes, each metric, hosts that are no nodes, and what is left of the allowance."""
        return (*self._coverage.findings(self._clock.time()), *self._allowance.findings())

    async def _ask(self, method: str, path: str, body: bytes | None = None) -> tuple[bytes, Mapping[str, str]]:
        """Answer the reply, and the keys that it must not show."""
        self._allowance.check()
        keys = await self._read_keys()
        try:
            return await self._send(method, path, body, keys), keys
        except ProviderAuthError:
            renewed = await self._read_keys()
            if renewed == keys:
                raise
            return await self._send(method, path, body, renewed), renewed

    async def _read_keys(self) -> dict[str, str]:
        """Answer header → key, as the keys are now."""
        keys = {header: await read_secret(NAME, variable, secret) for header, (variable, secret) in self._secrets.items()}
        return {header: key for header, key in keys.items() if key}

    async def _send(self, method: str, path: str, body: bytes | None, keys: Mapping[str, str]) -> bytes:
        if self._session is None:
            raise ProviderConfigError(f"{NAME}: used outside of `async with`")
        headers = {"Content-Type": "application/json", "Accept": "application/json", **keys}
        try:
            async with self._session.request(method, self._address + path, data=body, headers=headers, allow_redirects=False) as response:
                content = await response.read()
        except aiohttp.ClientConnectorCertificateError as error:
            cause = getattr(error.certificate_error, "verify_message", error.certificate_error)
            raise ProviderConfigError(f"{NAME}: its certificate is refused: {cause}; {CA_FILE_REMEDY}") from error
        except aiohttp.ClientError as error:
            raise ProviderUnavailableError(f"{NAME}: {self._address}: {shorten(str(error), keys.values())}") from error
        except TimeoutError as error:
            raise ProviderUnavailableError(f"{NAME}: {self._address}: no complete answer within {self._timeout_seconds:g} s") from error
        if response.status == HTTPStatus.TOO_MANY_REQUESTS:
            raise self._allowance.hold(_read_reset(response.headers))
        if method == "POST":
            remaining, reset_seconds = (parse_number(response.headers.get(f"X-RateLimit-{name}")) for name in ("Remaining", "Reset"))
            self._allowance.note(remaining, reset_seconds)
        if response.status != HTTPStatus.OK:
            raise make_status_error(NAME, response.status, shorten(_read_errors(content), keys.values()), auth_remedy=_AUTH_REMEDY)
        return content


def find_api_address(address: str) -> str:
    """
    Answer where the API is, for the address of a Datadog site; any other address is taken as it is.

    >>> find_api_address("https://datadoghq.eu"), find_api_address("https://app.datadoghq.com")
    ('https://api.datadoghq.eu', 'https://api.datadoghq.com')
    """
    parts = urlsplit(address)
    site = _SITES.fullmatch(parts.netloc)
    return address if site is None else urlunsplit(parts._replace(netloc=f"api.{site[2]}"))


def _read_reset(headers: Mapping[str, str]) -> float | None:
    """Read how many seconds there are up to the next allowance; the first header that says so counts."""
    for header in ("X-RateLimit-Reset", "Retry-After", "X-RateLimit-Period"):
        seconds = parse_number(headers.get(header))
        if seconds is not None:
            return seconds
    return None


def _read_errors(content: bytes) -> str:
    """Take the sentences out of an error of the API; another text stays as it is."""
    try:
        decoded: Any = msgspec.json.decode(content)
    except msgspec.DecodeError:
        return content.decode(errors="replace")
    errors = decoded.get("errors") if isinstance(decoded, dict) else None
    return "; ".join(map(str, errors)) if isinstance(errors, list) else str(errors or "")


def create_provider(settings: Settings) -> DatadogProvider:
    """
    Make the provider from the settings.

    Raises:
        ProviderConfigError: If the address, the suffix or the cluster's name cannot be used.
    """
    return DatadogProvider(
        settings.provider_address or DEFAULT_ADDRESS,
        api_key=choose_secret(settings.provider_token_file, settings.provider_token),
        app_key=choose_secret(settings.provider_app_key_file, settings.provider_app_key),
        host_suffix=settings.datadog_host_suffix,
        cluster_name=settings.datadog_cluster,
        nodes=ClusterNodes(settings.kubeconfig, request_timeout_seconds=settings.fetch_timeout_seconds),
        ca_file=settings.provider_ca_file,
        verify_tls=not settings.insecure_skip_verify,
        # A little less than the refresh has, so that the error says what was waited for.
        timeout_seconds=0.9 * settings.fetch_timeout_seconds,
    )
