"""Which policy scores a pod: by its scheduler's name, and where the profile allows it by its own wish or its namespace's."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cachetools import TTLCache

from trimaran_client.errors import PolicyArgumentError
from trimaran_client.extender.config import ProfileConfig
from trimaran_client.policies.base import ScoringPolicy
from trimaran_client.policies.metric_needs import find_needs
from trimaran_client.policies.registry import create_policy, list_policy_names
from trimaran_client.policies.target_load_packing import TargetLoadPacking
from trimaran_client.resources import OWN_PREFIX, Pod
from trimaran_client.scorer import Scorer

logger = logging.getLogger(__name__)

# What Kubernetes takes where a pod names none.
_DEFAULT_SCHEDULER = "default-scheduler"
# Anyone who may create pods can ask for new ones.
_MOST_SCORERS = 256
_MOST_TOLD = 1000
_REPEAT_SECONDS = 60.0
_MOST_SHOWN = 40
_MOST_KEPT = 200
# In the order in which they are followed: a target is for the policy that was chosen.
_POLICY, _TARGET = "policy", "target-cpu-percent"

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
        # Looking through installed packages takes long, and a pod can wish for anything.
        self._policy_names = frozenset(list_policy_names() if any(_POLICY in each.overrides for each in configs) else ())
        # What cannot be made is remembered too, as the reason.
        self._overridden: dict[tuple[str, str, str | None], Scorer | str] = {}
        self._told: TTLCache[tuple[str, str], bool] = TTLCache(_MOST_TOLD, _REPEAT_SECONDS)

    def needs(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Answer the windows and statistics that the policies ask of the load watcher; empty where the usual ones do."""
        return find_needs(scorer.policy for scorer in self._scorers.values())

    def choose(self, pod: Pod) -> Choice | None:
        """Answer what scores a pod; ``None`` for a pod of another scheduler."""
        name = pod.scheduler_name or _DEFAULT_SCHEDULER
        config = self._configs.get(name)
        if config is None:
            return None
        wishes = {key: value for key in (_POLICY, _TARGET) if key in config.overrides and (value := self._wish(pod, key)) is not None}
        scorer, followed = self._scorers[name], dict[str, str]()
        for key, value in wishes.items():
            try:
                scorer = self._override(config, {**followed, key: value})
                followed[key] = value
            except PolicyArgumentError as error:
                self._tell(pod, key, str(error))
        return Choice(name, scorer, len(wishes) - len(followed))

    def _wish(self, pod: Pod, key: str) -> str | None:
        name = OWN_PREFIX + key
        for entries in (pod.annotations, pod.labels):
            if name in entries:
                return entries[name]
        return self._namespace_entries(pod.namespace).get(name)

    def _override(self, config: ProfileConfig, wishes: Mapping[str, str]) -> Scorer:
        policy_name, target = wishes.get(_POLICY, config.policy), wishes.get(_TARGET)
        key = (config.scheduler_name, policy_name[:_MOST_KEPT], target and target[:_MOST_KEPT])
        made = self._overridden.get(key)
        if made is None:
            if len(self._overridden) >= _MOST_SCORERS:
                self._overridden.clear()
            made = self._overridden[key] = self._make_scorer(config, policy_name, target)
        if isinstance(made, str):
            raise PolicyArgumentError(made)
        return made

    def _make_scorer(self, config: ProfileConfig, policy_name: str, target: str | None) -> Scorer | str:
        try:
            policy = self._make_policy(config, policy_name)
            return Scorer(policy if target is None else _with_target(policy, target))
        except PolicyArgumentError as error:
            return str(error)

    def _make_policy(self, config: ProfileConfig, name: str) -> ScoringPolicy:
        if name == config.policy:
            return self._scorers[config.scheduler_name].policy
        if name not in self._policy_names:
            choices = ", ".join(sorted(self._policy_names))
            raise PolicyArgumentError(f"{OWN_PREFIX}{_POLICY} is {name[:_MOST_SHOWN]!r}; choose from {choices}")
        return create_policy(name, {}, "default")

    def _tell(self, pod: Pod, key: str, problem: str) -> None:
        """Log a wish that cannot be followed, for all pods of a namespace once in a while: each pod may wish for something else."""
        if (pod.namespace, key) in self._told:
            return
        self._told[pod.namespace, key] = True
        logger.warning("pod %s/%s or its namespace wishes what cannot be, which is ignored: %s", pod.namespace, pod.name, problem)


def _with_target(policy: ScoringPolicy, text: str) -> ScoringPolicy:
    if not isinstance(policy, TargetLoadPacking):
        raise PolicyArgumentError(f"{OWN_PREFIX}{_TARGET} is for TargetLoadPacking, and the policy is {policy.name}")
    try:
        target = float(text) if len(text) <= _MOST_SHOWN else math.nan
    except ValueError:
        target = math.nan
    if not 0 < target < 100:
        raise PolicyArgumentError(f"{OWN_PREFIX}{_TARGET} is {text[:_MOST_SHOWN]!r}; give a percentage above 0 and below 100")
    return TargetLoadPacking(dataclasses.replace(policy.args, target_percent=target))
