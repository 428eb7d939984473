"""
One run of one SignalFlow program, blocking, that always ends.

The only importer of the ``signalfx`` package, whose ways (1.1.16, read and run) set the shape of this module:

- its websocket transport does not verify certificates, so this is its transport for server-sent events (SSE);
- that one reads without a deadline: each read gets one here, and :meth:`Computation.abort` ends all of them from another thread;
- its ``Computation.stream()`` starts the program anew, without a pause, when a stream ends early, and drops every batch of data but the
  first when the job reports its resolution before the data: the channel is read directly, and a transport runs one program only.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlencode, urlsplit

import sseclient
import urllib3
from signalfx.signalflow import messages, sse
from urllib3.connection import HTTPConnection, HTTPSConnection

from load_watcher.errors import ProviderConfigError, ProviderError, ProviderReplyError, ProviderUnavailableError
from load_watcher.providers.allowance import Allowance, parse_number
from load_watcher.providers.endpoint import CA_FILE_REMEDY, make_status_error, shorten

# As long as a handshake over a slow link takes; a longer one only delays the next try.
_CONNECT_SECONDS: Final = 5.0
# Enough for what an error says.
_MAX_ERROR_BYTES: Final = 65_536


# The year 9999; JSON knows no limit for whole numbers, floats do.
_MAX_TIME_MS: Final = 253_402_300_799_000

_T = TypeVar("_T")


@dataclass(slots=True)
class Output:
    """
    What a program put out.

    Args:
        properties: Series → its metadata; ``sf_streamLabel`` is the label under which it was published.
        points: Logical time in milliseconds → series → value as it came; ``None`` = no data.
        matched: How many series matched, and how many of them were read, if that was not all.
    """

    properties: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    points: dict[int, dict[str, object]] = field(default_factory=dict)
    matched: tuple[int, int] | None = None


class Endpoint(NamedTuple):
    """
    Where to run programs, and as whom.

    Args:
        provider: Who asks, for the errors.
        address: ``https://HOST[:PORT][/PREFIX]``.
        token: What the source knows us by; empty for none. It appears in no message.
        tls: For https.
        allowance: Told when the source asks us to wait.
        auth_remedy: What to do when the token is refused.
    """

    provider: str
    address: str
    token: str
    tls: ssl.SSLContext
    allowance: Allowance
    auth_remedy: str


class Computation:
    """
    Run one program once.

    Args:
        endpoint: Where.
        read_timeout_seconds: For each read of the socket; the caller sets the deadline of the whole by :meth:`abort`.
    """

    def __init__(self, endpoint: Endpoint, *, read_timeout_seconds: float) -> None:
        self._endpoint = endpoint
        self._read_timeout_seconds = read_timeout_seconds
        self._handle: socket.socket | None = None
        self._is_aborted = False
        self._lock = threading.Lock()

    def run(self, program: str, *, start_ms: int, stop_ms: int, resolution_ms: int) -> Output:
        """
        Run the program and collect its output; blocks until the end, a failure, or :meth:`abort`.

        Args:
            program: In the SignalFlow language.
            start_ms: Of the span to run it over, Unix milliseconds.
            stop_ms: Its end; up to now, the computation ends by itself.
            resolution_ms: From one point to the next, at least.

        Raises:
            ProviderError: If there is no complete output.
        """
        provider = self._endpoint.provider
        transport = _Transport(self._endpoint, self._make_pool())
        try:
            parameters = {"start": start_ms, "stop": stop_ms, "resolution": resolution_ms, "immediate": True}
            with contextlib.closing(transport.execute(program, parameters)) as channel:
                return self._collect(channel)
        except urllib3.exceptions.SSLError as error:
            raise _make_tls_error(provider, error) from error
        except urllib3.exceptions.HTTPError as error:
            raise ProviderUnavailableError(f"{provider}: {self._endpoint.address}: {shorten(str(error))}") from error
        finally:
            transport.close()
            with self._lock:
                if self._handle is not None:
                    self._handle.close()
                self._handle = None

    def abort(self) -> None:
        """End the run from another thread, whatever it waits for but a name to resolve or a connection to open; does not block."""
        with self._lock:
            self._is_aborted = True
            if self._handle is not None:
                _shut_down(self._handle)

    def _collect(self, channel: Iterator[object]) -> Output:
        provider = self._endpoint.provider
        output = Output()
        # The package decodes without checking: whatever it or the digest trips over is the source's fault.
        try:
            for message in channel:
                if isinstance(message, messages.EndOfChannelMessage):
                    return output
                self._digest(message, output)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            cause = f"{type(error).__name__}: {self._shorten(str(error))}"
            raise ProviderReplyError(f"{provider}: a message of the stream cannot be read: {cause}") from error
        raise ProviderUnavailableError(f"{provider}: the stream ended before its END_OF_CHANNEL; what had come so far does not count")

    def _digest(self, message: object, output: Output) -> None:
        provider = self._endpoint.provider
        if isinstance(message, messages.MetadataMessage):
            output.properties[_check(message.tsid, str)] = _check(message.properties, dict)
        elif isinstance(message, messages.DataMessage):
            time_ms = _check(message.logical_timestamp_ms, int)
            if not 0 <= time_ms <= _MAX_TIME_MS:
                raise ValueError("a time that is none")
            points = output.points.setdefault(time_ms, {})
            points.update({_check(series, str): value for series, value in message.data.items()})
        elif isinstance(message, messages.InfoMessage):
            output.matched = _read_limit(message.message) or output.matched
        elif isinstance(message, messages.ErrorMessage):
            raise ProviderReplyError(f"{provider}: the program failed: {self._shorten(json.dumps(message.errors))}")
        elif isinstance(message, messages.ChannelAbortMessage):
            reason = self._shorten(json.dumps(message.abort_info))
            raise ProviderUnavailableError(f"{provider}: the source stopped the computation: {reason}")

    def _shorten(self, text: str) -> str:
        return shorten(text, [self._endpoint.token])

    def _make_pool(self) -> urllib3.HTTPConnectionPool:
        parts = urlsplit(self._endpoint.address)
        host = parts.hostname or ""
        options: dict[str, Any] = {
            "port": parts.port,
            "timeout": urllib3.Timeout(connect=min(_CONNECT_SECONDS, self._read_timeout_seconds), read=self._read_timeout_seconds),
            # Neither second tries nor redirects: the watcher tries again, and the token goes to no other place.
            "retries": False,
            "headers": {"Content-Type": "text/plain", "User-Agent": "trimaran-load-watcher"}
            | ({"X-SF-Token": self._endpoint.token} if self._endpoint.token else {}),
        }
        if parts.scheme == "http":
            pool = urllib3.HTTPConnectionPool(host, **options)
            pool.ConnectionCls = _watch(HTTPConnection, self._note)
            return pool
        if self._endpoint.tls.verify_mode == ssl.CERT_NONE:
            # The provider says so once; urllib3 would at every request.
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        secure_pool = urllib3.HTTPSConnectionPool(host, ssl_context=self._endpoint.tls, **options)
        secure_pool.ConnectionCls = _watch(HTTPSConnection, self._note)
        return secure_pool

    def _note(self, handle: socket.socket) -> None:
        with self._lock:
            self._handle = handle
            if self._is_aborted:
                _shut_down(handle)


def _watch(connection_type: type[HTTPConnection], note: Callable[[socket.socket], None]) -> Any:  # noqa: ANN401 - a class made here
    """
    Make connections whose socket can be shut down from another thread.

    Closing a response from another thread would wait for the read that it is meant to end. A second handle on the socket, taken before TLS
    begins, ends a handshake, a wait for headers and a stream alike.
    """

    class WatchedConnection(connection_type):  # type: ignore[misc, valid-type]
        def _new_conn(self) -> socket.socket:
            opened: socket.socket = super()._new_conn()
            note(opened.dup())
            return opened

    return WatchedConnection


class _Transport(sse.SSETransport):  # type: ignore[misc]  # the package has no types
    """The package's transport over our connection pool; it runs one program."""

    def __init__(self, endpoint: Endpoint, pool: urllib3.HTTPConnectionPool) -> None:
        super().__init__(token=None, endpoint=endpoint.address)
        # In place of its own, which trusts only the CAs of certifi and has no read deadline; it knows the host already.
        self._http = pool
        self._endpoint = urlsplit(endpoint.address).path
        self._target = endpoint
        self._has_run = False

    def execute(self, program: str, params: Mapping[str, object]) -> Any:  # noqa: ANN401 - the package has no types
        """Start the program, the first time."""
        if self._has_run:
            raise ProviderUnavailableError(f"{self._target.provider}: the stream ended early, and a program is not started twice")
        self._has_run = True
        return super().execute(program, params)

    def _post(self, url: str, fields: Mapping[str, object] | None = None, body: str | None = None) -> sseclient.SSEClient:
        """In place of its own, which fails with a KeyError on an error without a content type and shows neither headers nor text."""
        query = urlencode({name: json.dumps(value) for name, value in (fields or {}).items()})
        response = self._http.urlopen("POST", f"{url}?{query}", body=(body or "").encode(), preload_content=False)
        kind = response.headers.get("Content-Type", "")
        if response.status == HTTPStatus.OK and kind.startswith("text/event-stream"):
            return sseclient.SSEClient(response)
        with contextlib.closing(response):
            raise self._make_error(response, kind)

    def _make_error(self, response: urllib3.BaseHTTPResponse, kind: str) -> ProviderError:
        provider = self._target.provider
        if response.status == HTTPStatus.TOO_MANY_REQUESTS:
            return self._target.allowance.hold(parse_number(response.headers.get("Retry-After")))
        text = response.read(_MAX_ERROR_BYTES).decode(errors="replace")
        detail = shorten(_read_message(text), [self._target.token])
        if response.status == HTTPStatus.OK:
            return ProviderReplyError(f"{provider}: {kind or 'no content type'} in place of an event stream: {detail}; check the address")
        return make_status_error(provider, response.status, detail, auth_remedy=self._target.auth_remedy)


def _shut_down(handle: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the other end may have gone already
        handle.shutdown(socket.SHUT_RDWR)


def _check(value: object, of: type[_T]) -> _T:
    if not isinstance(value, of):
        raise TypeError(f"{type(value).__name__} in place of {of.__name__}")
    return value


def _read_message(text: str) -> str:
    """Take the sentence out of an error in JSON; another text stays as it is."""
    try:
        decoded = json.loads(text)
    except ValueError:
        return text
    return str(decoded.get("message") or text) if isinstance(decoded, dict) else text


def _read_limit(message: Mapping[str, Any]) -> tuple[int, int] | None:
    """Read how many series matched and were used, if the source says that it left some out."""
    if message.get("messageCode") != "FIND_LIMITED_RESULT_SET":
        return None
    contents = message.get("contents") or {}
    return int(contents.get("matchedSize", 0)), int(contents.get("limitSize", 0))


def _make_tls_error(provider: str, error: urllib3.exceptions.SSLError) -> ProviderError:
    cause = error.args[0] if error.args else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return ProviderConfigError(f"{provider}: its certificate is refused: {cause.verify_message}; {CA_FILE_REMEDY}")
    return ProviderUnavailableError(f"{provider}: TLS failed: {shorten(str(cause))}")
