import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from load_watcher.errors import ProviderConfigError
from load_watcher.providers import registry
from load_watcher.providers.registry import choose_provider, create_provider, list_provider_names
from load_watcher.settings import Settings
from tests.fakes.watcher import ScriptedProvider
from trimaran_client.kube import AccessPlace


def make_toy(settings: Settings) -> ScriptedProvider:
    return ScriptedProvider(name="Toy")


def register(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    points = metadata.EntryPoints([metadata.EntryPoint(name, value, registry.ENTRY_POINT_GROUP)])
    monkeypatch.setattr(metadata, "entry_points", lambda **filters: points.select(**filters))


def find_nothing(kubeconfig: Path | None = None) -> tuple[AccessPlace, ...]:
    return (AccessPlace("in-cluster files", "not there"), AccessPlace("~/.kube/config", "no such file"))


def test_built_in_names() -> None:
    assert set(list_provider_names()) >= {"KubernetesMetricsServer", "Local", "Recorded"}


@pytest.mark.parametrize("name", ["KubernetesMetricsServer", "Local", "Recorded"])
def test_each_built_in_provider_is_made_under_its_name(name: str) -> None:
    settings = Settings().model_copy(update={"provider_address": "/recording.jsonl"})
    assert create_provider(name, settings).name == name


def test_recorded_without_a_file_says_which_variable() -> None:
    with pytest.raises(ProviderConfigError, match="set METRICS_PROVIDER_ADDRESS"):
        create_provider("Recorded", Settings())


def test_report_53_an_unknown_name_lists_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(ProviderConfigError, match=r"no such provider \(did you mean Local\?\); use one of .*Local, .*Recorded"):
        create_provider("Locl", Settings())


def test_report_83_a_package_can_bring_a_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, "Toy", f"{__name__}:make_toy")
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    assert "Toy" in list_provider_names()
    assert create_provider("Toy", Settings()).name == "Toy"


@pytest.mark.parametrize("value", ["no_such_package:make", "json:no_such_attribute"])
def test_a_package_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    register(monkeypatch, "Broken", value)
    with pytest.raises(ProviderConfigError, match=f"Broken: cannot load {value}"):
        create_provider("Broken", Settings())


def test_a_package_cannot_take_the_name_of_a_built_in(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, "Local", "no_such_package:make")
    assert create_provider("Local", Settings()).name == "Local"


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    monkeypatch.delitem(sys.modules, "load_watcher.providers.local", raising=False)
    with pytest.raises(ProviderConfigError, match=r"psutil is not installed: pip install 'trimaran\[service\]'"):
        create_provider("Local", Settings())


def test_a_provider_is_imported_only_when_it_is_chosen() -> None:
    code = (
        "import sys, load_watcher.providers.registry as r; before = set(sys.modules);"
        "assert not before & {'psutil', 'kubernetes_asyncio', 'load_watcher.providers.local'}, before;"
        "r.list_provider_names(); assert 'load_watcher.providers.local' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_named_provider_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find_access", lambda _: pytest.fail("nobody asked for a cluster"))
    assert choose_provider(Settings().model_copy(update={"provider_name": "Toy"})).name == "Toy"


def test_without_a_name_and_a_cluster_this_machine_is_served_and_the_reason_tells_where_was_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find_access", find_nothing)
    choice = choose_provider(Settings())
    assert choice.name == "Local"
    assert "in-cluster files: not there; ~/.kube/config: no such file" in choice.reason


def test_a_trace_of_a_cluster_is_enough_never_to_serve_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find_access", lambda _: (*find_nothing(), AccessPlace("KUBECONFIG /broken", None)))
    assert choose_provider(Settings()) == ("KubernetesMetricsServer", "access to a cluster: KUBECONFIG /broken")


def test_the_kubeconfig_of_the_settings_is_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.touch()
    assert choose_provider(Settings().model_copy(update={"kubeconfig": path})).name == "KubernetesMetricsServer"
