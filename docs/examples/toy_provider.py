"""A metrics source in thirty lines: the load average of this machine, as percent of its cores."""

import os
import socket
import time

import numpy as np

from load_watcher.errors import ProviderUnavailableError
from load_watcher.samples import SampleBatch, Window
from load_watcher.settings import Settings


class LoadAverageProvider:
    """Serves one node; ``METRICS_PROVIDER_NAME=LoadAverage`` chooses it once an entry point names ``create``."""

    name = "LoadAverage"

    async def __aenter__(self) -> "LoadAverageProvider":
        return self  # a source with connections opens them here

    async def __aexit__(self, *_: object) -> None:
        """Nothing was opened."""

    async def fetch(self, window: Window) -> SampleBatch:
        try:
            percent = 100 * os.getloadavg()[0] / (os.cpu_count() or 1)
        except OSError as error:
            raise ProviderUnavailableError(f"{self.name}: this system tells no load average: {error}") from error
        return SampleBatch(self.name, (socket.gethostname(),), np.array([time.time()]), {"CPU": np.array([min(percent, 100.0)])})

    async def check_health(self) -> None:
        await self.fetch(Window(60))


def create(settings: Settings) -> LoadAverageProvider:
    return LoadAverageProvider()
