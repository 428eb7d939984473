"""Which policy scores a pod: by its scheduler's name, and where the profile allows it by its own wish or its namespace's."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trimaran_client import wire
from trimaran_client.errors import PolicyArgumentError
from trimaran_client.extender.config import ProfileConfig
from trimaran_client.policies.arguments import metric_choices
from trimaran_client.policies.base import ScoringPolicy
from trimaran_client.policies.registry import create_policy
from trimaran_client.policies.target_load_packing import TargetLoadPacking
from trimaran_client.resources import OWN_PREFIX, Pod
from trimaran_client.scorer import Scorer

logger = logging.getLogger(__name__)

# What Kubernetes takes where a pod names none.
_DEFAULT_SCHEDULER = "default-scheduler"
# Anyone who may create pods can ask for new ones.
_MOST_SCORERS = 256
_MOST_TOLD = 1000
# What a reply has where nothing is asked for; other profiles go by it.
_USUAL_WINDOWS = ("5m", "10m", "15m")
_USUAL_STATISTICS = (wire.AVERAGE, wire.STANDARD_DEVIATION)

NamespaceEntries = Callable[[str], Mapping[str, str]]
"""Answers the labels and annotations of a namespace that are ours; an annotation takes the place of a label."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What scores a pod; ``ignored`` counts wishes that could not be followed."""

    scheduler_name: str
    scorer: Scorer
    ignored: int = 0


class Profiles:
    """
    Choose for each pod.

    Args:
        configs: The profiles; their policies can be made.
        namespace_entries: What a namespace wishes.

    Raises:
        PolicyArgumentError: If a policy cannot be made.
    """

    def __init__(self, configs: Sequence[ProfileConfig], *, namespace_entries: NamespaceEntries) -> None:
        self._configs = {each.scheduler_name: each for each in configs}
        self._scorers = {name: Scorer(each.make_policy()) for name, each in self._configs.items()}
        self._namespace_entries = namespace_entries
        self._overridden: dict[tuple[str, str, str], Scorer] = {}
        self._told: set[str] = set()

    @property
    def failures(self) -> int:
        """Answer how often a policy raised."""
        return sum(each.failures for each in (*self._scorers.values(), *self._overridden.values()))

    def needs(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Answer the windows and statistics that the policies ask of the load watcher; empty where the usual ones do."""
        choices = [each for scorer in self._scorers.values() for each in metric_choices(getattr(scorer.policy, "args", None))]
        windows, statistics = ({getattr(each, name) for each in choices} - {""} for name in ("window", "statistic"))
        if not windows and not statistics:
            return (), ()
        return tuple(sorted(windows | set(_USUAL_WINDOWS))), tuple(sorted((statistics | set(_USUAL_STATISTICS)) - {wire.LATEST}))

    def choose(self, pod: Pod) -> Choice | None:
        """Answer what scores a pod; ``None`` for a pod of another scheduler."""
        name = pod.scheduler_name or _DEFAULT_SCHEDULER
        config = self._configs.get(name)
        if config is None:
            return None
        wishes = {key: value for key in config.overrides if (value := self._wish(pod, key)) is not None}
        if not wishes:
            return Choice(name, self._scorers[name])
        try:
            return Choice(name, self._override(config, wishes.get("policy", ""), wishes.get("target-cpu-percent", "")))
        except PolicyArgumentError as error:
            self._tell(f"pod {pod.namespace}/{pod.name} or its namespace wishes what cannot be: {error}; the profile's policy scores it")
        return Choice(name, self._scorers[name], len(wishes))

    def _wish(self, pod: Pod, key: str) -> str | None:
        name = OWN_PREFIX + key
        for entries in (pod.annotations, pod.labels):
            if name in entries:
                return entries[name]
        return self._namespace_entries(pod.namespace).get(name)

    def _override(self, config: ProfileConfig, policy_name: str, target: str) -> Scorer:
        key = (config.scheduler_name, policy_name, target)
        scorer = self._overridden.get(key)
        if scorer is None:
            if len(self._overridden) >= _MOST_SCORERS:
                self._overridden.clear()
            is_other = policy_name not in ("", config.policy)
            policy = create_policy(policy_name, {}, "default") if is_other else config.make_policy()
            scorer = self._overridden[key] = Scorer(_with_target(policy, target) if target else policy)
        return scorer

    def _tell(self, sentence: str) -> None:
        if sentence not in self._told:
            if len(self._told) >= _MOST_TOLD:
                self._told.clear()
            self._told.add(sentence)
            logger.warning(sentence)


def _with_target(policy: ScoringPolicy, text: str) -> ScoringPolicy:
    if not isinstance(policy, TargetLoadPacking):
        raise PolicyArgumentError(f"{OWN_PREFIX}target-cpu-percent is for TargetLoadPacking, and the policy is {policy.name}")
    try:
        target = float(text)
    except ValueError:
        target = math.nan
    if not 0 < target < 100:
        raise PolicyArgumentError(f"{OWN_PREFIX}target-cpu-percent is {text[:40]!r}; give a percentage above 0 and below 100")
    return TargetLoadPacking(dataclasses.replace(policy.args, target_percent=target))
