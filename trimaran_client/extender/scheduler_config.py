"""
What would go wrong with a scheduler's configuration: most of it a scheduler does not tell, and pods just go elsewhere.

Source: Kubernetes, ``pkg/scheduler/apis/config`` (defaults and validation) and ``pkg/scheduler/extender.go``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from trimaran_client.errors import ExtenderConfigError
from trimaran_client.extender.config import ExtenderConfig, read_yaml

_API_VERSION: Final = "kubescheduler.config.k8s.io/v1"
_KIND: Final = "KubeSchedulerConfiguration"
_DEFAULT_SCHEDULER: Final = "default-scheduler"
_DEFAULT_LEASE: Final = "kube-scheduler"
_FULL_SCALE: Final = 100
# With scores of 0 to 10: docs/extender.md tells why.
_DECISIVE_WEIGHT: Final = 3
# By requests; in a profile that goes by measured load they pull the other way.
_BY_REQUESTS: Final = ("NodeResourcesFit", "NodeResourcesBalancedAllocation")
# Score plugins that every scheduler has, and their weights where nothing is said.
_WEIGHTS: Final[Mapping[str, int]] = {
    "TaintToleration": 3,
    "NodeAffinity": 2,
    "PodTopologySpread": 2,
    "InterPodAffinity": 2,
    "ImageLocality": 1,
    "NodeResourcesFit": 1,
    "NodeResourcesBalancedAllocation": 1,
}
# What stands in older examples; a name that is disabled is never checked.
_GONE: Final[Mapping[str, str]] = {
    "NodeResourcesLeastAllocated": "NodeResourcesFit",
    "NodeResourcesMostAllocated": "NodeResourcesFit",
    "RequestedToCapacityRatio": "NodeResourcesFit",
}
_GO_PLUGINS: Final = ("TargetLoadPacking", "LoadVariationRiskBalancing", "LowRiskOverCommitment", "Peaks")
# An answer takes 50 ms at most; a scheduler waits no longer for one that does not come, and does so for each pod.
_SHORTEST_SECONDS: Final = 0.05
_LONGEST_SECONDS: Final = 1.0
_WANTED_TIMEOUT: Final = "httpTimeout: 250ms"
_DURATION_UNITS: Final[Mapping[str, float]] = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")


class Finding(NamedTuple):
    """Something that would go wrong: where it stands, and what it does and what to write instead."""

    where: str
    told: str


def load_scheduler_config(path: Path) -> Mapping[str, object]:
    """
    Read a scheduler's configuration.

    Raises:
        ExtenderConfigError: If the file is none.
    """
    document = read_yaml(path)
    if not isinstance(document, Mapping) or document.get("kind") != _KIND:
        raise ExtenderConfigError(f"{path}: not of the kind {_KIND}; give the file that kube-scheduler gets by --config")
    return document


def check_scheduler_config(document: Mapping[str, object], config: ExtenderConfig | None = None) -> list[Finding]:
    """
    Find what would go wrong, in the order of the file.

    Args:
        document: The scheduler's configuration.
        config: The extender's; without it the default, of which bind address and names of profiles are not compared.
    """
    profiles = [_mapping(each) for each in _list(document.get("profiles"))] or [{}]
    extenders = [_mapping(each) for each in _list(document.get("extenders"))]
    names = [_name(profile) for profile in profiles]
    findings = [*_check_version(document)]
    if extenders:  # else a part that is to be put into another file
        findings += _check_lease(document, names)
    # The cluster's own profile is left alone, unless there is no other.
    ours = [name for name in names if name != _DEFAULT_SCHEDULER] or names
    if config is not None:
        ours = [each.scheduler_name for each in config.profiles]
        findings += _check_names(names, ours)
    has_go_plugin = any(name in _GO_PLUGINS for profile in profiles for name in _names(_plugins(profile, "score").get("enabled")))
    is_full_scale = bool(extenders) and (config is None or config.scale == _FULL_SCALE)
    outweighs = bool(extenders) and not is_full_scale and all(_weight(each) >= _DECISIVE_WEIGHT for each in extenders)
    for index, profile in enumerate(profiles):
        if _name(profile) in ours:
            where = f"profiles[{index}].plugins"
            findings += _check_disabled(profile, where)
            findings += [] if outweighs else _check_by_requests(profile, where)
            findings += _check_weights(profile, where) if is_full_scale else []
    if not extenders and not has_go_plugin:
        findings.append(Finding("extenders", "there is none, so that nothing asks for scores; docs/scheduler.md has one to copy"))
    for index, extender in enumerate(extenders):
        findings += _check_extender(extender, f"extenders[{index}]", config)
    return findings


def list_questions(document: Mapping[str, object]) -> list[tuple[str, str]]:
    """List the addresses that a scheduler asks for scores, each with the scheduler's name of each profile but the cluster's own."""
    names = [_name(_mapping(each)) for each in _list(document.get("profiles"))] or [_DEFAULT_SCHEDULER]
    return [
        (f"{str(each.get('urlPrefix')).rstrip('/')}/{each['prioritizeVerb']}", name)
        for each in map(_mapping, _list(document.get("extenders")))
        if each.get("prioritizeVerb")
        for name in [name for name in names if name != _DEFAULT_SCHEDULER] or names
    ]


def _check_version(document: Mapping[str, object]) -> Iterator[Finding]:
    version = document.get("apiVersion")
    if version != _API_VERSION:
        yield Finding("apiVersion", f"is {version!r}, which Kubernetes 1.29 and later do not read; write {_API_VERSION} (since 1.25)")


def _check_lease(document: Mapping[str, object], names: Sequence[str]) -> Iterator[Finding]:
    election = _mapping(document.get("leaderElection"))
    lease = election.get("resourceName") or _DEFAULT_LEASE
    if election.get("leaderElect", True) and lease == _DEFAULT_LEASE and _DEFAULT_SCHEDULER not in names:
        told = (
            f"is {lease}, which the cluster's own scheduler holds: this one would wait for ever; write another, such as trimaran-scheduler"
        )
        yield Finding("leaderElection.resourceName", told)


def _check_names(names: Sequence[str], ours: Sequence[str]) -> Iterator[Finding]:
    for index, name in enumerate(names):
        if name not in ours and name != _DEFAULT_SCHEDULER:
            told = f"is {name}, of which the extender knows nothing: it leaves these pods alone; give it a profile of that schedulerName"
            yield Finding(f"profiles[{index}].schedulerName", told)
    for name in ours:
        if name not in names:
            yield Finding("profiles", f"none has the schedulerName {name}, for which the extender has a profile: no pod would be of it")


def _check_disabled(profile: Mapping[str, object], where: str) -> Iterator[Finding]:
    for kind in ("multiPoint", "score"):
        for name in _names(_plugins(profile, kind).get("disabled")):
            if name in _GONE:
                told = f"{name} is no plugin any more, and disabling it does nothing: scoring by requests stays on; disable {_GONE[name]}"
                yield Finding(f"{where}.{kind}.disabled", told)


def _check_by_requests(profile: Mapping[str, object], where: str) -> Iterator[Finding]:
    if names := [name for name in _BY_REQUESTS if name in _weights(profile)]:
        told = f"{' and '.join(names)} score by requests, against measured load; disable them, at score only: their filters must stay"
        yield Finding(f"{where}.score.disabled", f"{told}. With scale: 10 the extender's weight: {_DECISIVE_WEIGHT} outvotes them too")


def _check_weights(profile: Mapping[str, object], where: str) -> Iterator[Finding]:
    weights = _weights(profile)
    low = [f"{name} {10 * usual}" for name, usual in _WEIGHTS.items() if name not in _BY_REQUESTS and weights.get(name) == usual]
    if low:
        told = f"an extender's scores count ten times, and outweigh plugins of the usual weights; write {', '.join(low)}"
        yield Finding(f"{where}.score.enabled", f"{told}, or give the extender scale: 10")


def _weights(profile: Mapping[str, object]) -> dict[str, int]:
    """Work out the weight of each plugin that scores, of those that every scheduler has and those that are named at score."""
    weights = dict(_WEIGHTS)
    for kind in ("multiPoint", "score"):
        listed = _plugins(profile, kind)
        for name in _names(listed.get("disabled")):
            weights = {} if name == "*" else {key: value for key, value in weights.items() if key != name}
        for each in map(_mapping, _list(listed.get("enabled"))):
            name = str(each.get("name"))
            if kind == "score" or name in _WEIGHTS:
                weights[name] = _weight(each) or _WEIGHTS.get(name, 1)
    return weights


def _check_extender(extender: Mapping[str, object], where: str, config: ExtenderConfig | None) -> Iterator[Finding]:
    yield from _check_address(extender.get("urlPrefix"), f"{where}.urlPrefix", config)
    yield from _check_verbs(extender, where, config)
    if extender.get("nodeCacheCapable") is not True:
        told = "is not true, so that whole nodes are sent: a hundred times the bytes for each pod; write nodeCacheCapable: true"
        yield Finding(f"{where}.nodeCacheCapable", told)
    if extender.get("ignorable") is not True:
        told = "is not true: where the extender does not answer a filter, no pod of any profile is scheduled; write ignorable: true"
        yield Finding(f"{where}.ignorable", told)
    if extender.get("managedResources"):
        told = "are set, so that only pods that ask for these are scored, and kubelets refuse a made-up one; pods choose by schedulerName"
        yield Finding(f"{where}.managedResources", told)
    yield from _check_timeout(extender.get("httpTimeout"), f"{where}.httpTimeout")


def _check_address(address: object, where: str, config: ExtenderConfig | None) -> Iterator[Finding]:
    try:
        parts = urlsplit(str(address or ""))
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme not in ("http", "https") or not parts.hostname:
        yield Finding(where, f"is {address!r}; write the extender's address, for example http://127.0.0.1:8888")
        return
    if parts.path.strip("/"):
        yield Finding(where, f"is {address!r}; the extender answers at /prioritize and /filter themselves, so leave {parts.path} out")
    if config is not None and parts.hostname in ("127.0.0.1", "localhost", "::1") and port != config.address[1]:
        yield Finding(where, f"is {address!r}, and the extender listens on port {config.address[1]}")


def _check_verbs(extender: Mapping[str, object], where: str, config: ExtenderConfig | None) -> Iterator[Finding]:
    for key, wanted in (("prioritizeVerb", "prioritize"), ("filterVerb", "filter")):
        verb = extender.get(key)
        if verb and str(verb).strip("/") != wanted:
            yield Finding(f"{where}.{key}", f"is {verb!r}, which the extender does not answer; write {key}: {wanted}")
    for key in ("bindVerb", "preemptVerb"):
        if extender.get(key):
            yield Finding(f"{where}.{key}", "is set, which the extender does not answer: each pod would wait for nothing; leave it out")
    if not extender.get("prioritizeVerb"):
        yield Finding(f"{where}.prioritizeVerb", "is not set, so that nothing is scored; write prioritizeVerb: prioritize")
    elif not _weight(extender):
        yield Finding(f"{where}.weight", f"is {extender.get('weight')!r}: a scheduler does not start with that; write weight: 1")
    if extender.get("filterVerb"):
        if extender.get("nodeCacheCapable") is not True:
            told = "with whole nodes makes plugins take every node for idle (kubernetes#141781); write nodeCacheCapable: true"
            yield Finding(f"{where}.filterVerb", told)
        if config is not None and not config.filter.enabled:
            yield Finding(f"{where}.filterVerb", "is set, and the extender's filter is off: a question for nothing; leave it out")
    elif config is not None and config.filter.enabled:
        yield Finding(f"{where}.filterVerb", "is not set, so that the extender's filter is never asked; write filterVerb: filter")


def _check_timeout(value: object, where: str) -> Iterator[Finding]:
    if value is None:
        yield Finding(where, f"is not set, which is 5 s: each pod waits that long for an extender that hangs; write {_WANTED_TIMEOUT}")
        return
    seconds = parse_duration(str(value))
    if seconds is None:
        yield Finding(where, f"is {value!r}, which is no duration; write {_WANTED_TIMEOUT}")
    elif seconds > _LONGEST_SECONDS or seconds == 0:
        told = "which is 5 s" if seconds == 0 else f"more than {_LONGEST_SECONDS:g} s"
        yield Finding(where, f"is {value}, {told}: each pod waits that long for an extender that hangs; write {_WANTED_TIMEOUT}")
    elif seconds < _SHORTEST_SECONDS:
        yield Finding(where, f"is {value}, and an answer may take {1000 * _SHORTEST_SECONDS:g} ms; write {_WANTED_TIMEOUT}")


def parse_duration(text: str) -> float | None:
    """
    Read a duration as Go writes it, seconds; ``None`` for what is none.

    >>> parse_duration("1m0.5s"), parse_duration("250ms"), parse_duration("0"), parse_duration("5")
    (60.5, 0.25, 0.0, None)
    """
    if text == "0":
        return 0.0
    parts = _DURATION_PART.findall(text)
    if not parts or "".join(map("".join, parts)) != text:
        return None
    return sum(float(number) * _DURATION_UNITS[unit] for number, unit in parts)


def _plugins(profile: Mapping[str, object], kind: str) -> Mapping[str, object]:
    return _mapping(_mapping(profile.get("plugins")).get(kind))


def _weight(value: Mapping[str, object]) -> int:
    """Answer the weight of a plugin or an extender; 0 where there is none, or not one that counts."""
    weight = value.get("weight")
    return weight if isinstance(weight, int) and weight > 0 else 0


def _name(profile: Mapping[str, object]) -> str:
    return str(profile.get("schedulerName") or _DEFAULT_SCHEDULER)


def _names(listed: object) -> list[str]:
    return [str(_mapping(each).get("name")) for each in _list(listed)]


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
