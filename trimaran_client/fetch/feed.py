"""
Following a load watcher: one task that asks for what is newer, and one reference to the last good snapshot.

Whatever the load watcher does, the snapshot stays and its age tells; and however fast it answers, it is not asked without pause.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from asyncio import sleep
from collections.abc import Mapping
from time import monotonic
from types import TracebackType
from typing import Final, Self

from trimaran_client.errors import SnapshotDecodeError, WatcherError, WatcherNotReadyError, WatcherStatusError, WatcherUnreachableError
from trimaran_client.fetch.asking import Asker, Held
from trimaran_client.fetch.connection import Connection
from trimaran_client.snapshot import LoadSnapshot

DEFAULT_POLL_SECONDS: Final = 5.0
# A connection that died without a sign is noticed when this is over.
DEFAULT_WAIT_SECONDS: Final = 10.0
MAX_WAIT_SECONDS: Final = 60.0
# The first pause after a failure; each next one is twice as long, up to the cap.
FIRST_PAUSE_SECONDS: Final = 0.1
MAX_PAUSE_SECONDS: Final = 2.0
# Between an answer and the next question to a load watcher that holds its answers: well below the second within which news should arrive.
# Twice as long after each answer in a row that it did not hold, beyond a few: a start, or two refreshes at once.
_BREATH_SECONDS: Final = 0.25
_QUICK_SECONDS: Final = 0.5
_QUICK_ALLOWED: Final = 3
_UNTAGGED_FACTOR: Final = 3.0
_MAX_DOUBLINGS: Final = 10

_CAUSES: Final[Mapping[type[Exception], str]] = {
    WatcherNotReadyError: "not_ready",
    WatcherStatusError: "status",
    WatcherUnreachableError: "unreachable",
    SnapshotDecodeError: "decode",
}
_BUG: Final = "bug"

_logger = logging.getLogger(__name__)


def find_pause(failures: int) -> float:
    """Answer for how long to pause after a failure, seconds; *failures* came before it, and clients do not pause alike."""
    return spread(min(FIRST_PAUSE_SECONDS * 2 ** min(failures, _MAX_DOUBLINGS), MAX_PAUSE_SECONDS))


def spread(seconds: float) -> float:
    """Shorten a time by up to half, so that many clients do not ask at the same moment."""
    return seconds * random.uniform(0.5, 1.0)  # noqa: S311 spreads clients, hides nothing


class SnapshotFeed:
    """
    Hold the last good snapshot of a load watcher, and follow it until left; a :class:`SnapshotSource`.

    Made by :meth:`WatcherClient.follow` and used as ``async with client.follow() as feed``. The properties may be read from any thread.
    """

    def __init__(self, connection: Connection, asker: Asker, *, poll_seconds: float, wait_seconds: float) -> None:
        if not 0 < poll_seconds < math.inf or not 0 < wait_seconds <= MAX_WAIT_SECONDS:
            told = f"poll_seconds={poll_seconds!r}, wait_seconds={wait_seconds!r}"
            raise WatcherError(f"{told}: give numbers above 0, the second at most {MAX_WAIT_SECONDS:g}")
        self._connection = connection
        self._asker = asker
        self._poll_seconds = poll_seconds
        self._wait_seconds = wait_seconds
        self._snapshot = LoadSnapshot.empty()
        self._failure: WatcherError | SnapshotDecodeError | None = None
        self._failures: Mapping[str, int] = {}
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        """
        Begin to follow; does not wait for the first snapshot.

        Raises:
            RuntimeError: If the client is not entered, or the feed is entered already.
        """
        if not self._connection.is_entered:
            raise RuntimeError("enter the client first: async with WatcherClient(address) as client")
        if self._task is not None:
            raise RuntimeError("the feed is entered already; make another with client.follow()")
        self._task = asyncio.create_task(self._run(), name="trimaran snapshot feed")
        self._task.add_done_callback(lambda _: self._changed.set())
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        """Stop; the last snapshot stays."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def snapshot(self) -> LoadSnapshot:
        """Answer the last good snapshot; one that knows nothing before the first."""
        return self._snapshot

    @property
    def failure(self) -> WatcherError | SnapshotDecodeError | None:
        """Answer why the last question brought nothing; ``None`` if it was answered."""
        return self._failure

    @property
    def failures(self) -> Mapping[str, int]:
        """Answer how many questions failed, by cause: ``unreachable``, ``not_ready``, ``status``, ``decode``, ``bug``."""
        return self._failures

    def age_seconds(self, now: float) -> float:
        """
        Answer how old the newest sample is; infinite where there is none.

        Args:
            now: Unix seconds.
        """
        return self._snapshot.age_seconds(now)

    async def wait_newer(self, than: LoadSnapshot) -> LoadSnapshot:
        """
        Answer the last good snapshot as soon as it is another than *than*.

        Raises:
            WatcherUnreachableError: If the feed is left before that.
        """
        while self._snapshot is than:
            if self._task is None or self._task.done():
                raise WatcherUnreachableError("the feed was left before a newer snapshot came")
            await self._changed.wait()
        return self._snapshot

    async def _run(self) -> None:
        held: Held | None = None
        failed = quick = 0
        while self._connection.is_entered:
            asked_at = monotonic()
            try:
                answer = await self._asker.ask(held, wait_seconds=self._wait_seconds)
            except (WatcherError, SnapshotDecodeError) as error:
                self._note_failure(error)
            except Exception as error:  # the last resort: the feed must outlive every fault, and tells it
                _logger.exception("following the load watcher failed by a fault of our own; the last snapshot stays, report this")
                self._note_failure(WatcherError(f"a fault of our own: {type(error).__name__}: {error}; report it with the log"))
            else:
                self._failure, failed = None, 0
                if answer is not held:
                    self._publish(answer.snapshot)
                quick = quick + 1 if self._was_quick(answer, held, monotonic() - asked_at) else 0
                held = answer
                await sleep(self._find_breath(answer, quick))
                continue
            await sleep(find_pause(failed))
            failed += 1

    def _was_quick(self, answer: Held, held: Held | None, seconds: float) -> bool:
        """Tell whether an answer came without being held: too soon, or before the time was over although it was nothing new."""
        return seconds < (self._wait_seconds / 2 if answer is held else min(_QUICK_SECONDS, self._wait_seconds / 2))

    def _find_breath(self, held: Held, quick: int) -> float:
        if held.can_wait:
            return min(math.ldexp(_BREATH_SECONDS, min(max(0, quick - _QUICK_ALLOWED), _MAX_DOUBLINGS)), self._poll_seconds)
        return spread(self._poll_seconds if held.tag else self._poll_seconds * _UNTAGGED_FACTOR)

    def _publish(self, snapshot: LoadSnapshot) -> None:
        self._snapshot = snapshot
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _note_failure(self, error: WatcherError | SnapshotDecodeError) -> None:
        cause = _CAUSES.get(type(error), _BUG)
        self._failures = {**self._failures, cause: self._failures.get(cause, 0) + 1}
        self._failure = error
