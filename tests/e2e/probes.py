"""Tell when a server among the processes serves."""

from __future__ import annotations

import ssl

import aiohttp

from tests.e2e.processes import ManagedProcess
from tests.e2e.waiting import NotYet, wait_for

READY_SECONDS = 60.0
PROBE_SECONDS = 5.0


async def wait_until_ok(process: ManagedProcess, url: str, *, context: ssl.SSLContext) -> None:
    """Wait until *process* answers 200 at *url*; *context* counts where that is HTTPS."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PROBE_SECONDS)) as session:

        async def probe() -> None:
            process.check_running()
            try:
                async with session.get(url, ssl=context) as response:
                    if response.status != 200:
                        raise NotYet(f"{response.status} {await response.text()}")
            except (aiohttp.ClientError, TimeoutError) as error:
                raise NotYet(repr(error)) from error

        await wait_for(f"200 from {process.name} at {url} (log: {process.log_path})", probe, timeout_seconds=READY_SECONDS)
