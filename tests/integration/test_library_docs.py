"""The examples of ``docs/library.md`` run as they stand."""

import asyncio
import re
import sys
from pathlib import Path

import pytest
from aiohttp.test_utils import unused_port

from tests.builders import NOW, make_batch
from tests.fakes.service import Service

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "docs/library.md").read_text().partition("## Snapshots\n")[2].partition("\n## ")[0]
EXAMPLES = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)

# Each example is a process.
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("example", EXAMPLES, ids=["follow", "blocking", "embedded"])
async def test_an_example_runs(example: str, no_access: None) -> None:
    async with Service(port=unused_port()) as service:
        await service.refresh(make_batch({"n1": 12.5}, sampled_at=NOW + 30))
        script = example.replace("http://127.0.0.1:2020", service.address)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "error", "-c", script), cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await process.communicate()
    assert (process.returncode, err.decode()) == (0, "")
    assert out
