"""
Real traces replayed as refreshes, and faults put into them: what the rules of ``load_watcher.quality`` reach.

``tests/benchmarks/quality.py`` prints the result, ``tests/integration/test_quality_traces.py`` holds it to its bounds.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np

from load_watcher.history.window import SampleRing
from load_watcher.quality import RECENT_REFRESHES, QualityLimits, QualityReport, QualityState, Verdict, assess
from load_watcher.samples import SampleBatch
from tests.builders import NOW
from trimaran_client.units import BoolArray, FloatArray
from trimaran_client.wire import CPU, MEMORY

DATA: Final = Path(__file__).parent / "data"
LIMITS: Final = QualityLimits()
# "Found within two refreshes."
ALLOWED_REFRESHES: Final = 2
_NAB_STEP_SECONDS: Final = 300.0
_NEZHA_STEP_SECONDS: Final = 60.0
# Of the wrapped counter: microseconds of CPU time on this many cores.
_CORES: Final = 8
_MEMORY_BYTES: Final = 2**34

Values = dict[str, FloatArray]


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Nodes on one grid of times: metric type → percent, shape (refreshes, nodes); ``labelled``: where the source saw an anomaly."""

    name: str
    step_seconds: float
    nodes: tuple[str, ...]
    values: Mapping[str, FloatArray]
    labelled: BoolArray

    @property
    def refreshes(self) -> int:
        return len(self.labelled)

    def make_batch(self, refresh: int) -> SampleBatch:
        at = np.full(len(self.nodes), NOW + refresh * self.step_seconds)
        return SampleBatch(self.name, self.nodes, at, {kind: values[refresh].copy() for kind, values in self.values.items()})


def load_traces() -> list[Trace]:
    nezha = sorted((DATA / "nezha-nodes").glob("*_nodes_1min.csv"))
    return [_load_nab(), *(_load_nezha(path) for path in nezha)]


def round_values(trace: Trace) -> Trace:
    """Make a trace as a coarse source would give it: whole percent."""
    return replace(trace, name=f"{trace.name}, whole percent", values={kind: np.round(values) for kind, values in trace.values.items()})


def _load_nab() -> Trace:
    """Put the machines, which lived at different times, side by side from their first sample on, as the nodes of one cluster."""
    windows = {Path(name).name: spans for name, spans in json.loads((DATA / "nab-cpu" / "anomaly_windows.json").read_text()).items()}
    columns, labels, names = [], [], []
    for path in sorted((DATA / "nab-cpu").glob("*.csv")):
        with path.open() as file:
            rows = list(csv.DictReader(file))
        times = [_parse_time(row["timestamp"]) for row in rows]
        spans = [(_parse_time(start), _parse_time(end)) for start, end in windows[path.name]]
        names.append(path.stem)
        columns.append([float(row["value"]) for row in rows])
        labels.append([any(start <= at <= end for start, end in spans) for at in times])
    return Trace("nab-cpu", _NAB_STEP_SECONDS, tuple(names), {CPU: np.array(columns).T.copy()}, np.array(labels).T)


def _parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def _load_nezha(path: Path) -> Trace:
    with path.open() as file:
        rows = list(csv.DictReader(file))
    names = tuple(dict.fromkeys(row["node"] for row in rows))
    times = sorted({int(row["t_unix"]) for row in rows})
    position = {at: index for index, at in enumerate(times)}
    values = {kind: np.full((len(times), len(names)), np.nan) for kind in (CPU, MEMORY)}
    for row in rows:
        place = position[int(row["t_unix"])], names.index(row["node"])
        values[CPU][place], values[MEMORY][place] = float(row["cpu_percent"]), float(row["mem_percent"])
    labelled = np.zeros((len(times), len(names)), dtype=np.bool_)
    return Trace(f"nezha {path.name.split('-20')[0]}", _NEZHA_STEP_SECONDS, names, values, labelled)


class Replay:
    """The stage of quality with its history and state, as the watcher runs it."""

    def __init__(self, step_seconds: float) -> None:
        self._span_seconds = RECENT_REFRESHES * step_seconds
        self._ring = SampleRing(span_seconds=self._span_seconds, step_seconds=step_seconds)
        self._state = QualityState()

    def remember(self, batch: SampleBatch) -> None:
        """Take a batch into the history without a verdict."""
        self._ring.append(batch)
        self._state = replace(self._state, served=frozenset(batch.nodes))

    def refresh(self, batch: SampleBatch, now: float) -> QualityReport:
        recent = {kind: self._ring.columns(kind, start_at=now - self._span_seconds, end_at=now, nodes=batch.nodes) for kind in batch.latest}
        report = assess(batch, now, recent=recent, state=self._state, limits=LIMITS)
        self._state = report.state
        self._ring.append(report.batch)
        return report


