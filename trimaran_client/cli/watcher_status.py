"""What a load watcher says of itself at ``/api/v1/status``, in plain words; the Go load-watcher has no such page."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec

from trimaran_client.errors import SnapshotDecodeError, WatcherError, WatcherStatusError
from trimaran_client.fetch.connection import Connection

_PATH: Final = "/api/v1/status"
_TIMEOUT_SECONDS: Final = 5.0


class Finding(msgspec.Struct, frozen=True):
    """One thing that the load watcher looked at; ``level`` is ``ok``, ``warning`` or ``failure``."""

    level: str = ""
    subject: str = ""
    detail: str = ""
    remedy: str = ""


class Status(msgspec.Struct, frozen=True):
    """What of the page is told; null where all is well."""

    problem: str | None = None
    failure: str | None = None
    findings: list[Finding] = []


async def fetch_status_hints(address: str) -> list[str]:
    """
    Ask a load watcher what is wrong with it, and tell it in plain words.

    Args:
        address: As for :class:`trimaran_client.WatcherClient`.

    Returns:
        Hints; none where all is well or the peer has no such page. That the page could not be read is one too: scores do not need it.
    """
    try:
        async with Connection(address, attempt_seconds=_TIMEOUT_SECONDS) as connection:
            reply = await connection.get(_PATH, {})
        return tell_status(msgspec.json.decode(reply.body or b"", type=Status))
    except WatcherStatusError as error:
        return [] if error.status == HTTPStatus.NOT_FOUND else [f"what the load watcher says of itself was not read: {error}"]
    except (WatcherError, SnapshotDecodeError) as error:
        return [f"what the load watcher says of itself was not read: {error}"]
    except msgspec.MsgspecError as error:
        return [f"what the load watcher says of itself was not read: {_PATH}: {error}"]


def tell_status(status: Status) -> list[str]:
    """Tell what is wrong, in the order in which one would look for a cause."""
    hints = []
    if status.failure:
        hints.append(f"the load watcher's last refresh failed, and it serves what it had: {status.failure}")
    if status.problem and status.problem != status.failure:
        hints.append(f"the load watcher is not ready: {status.problem}")
    return hints + [_tell_finding(each) for each in status.findings if each.level in ("warning", "failure")]


def _tell_finding(finding: Finding) -> str:
    subject = finding.subject
    if finding.level == "failure" and subject.startswith("metric "):
        subject = f"no {subject.removeprefix('metric ')} metric"
    return "; ".join(filter(None, (f"{subject}: {finding.detail}", finding.remedy)))
