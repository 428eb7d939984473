"""Wait for an event with a deadline: the one way in which the end-to-end tests let time pass."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

POLL_SECONDS = 0.1

T = TypeVar("T")


class NotYet(Exception):  # noqa: N818 - a signal of a probe, not an error
    """Raised by a probe while the awaited thing has not happened; the message says what was seen instead."""


async def wait_for(what: str, probe: Callable[[], Awaitable[T]], *, timeout_seconds: float, poll_seconds: float = POLL_SECONDS) -> T:
    """
    Repeat *probe* until it returns, and return its value.

    Args:
        what: The awaited event, for the message.
        probe: Returns when the event has happened, raises NotYet while it has not; any other exception ends the wait.
        timeout_seconds: The deadline from now; a probe that hangs counts too.
        poll_seconds: From the end of a probe to the next one.

    Raises:
        TimeoutError: At the deadline; the message has what the last probe saw.
    """
    seen = "nothing"
    deadline = asyncio.timeout(timeout_seconds)
    try:
        async with deadline:
            while True:
                try:
                    return await probe()
                except NotYet as reason:
                    seen = str(reason)
                await asyncio.sleep(poll_seconds)
    except TimeoutError as error:
        if not deadline.expired():  # the probe's own
            raise
        raise TimeoutError(f"no {what} within {timeout_seconds:g} s; last seen: {seen}") from error
