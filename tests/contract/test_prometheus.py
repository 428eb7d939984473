"""The Prometheus provider against the suite of all providers."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from load_watcher.providers.base import MetricsProvider
from tests.contract.provider_suite import ProviderContract
from tests.fakes.hosted import reply
from tests.fakes.prometheus_providers import MEMORY_RULE, RULE, make_provider
from tests.fakes.prometheus_server import PrometheusServer


class TestPrometheus(ProviderContract):
    @pytest.fixture
    async def server(self) -> AsyncIterator[PrometheusServer]:
        async with PrometheusServer() as server:
            server.vectors = {
                RULE: [({"instance": "n1"}, 0.5), ({"instance": "n2"}, 0.25)],
                f"avg_over_time({RULE}[15m])": [({"instance": "n1"}, 0.4)],
                MEMORY_RULE: [({"instance": "n1"}, 0.5)],
            }
            yield server

    @pytest.fixture
    def working(self, server: PrometheusServer, tmp_path: Path) -> MetricsProvider:
        return make_provider(server.url, tmp_path)

    @pytest.fixture
    async def failing(self, tmp_path: Path) -> AsyncIterator[MetricsProvider]:
        async with PrometheusServer() as server:
            server.faults.extend([reply(503, "down")] * 100)
            yield make_provider(server.url, tmp_path)
