"""
Which provider a name stands for, and which one to take when none is named.

A provider is imported only when it is chosen: some bring clients of tens of megabytes.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module, metadata
from typing import Final, NamedTuple

from load_watcher.clock import SystemClock
from load_watcher.errors import ProviderConfigError
from load_watcher.nearest import suggest
from load_watcher.providers.base import MetricsProvider
from load_watcher.providers.several import SeveralProvider
from load_watcher.settings import Settings, split_names
from load_watcher.source_settings import load_source_settings
from trimaran_client.kube import find_access

ENTRY_POINT_GROUP: Final = "load_watcher.providers"

METRICS_SERVER: Final = "KubernetesMetricsServer"
LOCAL: Final = "Local"

_SOURCE_SHARE: Final = 0.8

ProviderFactory = Callable[[Settings], MetricsProvider]


class _BuiltIn(NamedTuple):
    factory: str
    extra: str


_BUILT_IN: Final = {
    METRICS_SERVER: _BuiltIn("load_watcher.providers.metrics_server:create_provider", "service"),
    LOCAL: _BuiltIn("load_watcher.providers.local:create_provider", "service"),
    "Prometheus": _BuiltIn("load_watcher.providers.prometheus:create_provider", "service,prometheus"),
    "Datadog": _BuiltIn("load_watcher.providers.datadog:create_provider", "service"),
    "SignalFx": _BuiltIn("load_watcher.providers.signalfx:create_provider", "service,signalfx"),
    "Recorded": _BuiltIn("load_watcher.providers.recorded:create_provider", "service"),
}


class ProviderChoice(NamedTuple):
    """The provider to use, and why."""

    name: str
    reason: str


def list_provider_names() -> tuple[str, ...]:
    """List the names that can be chosen: ours, and those of installed packages."""
    return tuple(sorted({*_BUILT_IN, *metadata.entry_points(group=ENTRY_POINT_GROUP).names}))


def choose_provider(settings: Settings) -> ProviderChoice:
    """Take the named provider; without a name the cluster's, where there is any trace of access to one, and else this machine."""
    if settings.provider_name is not None:
        return ProviderChoice(settings.provider_name, "METRICS_PROVIDER_NAME names it")
    places = find_access(settings.kubeconfig)
    for place in places:
        if place.absence is None:
            return ProviderChoice(METRICS_SERVER, f"access to a cluster: {place.name}")
    absences = "; ".join(f"{place.name}: {place.absence}" for place in places)
    return ProviderChoice(LOCAL, f"no access to a cluster ({absences}): this machine is served as the only node")


def create_provider(name: str, settings: Settings) -> MetricsProvider:
    """
    Make the provider of that name, or one that asks several, separated by commas, the best first; it does no I/O until it is entered.

    Raises:
        ProviderConfigError: If there is no such provider, it is not installed, or it cannot be made from these settings.
        SettingsError: If the file with the settings of several cannot be used.
    """
    names = split_names(name)
    of_source = load_source_settings(settings, names)
    providers = [_load_factory(each)(of_source[each]) for each in names]
    if len(providers) == 1:
        return providers[0]
    # Each source has less time than the refresh, so that the answers of the others are merged within it.
    timeout_seconds = _SOURCE_SHARE * min(settings.fetch_timeout_seconds, settings.refresh_seconds)
    return SeveralProvider(providers, fresh_seconds=settings.stale_seconds, timeout_seconds=timeout_seconds, clock=SystemClock())


def _load_factory(name: str) -> ProviderFactory:
    built_in = _BUILT_IN.get(name)
    if built_in is not None:
        module, _, attribute = built_in.factory.partition(":")
        try:
            factory: ProviderFactory = getattr(import_module(module), attribute)
        except ModuleNotFoundError as error:
            remedy = f"pip install 'trimaran[{built_in.extra}]'"
            raise ProviderConfigError(f"{name}: the package {error.name} is not installed: {remedy}") from error
        return factory
    for entry_point in metadata.entry_points(group=ENTRY_POINT_GROUP, name=name):
        try:
            loaded: ProviderFactory = entry_point.load()
        except (ImportError, AttributeError) as error:
            package = entry_point.dist.name if entry_point.dist else entry_point.value
            raise ProviderConfigError(f"{name}: cannot load {entry_point.value} of the package {package}: {error}; reinstall it") from error
        return loaded
    known = list_provider_names()
    raise ProviderConfigError(f"{name!r}: no such provider{suggest(name, known)}; use one of {', '.join(known)}")
