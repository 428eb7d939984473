"""The whole service killed at random moments: the file opens, nothing but the last refresh is missing, and the windows are there again."""

import json
import sqlite3
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.test_cli import Process

KILLS = 5
NODES = [f"node-{index}" for index in range(20)]

pytestmark = pytest.mark.slow


def get(url: str, path: str) -> Any:
    with urllib.request.urlopen(url + path, timeout=10) as response:
        return json.load(response)


def wait_for_written(url: str, refreshes: int, deadline_seconds: float = 30) -> int:
    """Wait until the service says that so many refreshes are in the file; answer how many it says."""
    deadline = time.monotonic() + deadline_seconds
    while time.monotonic() < deadline:
        written: int = get(url, "/api/v1/status")["history"]["writtenRefreshes"]
        if written >= refreshes:
            return written
        time.sleep(0.02)
    pytest.fail(f"{refreshes} refreshes were not written in time")


def stored(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        [(count,)] = connection.execute("SELECT count(*) FROM refreshes").fetchall()
    finally:
        connection.close()
    return int(count)


def test_a_killed_service_comes_back_with_its_windows(tmp_path: Path) -> None:
    """One file goes through all the kills; each refresh, one a second, finds a new line of the recording."""
    recording, path = tmp_path / "cluster.jsonl", tmp_path / "history.db"
    lines = [{"at": 1000 + step / 2, "nodes": NODES, "latest": {"CPU": [10 + step % 7] * len(NODES)}} for step in range(1200)]
    recording.write_text("".join(json.dumps(line) + "\n" for line in lines))
    variables = {
        "METRICS_PROVIDER_NAME": "Recorded",
        "METRICS_PROVIDER_ADDRESS": str(recording),
        "LOAD_WATCHER_REFRESH_SECONDS": "1",
        "LOAD_WATCHER_HISTORY": str(path),
        "LOG_LEVEL": "info",
    }
    rng, before = np.random.default_rng(7), 0
    for kill in range(KILLS):
        process = Process(variables)
        try:
            url = process.wait_for("listening")["url"]
            history = get(url, "/api/v1/status")["history"]
            assert (history["failure"], history["setAside"]) == (None, None)
            # What was in the file is in memory again, all of it less than an hour old.
            assert history["filledRefreshes"] == before
            written = wait_for_written(url, int(rng.integers(2, 4)))
            time.sleep(float(rng.uniform(0, 1)))  # the random moment of the kill, anywhere within a refresh
        finally:
            process.end()
        after = stored(path)
        assert after >= before + written, f"kill {kill}: {after} refreshes in the file, {before} before and {written} written since"
        before = after
