"""A watcher with memory behind a real server, whose refreshes the test makes happen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aiohttp.test_utils import TestClient, TestServer

from load_watcher.history.memory import Memory
from load_watcher.samples import SampleBatch
from load_watcher.server.app import create_app
from load_watcher.timing import Timing
from load_watcher.watcher import Watcher
from tests.builders import NOW, make_batch
from tests.fakes.watcher import FakeClock, ScriptedProvider, eventually

Client = TestClient[Any, Any]


class Service:
    """A watcher with memory behind a real server, whose refreshes the test makes happen."""

    def __init__(self, path: Path | None = None, *, now: float = NOW, history: bool = True, port: int | None = None) -> None:
        self.clock = FakeClock(now)
        self.path = path
        empty = make_batch({})
        self.batch: SampleBatch | BaseException = empty
        self.provider = ScriptedProvider(self._answer)
        self.port = port
        memory = None if not history else Memory(source=empty.source, clock=self.clock, step_seconds=30, path=path)
        self.watcher = Watcher(self.provider, memory=memory, timing=Timing(), clock=self.clock)
        self.client: Client

    async def _answer(self) -> SampleBatch:
        if isinstance(self.batch, BaseException):
            raise self.batch
        return self.batch

    async def __aenter__(self) -> Service:
        self.client = TestClient(TestServer(create_app(self.watcher), port=self.port))
        await self.client.start_server()
        await eventually(lambda: self.watcher.snapshot)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    async def refresh(self, batch: SampleBatch | BaseException, *, seconds: float = 30) -> None:
        """Let time pass, and a refresh bring *batch*."""
        self.batch = batch
        self.clock.move(seconds)
        await self.watcher.tick()
        await eventually(self.is_written)

    def is_written(self) -> bool:
        status = None if self.watcher.memory is None else self.watcher.memory.file_status
        return status is None or status.failure is not None or not status.waiting_refreshes

    @property
    def address(self) -> str:
        return str(self.client.make_url("")).rstrip("/")

    async def get(self, path: str) -> tuple[int, Any]:
        response = await self.client.get(path)
        return response.status, await response.json()

    async def metrics(self, path: str = "/watcher", node: str = "n1") -> dict[str, tuple[float, str]]:
        """Answer operator → value and rollup of the CPU metrics of a node."""
        _, body = await self.get(path)
        listed = body["data"]["NodeMetricsMap"][node]["metrics"]
        return {metric["operator"]: (metric["value"], metric["rollup"]) for metric in listed if metric["type"] == "CPU"}
