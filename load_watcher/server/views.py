"""What ``/api/v1`` says, as structs made from the watcher's state; every age is counted at the moment of the answer."""

from __future__ import annotations

import math

import msgspec

from load_watcher.history.memory import Memory
from load_watcher.providers.findings import Finding
from load_watcher.watcher import Watcher


class NodeState(msgspec.Struct, frozen=True, rename="camel"):
    """
    One node, served or not.

    ``status`` is that of ``GET /watcher``, or ``expired`` or ``quarantined`` for a node that is left out there, with the ``reason``.
    """

    name: str
    status: str
    reason: str = ""
    sampled_at: int | None = None
    age_seconds: float | None = None


class NodePage(msgspec.Struct, frozen=True, rename={"next_page": "continue"}):
    """Answer of ``GET /api/v1/nodes``: nodes by name; ``continue`` is to be sent for the next page, absent on the last."""

    nodes: list[NodeState]
    total: int
    next_page: str | None = None


class SnapshotState(msgspec.Struct, frozen=True, rename="camel"):
    """The published snapshot."""

    made_at: float
    age_seconds: float
    newest_sample_age_seconds: float | None
    nodes: dict[str, int]


class HistoryState(msgspec.Struct, frozen=True, rename="camel"):
    """What is remembered: in memory, and in the file if there is one."""

    mode: str
    memory_bytes: int
    held_seconds: float
    path: str | None = None
    failure: str | None = None
    set_aside: str | None = None
    filled_refreshes: int = 0
    written_refreshes: int = 0
    waiting_refreshes: int = 0
    lost_refreshes: int = 0


class Status(msgspec.Struct, frozen=True, rename="camel"):
    """Answer of ``GET /api/v1/status``."""

    source: str
    ready: bool
    problem: str | None
    failure: str | None
    failure_cause: str | None
    snapshot: SnapshotState | None
    history: HistoryState
    findings: list[Finding]


def list_nodes(watcher: Watcher, *, after: str, limit: int) -> NodePage:
    """Answer the page of nodes whose names come after *after*."""
    good, snapshot, now = watcher.good, watcher.snapshot, watcher.now()
    if good is None or snapshot is None:
        return NodePage([], 0)
    seen_at = dict(zip(good.nodes, good.seen_at.tolist(), strict=True))
    names = sorted(node for node in good.nodes if node > after)
    page = [_node_state(node, snapshot.status_of(node), seen_at[node], now) for node in names[:limit]]
    return NodePage(page, len(good.nodes), names[limit - 1] if len(names) > limit else None)


def _node_state(node: str, status: tuple[str, str], seen_at: float, now: float) -> NodeState:
    if math.isnan(seen_at):
        return NodeState(node, *status)
    return NodeState(node, *status, sampled_at=int(seen_at), age_seconds=round(max(0.0, now - seen_at), 3))


def describe(watcher: Watcher) -> Status:
    """Answer how the service does."""
    snapshot, failure, problem, now = watcher.snapshot, watcher.failure, watcher.ready(), watcher.now()
    newest_at = None if snapshot is None else snapshot.newest_sampled_at
    return Status(
        source=watcher.provider_name,
        ready=problem is None,
        problem=problem,
        failure=None if failure is None else str(failure),
        failure_cause=None if failure is None else failure.cause,
        snapshot=None
        if snapshot is None
        else SnapshotState(
            made_at=snapshot.made_at,
            age_seconds=round(max(0.0, now - snapshot.made_at), 3),
            newest_sample_age_seconds=None if newest_at is None else round(max(0.0, now - newest_at), 3),
            nodes=dict(snapshot.status_counts),
        ),
        history=_describe_history(watcher.memory),
        findings=list(watcher.findings),
    )


def _describe_history(memory: Memory | None) -> HistoryState:
    if memory is None:
        return HistoryState("off", 0, 0.0)
    file = memory.file_status
    if file is None:
        return HistoryState("memory", memory.ring.memory_bytes, memory.ring.span_seconds)
    return HistoryState(
        "file",
        memory.ring.memory_bytes,
        memory.ring.span_seconds,
        path=str(file.path),
        failure=None if file.failure is None else str(file.failure),
        set_aside=None if file.set_aside is None else str(file.set_aside),
        filled_refreshes=file.filled_refreshes,
        written_refreshes=file.written_refreshes,
        waiting_refreshes=file.waiting_refreshes,
        lost_refreshes=file.lost_refreshes,
    )


class RejectedSample(msgspec.Struct, frozen=True, rename="camel"):
    """A sample that did not count; ``detail`` shows its value."""

    judged_at: float
    node: str
    metric: str
    rule: str
    detail: str


class JumpedSample(msgspec.Struct, frozen=True, rename="camel"):
    """A sample that counts, and is far outside the range of the node's recent ones."""

    judged_at: float
    node: str
    metric: str
    value: float
    lowest: float
    highest: float


class QuarantinedNode(msgspec.Struct, frozen=True, rename="camel"):
    """A node whose data is not trusted."""

    node: str
    reason: str
    since_at: float


class QualityView(msgspec.Struct, frozen=True, rename="camel"):
    """
    Answer of ``GET /api/v1/quality``.

    ``verdicts`` counts the samples of the last refresh; ``rejected_total`` those of each rule since the start; ``rejected`` and ``jumps``
    are the newest, newest first, ``limit`` of each.
    """

    suspicion: str | None
    verdicts: dict[str, int]
    rejected_total: dict[str, int]
    quarantined: list[QuarantinedNode]
    missing: dict[str, float]
    rejected: list[RejectedSample]
    jumps: list[JumpedSample]


def describe_quality(watcher: Watcher, *, limit: int) -> QualityView:
    """Answer what the last refreshes were worth."""
    log = watcher.quality
    rejected = [
        RejectedSample(judged_at, each.node, each.metric_type, each.rule, each.detail) for judged_at, each in reversed(log.rejected)
    ]
    jumps = [
        JumpedSample(judged_at, each.node, each.metric_type, each.value, each.lowest, each.highest)
        for judged_at, each in reversed(log.jumps)
    ]
    return QualityView(
        suspicion=log.report.suspicion,
        verdicts=dict(log.report.verdict_counts),
        rejected_total=dict(log.counts),
        quarantined=[QuarantinedNode(node, each.reason, each.since_at) for node, each in sorted(log.report.quarantined.items())],
        missing=dict(log.report.missing),
        rejected=rejected[:limit],
        jumps=jumps[:limit],
    )
