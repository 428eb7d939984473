"""Every provider of the service against the one suite."""

import asyncio
import json
from itertools import count
from pathlib import Path

import pytest

from load_watcher.errors import ProviderUnavailableError
from load_watcher.providers.base import MetricsProvider
from load_watcher.providers.local import LocalProvider, Reading
from load_watcher.providers.recorded import RecordedProvider
from tests.builders import make_batch
from tests.contract.provider_suite import ProviderContract
from tests.fakes.watcher import ScriptedProvider


class TestLocal(ProviderContract):
    @pytest.fixture
    def working(self) -> MetricsProvider:
        seconds = count(10.0, 8.0)

        async def pass_over(_: float) -> None:
            await asyncio.sleep(0)

        # Every reading finds two seconds more on each of four cores.
        return LocalProvider(read=lambda: Reading(5.0, next(seconds), 4, 2**33, 2**32), sleep=pass_over)

    @pytest.fixture
    def failing(self) -> MetricsProvider:
        def read() -> Reading:
            raise OSError("no /proc")

        return LocalProvider(read=read)


class TestRecorded(ProviderContract):
    @pytest.fixture
    def working(self, tmp_path: Path) -> MetricsProvider:
        path = tmp_path / "working.jsonl"
        lines = [{"at": 1000.0 + number, "nodes": ["n1", "n2"], "latest": {"CPU": [10.0, None]}} for number in range(3)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return RecordedProvider(path)

    @pytest.fixture
    def failing(self, tmp_path: Path) -> MetricsProvider:
        path = tmp_path / "failing.jsonl"
        path.write_text("not json\n")
        return RecordedProvider(path)


class TestScripted(ProviderContract):
    """The stand-in of the other tests: what holds of it must hold of a provider."""

    @pytest.fixture
    def working(self) -> MetricsProvider:
        return ScriptedProvider(make_batch({"n1": 10.0}, source="Scripted"))

    @pytest.fixture
    def failing(self) -> MetricsProvider:
        error = ProviderUnavailableError("Scripted: connection refused")
        return ScriptedProvider(error, health=error)
