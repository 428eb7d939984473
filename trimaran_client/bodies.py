"""Bodies of HTTP replies from a peer that need not be what it seems."""

from __future__ import annotations

from collections.abc import AsyncIterator


async def read_past(chunks: AsyncIterator[bytes], limit_bytes: int) -> bytes:
    """Read until the end, or until just past *limit_bytes*: what is longer than that was cut, and is for the caller to refuse or trim."""
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > limit_bytes:
            break
    return bytes(body)
