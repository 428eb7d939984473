"""One load watcher over HTTP: a request, a deadline, and an error that says what went wrong and where."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import NamedTuple, Self

import aiohttp
import yarl

from trimaran_client.bodies import read_past
from trimaran_client.errors import SnapshotDecodeError, WatcherError, WatcherNotReadyError, WatcherStatusError, WatcherUnreachableError

# A reply for 50,000 nodes is about 25 MB; anything far beyond is not a load watcher's, and is not read into memory.
MAX_REPLY_BYTES = 256 * 1024 * 1024
_BODY_START_CHARACTERS = 200
_METRICS_PATH = "/watcher"


class Reply(NamedTuple):
    """A body and the tag that it came with, empty without one; ``body`` is ``None`` where it is what was known already."""

    body: bytes | None
    tag: str


class Connection:
    """
    Ask a load watcher.

    Args:
        address: For example ``http://127.0.0.1:2020``; a path prefix and trailing slashes are fine.
        attempt_seconds: The most that one request takes, beyond the time for which it asks to be held.

    Raises:
        WatcherError: If the address is not an http or https address.
    """

    def __init__(self, address: str, *, attempt_seconds: float) -> None:
        self._address = _parse_address(address)
        self._prefix = self._address.path.rstrip("/").removesuffix(_METRICS_PATH).rstrip("/")
        # What is told of the address: without user and password.
        self.told = str(self._address.with_user(None).with_path(self._prefix)).rstrip("/")
        if not attempt_seconds > 0:
            raise WatcherError(f"attempt_seconds={attempt_seconds!r}: give a number above 0")
        self._attempt_seconds = attempt_seconds
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession()
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    @property
    def is_entered(self) -> bool:
        """Tell whether it is open."""
        return self._session is not None

    async def get(self, path: str, query: Mapping[str, str], *, tag: str = "", held_seconds: float = 0.0) -> Reply:
        """
        Get *path*, unless it is what *tag* names.

        Raises:
            WatcherUnreachableError: No connection, or no whole answer in time.
            WatcherStatusError: Another status than 200 and 304; 503 as :class:`WatcherNotReadyError`.
            SnapshotDecodeError: More than any load watcher's reply.
        """
        if self._session is None:
            raise RuntimeError("enter the client first: async with WatcherClient(address) as client")
        url = self._address.with_path(self._prefix + path).with_query(query)
        told = self.told + path
        headers = {"If-None-Match": tag} if tag else {}
        timeout = aiohttp.ClientTimeout(total=self._attempt_seconds + held_seconds)
        try:
            async with self._session.get(url, headers=headers, timeout=timeout) as response:
                if response.status == 304 and tag:
                    return Reply(None, tag)
                body = await read_past(response.content.iter_any(), MAX_REPLY_BYTES)
        except (aiohttp.ClientError, TimeoutError, OSError, UnicodeError) as error:
            cause = (str(error) or type(error).__name__).replace(str(url), told)
            raise WatcherUnreachableError(f"{told}: {cause}; check that the load watcher runs there") from error
        if len(body) > MAX_REPLY_BYTES:
            raise SnapshotDecodeError(f"not a load watcher's reply: more than {MAX_REPLY_BYTES} bytes; check the address")
        if response.status == 200:
            return Reply(body, response.headers.get("ETag", ""))
        body_start = body.decode("utf-8", "replace")[:_BODY_START_CHARACTERS]
        error_type = WatcherNotReadyError if response.status == 503 else WatcherStatusError
        raise error_type(f"{told}: status {response.status}: {body_start}", status=response.status, body_start=body_start)


def _parse_address(address: str) -> yarl.URL:
    try:
        url = yarl.URL(address.strip())
    except ValueError as error:
        raise WatcherError(f"{address!r} is not an address: {error}; write for example http://127.0.0.1:2020") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise WatcherError(f"{address!r} is not an http or https address; write for example http://127.0.0.1:2020")
    return url
