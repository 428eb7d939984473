"""
Ask a server that speaks the HTTP API of Prometheus, through prometheus-api-client.

The session under that client is ours: it sends the query in the body instead of the URL, ends what drips in too slowly, follows no
redirect, trusts what it was told to, and reads the reply once, into columns. Everything here blocks; call it in a thread.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import requests
import urllib3
from prometheus_api_client.prometheus_connect import PrometheusConnect
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError, InsecureRequestWarning, ReadTimeoutError
from urllib3.util.retry import Retry

from load_watcher.errors import (
    ProviderConfigError,
    ProviderError,
    ProviderRateLimitError,
    ProviderReplyError,
    ProviderUnavailableError,
)
from load_watcher.providers.endpoint import CA_FILE_REMEDY, make_status_error, make_tls_context, shorten
from load_watcher.providers.prometheus_vector import NAME, VectorDecoder, VectorReply

AUTH_REMEDY: Final = (
    "set METRICS_PROVIDER_TOKEN, METRICS_PROVIDER_TOKEN_FILE, or METRICS_PROVIDER_USERNAME with METRICS_PROVIDER_PASSWORD,"
    " and check that this user may query"
)
# 5,000 nodes with six metrics over three windows are some 25 MB.
MAX_BODY_BYTES: Final = 512 * 1024 * 1024
# After 429 without a time of the server's own.
RATE_LIMIT_SECONDS: Final = 30.0
_CHUNK_BYTES: Final = 1024 * 1024


class QueryRefusedError(ProviderReplyError):
    """The server is well and cannot answer this query: it does not parse, or is too much (400, 422, 500)."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """
    How the server is checked, and how we show who we are.

    Args:
        ca_file: The only CAs to trust, as PEM; ``None`` for those of the system.
        verify: False admits every certificate.
        certificate: Our own, as PEM; the key in the same file or in *key*.
        key: The key of the certificate.
        server_name: The name that the server's certificate must have; empty: the host of the address.
    """

    ca_file: Path | None = None
    verify: bool = True
    certificate: Path | None = None
    key: Path | None = None
    server_name: str = ""


class PrometheusClient:
    """
    One server; several threads may ask at the same time.

    Args:
        address: Without a slash at the end.
        tls: How to check the server.
        decoder: Reads the replies.

    Raises:
        ProviderConfigError: If a file of the TLS settings cannot be used.
    """

    def __init__(self, address: str, tls: TlsSettings, decoder: VectorDecoder) -> None:
        if not tls.verify:
            # Once is enough, and that is the provider's log.
            urllib3.disable_warnings(InsecureRequestWarning)
        self._session = _QuerySession(decoder, address)
        no_retry = Retry(total=0, raise_on_status=False)
        self._connect = PrometheusConnect(url=address, retry=no_retry, session=self._session, method="POST")
        # After the client, which mounts an adapter of its own for this address.
        self._session.mount(address, _TlsAdapter(_make_context(tls), tls.server_name, max_retries=no_retry))

    @property
    def requests_sent(self) -> int:
        """Answer how many HTTP requests were sent so far."""
        return self._session.requests_sent

    def query(self, query: str, *, at: float, authorization: str, timeout_seconds: float) -> VectorReply:
        """
        Ask for an instant vector.

        Args:
            query: PromQL.
            at: The time of the query, Unix seconds; whole seconds are sent, as some servers find nothing at others.
            authorization: The header, empty for none.
            timeout_seconds: From now to the end of the body.

        Raises:
            QueryRefusedError: If the server cannot answer this query.
            ProviderError: If there is no answer of the documented kind.
        """
        call = _Call(authorization, timeout_seconds, time.monotonic() + timeout_seconds)
        reply: VectorReply = self._connect.custom_query(query, params={"time": str(int(at)), _CALL: call})
        return reply

    def probe(self, *, at: float, authorization: str, timeout_seconds: float) -> None:
        """
        Ask, by GET, for something that needs no data: whether the server answers queries at this address.

        Raises:
            ProviderError: If not.
        """
        call = _Call(authorization, timeout_seconds, time.monotonic() + timeout_seconds)
        self._session.request("GET", f"{self._connect.url}/api/v1/query", {"query": "vector(1)", "time": str(int(at)), _CALL: call})

    def close(self) -> None:
        """Close the connections."""
        self._connect.close()


# What a call is about rides with its parameters through the client, which passes nothing else on, and is taken out by the session.
_CALL: Final = "\0call"


class _Call(NamedTuple):
    authorization: str
    timeout_seconds: float
    deadline: float

    @property
    def secrets(self) -> tuple[str, ...]:
        return self.authorization, self.authorization.partition(" ")[2]


class _DecodedResponse(requests.Response):
    """Gives prometheus-api-client, where it looks for a list of dictionaries, the reply that is decoded already."""

    reply: VectorReply

    def json(self, **_: Any) -> Any:  # noqa: ANN401 - as requests' own
        return {"data": {"result": self.reply}}


class _QuerySession(requests.Session):
    def __init__(self, decoder: VectorDecoder, address: str) -> None:
        super().__init__()
        # Neither proxies nor the credentials of a .netrc come in from the environment.
        self.trust_env = False
        self.requests_sent = 0
        self._decoder = decoder
        self._address = address
        self._post_is_refused = False

    def request(self, method: str, url: Any, params: Any = None, *_: Any, **__: Any) -> _DecodedResponse:  # noqa: ANN401 - as requests'
        fields = dict(params)
        call: _Call = fields.pop(_CALL)
        try:
            if method == "POST" and not self._post_is_refused:
                response = self._send("POST", url, call, data=fields)
                if response.status_code != HTTPStatus.METHOD_NOT_ALLOWED:
                    return self._read(response, call)
                response.close()
                self._post_is_refused = True
            return self._read(self._send("GET", url, call, params=fields), call)
        except (requests.RequestException, HTTPError, OSError) as error:
            raise self._explain(error, call) from error

    def _send(self, method: str, url: str, call: _Call, **fields: Any) -> requests.Response:  # noqa: ANN401 - as requests'
        self.requests_sent += 1
        headers = {"Authorization": call.authorization} if call.authorization else {}
        return super().request(method, url, headers=headers, timeout=call.timeout_seconds, allow_redirects=False, stream=True, **fields)

    def _read(self, response: requests.Response, call: _Call) -> _DecodedResponse:
        with response:
            body = _read_body(response, call.deadline)
        if response.status_code != HTTPStatus.OK:
            raise _refuse(response, body, call)
        decoded = _DecodedResponse()
        decoded.status_code = response.status_code
        decoded.reply = self._decoder.decode(body)
        return decoded

    def _explain(self, error: Exception, call: _Call) -> ProviderError:
        # urllib3's own reason is the last of three wrappings.
        reason = getattr(error.args[0], "reason", None) if error.args else None
        said = shorten(str(reason or error), call.secrets)
        if isinstance(error, requests.exceptions.SSLError):
            return ProviderUnavailableError(f"{NAME}: {self._address}: TLS: {said}; {CA_FILE_REMEDY}")
        if isinstance(error, requests.Timeout | TimeoutError | ReadTimeoutError):
            return ProviderUnavailableError(f"{NAME}: {self._address}: no answer in time; is the server overloaded?")
        return ProviderUnavailableError(f"{NAME}: {self._address}: {said}; check METRICS_PROVIDER_ADDRESS and that the server runs")


def _refuse(response: requests.Response, body: bytearray, call: _Call) -> ProviderError:
    status = response.status_code
    text, is_query = body[:10_000].decode(errors="replace"), False
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):  # then it is not the API's own error, and the text stands as it is
        error = msgspec.json.decode(body, type=_ErrorBody)
        text, is_query = error.error, error.errorType in _QUERY_ERRORS
    detail = shorten(text, call.secrets)
    if is_query:
        return QueryRefusedError(f"{NAME}: {status}: {detail}; check the expressions of the catalogue, or the limits of the server")
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        said = response.headers.get("Retry-After", "")
        pause_seconds = float(said) if said.isdecimal() else RATE_LIMIT_SECONDS
        return ProviderRateLimitError(
            f"{NAME}: 429: {detail}; raise the limit, or LOAD_WATCHER_REFRESH_SECONDS", until_at=time.time() + pause_seconds
        )
    return make_status_error(NAME, status, detail, auth_remedy=AUTH_REMEDY)


class _TlsAdapter(HTTPAdapter):
    """Use exactly our TLS settings; requests would add certifi's CAs to the ones that alone are to be trusted."""

    def __init__(self, context: ssl.SSLContext, server_name: str, *, max_retries: Retry) -> None:
        self._pool_settings: dict[str, Any] = {"ssl_context": context, "cert_reqs": context.verify_mode}
        if server_name:
            self._pool_settings["server_hostname"] = server_name
        super().__init__(max_retries=max_retries)

    def build_connection_pool_key_attributes(
        self,
        request: requests.PreparedRequest,
        verify: Any,  # noqa: ANN401 - as requests' own
        cert: Any = None,  # noqa: ANN401
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        host_params, pool_settings = super().build_connection_pool_key_attributes(request, verify, cert)
        del pool_settings
        return host_params, self._pool_settings if host_params["scheme"] == "https" else {}

    def cert_verify(self, conn: Any, url: Any, verify: Any, cert: Any) -> None:  # noqa: ANN401
        """Leave the pool as it is: its context holds all settings."""


def _make_context(tls: TlsSettings) -> ssl.SSLContext:
    context = make_tls_context(NAME, tls.ca_file, verify_tls=tls.verify)
    if tls.certificate is not None:
        try:
            context.load_cert_chain(tls.certificate, tls.key)
        except OSError as error:  # an SSLError is one
            remedy = "give a certificate and its key as PEM files that this user can read"
            raise ProviderConfigError(f"{NAME}: client certificate {tls.certificate}: {error}; {remedy}") from error
    return context


def _read_body(response: requests.Response, deadline: float) -> bytearray:
    """Read as the bytes come: the timeout of requests starts anew with each of them."""
    body = bytearray()  # grows in place: chunks to join would be there twice at the end
    while chunk := response.raw.read1(_CHUNK_BYTES, decode_content=True):
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise ProviderReplyError(
                f"{NAME}: the reply is larger than {MAX_BODY_BYTES} bytes; leave metrics or windows out of the catalogue"
            )
        if time.monotonic() > deadline:
            raise TimeoutError
    return body


class _ErrorBody(msgspec.Struct, frozen=True):
    error: str
    errorType: str = ""  # noqa: N815 - the server's name


# Of the documented ones, those that say more of the query than of the server.
_QUERY_ERRORS: Final = frozenset({"bad_data", "execution", "internal"})
