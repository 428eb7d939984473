"""Run the service: ``python -m load_watcher``."""

from __future__ import annotations

import sys

from load_watcher.cli import main

if __name__ == "__main__":
    sys.exit(main())
