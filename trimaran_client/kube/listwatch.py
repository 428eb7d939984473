"""Keep a view of all objects of one kind: list once, then follow the watch, and list again whenever it is lost."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType, TracebackType
from typing import Generic, Protocol, Self, TypeVar

import msgspec

from trimaran_client.errors import KubernetesError, KubernetesReplyError, KubernetesStatusError, ManifestError
from trimaran_client.kube.client import KubeClient
from trimaran_client.kube.wire import ObjectMeta, WatchEvent, decode, read_metadata

logger = logging.getLogger(__name__)

ObjectT = TypeVar("ObjectT")
ListenedT = TypeVar("ListenedT", contravariant=True)


@dataclass(frozen=True, slots=True)
class ObjectSelection(Generic[ObjectT]):
    """
    What to list and watch.

    Args:
        path: Of the list, for example ``/api/v1/nodes``.
        object_type: A struct with the fields that are used.
        key: What the objects are kept by, unique among them; from the metadata, since a deletion may carry nothing else.
        field_selector: As for ``kubectl get --field-selector``.
        label_selector: As for ``kubectl get --selector``.
        keep: What to keep of an object until it is gone; by default all of it. Of 150,000 pods that would be hundreds of megabytes.
    """

    path: str
    object_type: type[ObjectT]
    key: Callable[[ObjectMeta], str]
    field_selector: str = ""
    label_selector: str = ""
    keep: Callable[[ObjectT], ObjectT] | None = None

    @property
    def params(self) -> dict[str, str]:
        """Answer the selectors as a query."""
        params = {"fieldSelector": self.field_selector, "labelSelector": self.label_selector}
        return {name: value for name, value in params.items() if value}


@dataclass(frozen=True, slots=True)
class WatchTimes:
    """
    How long to wait for what, seconds.

    Args:
        request_timeout_seconds: For a page of the list, and for the server to accept a watch.
        silence_seconds: A watch without any event is taken for dead after that. API servers send a bookmark about every minute.
        watch_seconds: The server ends a watch after that, up to twice as long (client-go: 5 to 10 minutes), so that it moves to other
            servers after a restart.
        first_pause_seconds: The pause after the end of a watch; each failure doubles it.
        max_pause_seconds: The longest pause.
    """

    request_timeout_seconds: float = 30.0
    silence_seconds: float = 150.0
    watch_seconds: float = 300.0
    first_pause_seconds: float = 0.5
    max_pause_seconds: float = 30.0

    def pause_seconds(self, failures: int) -> float:
        """Compute the pause after so many failures in a row: doubled each time, capped, then shortened by up to a half at random."""
        longest = min(self.max_pause_seconds, self.first_pause_seconds * 2.0 ** min(failures, 60))
        return longest * random.uniform(0.5, 1.0)  # noqa: S311 - spreads the load, keeps no secret


class ListWatchListener(Protocol[ListenedT]):
    """Hears of every change, in order, within the event loop; must neither block nor raise, but for what is said below."""

    def on_update(self, key: str, value: ListenedT) -> None:
        """
        Take an object that is new or has changed.

        Raises:
            ManifestError: If there is no reading it: it is counted, logged once, and the next object is taken.
        """
        ...

    def on_delete(self, key: str, value: ListenedT) -> None:
        """Take what was kept of the last known state of an object that is gone."""
        ...

    def on_relist(self) -> None:
        """Learn that the view is complete; the changes since the last time have been told one by one."""
        ...


class ListWatch(Generic[ObjectT]):
    """
    Keep the objects of a selection up to date, in one task that runs within ``async with``.

    A watch that ends is opened again from where it stood. The list is fetched again when the server no longer remembers that point
    (410), and after two failures in a row; objects that vanished meanwhile are removed then. While the server cannot be reached the
    objects stay as they were. A failure is logged when it begins or changes, and its end is logged, not each attempt. An object that cannot
    be read is left as it was known, and logged once; all others are not touched by it.

    Args:
        client: An open client; it must outlive this.
        selection: What to list and watch.
        listener: Told of every change.
        times: How long to wait for what.

    Attributes:
        objects: Key → what is kept of the object, a live view; read it in one go, or copy it: it changes whenever the event loop runs.
        attempted: Set once the first list came or failed.
        synced: Set once the first list came.
        last_error: Why the objects may be out of date; ``None`` while a watch is open.
        event_count: How many changes were told so far, bookmarks left out.
        unreadable_count: How many of them could not be read.
    """

    def __init__(
        self,
        client: KubeClient,
        selection: ObjectSelection[ObjectT],
        *,
        listener: ListWatchListener[ObjectT] | None = None,
        times: WatchTimes | None = None,
    ) -> None:
        self._client = client
        self._selection = selection
        self._listener = listener
        self._times = times or WatchTimes()
        self._objects: dict[str, ObjectT] = {}
        self._versions: dict[str, str] = {}  # of every object that is there, readable or not
        self._unreadable: set[str] = set()
        self._resource_version = ""  # empty: list before the next watch
        self._eventless_attempts = 0
        self._heard_at = -float("inf")
        self._task: asyncio.Task[None] | None = None
        self.objects: Mapping[str, ObjectT] = MappingProxyType(self._objects)
        self.attempted = asyncio.Event()
        self.synced = asyncio.Event()
        self.last_error: KubernetesError | None = None
        self.event_count = 0
        self.unreadable_count = 0

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name=f"list and watch {self._selection.path}")
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def silent_seconds(self) -> float:
        """Answer how long ago the server last said anything, a bookmark at least; infinite before the first list."""
        return time.monotonic() - self._heard_at

    async def _run(self) -> None:
        while True:
            self._eventless_attempts += 1  # until an event shows otherwise
            try:
                if not self._resource_version:
                    await self._list()
                await self._watch()
            except KubernetesError as error:
                self._report_failure(error)
            except Exception as error:  # the last resort of a task that must outlive everything, such as a thread that cannot start
                logger.exception("%s: a defect of this program; the list begins anew", self._selection.path)
                self._report_failure(KubernetesError(f"{self._selection.path}: {type(error).__name__}: {error}"))
                self._resource_version = ""
            if self._eventless_attempts > 1:
                self._resource_version = ""
            await asyncio.sleep(self._times.pause_seconds(self._eventless_attempts))

    async def _list(self) -> None:
        selection, found, version = self._selection, set[str](), ""
        pages = self._client.list_pages(
            selection.path, msgspec.Raw, params=selection.params, timeout_seconds=self._times.request_timeout_seconds
        )
        async for page in pages:
            self._heard_at = time.monotonic()
            if page.is_first:
                found.clear()
            found.update(self._take(item) for item in page.items)
            version = page.resource_version
        for key in self._versions.keys() - found:
            self._delete(key)
        self._resource_version = version
        if self._listener is not None:
            self._listener.on_relist()
        self.synced.set()
        self.attempted.set()

    async def _watch(self) -> None:
        times = self._times
        params = {
            **self._selection.params,
            "allowWatchBookmarks": "true",
            "resourceVersion": self._resource_version,
            "timeoutSeconds": str(int(times.watch_seconds * random.uniform(1.0, 2.0))),  # noqa: S311 - spreads the load, keeps no secret
        }
        watch = self._client.watch(
            self._selection.path,
            self._selection.object_type,
            params=params,
            timeout_seconds=times.request_timeout_seconds,
            silence_seconds=times.silence_seconds,
        )
        try:
            async with watch as events:
                self._report_success()
                async for event in events:
                    self._apply(event)
        except KubernetesStatusError as error:
            if error.status != HTTPStatus.GONE:
                raise
            # Everyday: the server remembers some minutes only.
            logger.debug("%s: listing again: %s", self._selection.path, error)
            self._resource_version = ""

    def _take(self, item: msgspec.Raw) -> str:
        """Take an object of a list and answer its key; one that was listed before and has not changed is not read."""
        selection, metadata = self._selection, ObjectMeta()
        try:
            metadata = read_metadata(item, selection.path)
            if not self._is_known(metadata):
                self._update(metadata, decode(item, selection.object_type, selection.path))
        except KubernetesReplyError as error:
            self._set_aside(metadata, error)
        return selection.key(metadata)

    def _apply(self, event: WatchEvent[ObjectT]) -> None:
        self._heard_at = time.monotonic()
        self._eventless_attempts = 0
        if event.error is not None:
            self._set_aside(event.metadata, event.error)
        elif event.object is not None:
            if not self._is_known(event.metadata):
                self._update(event.metadata, event.object)
        elif event.kind == "DELETED":
            self._delete(self._selection.key(event.metadata))
        self._resource_version = event.metadata.resource_version or self._resource_version

    def _is_known(self, metadata: ObjectMeta) -> bool:
        return bool(metadata.resource_version) and self._versions.get(self._selection.key(metadata)) == _version_of(metadata)

    def _update(self, metadata: ObjectMeta, value: ObjectT) -> None:
        key, keep = self._selection.key(metadata), self._selection.keep
        if not key:
            return  # an object without a name is none that could be kept
        self.event_count += 1
        self._versions[key] = _version_of(metadata)
        self._objects[key] = value if keep is None else keep(value)
        try:
            if self._listener is not None:
                self._listener.on_update(key, value)
            self._unreadable.discard(key)
        except ManifestError as error:
            self._set_aside(metadata, error)

    def _delete(self, key: str) -> None:
        self._versions.pop(key, None)
        self._unreadable.discard(key)
        value = self._objects.pop(key, None)
        if value is not None:
            self.event_count += 1
            if self._listener is not None:
                self._listener.on_delete(key, value)

    def _set_aside(self, metadata: ObjectMeta, error: KubernetesReplyError | ManifestError) -> None:
        """Leave the object as it is known, and do not read this state of it again."""
        self.unreadable_count += 1
        key = self._selection.key(metadata)
        if key:
            self._versions[key] = _version_of(metadata)
        if key not in self._unreadable:
            self._unreadable.add(key)
            name = f"{metadata.namespace}/{metadata.name}".strip("/") or "without a name"
            logger.warning("%s: object %s cannot be read and is left out: %s", self._selection.path, name, error)

    def _report_failure(self, error: KubernetesError) -> None:
        if str(error) != str(self.last_error):
            logger.warning("%s: the view of %d objects is not kept up to date: %s", self._selection.path, len(self._objects), error)
        self.last_error = error
        self.attempted.set()

    def _report_success(self) -> None:
        if self.last_error is not None:
            logger.info("%s: the watch works again; it follows %d objects", self._selection.path, len(self._objects))
        self.last_error = None


def _version_of(metadata: ObjectMeta) -> str:
    """Make what differs between any two states of any two objects of one key."""
    return f"{metadata.uid} {metadata.resource_version}"
