"""
The command ``load-watcher doctor``: does once, step by step, what the service would do here, and says of each step how it went.

It opens the real provider, asks for its health, fetches and judges one batch, so that what it finds is what the service would find. The
same findings of the provider stand in ``/api/v1/status``.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from load_watcher.clock import Clock
from load_watcher.errors import LoadWatcherError, ProviderError, SettingsError
from load_watcher.history.errors import HistoryFileError
from load_watcher.history.memory import Memory
from load_watcher.providers.base import MetricsProvider
from load_watcher.providers.findings import FAILURE, OK, WARNING, Finding, findings_of
from load_watcher.providers.registry import choose_provider, create_provider, list_provider_names
from load_watcher.quality import QualityReport, assess
from load_watcher.samples import FIFTEEN_MINUTES, SampleBatch
from load_watcher.settings import Settings, load_settings

EXIT_STATUS: Final = {OK: 0, WARNING: 1, FAILURE: 2}
_MARKS: Final = {OK: "ok  ", WARNING: "warn", FAILURE: "FAIL"}
_EXAMPLES: Final = 3


def run_doctor(*, clock: Clock, as_json: bool, make_memory: Callable[[Settings, str, Clock], Memory | None]) -> int:
    """
    Look at everything, print what was found, and answer the exit status: 0, 1 with warnings, 2 with failures.

    Args:
        clock: The time.
        as_json: Whether to print JSON instead of lines.
        make_memory: How the service makes its memory from the settings.
    """
    findings = asyncio.run(_examine(clock, make_memory))
    if as_json:
        shown = [{"level": each.level, "subject": each.subject, "detail": each.detail, "remedy": each.remedy} for each in findings]
        sys.stdout.write(json.dumps(shown, indent=2) + "\n")
    else:
        for each in findings:
            sys.stdout.write(
                f"{_MARKS[each.level]}  {each.subject}: {each.detail}\n{f'      → {each.remedy}' + chr(10) if each.remedy else ''}"
            )
    return max(EXIT_STATUS[each.level] for each in findings)


async def _examine(clock: Clock, make_memory: Callable[[Settings, str, Clock], Memory | None]) -> list[Finding]:
    try:
        settings, warnings = load_settings(list_provider_names())
    except SettingsError as error:
        return [
            Finding(FAILURE, "settings", problem, "correct it; `load-watcher --help` lists every setting") for problem in error.problems
        ]
    findings = [Finding(WARNING, "settings", warning, "correct the name, or unset it") for warning in warnings]
    choice = choose_provider(settings)
    findings.append(Finding(OK, "provider", f"{choice.name}; {choice.reason}"))
    if settings.insecure_skip_verify:
        findings.append(
            Finding(
                WARNING,
                "TLS",
                "certificates are not verified: INSECURE_SKIP_VERIFY is set",
                "give the CA by METRICS_PROVIDER_CA_FILE instead",
            )
        )
    try:
        provider = create_provider(choice.name, settings)
        async with asyncio.timeout(settings.fetch_timeout_seconds * 3), provider:
            findings += await _examine_provider(provider, settings, clock)
    except (LoadWatcherError, TimeoutError) as error:
        findings.append(_failed("provider", error))
    findings += await _examine_history(make_memory(settings, choice.name, clock))
    return findings


async def _examine_provider(provider: MetricsProvider, settings: Settings, clock: Clock) -> list[Finding]:
    findings = []
    try:
        async with asyncio.timeout(settings.fetch_timeout_seconds):
            await provider.check_health()
        findings.append(Finding(OK, "address, TLS and credentials", "the source answers"))
    except (ProviderError, TimeoutError) as error:
        findings.append(_failed("address, TLS and credentials", error))
    try:
        async with asyncio.timeout(settings.fetch_timeout_seconds):
            batch = await provider.fetch(FIFTEEN_MINUTES)
    except (ProviderError, TimeoutError) as error:
        findings.append(_failed("first refresh", error))
    else:
        now = clock.time()
        findings += _examine_batch(batch, assess(batch, now), now, settings.stale_seconds)
    return [*findings, *findings_of(provider)]


def _failed(subject: str, error: BaseException) -> Finding:
    detail, _, remedy = (str(error) or "no answer in time").partition("; ")
    return Finding(FAILURE, subject, detail, remedy or "see docs/operations.md")


def _examine_batch(batch: SampleBatch, report: QualityReport, now: float, stale_seconds: float) -> Iterator[Finding]:
    has_value = np.logical_or.reduce([np.zeros(len(batch.nodes), bool), *(~np.isnan(values) for values in report.batch.latest.values())])
    has_value |= np.logical_or.reduce([np.zeros(len(batch.nodes), bool), *(~np.isnan(item.values) for item in report.batch.aggregates)])
    measured = int(has_value.sum())
    types = sorted({*report.batch.latest, *(item.metric_type for item in batch.aggregates)})
    told = f"{measured} of {len(batch.nodes)} nodes have values; metrics: {', '.join(types) or 'none'}"
    if measured == len(batch.nodes) > 0:
        yield Finding(OK, "nodes", told)
    else:
        silent = [node for node, has in zip(batch.nodes, has_value.tolist(), strict=True) if not has][:_EXAMPLES]
        remedy = (
            f"see why these have none: {', '.join(silent)}"
            if silent
            else "the source names no node: see whether it watches the right cluster"
        )
        yield Finding(WARNING if measured else FAILURE, "nodes", told, remedy)
    if "CPU" not in types:
        yield Finding(FAILURE, "CPU", "no CPU metric: every node would have its policy's fallback", "see the metrics of the source")
    times = batch.sampled_at[has_value & ~np.isnan(batch.sampled_at)]
    if times.size:
        age_seconds = now - float(times.max())
        fresh = age_seconds <= stale_seconds
        remedy = "" if fresh else f"values older than {stale_seconds:g} s do not count: see whether the agents still report, and the clocks"
        yield Finding(OK if fresh else FAILURE, "newest sample", f"{age_seconds:.0f} s old", remedy)
    for rule, count in sorted(report.counts.items()):
        example = next(each for each in report.rejections if each.rule == rule)
        told = f"{count} by the rule {rule}; for example {example.node}, {example.metric_type}: {example.detail}"
        yield Finding(WARNING, "rejected samples", told, "docs/quality.md and docs/providers.md say what the rules mean")


async def _examine_history(memory: Memory | None) -> list[Finding]:
    if memory is None:
        return [
            Finding(
                WARNING,
                "history",
                "off: averages and deviations are those of the source only",
                "set LOAD_WATCHER_HISTORY to memory or a path",
            )
        ]
    if memory.file_status is None:
        return [Finding(OK, "history", "in memory; it begins anew after a restart")]
    async with memory:
        failure: HistoryFileError | None = memory.file_status.failure
    if failure is not None:
        return [_failed("history", failure)]
    return [Finding(OK, "history", f"{memory.file_status.path}: {memory.file_status.filled_refreshes} refreshes of the last hour")]
