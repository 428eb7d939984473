"""Settings that every test shares."""

import os

from hypothesis import settings

# The short form runs in every `make test`; `make prove` sets the long one. Both derive their examples from the test itself, so that a
# failure comes back; the time of one example never decides.
settings.register_profile("short", max_examples=100, derandomize=True, deadline=None)
settings.register_profile("long", max_examples=20_000, derandomize=False, deadline=None)
settings.load_profile("long" if os.environ.get("TRIMARAN_PROVE") else "short")
