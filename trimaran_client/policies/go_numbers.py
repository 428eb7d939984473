"""Numbers as Go reads them from the text of a scheduler configuration."""

from __future__ import annotations

import math
import re

_D = r"[0-9](?:_?[0-9])*"
_H = r"[0-9a-fA-F](?:_?[0-9a-fA-F])*"
_DECIMAL = re.compile(rf"[+-]?(?:{_D}\.?(?:{_D})?|\.{_D})(?:[eE][+-]?{_D})?", re.ASCII)
_HEXADECIMAL = re.compile(rf"[+-]?0[xX]_?(?:{_H}\.?(?:{_H})?|\.{_H})[pP][+-]?{_D}", re.ASCII)
_SPECIAL = re.compile(r"nan|[+-]?inf(?:inity)?", re.ASCII | re.IGNORECASE)


def parse_go_float(text: object) -> float:
    """
    Read text as Go's ``strconv.ParseFloat`` does.

    No blanks, no digits of other scripts, underscores only between digits, hexadecimal only with an exponent.

    Raises:
        ValueError: If Go would refuse it, also for a number beyond the range of a double.

    >>> parse_go_float(".5"), parse_go_float("0x1p-2")
    (0.5, 0.25)
    """
    if isinstance(text, str):
        if _SPECIAL.fullmatch(text):
            return float(text)
        value = math.nan
        if _DECIMAL.fullmatch(text):
            value = float(text)
        elif _HEXADECIMAL.fullmatch(text):
            try:
                value = float.fromhex(text.replace("_", ""))
            except OverflowError:
                value = math.inf
        if math.isfinite(value):
            return value
    raise ValueError(f'{text!r} is not a number; write for example "1.5"')
