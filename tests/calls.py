"""How many functions some work calls: a cost that does not depend on the machine."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType


def count_calls(work: Callable[[], object]) -> Counter[str]:
    """Run *work*, and count the functions that it calls, C among them."""
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event in {"call", "c_call"}:
            calls[getattr(argument, "__qualname__", "") or frame.f_code.co_qualname] += 1

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls
