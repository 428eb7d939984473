"""What to do where this machine cannot run an end-to-end test."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the test, or fail it where the run must show everything (``TRIMARAN_REQUIRE_ALL=1``, as in CI)."""
    if os.environ.get("TRIMARAN_REQUIRE_ALL") == "1":
        pytest.fail(f"TRIMARAN_REQUIRE_ALL=1 forbids to skip: {reason}", pytrace=False)
    pytest.skip(reason)