@dataclass(frozen=True, slots=True)
class CleanResult:
    """What the rules say of a trace as it is; samples inside labelled windows are left out of the first four numbers."""

    name: str
    samples: int
    rejected: int
    jumps: int
    quarantined_refreshes: int
    suspect_refreshes: int


def replay_clean(trace: Trace) -> CleanResult:
    replay = Replay(trace.step_seconds)
    samples = rejected = jumps = quarantined = suspect = 0
    for refresh in range(trace.refreshes):
        report = replay.refresh(trace.make_batch(refresh), NOW + refresh * trace.step_seconds)
        outside = ~trace.labelled[refresh]
        for codes in report.verdicts.values():
            samples += int(np.count_nonzero(outside & (codes != Verdict.ABSENT)))
            rejected += int(np.count_nonzero(outside & (codes > Verdict.ABSENT)))
            jumps += int(np.count_nonzero(outside & (codes == Verdict.JUMP)))
        quarantined += sum(bool(outside[trace.nodes.index(node)]) for node in report.quarantined)
        suspect += report.suspicion is not None
    return CleanResult(trace.name, samples, rejected, jumps, quarantined, suspect)


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where a fault begins: a node and metric, outside labelled windows, with a full history before it."""

    trace: Trace
    metric_type: str
    node: int
    refresh: int

    @property
    def before(self) -> FloatArray:
        return self.trace.values[self.metric_type][self.refresh - RECENT_REFRESHES : self.refresh, self.node]


Fault = Callable[[Place, SampleBatch, np.random.Generator], SampleBatch]
IsFound = Callable[[Place, QualityReport], bool]


def _is_anywhere(place: Place) -> bool:
    return True


def _allow_two(place: Place) -> int:
    return ALLOWED_REFRESHES


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault: how it changes each batch from its beginning on, when it is found, and where it makes sense."""

    name: str
    spoil: Fault
    is_found: IsFound
    is_eligible: Callable[[Place], bool] = _is_anywhere
    allowed_refreshes: Callable[[Place], int] = _allow_two


def _verdict(place: Place, report: QualityReport) -> Verdict:
    return Verdict(int(report.verdicts[place.metric_type][place.node]))


def _is_rejected_or_marked(place: Place, report: QualityReport) -> bool:
    return _verdict(place, report) in (Verdict.IMPOSSIBLE, Verdict.STUCK, Verdict.SUSPECT, Verdict.JUMP)


def _is_impossible(place: Place, report: QualityReport) -> bool:
    return _verdict(place, report) == Verdict.IMPOSSIBLE


def _change(change: Callable[[float], float]) -> Fault:
    def spoil(place: Place, batch: SampleBatch, rng: np.random.Generator) -> SampleBatch:
        return _put(place, batch, change(float(batch.latest[place.metric_type][place.node])))

    return spoil


def _put(place: Place, batch: SampleBatch, value: float) -> SampleBatch:
    values = batch.latest[place.metric_type].copy()
    values[place.node] = value
    return replace(batch, latest={**batch.latest, place.metric_type: values})


def _hold(place: Place, batch: SampleBatch, rng: np.random.Generator) -> SampleBatch:
    return _put(place, batch, float(place.before[-1]))


def _blank(place: Place, batch: SampleBatch, rng: np.random.Generator) -> SampleBatch:
    return _put(place, batch, np.nan)


def _wrap(place: Place, batch: SampleBatch, rng: np.random.Generator) -> SampleBatch:
    """Take the difference of a counter of 32 or 64 bits across its end, as a negative number or as the whole range."""
    microseconds = float(2.0 ** rng.choice([32, 64]) * rng.choice([-1, 1]))
    return _put(place, batch, 100 * microseconds / (place.trace.step_seconds * 1e6 * _CORES))


def _drop_node(place: Place, batch: SampleBatch, rng: np.random.Generator) -> SampleBatch:
    """Leave a node without a value, as Metrics Server does, or without a name, as Prometheus does; which one stays for a place."""
    if place.refresh % 2:
        latest = {kind: np.where(np.arange(len(batch.nodes)) == place.node, np.nan, values) for kind, values in batch.latest.items()}
        return replace(batch, latest=latest)
    return _keep_nodes(batch, [row for row in range(len(batch.nodes)) if row != place.node], members_known=False)


def _keep_nodes(batch: SampleBatch, rows: list[int], *, members_known: bool) -> SampleBatch:
    return replace(
        batch,
        nodes=tuple(batch.nodes[row] for row in rows),
        sampled_at=batch.sampled_at[rows],
        latest={kind: values[rows] for kind, values in batch.latest.items()},
        members_known=members_known,
    )


