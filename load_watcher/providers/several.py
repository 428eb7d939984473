"""
Several sources at once, in order of priority: per node and metric the first fresh value wins, the others fill in.

Each source is asked at the same time with a deadline of its own, so that one that is down, slow or broken neither delays nor empties the
others. It is the one provider that knows others, and only by the contract.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import numpy as np

from load_watcher.clock import Clock
from load_watcher.errors import ProviderError, ProviderUnavailableError
from load_watcher.providers.base import MetricsProvider
from load_watcher.providers.findings import FAILURE, Finding, findings_of
from load_watcher.samples import Aggregate, NodeInfo, Origins, Rejection, SampleBatch, Window
from trimaran_client.units import BoolArray, FloatArray

NAME: Final = "Several"
UNKNOWN_NODE: Final = "unknown_node"


@dataclass(frozen=True, slots=True, eq=False)
class _Aligned:
    """The batch of one source, its columns in the rows of the answer."""

    batch: SampleBatch
    rows: np.ndarray[tuple[int], np.dtype[np.int64]]

    def take(self, values: FloatArray) -> FloatArray:
        """Put a column into the rows of the answer; NaN where this source does not have the node."""
        if not values.size:
            return np.full(len(self.rows), np.nan)
        return np.where(self.rows >= 0, values[self.rows], np.nan)


class SeveralProvider:
    """
    Ask several providers, and make one batch of their answers.

    Args:
        providers: The best first.
        fresh_seconds: Up to this age a value is preferred to one of a source of less priority.
        timeout_seconds: The deadline of each source.
        clock: For ages.
    """

    def __init__(self, providers: Sequence[MetricsProvider], *, fresh_seconds: float, timeout_seconds: float, clock: Clock) -> None:
        self._providers = tuple(providers)
        self._fresh_seconds = fresh_seconds
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._failures: dict[str, str] = {}
        self._stack = AsyncExitStack()

    @property
    def name(self) -> str:
        """Answer the names of all sources, in their order."""
        return ",".join(provider.name for provider in self._providers)

    async def __aenter__(self) -> Self:
        """Open every source; those that were opened are closed again if one cannot be."""
        async with AsyncExitStack() as stack:
            for provider in self._providers:
                await stack.enter_async_context(provider)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        """Close every source."""
        await self._stack.__aexit__(exc_type, exc, traceback)

    async def fetch(self, window: Window) -> SampleBatch:
        """
        Ask every source, and merge what comes in time.

        Raises:
            ProviderError: If none answered: that of the first source, naming all.
        """
        answers = await asyncio.gather(*(self._ask(provider, window) for provider in self._providers), return_exceptions=True)
        batches, failures = [], {}
        for provider, answer in zip(self._providers, answers, strict=True):
            if isinstance(answer, SampleBatch):
                batches.append(answer)
            elif isinstance(answer, Exception):
                failures[provider.name] = answer
            else:
                raise answer
        self._failures = {name: str(error) or type(error).__name__ for name, error in failures.items()}
        if not batches:
            raise self._as_one_error(list(failures.values()))
        return merge_batches(batches, source=self.name, now=self._clock.time(), fresh_seconds=self._fresh_seconds)

    async def _ask(self, provider: MetricsProvider, window: Window) -> SampleBatch:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await provider.fetch(window)
        except TimeoutError as error:
            raise ProviderUnavailableError(f"{provider.name}: no answer within {self._timeout_seconds:g} s; check the source") from error

    def _as_one_error(self, errors: Sequence[Exception]) -> ProviderError:
        first = errors[0]
        each = (message if name in message else f"{name}: {message}" for name, message in self._failures.items())
        told = f"{self.name}: {'; '.join(each)}"
        return type(first)(told) if isinstance(first, ProviderError) else ProviderUnavailableError(told)

    async def check_health(self) -> None:
        """
        Ask whether any source could answer now.

        Raises:
            ProviderError: If none could.
        """
        answers = await asyncio.gather(*(provider.check_health() for provider in self._providers), return_exceptions=True)
        problems = [answer for answer in answers if isinstance(answer, ProviderError)]
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, ProviderError):
                raise answer
        if len(problems) == len(self._providers):
            raise type(problems[0])(f"{self.name}: {'; '.join(str(problem) for problem in problems)}")

    def findings(self) -> tuple[Finding, ...]:
        """Tell which sources failed at the last refresh, and what each says of itself."""
        failed = [Finding(FAILURE, name, message, "the others fill in meanwhile") for name, message in self._failures.items()]
        told = [finding for provider in self._providers for finding in findings_of(provider)]
        return (*failed, *told)


def merge_batches(batches: Sequence[SampleBatch], *, source: str, now: float, fresh_seconds: float) -> SampleBatch:
    """
    Make one batch of several, the best first.

    Per node and metric the first value that is not older than *fresh_seconds* counts, else the first at all. Of averages the whole set of a
    window counts from one source. A node that no list of members has is unknown where there is such a list; without one, all nodes are
    taken. A metric in another unit than that of the best source does not mix with it, and is left out.

    Args:
        batches: At least one.
        source: How the batch is called.
        now: Unix seconds.
        fresh_seconds: Up to this age a value is preferred to one of less priority.
    """
    lists = [batch.nodes for batch in batches if batch.members_known] or [batch.nodes for batch in batches]
    nodes = tuple(dict.fromkeys(node for listed in lists for node in listed))
    aligned = [_Aligned(batch, np.array([row_of.get(node, -1) for node in nodes], dtype=np.int64)) for batch, row_of in _row_maps(batches)]
    units = _units(batches)
    latest, times, origins = {}, {}, {}
    for metric_type, unit in units.items():
        offers = [
            (each, each.take(each.batch.latest[metric_type]), each.take(each.batch.times_of(metric_type)))
            for each in aligned
            if metric_type in each.batch.latest and each.batch.units.get(metric_type, "") == unit
        ]
        chosen = _choose([values for _, values, _ in offers], [at for _, _, at in offers], now, fresh_seconds)
        latest[metric_type], times[metric_type], origins[metric_type] = _collect(offers, chosen)
    sampled_at = np.fmax.reduce([np.full(len(nodes), np.nan), *(np.where(np.isnan(latest[t]), np.nan, times[t]) for t in latest)])
    sample_seconds = np.full(len(nodes), np.nan)
    for each in reversed(aligned):  # the best has the last word
        is_newest = each.take(each.batch.sampled_at) == sampled_at
        sample_seconds = np.where(is_newest, each.take(each.batch.sample_seconds), sample_seconds)
    return SampleBatch(
        source=source,
        nodes=nodes,
        sampled_at=sampled_at,
        latest=latest,
        aggregates=tuple(_merge_aggregates(aligned, now, fresh_seconds)),
        infos=tuple(_first_info(aligned, row) for row in range(len(nodes))),
        rejections=tuple([rejection for batch in batches for rejection in batch.rejections] + _unknown(batches, set(nodes))),
        members_known=any(batch.members_known for batch in batches),
        units=units,
        times=times,
        origins=origins,
        sample_seconds=sample_seconds,
    )


def _row_maps(batches: Sequence[SampleBatch]) -> list[tuple[SampleBatch, dict[str, int]]]:
    return [(batch, {node: row for row, node in enumerate(batch.nodes)}) for batch in batches]


def _units(batches: Sequence[SampleBatch]) -> dict[str, str]:
    units: dict[str, str] = {}
    for batch in batches:
        for metric_type in batch.latest:
            units.setdefault(metric_type, batch.units.get(metric_type, ""))
    return units


def _choose(columns: Sequence[FloatArray], times: Sequence[FloatArray], now: float, fresh_seconds: float) -> list[BoolArray]:
    """Tell for each column in which rows it counts: the first that is fresh, else the first that has a value."""
    fresh = [~np.isnan(values) & (now - at <= fresh_seconds) for values, at in zip(columns, times, strict=True)]
    taken = np.zeros(len(columns[0]), dtype=np.bool_)
    chosen = [np.zeros_like(taken) for _ in columns]
    for offers in (fresh, [~np.isnan(values) for values in columns]):
        for index, offer in enumerate(offers):
            new = offer & ~taken
            chosen[index] |= new
            taken |= new
    return chosen


def _collect(
    offers: Sequence[tuple[_Aligned, FloatArray, FloatArray]], chosen: Sequence[BoolArray]
) -> tuple[FloatArray, FloatArray, Origins]:
    count = len(chosen[0])
    values, at, names = np.full(count, np.nan), np.full(count, np.nan), np.full(count, "", dtype=object)
    for (each, offered, offered_at), rows in zip(offers, chosen, strict=True):
        values[rows], at[rows], names[rows] = offered[rows], offered_at[rows], each.batch.source
    return values, at, tuple(names.tolist())


def _merge_aggregates(aligned: Sequence[_Aligned], now: float, fresh_seconds: float) -> list[Aggregate]:
    """Give each source the rows of a metric type and window in which it is the first that has them."""
    merged: list[Aggregate] = []
    keys = dict.fromkeys((item.metric_type, item.window) for each in aligned for item in each.batch.aggregates)
    for metric_type, window in keys:
        offers = [
            (each, [item for item in each.batch.aggregates if (item.metric_type, item.window) == (metric_type, window)]) for each in aligned
        ]
        offers = [(each, items) for each, items in offers if items]
        has_value = [np.fmax.reduce([each.take(item.values) for item in items]) for each, items in offers]
        chosen = _choose(has_value, [each.take(each.batch.sampled_at) for each, _ in offers], now, fresh_seconds)
        for (each, items), rows in zip(offers, chosen, strict=True):
            origins = tuple(each.batch.source if row else "" for row in rows.tolist())
            merged += [
                Aggregate(
                    item.name,
                    item.metric_type,
                    item.operator,
                    item.window,
                    np.where(rows, each.take(item.values), np.nan),
                    item.unit,
                    origins,
                )
                for item in items
            ]
    return merged


def _first_info(aligned: Sequence[_Aligned], row: int) -> NodeInfo | None:
    infos = (each.batch.infos[each.rows[row]] for each in aligned if each.batch.infos and each.rows[row] >= 0)
    return next((info for info in infos if info is not None), None)


def _unknown(batches: Sequence[SampleBatch], nodes: set[str]) -> list[Rejection]:
    return [
        Rejection(node, metric_type, UNKNOWN_NODE, f"value {values[row]:g} of {batch.source}; no list of nodes has it")
        for batch in batches
        for row, node in enumerate(batch.nodes)
        if node not in nodes
        for metric_type, values in batch.latest.items()
        if not np.isnan(values[row])
    ]
