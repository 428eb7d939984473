"""
The configuration of the extender: one YAML file, read once, every problem told at once.

Keys are in lower camel case, as in a ``KubeSchedulerConfiguration``, beside which the file usually stands.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import yaml

from trimaran_client.assigned import DEFAULT_HOLD_SECONDS
from trimaran_client.errors import ExtenderConfigError, PolicyArgumentError
from trimaran_client.policies.base import ScoringPolicy
from trimaran_client.policies.registry import create_policy
from trimaran_client.policies.target_load_packing import TargetLoadPacking

Override = Literal["policy", "target-cpu-percent"]

DEFAULT_BIND = "127.0.0.1:8888"
DEFAULT_WATCHER = "http://127.0.0.1:2020"
DEFAULT_SCHEDULER_NAME = "trimaran"
_MOST_DECISIONS = 100_000

_StructT = TypeVar("_StructT", bound=msgspec.Struct)


class ProfileConfig(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
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


class FilterConfig(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
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


class ExtenderConfig(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
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
            ExtenderConfigError: Naming every problem.
        """
        problems = [] if _is_bind(self.bind) else [f"bind is {self.bind!r}; write an address and a port, for example {DEFAULT_BIND}"]
        names = [each.scheduler_name for each in self.profiles]
        if not names:
            problems.append("profiles is empty; give at least one, for example {schedulerName: trimaran}")
        problems += [f"profiles: schedulerName {name!r} stands twice" for name in sorted({each for each in names if names.count(each) > 1})]
        for profile in self.profiles:
            try:
                profile.make_policy()
            except PolicyArgumentError as error:
                problems.append(f"profile {profile.scheduler_name!r}: {error}")
        problems += [
            f"filter.{name} is {value!r}; give a percentage above 0 and at most 100"
            for name, value in (("cpuPercent", self.filter.cpu_percent), ("memoryPercent", self.filter.memory_percent))
            if value is not None and not 0 < value <= 100
        ]
        for name, value in (
            ("filter.hysteresisPercent", self.filter.hysteresis_percent),
            ("filter.maxAgeSeconds", self.filter.max_age_seconds),
            ("holdSeconds", self.hold_seconds),
            ("assumeSeconds", self.assume_seconds),
        ):
            if not 0 <= value < float("inf"):
                problems.append(f"{name} is {value!r}; give a finite number of at least 0")
        if not 1 <= self.decisions <= _MOST_DECISIONS:
            problems.append(f"decisions is {self.decisions}; give 1 to {_MOST_DECISIONS}")
        if not self.watcher.startswith(("http://", "https://")):
            problems.append(f"watcher is {self.watcher!r}; write its address, for example {DEFAULT_WATCHER}")
        if not self.cluster and (self.events or self.namespace_overrides):
            problems.append("events and namespaceOverrides need the cluster, and cluster is false")
        if problems:
            raise ExtenderConfigError("; ".join(problems))
        return self


def load_config(path: Path) -> ExtenderConfig:
    """
    Read the configuration from a file.

    Raises:
        ExtenderConfigError: If it cannot be read; the message names the file and every problem.
    """
    try:
        document = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise ExtenderConfigError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ExtenderConfigError(f"{path}: not YAML: {error}") from error
    try:
        return parse_config({} if document is None else document)
    except ExtenderConfigError as error:
        raise ExtenderConfigError(f"{path}: {error}") from error


def parse_config(document: object) -> ExtenderConfig:
    """
    Read the configuration from plain data.

    Raises:
        ExtenderConfigError: Naming every problem.
    """
    if not isinstance(document, Mapping):
        raise ExtenderConfigError("the configuration is a mapping of keys to values")
    problems = _unknown_keys(document, ExtenderConfig, "")
    listed = document.get("profiles")
    for index, each in enumerate(listed if isinstance(listed, list) else []):
        problems += _unknown_keys(each, ProfileConfig, f"profiles[{index}].")
    problems += _unknown_keys(document.get("filter"), FilterConfig, "filter.")
    if problems:
        raise ExtenderConfigError("; ".join(problems))
    problems, values = [], dict(document)
    for field in msgspec.structs.fields(ExtenderConfig):
        if field.encode_name in values:
            try:
                msgspec.convert(values[field.encode_name], field.type)
            except msgspec.ValidationError as error:
                problems.append(f"{field.encode_name}: {error}")
    if problems:
        raise ExtenderConfigError("; ".join(problems))
    return msgspec.convert(values, ExtenderConfig).check()


def _unknown_keys(document: object, struct: type[_StructT], where: str) -> list[str]:
    if not isinstance(document, Mapping):
        return []
    known = [field.encode_name for field in msgspec.structs.fields(struct)]
    return [f"{where}{key}: there is no such key{_nearest(str(key), known)}" for key in document if key not in known]


def _nearest(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, 1)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(known)}"


def _is_bind(text: str) -> bool:
    _, colon, port = text.rpartition(":")
    return bool(colon) and port.isascii() and port.isdigit() and int(port) < 65536
