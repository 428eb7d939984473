"""What a provider can tell of its own state, beside the batch: for the log, the status and whoever looks for a cause."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

OK: Final = "ok"
WARNING: Final = "warning"
FAILURE: Final = "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """
    One thing that was looked at.

    Args:
        level: ``ok``, ``warning`` or ``failure``.
        subject: What was looked at, for example ``metric cpu``.
        detail: What was found.
        remedy: What to do; empty where nothing is to be done.
    """

    level: str
    subject: str
    detail: str
    remedy: str = ""


def findings_of(provider: object) -> tuple[Finding, ...]:
    """Answer what a provider says of its own state by ``findings()``, which it need not have; none where it cannot tell."""
    tell = getattr(provider, "findings", None)
    return tuple(tell()) if callable(tell) else ()
