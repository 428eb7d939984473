"""The nearest known name to one that is not known, for every message about a mistyped name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggest(name: str, known: Iterable[str]) -> str:
    """
    Write the question that ends a message about an unknown name; empty if nothing is near.

    >>> suggest("Recordd", ["Local", "Recorded"])
    ' (did you mean Recorded?)'
    """
    by_folded = {item.casefold(): item for item in known}
    near = difflib.get_close_matches(name.casefold(), by_folded, n=1)
    return f" (did you mean {by_folded[near[0]]}?)" if near else ""
