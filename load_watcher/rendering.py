"""
Answers with other windows and statistics than the published snapshot has, made when they are asked for.

Each is made once for a publication, however many ask for it, and kept until the next one; a few of them, since anybody can make up more.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Generic, TypeVar

import numpy as np
from cachetools import LRUCache

from load_watcher.history.aggregate import WindowAggregate
from load_watcher.history.errors import HistoryError, WindowNotHeldError
from load_watcher.history.memory import Memory
from load_watcher.last_good import LastGood
from load_watcher.publication import Publication
from load_watcher.samples import Window
from load_watcher.snapshot import Choice, Encoded, Snapshot, build_columns, encode, encode_snapshot
from load_watcher.timing import Timing
from trimaran_client.wire import AVERAGE, LATEST, STANDARD_DEVIATION, NotHeld, SnapshotColumns, encode_json

# Schedulers and dashboards ask for the same few again and again. 5,000 nodes with ten columns: 0.7 MB each.
CACHED_ANSWERS: Final = 16

_USUAL: Final = (AVERAGE, STANDARD_DEVIATION)

_T = TypeVar("_T")
# The windows that our own history does not have, and why; ``None`` is the usual one.
_Failures = dict[Window | None, HistoryError]


class _Answers(Generic[_T]):
    """Make each answer to a publication once; who asks meanwhile waits for it, and who goes away does not stop it."""

    def __init__(self) -> None:
        self._publication: Publication | None = None
        self._tasks: LRUCache[Hashable, asyncio.Task[_T]] = LRUCache(CACHED_ANSWERS)
        # The loop itself holds tasks weakly.
        self._running: set[asyncio.Task[_T]] = set()

    async def get(self, publication: Publication, key: Hashable, make: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        if publication is not self._publication:
            self._publication = publication
            self._tasks = LRUCache(CACHED_ANSWERS)
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.create_task(make())
            self._running.add(task)
            task.add_done_callback(partial(self._end, self._tasks, key))
        return await asyncio.shield(task)

    def _end(self, tasks: LRUCache[Hashable, asyncio.Task[_T]], key: Hashable, task: asyncio.Task[_T]) -> None:
        self._running.discard(task)
        if task.cancelled() or task.exception() is not None:  # the next one who asks may have more luck
            tasks.pop(key, None)

    async def close(self) -> None:
        running = tuple(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        self._publication = None


class Renderer:
    """
    Make answers of a publication and our own history.

    Args:
        memory: What keeps the samples; ``None`` keeps none.
        timing: Limits, and the usual window.
        threads: Where the work is done.
    """

    def __init__(self, memory: Memory | None, timing: Timing, threads: ThreadPoolExecutor) -> None:
        self._memory = memory
        self._timing = timing
        self._threads = threads
        self._windows = _Answers[Snapshot]()
        self._columns = _Answers[Encoded]()

    async def close(self) -> None:
        """End what is being made."""
        await self._windows.close()
        await self._columns.close()

    async def render_window(self, publication: Publication, choice: Choice) -> Snapshot:
        """
        Answer the nodes with other statistics, or over another window, than the publication has; the newest values stay.

        Args:
            publication: Of what.
            choice: At most one window, and then exactly that one.

        Raises:
            HistoryError: If what is asked for is not held, or cannot be read; the message names what is held.
        """
        return await self._windows.get(publication, choice, partial(self._make_window, publication, choice))

    async def encode_columns(self, publication: Publication, choice: Choice) -> Encoded:
        """Answer the bytes of :meth:`build_columns`."""
        return await self._columns.get(publication, choice, partial(self._encode_columns, publication, choice))

    async def build_columns(self, publication: Publication, choice: Choice) -> SnapshotColumns:
        """
        Answer the nodes in columns, with the windows and statistics of *choice*.

        What the source averaged itself comes first; our own history has what the source lacks. A window that it does not hold is named with
        the reason, and the others are answered.
        """
        aggregates, failures = await self._aggregate(publication, choice)
        snapshot = publication.snapshot
        build = partial(
            build_columns,
            publication.good,
            choice,
            snapshot_id=snapshot.id,
            now=snapshot.made_at,
            stale_seconds=self._timing.stale_seconds,
            aggregates=aggregates,
            not_held=[NotHeld("" if window is None else str(window), str(error)) for window, error in failures.items()],
            withheld=snapshot.withheld,
        )
        return await self._in_thread(build)

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _encode_columns(self, publication: Publication, choice: Choice) -> Encoded:
        columns = await self.build_columns(publication, choice)
        return await self._in_thread(lambda: encode(encode_json(columns)))

    async def _make_window(self, publication: Publication, choice: Choice) -> Snapshot:
        aggregates, failures = await self._aggregate(publication, choice)
        # There is no room for a reason beside the nodes: what is asked for by name is there, or the whole is refused.
        window = choice.windows[0] if choice.windows else None
        by_source = {operator for _, operator in _find_averaged(publication.good, window)}
        by_history = {each.operator for each in aggregates if not np.isnan(each.values).all()}
        lacking = [name for name in choice.statistics if name not in {LATEST, *by_source, *by_history}]
        if window in failures and (lacking or not by_source):
            raise failures[window]
        if lacking:
            raise WindowNotHeldError(f"{', '.join(lacking)}: no samples span a window yet; ask again after the next refreshes")
        return await self._in_thread(partial(self._encode_window, publication, choice, aggregates))

    def _encode_window(self, publication: Publication, choice: Choice, aggregates: Sequence[WindowAggregate]) -> Snapshot:
        snapshot = publication.snapshot
        return encode_snapshot(
            publication.good,
            now=snapshot.made_at,
            stale_seconds=self._timing.stale_seconds,
            window=choice.windows[0] if choice.windows else self._timing.window,
            choice=choice,
            aggregates=aggregates,
            withheld=snapshot.withheld,
        )

    async def _aggregate(self, publication: Publication, choice: Choice) -> tuple[Sequence[WindowAggregate], _Failures]:
        """Compute what is asked for and the source did not average itself; and name the windows for which that is not possible."""
        if not choice.windows and not choice.statistics:
            return publication.aggregates, {}
        operators = tuple(each for each in choice.statistics or _USUAL if each != LATEST)
        types = {key.metric_type for key in publication.good.columns if key.window is None}  # only these have samples of ours
        aggregates: list[WindowAggregate] = []
        failures: _Failures = {}
        for window in choice.windows or (None,):
            averaged = _find_averaged(publication.good, window)
            wanted = set(itertools.product(types, operators)) - averaged
            if not operators or (averaged and not wanted):
                continue
            try:
                computed = await self._compute(publication, window, operators)
            except WindowNotHeldError as error:
                failures[window] = _name_windows(error, publication.good)
            except HistoryError as error:
                failures[window] = error
            else:
                aggregates += [each for each in computed if (each.metric_type, each.operator) in wanted]
        return aggregates, failures

    async def _compute(self, publication: Publication, window: Window | None, operators: tuple[str, ...]) -> tuple[WindowAggregate, ...]:
        if self._memory is None:
            raise WindowNotHeldError("no history is kept: LOAD_WATCHER_HISTORY is off; only the published values are there")
        if publication.windows_end_at is None:
            raise WindowNotHeldError("no sample is held yet; ask again after the first refreshes")
        return await self._memory.compute_window(window, operators, publication.good.nodes, end_at=publication.windows_end_at)


def _name_windows(error: WindowNotHeldError, good: LastGood) -> WindowNotHeldError:
    """Name beside the windows that our history holds those that the source averages itself, which can be asked for too."""
    windows = sorted({key.window for key in good.columns if key.window is not None})
    return WindowNotHeldError(f"{error}; the source itself has {', '.join(map(str, windows))}") if windows else error


def _find_averaged(good: LastGood, window: Window | None) -> set[tuple[str, str]]:
    """Find the types and statistics that the source averaged itself over *window*; over any, where that is ``None``."""
    return {(key.metric_type, key.operator) for key in good.columns if key.window is not None and (window is None or key.window == window)}
