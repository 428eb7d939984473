"""
The refresh loop: fetch, judge, merge, encode, publish.

The one place where the stages of the service meet, and the one that owns the clock. A source that is down, slow or broken costs nothing but
the age of the values: the last good ones stay, their statuses go on, and the loop goes on.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeVar

import stamina
import structlog
from cachetools import TTLCache

from load_watcher.clock import Clock, SteadyClock, SystemClock
from load_watcher.errors import ProviderBugError, ProviderError, ProviderUnavailableError
from load_watcher.history.memory import Memory
from load_watcher.last_good import LastGood, carry_over, merge
from load_watcher.providers.base import MetricsProvider
from load_watcher.providers.findings import Finding, findings_of
from load_watcher.publication import Publication, Publisher
from load_watcher.quality import RECENT_REFRESHES, QualityLimits, QualityReport, Quarantine, Recent, assess
from load_watcher.quality.log import QualityLog
from load_watcher.rendering import Renderer
from load_watcher.samples import SampleBatch
from load_watcher.snapshot import Snapshot, encode_snapshot, find_withheld
from load_watcher.telemetry import Telemetry
from load_watcher.timing import Timing

# Enough for a dropped connection or a source that restarts; a source that is down is asked again at the next refresh anyway.
_ATTEMPTS: Final = 4
_WAIT_INITIAL_SECONDS: Final = 0.2
# Probes and dashboards ask more often than the answer changes.
_HEALTH_SECONDS: Final = 5.0
# A tick takes at most its deadline, but a machine that is short of CPU can be late; a restart would not help it.
_LIVE_FACTOR: Final = 3.0

_T = TypeVar("_T")
_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


class Watcher:
    """
    Keep a fresh snapshot of one provider's metrics.

    ``async with`` enters the provider, starts the loop, and ends both; it can be entered again afterwards. Everything but :meth:`tick` only
    reads what the last tick published.

    Args:
        provider: Where the metrics come from.
        memory: What keeps the samples, for averages over windows; ``None`` serves the newest values only, and what the source averaged.
        timing: Intervals and limits.
        limits: From where on a sample does not count.
        clock: The time; a test passes its own.
        telemetry: Where to count; by default one that nobody reads.
    """

    def __init__(
        self,
        provider: MetricsProvider,
        *,
        memory: Memory | None = None,
        timing: Timing | None = None,
        limits: QualityLimits | None = None,
        clock: Clock | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.timing = timing or Timing()
        self.memory = memory
        self._provider = provider
        self._clock = SteadyClock(clock or SystemClock())
        self._telemetry = telemetry or Telemetry(self._clock, version="")
        self._telemetry.memory = memory
        self._failure: ProviderError | None = None
        self._failed_refreshes = 0
        self._quality = QualityLog()
        self._limits = limits or QualityLimits()
        self._beat_at: float | None = None
        self._health: TTLCache[str, str | None] = TTLCache(1, _HEALTH_SECONDS, timer=self._clock.monotonic)
        self._health_lock = asyncio.Lock()
        self._exit_stack = AsyncExitStack()
        self._memory_is_open = asyncio.Event()
        self._memory_is_open.set()
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="load-watcher")
        self.publisher = Publisher()
        self.renderer = Renderer(memory, self.timing, self._threads)

    @property
    def telemetry(self) -> Telemetry:
        """Answer where it counts."""
        return self._telemetry

    @property
    def provider_name(self) -> str:
        """Answer the name of the source."""
        return self._provider.name

    @property
    def snapshot(self) -> Snapshot | None:
        """Answer the published snapshot; ``None`` until the first refresh that brought something."""
        newest = self.publisher.newest
        return None if newest is None else newest.snapshot

    @property
    def good(self) -> LastGood | None:
        """Answer the last good values behind the snapshot; ``None`` before it."""
        newest = self.publisher.newest
        return None if newest is None else newest.good

    @property
    def failure(self) -> ProviderError | None:
        """Answer why the last refresh brought nothing; ``None`` if it did."""
        return self._failure

    @property
    def quality(self) -> QualityLog:
        """Answer what the last refreshes were worth."""
        return self._quality

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Answer what the provider says of its own state; none where it cannot tell."""
        return findings_of(self._provider)

    def now(self) -> float:
        """Answer the instant, Unix seconds."""
        return self._clock.time()

    async def __aenter__(self) -> Self:
        """
        Enter the provider and start the loop; the first refresh begins at once.

        Raises:
            ProviderError: If the provider cannot be entered.
        """
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._provider)
            self.publisher.open()
            self._memory_is_open.clear()
            loop = asyncio.create_task(self.run(), name=f"load-watcher {self._provider.name}")
            loop.add_done_callback(_log_crash)
            stack.push_async_callback(_cancel, loop)
            if self.memory is not None:  # while the source answers: both take some tenths of a second
                await stack.enter_async_context(self.memory)
            self._memory_is_open.set()
            stack.push_async_callback(self.renderer.close)
            stack.callback(self.publisher.close)
            stack.push_async_callback(_cancel, loop)  # before the memory is closed
            self._exit_stack = stack.pop_all()
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        """End the loop, in the middle of a refresh if there is one, then leave the provider."""
        await self._exit_stack.__aexit__(exc_type, exc, traceback)

    async def run(self) -> None:
        """Refresh on a fixed schedule until cancelled: no drift, and a refresh that takes too long skips turns instead of piling up."""
        due = self._clock.monotonic()
        while True:
            try:
                await self.tick()
            except Exception:  # noqa: BLE001 - the last resort: out of memory or of threads now, the next refresh may succeed
                self._telemetry.count_failure(ProviderBugError.cause)
                _log.exception("refresh failed by a fault of our own; the last snapshot stays, report this")
            overdue = self._clock.monotonic() - due
            due += self.timing.refresh_seconds * (1 + max(0, math.floor(overdue / self.timing.refresh_seconds)))
            await self._clock.sleep(due - self._clock.monotonic())

    async def tick(self) -> None:
        """Refresh once and publish; after a failure publish the last good values again, with the statuses that they have by now."""
        started = self._beat_at = self._clock.monotonic()
        try:
            await self._guard(self._refresh())
        except ProviderError as error:
            self._note_failure(error)
            await self._publish_held()
        else:
            self._note_success()
        self._beat_at = self._clock.monotonic()
        self._telemetry.observe_refresh(self._beat_at - started)

    def live(self) -> str | None:
        """Say what is wrong if the loop makes no progress; a source that is down is nothing wrong here, since no restart would help."""
        if self._beat_at is None:
            return "the refresh loop has not started"
        silent_seconds = self._clock.monotonic() - self._beat_at
        if silent_seconds > _LIVE_FACTOR * (self.timing.refresh_seconds + self.timing.fetch_timeout_seconds):
            return f"the refresh loop has made no progress for {silent_seconds:.0f} s; restart the service and report its log"
        return None

    def ready(self) -> str | None:
        """Say what is wrong if there is no snapshot, or its newest sample is stale."""
        snapshot = self.snapshot
        reason = "the first refresh is under way" if self._failure is None else f"the last refresh failed: {self._failure}"
        if snapshot is None:
            return f"no snapshot yet; {reason}"
        if snapshot.newest_sampled_at is None:
            return f"no node has a metric; {self._failure or 'the provider answers, but without a usable sample'}"
        age_seconds = self._clock.time() - snapshot.newest_sampled_at
        if age_seconds > self.timing.stale_seconds:
            cause = self._failure or "the provider answers, but with old samples"
            return f"the newest sample is {age_seconds:.0f} s old, more than the {self.timing.stale_seconds:g} s allowed; {cause}"
        return None

    async def check_health(self) -> str | None:
        """Say what is wrong if the provider could not answer now; askers at the same moment share one question and its answer."""
        async with self._health_lock:
            if self._provider.name in self._health:
                return self._health.get(self._provider.name)
            answer = self._health[self._provider.name] = await self._ask_health()
            return answer

    async def _ask_health(self) -> str | None:
        try:
            async with asyncio.timeout(self.timing.fetch_timeout_seconds):
                await self._guard(self._provider.check_health())
        except ProviderError as error:
            return str(error)
        except TimeoutError:
            return f"{self._provider.name}: no answer to the health check within {self.timing.fetch_timeout_seconds:g} s"
        return None

    async def _guard(self, call: Awaitable[_T]) -> _T:
        """Wait for a provider's code, and for what digests its batch; whatever it raises becomes an error of the contract."""
        try:
            return await call
        except ProviderError:
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody cancelled us: the provider waited for something of its own that was cancelled.
            raise ProviderBugError(f"{self._provider.name}: it was cancelled from inside; report it with the log") from error
        except Exception as error:  # a provider can be anyone's code, and the loop must outlive it
            raise ProviderBugError(
                f"{self._provider.name}: {type(error).__name__}: {error}; this is a fault in the provider's code, report it with the log"
            ) from error

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        """Work in a thread of our own: those that providers share may all hang in a file or a name lookup."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _refresh(self) -> None:
        batch = await self._fetch()
        await self._memory_is_open.wait()
        now = self._clock.time()
        report, publication = await self._in_thread(partial(self._digest, batch, now))
        self._note_quality(report, now)
        self._publish(publication)
        if self.memory is not None:
            self.memory.submit(report.batch, fetched_at=now)

    async def _fetch(self) -> SampleBatch:
        last_error: ProviderUnavailableError | None = None

        async def fetch() -> SampleBatch:
            nonlocal last_error
            try:
                return await self._provider.fetch(self.timing.window)
            except ProviderUnavailableError as error:
                last_error = error
                raise

        retry = stamina.AsyncRetryingCaller(attempts=_ATTEMPTS, timeout=None, wait_initial=_WAIT_INITIAL_SECONDS)
        deadline = asyncio.timeout(self.timing.fetch_timeout_seconds)
        try:
            async with deadline:
                return await retry(ProviderUnavailableError, fetch)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            if last_error is not None:  # it says more than the deadline, which ran out between two tries
                raise last_error from error
            raise ProviderUnavailableError(
                f"{self._provider.name}: no answer within {self.timing.fetch_timeout_seconds:g} s; "
                "check the source, or set LOAD_WATCHER_FETCH_TIMEOUT_SECONDS higher"
            ) from error

    def _digest(self, batch: SampleBatch, now: float) -> tuple[QualityReport, Publication]:
        report = assess(batch, now, recent=self._recent(batch, now), state=self._quality.report.state, limits=self._limits)
        if self.memory is not None:
            self.memory.ring.append(report.batch)
        good = merge(self.good, report, now=now, expired_seconds=self.timing.expired_seconds)
        return report, self._render(good, now, report.quarantined)

    def _recent(self, batch: SampleBatch, now: float) -> Recent:
        if self.memory is None:
            return {}
        ring, start_at = self.memory.ring, now - RECENT_REFRESHES * self.timing.refresh_seconds
        # A source's clock may be ahead of ours; a held sample of such a node must still be found as repeated.
        end_at = now + self._limits.ahead_seconds
        return {each: ring.columns(each, start_at=start_at, end_at=end_at, nodes=batch.nodes) for each in batch.latest}

    def _render(self, good: LastGood, now: float, quarantined: Mapping[str, Quarantine]) -> Publication:
        reasons = {node: quarantine.reason for node, quarantine in quarantined.items()}
        withheld = find_withheld(good, now=now, expired_seconds=self.timing.expired_seconds, quarantined=reasons)
        averaged_by_source = {key.metric_type for key in good.columns if key.window is not None}
        end_at = None if self.memory is None else self.memory.find_end()
        averages = () if self.memory is None or end_at is None else self.memory.compute_averages(good.nodes, end_at=end_at)
        aggregates = tuple(each for each in averages if each.metric_type not in averaged_by_source)
        snapshot = encode_snapshot(
            good,
            now=now,
            stale_seconds=self.timing.stale_seconds,
            window=self.timing.window,
            aggregates=aggregates,
            withheld=withheld,
        )
        return Publication(snapshot, good, aggregates, end_at)

    async def _publish_held(self) -> None:
        held = self.good
        if held is None:
            return
        now = self._clock.time()
        good = carry_over(held, now=now, expired_seconds=self.timing.expired_seconds)
        self._publish(await self._in_thread(partial(self._render, good, now, self._quality.report.quarantined)))

    def _publish(self, publication: Publication) -> None:
        self._telemetry.snapshot = publication.snapshot
        self.publisher.publish(publication)

    def _note_failure(self, error: ProviderError) -> None:
        self._telemetry.count_failure(error.cause)
        if self._failure is None or self._failure.cause != error.cause:
            traceback = error if isinstance(error, ProviderBugError) else None
            _log.warning("refresh failed", provider=self._provider.name, cause=error.cause, error=str(error), exc_info=traceback)
        self._failure = error
        self._failed_refreshes += 1

    def _note_success(self) -> None:
        if self._failure is not None:
            _log.info("refresh works again", provider=self._provider.name, failed_refreshes=self._failed_refreshes)
        self._failure = None
        self._failed_refreshes = 0

    def _note_quality(self, report: QualityReport, now: float) -> None:
        self._telemetry.count_rejections(report.counts)
        self._telemetry.quality = report
        for sentence in self._quality.note(report, now):
            _log.warning(sentence, provider=self._provider.name)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def _log_crash(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.critical("the refresh loop ended; /livez says so; restart the service and report this", exc_info=error)
