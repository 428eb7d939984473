"""The scheduler that the documentation shows, which is not Kubernetes: it goes by real load, and counts what it has just placed."""

import importlib.util
import json
import sys
import time
from asyncio import create_subprocess_exec, subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.builders import make_snapshot
from trimaran_client import Pod, Quantity
from trimaran_client.resources import Container

EXAMPLE = Path(__file__).parents[2] / "docs/examples/place_jobs.py"
LOAD = {"idle": 0.0, "busy": 30.0, "hot": 85.0}


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("place_jobs", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
async def address() -> AsyncIterator[str]:
    """Serve three hosts of 8 cores, as a load watcher of the Go kind does."""

    async def get_watcher(request: web.Request) -> web.Response:
        now = int(time.time())
        nodes = {
            host: {"metrics": [{"type": "CPU", "operator": "AVG", "rollup": "15m", "value": value}], "capacity": {"cpu": "8"}}
            for host, value in LOAD.items()
        }
        window = {"duration": "15m", "start": now - 900, "end": now}
        return web.json_response({"timestamp": now, "window": window, "source": "t", "data": {"NodeMetricsMap": nodes}})

    app = web.Application()
    app.router.add_get("/watcher", get_watcher)
    server = TestServer(app)
    await server.start_server()
    yield str(server.make_url("")).rstrip("/")
    await server.close()


# A job of one core is taken to use 1500m, 18.75 % of a host. Scores of idle, busy, hot for each in turn, up to the target of 40 % by
# 60 · percent / 40 + 40, above it by 40 · (100 - percent) / 60; a host over 100 % has 0.
SPREAD = [
    "idle",  # 68, 34, 0
    "idle",  # 96, 34, 0
    "busy",  # 29, 34, 0
    "idle",  # 29, 22, 0
    "busy",  # 17, 22, 0
    "idle",  # 17, 9, 0
    "busy",  # 4, 9, 0
    "idle",  # 4, 0, 0
    None,  # 0, 0, 0
]


async def test_jobs_spread_as_the_formula_says_and_the_hot_host_is_avoided(example: ModuleType, address: str) -> None:
    placed = await example.main(address, {f"job-{number}": "1" for number in range(len(SPREAD))})
    assert list(placed.values()) == SPREAD


def test_a_job_that_has_ended_makes_room(example: ModuleType) -> None:
    scheduler = example.JobScheduler(make_snapshot(LOAD, sampled_at=time.time()))
    jobs = [Pod(name=f"job-{number}", containers=(Container(requests={"cpu": Quantity.parse("1")}),)) for number in range(len(SPREAD))]
    for job, host in zip(jobs, SPREAD, strict=True):
        assert scheduler.place(job) == host
        if host is not None:
            scheduler.started(job, host)
    scheduler.ended(jobs[2])
    assert scheduler.place(jobs[-1]) == "busy"


@pytest.mark.slow
async def test_it_runs_as_the_documentation_says(address: str) -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLE), address, "encode=2", "report=500m"]
    process = await create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")
    placed: dict[str, Any] = json.loads(out.replace(b"'", b'"'))
    assert placed == {"encode": "idle", "report": "busy"}  # 37.5 %: 96 against 67.5 %: 22; then 46.9 %: 35 against 39.4 %: 99