def _is_node_missed(place: Place, report: QualityReport) -> bool:
    node = place.trace.nodes[place.node]
    return node in report.missing or (node in report.batch.nodes and _verdict(place, report) == Verdict.ABSENT)


def _spoil_all(place: Place, batch: SampleBatch, rng: np.random.Generator) -> SampleBatch:
    """All values absent, all zero, or all nodes gone from the list; which one stays for a place."""
    if place.refresh % 3 == 0:
        return _keep_nodes(batch, [], members_known=True)
    value = np.nan if place.refresh % 3 == 1 else 0.0
    return replace(batch, latest={kind: np.full(len(batch.nodes), value) for kind in batch.latest})


def _is_suspect(place: Place, report: QualityReport) -> bool:
    return report.suspicion is not None


def _is_busy(place: Place) -> bool:
    """A fault of this kind needs a node that ought to move; at rest nothing is wrong with a value that does not."""
    value = place.before[-1]
    return bool(LIMITS.negligible_percent < value < 100 - LIMITS.negligible_percent)


def find_stuck_length(before: FloatArray) -> int:
    """Answer after how many equal samples, the last of *before* the first of them, the documented rule calls it stuck."""
    for samples in range(LIMITS.stuck_samples, len(before)):
        moving = before[samples - 2 : -1]  # what the window still holds of the time before the run
        pairs = len(moving) - 1
        share = (np.count_nonzero(moving[1:] == moving[:-1]) + 1) / (pairs + 2)
        if pairs >= LIMITS.history_samples and (samples - 1) * math.log(share) < math.log(LIMITS.stuck_chance):
            return samples
    return len(before)


KINDS: Final = (
    Kind(
        "stuck",
        _hold,
        lambda place, report: _verdict(place, report) == Verdict.STUCK,
        _is_busy,
        lambda place: find_stuck_length(place.before) - 1 + ALLOWED_REFRESHES,
    ),
    Kind("negative", _change(lambda value: -max(value, 0.01)), _is_impossible),
    Kind("x 100", _change(lambda value: value * 100), _is_rejected_or_marked),
    Kind("NaN", _blank, lambda place, report: _verdict(place, report) == Verdict.ABSENT),
    Kind("counter wrap", _wrap, _is_impossible),
    Kind("missing node", _drop_node, _is_node_missed),
    Kind("all nodes at once", _spoil_all, _is_suspect),
    Kind("unit: ratio for percent", _change(lambda value: value / 100), _is_rejected_or_marked),
    Kind("unit: bytes for percent", _change(lambda value: value / 100 * _MEMORY_BYTES), _is_rejected_or_marked),
)


@dataclass(frozen=True, slots=True)
class FaultResult:
    """How many faults of a kind were found, and the places where one was not."""

    name: str
    injected: int
    found: int
    missed: tuple[str, ...]

    @property
    def found_ratio(self) -> float:
        return self.found / self.injected


def inject(kind: Kind, traces: list[Trace], *, count: int, seed: int) -> FaultResult:
    rng = np.random.default_rng([seed, [each.name for each in KINDS].index(kind.name)])
    missed = []
    for place in _draw_places(kind, traces, count, rng):
        if not _is_found(kind, place, rng):
            recent = place.before
            node = f"{place.trace.name} {place.trace.nodes[place.node]} {place.metric_type} at {place.refresh}"
            missed.append(f"{node}: {recent[-1]:g}, recent {recent.min():g} to {recent.max():g}")
    return FaultResult(kind.name, count, count - len(missed), tuple(missed))


def _draw_places(kind: Kind, traces: list[Trace], count: int, rng: np.random.Generator) -> Iterator[Place]:
    """Draw series evenly, and a time in each; the half after a place is for the longest run that a stuck value needs."""
    series = [(trace, metric_type, node) for trace in traces for metric_type in trace.values for node in range(len(trace.nodes))]
    drawn = 0
    while drawn < count:
        trace, metric_type, node = series[rng.integers(len(series))]
        place = Place(trace, metric_type, node, int(rng.integers(RECENT_REFRESHES, trace.refreshes - RECENT_REFRESHES - ALLOWED_REFRESHES)))
        if not trace.labelled[place.refresh, node] and kind.is_eligible(place):
            drawn += 1
            yield place


def _is_found(kind: Kind, place: Place, rng: np.random.Generator) -> bool:
    trace = place.trace
    replay = Replay(trace.step_seconds)
    for refresh in range(place.refresh - RECENT_REFRESHES, place.refresh):
        replay.remember(trace.make_batch(refresh))
    for refresh in range(place.refresh, place.refresh + kind.allowed_refreshes(place)):
        batch = kind.spoil(place, trace.make_batch(refresh), rng)
        if kind.is_found(place, replay.refresh(batch, NOW + refresh * trace.step_seconds)):
            return True
    return False
