"""The hosted sources against the suite of every provider."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from load_watcher.providers.base import MetricsProvider
from tests.contract.provider_suite import ProviderContract
from tests.fakes.hosted_providers import make_datadog, make_signalfx, serve_datadog, serve_signalfx


class TestSignalFx(ProviderContract):
    @pytest.fixture
    async def working(self, tmp_path: Path) -> AsyncIterator[MetricsProvider]:
        async with serve_signalfx() as server:
            yield make_signalfx(server, tmp_path)

    @pytest.fixture
    async def failing(self, tmp_path: Path) -> AsyncIterator[MetricsProvider]:
        async with serve_signalfx() as server:
            yield make_signalfx(server, tmp_path, token="expired")


class TestDatadog(ProviderContract):
    @pytest.fixture
    async def working(self, tmp_path: Path) -> AsyncIterator[MetricsProvider]:
        async with serve_datadog() as server:
            yield make_datadog(server, tmp_path)

    @pytest.fixture
    async def failing(self, tmp_path: Path) -> AsyncIterator[MetricsProvider]:
        async with serve_datadog() as server:
            yield make_datadog(server, tmp_path, app_key="expired")
