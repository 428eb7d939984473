"""An event on each pod that says why it is where it is; best effort, beside the answers and never in their way."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

import msgspec

from trimaran_client.errors import KubernetesError
from trimaran_client.extender.decisions import Decision
from trimaran_client.kube import KubeClient
from trimaran_client.policies.base import Reason

logger = logging.getLogger(__name__)

# A burst of pods must not hold memory while the API server hangs; what does not fit is dropped and counted.
_MOST_WAITING: Final = 1000
_TIMEOUT_SECONDS: Final = 5.0


class _Reference(msgspec.Struct, frozen=True, rename="camel"):
    kind: str
    namespace: str
    name: str
    uid: str
    api_version: str = "v1"


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    generate_name: str
    namespace: str


class _Source(msgspec.Struct, frozen=True):
    component: str


class _Event(msgspec.Struct, frozen=True, rename="camel"):
    metadata: _Metadata
    involved_object: _Reference
    reason: str
    message: str
    first_timestamp: str
    last_timestamp: str
    source: _Source
    api_version: str = "v1"
    kind: str = "Event"
    type: str = "Normal"
    count: int = 1


class EventWriter:
    """
    Write events within ``async with``.

    Args:
        client: Access to the cluster, which must allow to create events.

    Attributes:
        outcomes: ``written``, ``failed``, ``dropped`` → count.
    """

    def __init__(self, client: KubeClient) -> None:
        self.outcomes: Counter[str] = Counter()
        self._client = client
        self._waiting: asyncio.Queue[Decision] = asyncio.Queue(_MOST_WAITING)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="events")
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def submit(self, decision: Decision) -> None:
        """Write the event of a decision whose pod was bound, when there is time."""
        try:
            self._waiting.put_nowait(decision)
        except asyncio.QueueFull:
            self.outcomes["dropped"] += 1

    async def _run(self) -> None:
        while True:
            decision = await self._waiting.get()
            path = f"/api/v1/namespaces/{quote(decision.pod.namespace, safe='')}/events"
            try:
                await self._client.create(path, _make_event(decision, at=time.time()), timeout_seconds=_TIMEOUT_SECONDS)
                self.outcomes["written"] += 1
            except KubernetesError as error:
                self._note_failure(str(error))
            except Exception as error:  # noqa: BLE001 - the last resort of a task that must outlive every fault
                self._note_failure(f"a fault of our own, report it: {error!r}")

    def _note_failure(self, told: str) -> None:
        self.outcomes["failed"] += 1
        if self.outcomes["failed"] == 1:
            logger.warning("an event could not be written: %s; more failures are only counted", told)


def tell(decision: Decision) -> str:
    """Say in one line why a pod is where it is."""
    names = decision.names
    if decision.bound_to not in names:
        return f"{decision.policy} did not score {decision.bound_to}; it scored {len(names)} others"
    row = names.index(decision.bound_to)
    score, reason = int(decision.values[row]), Reason(int(decision.reasons[row]))
    best, of_all = int(decision.values.max()), f"the best of {len(names)} nodes"
    against = of_all if score == best else f"{of_all} had {best}, and other plugins weighed more"
    told = f"{decision.policy} scored {decision.bound_to} {score} ({reason}), {against}"
    return f"{told}; degraded: {decision.degraded}" if decision.degraded else told


def _make_event(decision: Decision, *, at: float) -> _Event:
    pod = decision.pod
    stamp = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return _Event(
        metadata=_Metadata(f"{pod.name}.", pod.namespace),
        involved_object=_Reference("Pod", pod.namespace, pod.name, pod.uid),
        reason="TrimaranScored",
        message=tell(decision)[:1000],
        first_timestamp=stamp,
        last_timestamp=stamp,
        source=_Source("trimaran-extender"),
    )
