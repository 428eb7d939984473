"""The provider that the documentation shows, and the one that asks several, against the suite of all providers."""

import importlib.util
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from load_watcher.clock import SystemClock
from load_watcher.errors import ProviderUnavailableError
from load_watcher.providers.base import MetricsProvider
from load_watcher.providers.metrics_server import MetricsServerProvider
from load_watcher.providers.several import SeveralProvider
from load_watcher.samples import SampleBatch
from tests.builders import make_batch
from tests.contract.provider_suite import ProviderContract
from tests.fakes.api_server import NODE_METRICS, FakeApiServer, make_node, make_node_metrics, status_reply
from tests.fakes.watcher import ScriptedProvider

EXAMPLE = Path(__file__).parents[2] / "docs/examples/toy_provider.py"


def load_example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("toy_provider", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestToy(ProviderContract):
    @pytest.fixture
    def working(self) -> MetricsProvider:
        provider: MetricsProvider = load_example().LoadAverageProvider()
        return provider

    @pytest.fixture
    def failing(self, monkeypatch: pytest.MonkeyPatch) -> MetricsProvider:
        def tell_nothing() -> tuple[float, float, float]:
            raise OSError("not here")

        example = load_example()
        monkeypatch.setattr(example, "os", SimpleNamespace(getloadavg=tell_nothing))
        provider: MetricsProvider = example.LoadAverageProvider()
        return provider


class TestSeveral(ProviderContract):
    @pytest.fixture
    def working(self) -> MetricsProvider:
        def batch(source: str, *nodes: str) -> SampleBatch:
            made = make_batch(dict.fromkeys(nodes, 10.0))
            return SampleBatch(source, made.nodes, made.sampled_at, made.latest)

        first, second = batch("a", "n1"), batch("b", "n1", "n2")
        providers = [ScriptedProvider(first, name="a"), ScriptedProvider(second, name="b")]
        return SeveralProvider(providers, fresh_seconds=np.inf, timeout_seconds=5, clock=SystemClock())

    @pytest.fixture
    def failing(self) -> MetricsProvider:
        error = ProviderUnavailableError("connection refused")
        providers = [ScriptedProvider(error, health=error, name=name) for name in "ab"]
        return SeveralProvider(providers, fresh_seconds=300, timeout_seconds=5, clock=SystemClock())


class TestMetricsServer(ProviderContract):
    @pytest.fixture
    async def working(self, tmp_path: Path) -> AsyncIterator[MetricsProvider]:
        async with FakeApiServer() as api:
            api.put_nodes(make_node("n1"), make_node("n2"))
            api.set_node_metrics(make_node_metrics("n1"))
            yield MetricsServerProvider(api.write_kubeconfig(tmp_path / "config"), request_timeout_seconds=5)

    @pytest.fixture
    async def failing(self, tmp_path: Path) -> AsyncIterator[MetricsProvider]:
        async with FakeApiServer() as api:
            api.put_nodes(make_node("n1"))
            for path in (NODE_METRICS, "/apis/metrics.k8s.io/v1beta1"):
                api.replies[path] = status_reply(503)
            yield MetricsServerProvider(api.write_kubeconfig(tmp_path / "failing"), request_timeout_seconds=5)
