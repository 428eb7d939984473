"""Ask the Kubernetes API: single answers, whole lists in pages, and watches, decoded by msgspec into only the fields that are used."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from trimaran_client.bodies import read_past
from trimaran_client.errors import KubernetesConfigError, KubernetesReplyError, KubernetesStatusError, KubernetesUnreachableError
from trimaran_client.kube.access import Session, find_access, open_first, open_session
from trimaran_client.kube.wire import ListPage, ObjectList, ReplyT, WatchEvent, decode, read_event, read_reason, redact

if TYPE_CHECKING:
    import aiohttp

# As client-go's pager: 500 nodes are some 5 MB of JSON, which hold the event loop for about 3 ms each time.
PAGE_SIZE = 500
NO_PARAMS: Mapping[str, str] = MappingProxyType({})
# A page of 500 nodes with 50 images each is 5 MB, the metrics of 50,000 nodes 16 MB; some servers answer without pages.
MAX_REPLY_BYTES = 512 * 1024 * 1024
# etcd holds objects of 1.5 MB by default.
MAX_LINE_BYTES = 64 * 1024 * 1024
MAX_ERROR_BYTES = 64 * 1024
MAX_OBJECTS = 2_000_000
# What comes within so long is read together: of ten events of a burst each takes a third of what it takes alone, since their code and data
# are in the processor's caches. One that comes after a rest is read at once.
_GATHER_SECONDS = 0.02


class KubeClient:
    """
    Ask the Kubernetes API; ``async with KubeClient() as client`` finds the access and opens the session.

    Credentials that the server refuses are read again, and the request is sent once more if they changed: tokens, files and exec plugins
    may rotate for as long as the client lives. Nothing else is tried again.

    Args:
        kubeconfig: The only place to look for access; without it those of :func:`find_access`.

    Raises:
        KubernetesConfigError: On entering, if there is no access; lists every place that was tried, with the reason.
    """

    def __init__(self, kubeconfig: Path | None = None) -> None:
        self._kubeconfig = kubeconfig
        self._session: Session | None = None
        self._retired: Session | None = None
        self._renewal: asyncio.Task[bool] | None = None

    async def __aenter__(self) -> Self:
        self._session = await open_first(find_access(self._kubeconfig))
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait([self._renewal])
        sessions, self._session, self._retired = (self._session, self._retired), None, None
        for session in sessions:
            if session is not None:
                await session.api.close()

    async def get(self, path: str, reply_type: type[ReplyT], *, params: Mapping[str, str] = NO_PARAMS, timeout_seconds: float) -> ReplyT:
        """
        Get one answer.

        Args:
            path: For example ``/api/v1/nodes``.
            reply_type: A struct with the fields that are used; all others are skipped unread.
            params: The query.
            timeout_seconds: For the whole answer, connecting included.

        Raises:
            KubernetesUnreachableError: No connection, or no whole answer in time.
            KubernetesStatusError: Another status than 200.
            KubernetesReplyError: A body that is not a *reply_type*.
            KubernetesConfigError: Credentials that were refused, and could not be read again.
        """
        with _translated_errors(path, timeout_seconds):
            async with asyncio.timeout(timeout_seconds), await self._send(path, params) as response:
                # From the stream: what `response.read()` returns stays with the response, which kubernetes-asyncio keeps.
                body = await read_past(response.content.iter_any(), MAX_REPLY_BYTES)
                if len(body) > MAX_REPLY_BYTES:
                    raise KubernetesReplyError(f"GET {path}: more than {MAX_REPLY_BYTES} bytes; that is no answer of an API server")
        return decode(body, reply_type, path)

    async def create(self, path: str, body: object, *, timeout_seconds: float) -> None:
        """
        Create an object in the collection at *path*; *body* is what msgspec encodes as its manifest.

        Raises:
            KubernetesError: As for :meth:`get`.
        """
        with _translated_errors(path, timeout_seconds, method="POST"):
            async with asyncio.timeout(timeout_seconds), await self._send(path, NO_PARAMS, body=msgspec.to_builtins(body)) as response:
                await _read_start(response)

    async def list_pages(
        self, path: str, object_type: type[ReplyT], *, params: Mapping[str, str] = NO_PARAMS, timeout_seconds: float
    ) -> AsyncIterator[ListPage[ReplyT]]:
        """
        Get a list page by page, so that nobody needs to hold all of it.

        The arguments and errors are those of :meth:`get`; the timeout is for each page. With ``msgspec.Raw`` for *object_type* each object
        can be read by itself, so that a bad one spoils no other.
        """
        page_type = ObjectList[object_type]  # type: ignore[valid-type]  # a type that is only known at run time
        query = {**params, "limit": str(PAGE_SIZE)}
        count = 0
        while True:
            try:
                page = await self.get(path, page_type, params=query, timeout_seconds=timeout_seconds)
            except KubernetesStatusError as error:
                if error.status != HTTPStatus.GONE or "continue" not in query or "limit" not in query:
                    raise
                # The first page is older than what the server remembers: ask for everything at once, as client-go does.
                query, count = dict(params), 0
                continue
            items = page.items or []
            count += len(items)
            if count > MAX_OBJECTS or (page.metadata.continue_token and not items):
                raise KubernetesReplyError(f"GET {path}: a list without end: {count} objects and more to come")
            yield ListPage(items, page.metadata.resource_version, is_first="continue" not in query)
            if not page.metadata.continue_token:
                return
            query["continue"] = page.metadata.continue_token

    @contextlib.asynccontextmanager
    async def watch(
        self, path: str, object_type: type[ReplyT], *, params: Mapping[str, str], timeout_seconds: float, silence_seconds: float
    ) -> AsyncIterator[AsyncIterator[WatchEvent[ReplyT]]]:
        """
        Open a watch and hand out its events; entering means that the server accepted it.

        Args:
            path: Of the list, for example ``/api/v1/nodes``.
            object_type: A struct with the fields that are used.
            params: The query; ``watch`` is added.
            timeout_seconds: For the server to accept.
            silence_seconds: How long it may say nothing after that.

        Raises:
            KubernetesUnreachableError: As for :meth:`get`, also when a watch breaks off or stays silent; its regular end ends the events.
            KubernetesStatusError: As for :meth:`get`, also for an event of the type ``ERROR``; ``status`` is then its code.
            KubernetesReplyError: For a line that is no event; an object that cannot be read is told in its event.
            KubernetesConfigError: As for :meth:`get`.
        """
        with _translated_errors(path, timeout_seconds):
            async with asyncio.timeout(timeout_seconds):
                response = await self._send(path, {**params, "watch": "1"})
        async with response, contextlib.aclosing(_read_events(response.content, object_type, path, silence_seconds)) as events:
            yield events

    async def _send(self, path: str, params: Mapping[str, str], *, body: object = None) -> aiohttp.ClientResponse:
        """
        Send a request and answer the open response, which tells of success; the caller sets the time limit and translates errors.

        With a *body* it is a POST, else a GET.
        """
        import aiohttp

        method = "GET" if body is None else "POST"

        may_renew = True
        while True:
            session = self._session
            if session is None:
                raise KubernetesConfigError(f"{method} {path}: the client is not open; use it within `async with KubeClient() as client:`")
            try:
                response: aiohttp.ClientResponse = await session.api.call_api(
                    path,
                    method,
                    query_params=list(params.items()),
                    header_params={"Accept": "application/json", "Content-Type": "application/json"},
                    body=body,
                    auth_settings=["BearerToken"],
                    _preload_content=False,
                )
            except aiohttp.ClientSSLError:
                if may_renew and await self._renew(session):
                    may_renew = False
                    continue
                raise
            except Exception as error:
                # aiohttp fails anyhow, even by an assertion, when its session is closed under a request.
                if session.api.rest_client.pool_manager.closed:
                    raise KubernetesUnreachableError(f"{method} {path}: the client was closed before the answer") from error
                raise
            if response.status in (HTTPStatus.OK, HTTPStatus.CREATED):
                return response
            async with response:
                reason = redact(read_reason(await _read_start(response)), session.api.configuration)
            if response.status == HTTPStatus.UNAUTHORIZED and may_renew and await self._renew(session):
                may_renew = False
                continue
            message = f"{method} {path}: {response.status} from {redact(session.api.configuration.host or '')}: {reason}"
            raise KubernetesStatusError(message, status=response.status, reason=reason)

    async def _renew(self, refused: Session) -> bool:
        """Read the credentials again; answer whether there are now others than those that were refused."""
        if self._session is not refused:
            return True
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.create_task(self._reopen(refused))
            self._renewal.add_done_callback(lambda task: task.cancelled() or task.exception())  # it may end after all who waited for it
        renewal = self._renewal
        # One for all, and not cancelled with a request: an exec plugin that hangs would be started again and again.
        await asyncio.wait([renewal])
        return not renewal.cancelled() and renewal.result()

    async def _reopen(self, refused: Session) -> bool:
        renewed = await open_session(refused.place)
        if renewed.credentials == refused.credentials:
            await renewed.api.close()
            return False
        # Other requests may still be under way on the old session: it is closed one rotation later.
        before, self._retired, self._session = self._retired, refused, renewed
        if before is not None:
            await before.api.close()
        return True


async def _read_start(response: aiohttp.ClientResponse) -> bytes:
    """Read what an error says of itself, and no more of it than that takes."""
    return (await read_past(response.content.iter_any(), MAX_ERROR_BYTES))[:MAX_ERROR_BYTES]


@contextlib.contextmanager
def _translated_errors(path: str, timeout_seconds: float, *, method: str = "GET") -> Iterator[None]:
    import aiohttp

    try:
        yield
    except TimeoutError as error:
        raise KubernetesUnreachableError(f"{method} {path}: nothing from the API server for {timeout_seconds:g} s") from error
    except aiohttp.ClientSSLError as error:
        remedy = "name its CA as certificate-authority in the kubeconfig"
        raise KubernetesUnreachableError(f"{method} {path}: the API server's certificate is not trusted: {error}; {remedy}") from error
    except (aiohttp.ClientError, OSError) as error:
        raise KubernetesUnreachableError(f"{method} {path}: {redact(str(error)) or type(error).__name__}") from error
    except ValueError as error:
        # aiohttp refuses header values with control characters; its message does not show the value.
        raise KubernetesConfigError(f"{method} {path}: cannot be sent: {redact(str(error))}; check the token for line breaks") from error


async def _read_events(
    stream: aiohttp.StreamReader, object_type: type[ReplyT], path: str, silence_seconds: float
) -> AsyncGenerator[WatchEvent[ReplyT], None]:
    async for line in _read_lines(stream, path, silence_seconds):
        yield read_event(line, object_type, path)


async def _read_lines(stream: aiohttp.StreamReader, path: str, silence_seconds: float) -> AsyncIterator[bytes]:
    """Split a stream at line feeds; not by ``readline``, which gives up on a line longer than its buffer."""
    pieces: list[bytes] = []
    while True:
        with _translated_errors(path, silence_seconds):
            async with asyncio.timeout(silence_seconds):
                chunk = await stream.readany()
        if not chunk:
            return  # what is left in pieces was cut off: the next watch begins before it
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            pieces.append(end)
            if line := b"".join(pieces):
                yield line
            pieces.clear()
        pieces.append(rest)
        if sum(map(len, pieces)) > MAX_LINE_BYTES:
            raise KubernetesReplyError(f"GET {path}: an event of more than {MAX_LINE_BYTES} bytes; that is no watch of an API server")
        await asyncio.sleep(_GATHER_SECONDS)
