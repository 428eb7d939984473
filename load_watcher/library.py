"""
The load watcher inside another program: the same refresh loop and history, and no port.

It stands beside the service. Of the library it knows the snapshot, since that is what it hands out (``docs/decisions/0004-embedded.md``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import structlog

from load_watcher.clock import SystemClock
from load_watcher.errors import LoadWatcherError, SettingsError
from load_watcher.history.aggregate import OPERATORS
from load_watcher.providers.registry import choose_provider, list_provider_names
from load_watcher.publication import Publication
from load_watcher.samples import Window
from load_watcher.settings import Settings, load_settings
from load_watcher.snapshot import Choice
from load_watcher.watcher import Watcher
from load_watcher.wiring import make_watcher
from trimaran_client.snapshot import LoadSnapshot

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


class EmbeddedWatcher:
    """
    Hold the newest snapshot of a watcher in this process; a :class:`trimaran_client.SnapshotSource`.

    Made by :func:`embedded`. The properties may be read from any thread.
    """

    def __init__(self, watcher: Watcher, choice: Choice) -> None:
        self._watcher = watcher
        self._choice = choice
        self._snapshot = LoadSnapshot.empty()
        self._fault: LoadWatcherError | None = None
        self._changed = asyncio.Event()
        self._is_left = False

    @property
    def snapshot(self) -> LoadSnapshot:
        """Answer the newest snapshot; one that knows nothing before the first."""
        return self._snapshot

    @property
    def failure(self) -> LoadWatcherError | None:
        """Answer why the last refresh brought nothing; ``None`` if it did."""
        return self._watcher.failure or self._fault

    def age_seconds(self, now: float) -> float:
        """Answer how old the newest sample is at *now*, Unix seconds; infinite where there is none."""
        return self._snapshot.age_seconds(now)

    async def wait_newer(self, than: LoadSnapshot) -> LoadSnapshot:
        """
        Answer the newest snapshot as soon as it is another than *than*.

        Raises:
            LoadWatcherError: If the watcher is left before that.
        """
        while self._snapshot is than:
            if self._is_left:
                raise LoadWatcherError("the embedded watcher was left before a newer snapshot came")
            await self._changed.wait()
        return self._snapshot

    async def run(self) -> None:
        """Turn each publication of the watcher into a snapshot, until the watcher is left."""
        publication: Publication | None = None
        publisher = self._watcher.publisher
        while (newer := await publisher.wait_newer(publication)) is not None and newer is not publication:
            publication = newer
            try:
                columns = await self._watcher.renderer.build_columns(publication, self._choice)
                snapshot = await asyncio.to_thread(LoadSnapshot.from_columns, columns)
            except Exception as error:  # noqa: BLE001 - the last resort: the next publication may succeed
                _log.exception("a snapshot could not be made by a fault of our own; the last one stays, report this")
                self._fault = LoadWatcherError(f"a fault of our own: {type(error).__name__}: {error}; report it with the log")
            else:
                self._fault, self._snapshot = None, snapshot
                self._wake()

    def leave(self) -> None:
        """Tell those that wait that no snapshot comes any more."""
        self._is_left = True
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


@asynccontextmanager
async def embedded(
    settings: Settings | None = None, *, windows: Iterable[str] = (), statistics: Iterable[str] = ()
) -> AsyncIterator[EmbeddedWatcher]:
    """
    Run a load watcher in this process: ``async with load_watcher.embedded() as source``, and ``source.snapshot`` is the newest snapshot.

    No port is opened, no signal taken, and nothing of the process is set. Several may run at once, one after the other as well.

    Args:
        settings: The provider, its access, intervals and history, as for the service; read from the environment if not given. Some of them
            are set by ``Settings.model_validate({"METRICS_PROVIDER_NAME": "Local"})``, the others then come from the environment.
        windows: Which windows a snapshot has, for example ``("5m", "15m")``; none: the longest of 15m, 10m and 5m that each node holds.
        statistics: Which statistics, for example ``("AVG", "P90")``; none: ``AVG`` and ``STD``.

    Raises:
        SettingsError: If the settings, a window or a statistic cannot be used.
        ProviderError: If the provider cannot be entered; one that is down now is no error.
    """
    choice = _parse_choice(windows, statistics)
    if settings is None:
        settings, warnings = load_settings(list_provider_names())
        for warning in warnings:
            _log.warning(warning)
    watcher = make_watcher(settings, choose_provider(settings).name, SystemClock())
    async with watcher:
        source = EmbeddedWatcher(watcher, choice)
        task = asyncio.create_task(source.run(), name="load-watcher embedded")
        try:
            yield source
        finally:
            task.cancel()
            await asyncio.wait([task])
            source.leave()


def _parse_choice(windows: Iterable[str], statistics: Iterable[str]) -> Choice:
    problems, parsed = [], []
    for text in windows.split(",") if isinstance(windows, str) else windows:
        try:
            parsed.append(Window.parse(text))
        except ValueError as error:
            problems.append(f"windows: {error}")
    names = statistics.split(",") if isinstance(statistics, str) else tuple(statistics)
    problems += [f"statistics: {name!r} is none; choose from {', '.join(OPERATORS)}" for name in names if name not in OPERATORS]
    if problems:
        raise SettingsError(problems)
    return Choice.of(parsed, names)
