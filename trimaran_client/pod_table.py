"""The pods in flight in dense columns that change one pod at a time and are frozen for each decision at next to no cost."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np

from trimaran_client.prediction import UsagePrediction
from trimaran_client.resources import Pod
from trimaran_client.units import FloatArray, IntArray, freeze

State = Literal["bound", "nominated", "assumed"]

# Policies with other arguments predict otherwise; each prediction is one more column to keep.
_MOST_PREDICTIONS: Final = 16
_FIRST_SLOTS: Final = 64
_CHUNK_ENTRIES: Final = 32
# Between two decisions of a burst there are some twenty.
_MOST_CHANGES: Final = 512


@dataclass(frozen=True, slots=True)
class AssignedPod:
    """
    A pod on a node that the metrics may not show yet.

    Args:
        pod: The pod.
        node: Where it is, or is meant to be.
        assigned_at: Since when, Unix seconds: its PodScheduled time where it has one.
        hold_seconds: How long it is taken to need until its usage can be measured.
        state: ``bound``; ``nominated`` by a scheduler that still waits for something; or ``assumed`` by a caller.
    """

    pod: Pod
    node: str
    assigned_at: float
    hold_seconds: float = 0.0
    state: State = "bound"

    @property
    def started_at(self) -> float:
        """Answer from when on its usage can be measured, Unix seconds; infinite while it is not bound."""
        return self.assigned_at + self.hold_seconds if self.state == "bound" else math.inf


class PodChange(NamedTuple):
    """A pod came to a node (*sign* 1) or went from it (-1); *entry* is there where it is in flight."""

    sign: int
    node: str
    entry: AssignedPod | None


class PodChanges:
    """The last few changes, for whoever saw everything a moment ago."""

    def __init__(self) -> None:
        self.version = 0
        self._last: deque[PodChange] = deque(maxlen=_MOST_CHANGES)

    def note(self, change: PodChange) -> None:
        """Take one more."""
        self.version += 1
        self._last.append(change)

    def forget(self) -> None:
        """Have everybody look at everything again."""
        self.version += 1
        self._last.clear()

    def since(self, version: int) -> Sequence[PodChange] | None:
        """List what changed since :attr:`version` was this, oldest first; ``None`` where that is no longer known."""
        count = self.version - version
        return None if count > len(self._last) else [*itertools.islice(reversed(self._last), count)][::-1]


class EntryList:
    """
    A list of entries in short tuples, so that one is changed, and all are frozen, without touching each of them.

    A thousand pods copied for every decision of a burst would be a thousand counts of references up, and down again with the next.
    """

    def __init__(self) -> None:
        self._chunks: list[tuple[AssignedPod, ...]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, slot: int) -> AssignedPod:
        return self._chunks[slot // _CHUNK_ENTRIES][slot % _CHUNK_ENTRIES]

    def __setitem__(self, slot: int, entry: AssignedPod) -> None:
        at, within = divmod(slot, _CHUNK_ENTRIES)
        chunk = self._chunks[at]
        self._chunks[at] = (*chunk[:within], entry, *chunk[within + 1 :])

    def append(self, entry: AssignedPod) -> None:
        """Add an entry at the end."""
        if self._count % _CHUNK_ENTRIES:
            self._chunks[-1] = (*self._chunks[-1], entry)
        else:
            self._chunks.append((entry,))
        self._count += 1

    def pop(self) -> AssignedPod:
        """Take the last entry out."""
        *rest, entry = self._chunks.pop()
        if rest:
            self._chunks.append(tuple(rest))
        self._count -= 1
        return entry

    def freeze(self) -> tuple[tuple[AssignedPod, ...], ...]:
        """Answer the entries as they are now, in several tuples one after the other."""
        return tuple(self._chunks)


class FrozenPodTable(NamedTuple):
    """A pod table at one moment: the pods, in several tuples, and in the same order the columns of what is known of each."""

    chunks: tuple[tuple[AssignedPod, ...], ...]
    node_rows: IntArray
    assigned_at: FloatArray
    started_at: FloatArray
    usages: dict[UsagePrediction, FloatArray]


class PodTable:
    """
    Hold the pods in flight by key, each with the row of its node and the time when it ceases to be one.

    A removed one's place is taken by the last, and what was frozen is copied before the next write.
    """

    def __init__(self) -> None:
        self._slot_of: dict[str, int] = {}
        self._keys: list[str] = []
        self._entries = EntryList()
        self._times = np.full((3, _FIRST_SLOTS), math.nan)  # assigned, started, ends
        self._node_rows = np.full(_FIRST_SLOTS, -1)
        self._usages: dict[UsagePrediction, FloatArray] = {}
        self._is_shared = False
        self._next_end_at = math.inf

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str) -> AssignedPod | None:
        """Answer the pod of a key."""
        slot = self._slot_of.get(key)
        return None if slot is None else self._entries[slot]

    def put(self, key: str, entry: AssignedPod, node_row: int, ends_at: float) -> None:
        """Add a pod, or change it; *ends_at* is when it leaves, Unix seconds."""
        self._own()
        slot = self._slot_of.get(key)
        if slot is None:
            slot = self._slot_of[key] = len(self._entries)
            self._keys.append(key)
            self._entries.append(entry)
            if slot == len(self._node_rows):
                self._grow()
        else:
            self._entries[slot] = entry
        self._node_rows[slot] = node_row
        self._times[:, slot] = entry.assigned_at, entry.started_at, ends_at
        for prediction, usage in self._usages.items():
            usage[slot] = prediction.predict(entry.pod)
        self._next_end_at = min(self._next_end_at, ends_at)

    def discard(self, key: str) -> None:
        """Take the pod of a key out, if it is there."""
        slot = self._slot_of.pop(key, None)
        if slot is None:
            return
        self._own()
        last = len(self._entries) - 1
        last_key, last_entry = self._keys.pop(), self._entries.pop()
        if slot != last:
            self._slot_of[last_key], self._keys[slot], self._entries[slot] = slot, last_key, last_entry
            self._times[:, slot] = self._times[:, last]
            self._node_rows[slot] = self._node_rows[last]
            for usage in self._usages.values():
                usage[slot] = usage[last]

    def take_expired(self, now: float) -> list[tuple[str, AssignedPod]]:
        """Remove those whose end has come; answer them by key."""
        if now < self._next_end_at:
            return []
        slots = np.flatnonzero(self._times[2, : len(self)] <= now).tolist()
        expired = [(self._keys[slot], self._entries[slot]) for slot in slots]
        for key, _ in expired:
            self.discard(key)
        self._next_end_at = float(self._times[2, : len(self)].min(initial=math.inf))
        return expired

    def learn(self, prediction: UsagePrediction, usage: FloatArray) -> None:
        """Keep up the column of a prediction from now on; *usage* is what it says of each pod now."""
        while len(self._usages) >= _MOST_PREDICTIONS:
            del self._usages[next(iter(self._usages))]
        column = np.full(len(self._node_rows), math.nan)
        column[: len(usage)] = usage
        self._usages[prediction] = column

    def freeze(self) -> FrozenPodTable:
        """Answer everything as it is now."""
        self._is_shared = True
        count = len(self)
        frozen = FrozenPodTable(
            chunks=self._entries.freeze(),
            node_rows=self._node_rows[:count],
            assigned_at=self._times[0, :count],
            started_at=self._times[1, :count],
            usages={prediction: usage[:count] for prediction, usage in self._usages.items()},
        )
        for column in (frozen.node_rows, frozen.assigned_at, frozen.started_at, *frozen.usages.values()):
            freeze(column)
        return frozen

    def _grow(self) -> None:
        self._times = np.concatenate([self._times, np.full_like(self._times, math.nan)], axis=1)
        self._node_rows = np.concatenate([self._node_rows, np.full_like(self._node_rows, -1)])
        for prediction, usage in self._usages.items():
            self._usages[prediction] = np.concatenate([usage, np.full_like(usage, math.nan)])

    def _own(self) -> None:
        if self._is_shared:
            self._times, self._node_rows = self._times.copy(), self._node_rows.copy()
            for prediction, usage in self._usages.items():
                self._usages[prediction] = usage.copy()
            self._is_shared = False
