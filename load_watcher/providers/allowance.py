"""
How often a source may be asked, by its own words.

A source that counts requests says how many are left. Asking on after a refusal only costs the next allowance, and using the last request
early leaves nothing until the reset, so both are kept in mind here; the last good values stay served meanwhile.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Final

from load_watcher.clock import Clock
from load_watcher.errors import ProviderRateLimitError
from load_watcher.providers.findings import OK, WARNING, Finding

# A refusal that does not say until when; Datadog's and Splunk's shortest period.
DEFAULT_HOLD_SECONDS: Final = 60.0
# Their longest period: a reset that claims to be later is not one.
MAX_HOLD_SECONDS: Final = 3600.0
# Shorter pauses than this come out of a plentiful allowance: they would only get in the way of a second try after a failure.
MIN_PACE_SECONDS: Final = 10.0


class Allowance:
    """
    Remember from when on the source may be asked again.

    Args:
        provider: Whose allowance it is, for the error.
        clock: The time.
    """

    def __init__(self, provider: str, clock: Clock) -> None:
        self._provider = provider
        self._clock = clock
        self._free_from = -math.inf  # in the clock's monotonic seconds
        self._left: tuple[float, float] | None = None

    def check(self) -> None:
        """
        Pass if the source may be asked now.

        Raises:
            ProviderRateLimitError: If not; it says until when.
        """
        if self._free_from > self._clock.monotonic():
            raise self._make_error()

    def hold(self, seconds: float | None) -> ProviderRateLimitError:
        """
        Note a refusal, and make the error that says so.

        Args:
            seconds: For how long there must be no call; taken as 1 to 3,600. ``None`` if the source does not say.
        """
        held_seconds = DEFAULT_HOLD_SECONDS if seconds is None else min(max(seconds, 1.0), MAX_HOLD_SECONDS)
        self._free_from = self._clock.monotonic() + held_seconds
        return self._make_error()

    def note(self, remaining: float | None, reset_seconds: float | None) -> None:
        """
        Note what a reply says is left: the rest is spread evenly up to the reset.

        Ten requests for the next half hour are one every three minutes, not ten at once and then none.
        """
        if remaining is None or reset_seconds is None or remaining < 0 or reset_seconds <= 0:
            return
        self._left = remaining, reset_seconds
        if remaining < 1:
            self.hold(reset_seconds)
        elif reset_seconds / remaining >= MIN_PACE_SECONDS:
            self.hold(reset_seconds / remaining)

    def findings(self) -> tuple[Finding, ...]:
        """Tell what is left, as far as the source says."""
        if self._free_from > self._clock.monotonic():
            return (Finding(WARNING, "allowance", str(self._make_error())),)
        if self._left is None:
            return ()
        remaining, reset_seconds = self._left
        return (Finding(OK, "allowance", f"{remaining:g} requests were left at the last one, {reset_seconds:g} s before the reset"),)

    def _make_error(self) -> ProviderRateLimitError:
        left_seconds = self._free_from - self._clock.monotonic()
        until_at = self._clock.time() + left_seconds
        until = datetime.fromtimestamp(until_at, UTC).isoformat(timespec="seconds")
        return ProviderRateLimitError(
            f"{self._provider}: the allowance of requests is used up until {until}, {math.ceil(left_seconds)} s from now; the last values"
            " stay served until they expire; set LOAD_WATCHER_REFRESH_SECONDS higher, or have the limit raised",
            until_at=until_at,
        )


def parse_number(text: str | None) -> float | None:
    """
    Read a number from a header; ``None`` if it is absent or not a finite number.

    >>> parse_number("12"), parse_number("soon"), parse_number(None)
    (12.0, None, None)
    """
    try:
        number = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None
