"""Which representation of a reply a client wants, and whether it has it already."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from aiohttp import web

_TAGS = re.compile(r'"[^"]*"')
_GZIP_NAMES = ("gzip", "x-gzip")


@lru_cache(maxsize=64)  # clients are few kinds of programs, each of which always sends the same
def prefers_gzip(accept_encoding: str) -> bool:
    """
    Tell whether a client that sends this header is best served with gzip.

    Source: RFC 9110, section 12.5.3: no header and no mention mean the identity; a weight of 0 excludes.

    >>> prefers_gzip("gzip;q=0.5, identity;q=0.1"), prefers_gzip("gzip;q=0, *"), prefers_gzip("*")
    (True, False, True)
    """
    weights: dict[str, float] = {}
    for item in accept_encoding.lower().split(","):
        coding, *parameters = (part.strip() for part in item.split(";"))
        weights[coding] = _parse_weight(parameters)
    anything = weights.get("*", 0.0)
    gzip = max((weights[name] for name in _GZIP_NAMES if name in weights), default=anything)
    return gzip > 0 and gzip >= weights.get("identity", 0.0)


def _parse_weight(parameters: Iterable[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return min(1.0, max(0.0, float(value)))
            except ValueError:
                return 0.0
    return 1.0


def list_accepted(request: web.BaseRequest) -> str:
    """List the encodings that a client accepts, of all headers that say so."""
    return ",".join(request.headers.getall("Accept-Encoding", ()))


def is_held(if_none_match: str, etag: str) -> bool:
    """
    Tell whether a tag of the header ``If-None-Match``, empty where there is none, names these bytes.

    Weak tags count too (RFC 9110, section 13.1.2).

    >>> is_held('"a", W/"b"', '"b"'), is_held("*", '"b"'), is_held("b", '"b"')
    (True, True, False)
    """
    return if_none_match.strip() == "*" or etag in _TAGS.findall(if_none_match)
