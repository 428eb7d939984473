"""
The configuration of the extender: one YAML file, read once, every problem told at once.

Keys are in lower camel case, as in a ``KubeSchedulerConfiguration``, beside which the file usually stands.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec
import yaml

from trimaran_client.assigned import DEFAULT_HOLD_SECONDS
from trimaran_client.errors import ExtenderConfigError, PolicyArgumentError, WatcherError
from trimaran_client.fetch import WatcherClient
from trimaran_client.policies.base import ScoringPolicy
from trimaran_client.policies.registry import create_policy
from trimaran_client.policies.target_load_packing import TargetLoadPacking

Override = Literal["policy", "target-cpu-percent"]

DEFAULT_BIND = "127.0.0.1:8888"
DEFAULT_WATCHER = "http://127.0.0.1:2020"
DEFAULT_SCHEDULER_NAME = "trimaran"
_MOST_DECISIONS = 100_000

_StructT = TypeVar("_StructT", bound=msgspec.Struct)


class ProfileConfig(msgspec.Struct, frozen=True, rename="camel"):
    """
    How the pods of one scheduler profile are scored.

    Args:
        scheduler_name: The pods' ``spec.schedulerName``.
        policy: The policy's name.
        args: Its arguments; with the preset ``upstream`` those of the Go plugin.
        preset: ``default`` or ``upstream``.
        overrides: What pods and namespaces may choose themselves.
    """

    scheduler_name: str = DEFAULT_SCHEDULER_NAME
    policy: str = TargetLoadPacking.name
    args: dict[str, Any] = {}
    preset: Literal["default", "upstream"] = "default"
    overrides: tuple[Override, ...] = ()

    def make_policy(self) -> ScoringPolicy:
        """
        Make the policy of the profile.

        Raises:
            PolicyArgumentError: If it cannot be made of these arguments.
        """
        return create_policy(self.policy, self.args, self.preset)


class FilterConfig(msgspec.Struct, frozen=True, rename="camel"):
    """
    Which nodes are too hot for further pods.

    Args:
        enabled: Whether ``/filter`` takes any node out.
        cpu_percent: Measured CPU utilization above which a node is hot; ``None`` = never.
        memory_percent: The same of memory.
        hysteresis_percent: How far below the threshold a hot node must come to be offered again, points.
        max_age_seconds: A node whose metrics are older is not taken out.
        exempt_priority_classes: Pods of these go anywhere.
        exempt_namespaces: Pods in these too; and pods of a DaemonSet always.
    """

    enabled: bool = False
    cpu_percent: float | None = 80.0
    memory_percent: float | None = None
    hysteresis_percent: float = 5.0
    max_age_seconds: float = 300.0
    exempt_priority_classes: tuple[str, ...] = ("system-cluster-critical", "system-node-critical")
    exempt_namespaces: tuple[str, ...] = ("kube-system",)


class ExtenderConfig(msgspec.Struct, frozen=True, rename="camel"):
    """
    Everything that can be set.

    Args:
        bind: Address and port to listen on.
        watcher: The load watcher's address.
        cluster: Whether to watch nodes and pods of the cluster; without it the watcher, and the node objects that are sent, say what nodes
            have, and pods in flight are only known from our own decisions.
        kubeconfig: The file with access to the cluster; without it the in-cluster files, ``KUBECONFIG`` or ``~/.kube/config``.
        scale: 100, for a profile whose other weights are multiplied by 10; or 10, for one whose weights cannot be changed.
        shadow: Whether only to log what would be answered, and answer nothing.
        profiles: How the pods of each scheduler profile are scored.
        filter: Which nodes are too hot.
        namespace_overrides: Whether namespaces may choose too; they are watched then.
        events: Whether to write an event on each pod that says why it is where it is.
        decisions: How many decisions are remembered.
        hold_seconds: How long a pod is taken to need until its usage can be measured.
        assume_seconds: How long a decision counts as a placement while no binding is seen; 0 = not at all.
        log_level: A level of logging.
        log_format: ``text``, ``json`` or ``auto``.
    """

    bind: str = DEFAULT_BIND
    watcher: str = DEFAULT_WATCHER
    cluster: bool = True
    kubeconfig: str | None = None
    scale: Literal[100, 10] = 100
    shadow: bool = False
    profiles: tuple[ProfileConfig, ...] = (ProfileConfig(),)
    filter: FilterConfig = FilterConfig()
    namespace_overrides: bool = False
    events: bool = False
    decisions: int = 1000
    hold_seconds: float = DEFAULT_HOLD_SECONDS
    assume_seconds: float = 10.0
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "text", "json"] = "auto"

    @property
    def address(self) -> tuple[str, int]:
        """Answer host and port to listen on; an empty host is every address."""
        host, _, port = self.bind.rpartition(":")
        return host.strip("[]"), int(port)

    def check(self) -> ExtenderConfig:
        """
        Check what belongs together, and answer itself.

        Raises:
            ExtenderConfigError: Naming every problem, one line each.
        """
        if problems := self._problems():
            raise ExtenderConfigError("\n".join(problems))
        return self

    def _problems(self) -> list[str]:
        problems = [] if _is_bind(self.bind) else [f"bind is {self.bind!r}; write an address and a port, for example {DEFAULT_BIND}"]
        try:
            WatcherClient(self.watcher)
        except WatcherError as error:
            problems.append(f"watcher: {error}")
        problems += self._profile_problems()
        problems += _filter_problems(self.filter)
        problems += _number_problems((("holdSeconds", self.hold_seconds), ("assumeSeconds", self.assume_seconds)))
        if not 1 <= self.decisions <= _MOST_DECISIONS:
            problems.append(f"decisions is {self.decisions}; give 1 to {_MOST_DECISIONS}")
        for name, is_set in (("events", self.events), ("namespaceOverrides", self.namespace_overrides)):
            if is_set and not self.cluster:
                problems.append(f"{name} needs the cluster, and cluster is false; set one of them the other way")
        return problems

    def _profile_problems(self) -> list[str]:
        names = [each.scheduler_name for each in self.profiles]
        problems = [] if names else ["profiles is empty; give at least one, for example {schedulerName: trimaran}"]
        problems += [f"profiles: schedulerName {name!r} stands twice; remove one" for name in dict.fromkeys(names) if names.count(name) > 1]
        for profile in self.profiles:
            try:
                profile.make_policy()
            except PolicyArgumentError as error:
                problems += [f"profile {profile.scheduler_name!r}: {profile.policy}: {each}" for each in error.problems]
        return problems


def _filter_problems(config: FilterConfig) -> list[str]:
    thresholds = [("cpuPercent", config.cpu_percent), ("memoryPercent", config.memory_percent)]
    given = [(name, value) for name, value in thresholds if value is not None]
    problems = [
        f"filter.{name} is {value!r}; give a percentage above 0 and at most 100, or null for none"
        for name, value in given
        if not 0 < value <= 100
    ]
    problems += [
        f"filter.hysteresisPercent is {config.hysteresis_percent!r}, which leaves nothing of {name}; give less than {value:g}"
        for name, value in given
        if 0 < value <= min(100, config.hysteresis_percent)
    ]
    if config.enabled and not given:
        problems.append("filter is enabled without a threshold; give filter.cpuPercent or filter.memoryPercent")
    return problems + _number_problems(
        (("filter.hysteresisPercent", config.hysteresis_percent), ("filter.maxAgeSeconds", config.max_age_seconds))
    )


def _number_problems(numbers: Iterable[tuple[str, float]]) -> list[str]:
    return [f"{name} is {value!r}; give a finite number of at least 0" for name, value in numbers if not 0 <= value < float("inf")]


def read_yaml(path: Path) -> object:
    """
    Read plain data from a YAML file.

    Raises:
        ExtenderConfigError: If it cannot be read, or is not YAML; the message names the file.
    """
    try:
        return yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise ExtenderConfigError(f"{path}: {error.strerror}; check the path and who may read it") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ExtenderConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from error


def load_config(path: Path) -> ExtenderConfig:
    """
    Read the configuration from a file.

    Raises:
        ExtenderConfigError: If it cannot be read; the message has a line for every problem, with the file.
    """
    document = read_yaml(path)
    try:
        return parse_config({} if document is None else document)
    except ExtenderConfigError as error:
        raise ExtenderConfigError("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from error


def parse_config(document: object) -> ExtenderConfig:
    """
    Read the configuration from plain data.

    Raises:
        ExtenderConfigError: Naming every problem, one line each: of what cannot be read, and of the rest as if that were not there.
    """
    problems: list[str] = []
    config = _read(document, ExtenderConfig, "", problems)
    try:
        config.check()
    except ExtenderConfigError as error:
        problems += str(error).splitlines()
    if problems:
        raise ExtenderConfigError("\n".join(problems))
    return config


def _read(document: object, struct: type[_StructT], where: str, problems: list[str]) -> _StructT:
    """Make a struct of a mapping; what cannot be read is noted and left at its default."""
    if not isinstance(document, Mapping):
        problems.append(f"{where.rstrip('.') or 'the configuration'} is a mapping of keys to values, not {reprlib.repr(document)}")
        return struct()
    known = {field.encode_name: field for field in msgspec.structs.fields(struct)}
    values: dict[str, Any] = {}
    for key, value in document.items():
        field = known.get(key)
        if field is None:
            problems.append(f"{where}{key}: there is no such key{_nearest(str(key), list(known))}")
        elif field.type == FilterConfig:
            values[field.name] = _read(value, FilterConfig, f"{where}{key}.", problems)
        elif field.type == tuple[ProfileConfig, ...] and isinstance(value, list):
            values[field.name] = tuple(_read(each, ProfileConfig, f"{where}{key}[{at}].", problems) for at, each in enumerate(value))
        else:
            try:
                values[field.name] = msgspec.convert(value, field.type)
            except msgspec.ValidationError as error:
                problems.append(f"{where}{key} is {reprlib.repr(value)}: {str(error).lower()}{_choices(field.type)}")
    return struct(**values)


def _choices(kind: Any) -> str:  # noqa: ANN401 - a type, as annotations write it
    options = [option for each in (kind, *get_args(kind)) if get_origin(each) is Literal for option in get_args(each)]
    return f"; choose from {', '.join(map(str, options))}" if options else ""


def _nearest(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, 1)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(known)}"


def _is_bind(text: str) -> bool:
    _, colon, port = text.rpartition(":")
    return bool(colon) and port.isascii() and port.isdigit() and int(port) < 65536
