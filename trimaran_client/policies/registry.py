"""
Which policy a name stands for: ours, and those that installed packages bring.

A package brings one by an entry point of the group ``trimaran_client.policies``: a function that takes the arguments as a mapping and
answers a :class:`~trimaran_client.policies.base.ScoringPolicy`. It is imported only when it is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, get_args

from trimaran_client.errors import PolicyArgumentError
from trimaran_client.policies.arguments import Preset
from trimaran_client.policies.base import ScoringPolicy
from trimaran_client.policies.load_variation_risk_balancing import LoadVariationRiskBalancing, LoadVariationRiskBalancingArgs
from trimaran_client.policies.low_risk_over_commitment import LowRiskOverCommitment, LowRiskOverCommitmentArgs
from trimaran_client.policies.peaks import Peaks, PeaksArgs
from trimaran_client.policies.plain_arguments import read_arguments, unknown_problems
from trimaran_client.policies.target_load_packing import TargetLoadPacking, TargetLoadPackingArgs

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

ENTRY_POINT_GROUP: Final = "trimaran_client.policies"

PolicyFactory = Callable[[Mapping[str, object]], ScoringPolicy]

# What stands beside a plugin's own arguments in a KubeSchedulerConfiguration; where metrics come from is not for a policy to say here.
_PLUGIN_COMMON: Final = ("apiVersion", "kind", "metricProvider", "watcherAddress")


class _BuiltIn(NamedTuple):
    default: PolicyFactory
    upstream: PolicyFactory
    upstream_names: tuple[str, ...]


_BUILT_IN: Final[Mapping[str, _BuiltIn]] = {
    TargetLoadPacking.name: _BuiltIn(
        lambda args: TargetLoadPacking(read_arguments(TargetLoadPacking.name, TargetLoadPackingArgs, args)),
        TargetLoadPacking.upstream,
        ("targetUtilization", "defaultRequests", "defaultRequestsMultiplier"),
    ),
    LoadVariationRiskBalancing.name: _BuiltIn(
        lambda args: LoadVariationRiskBalancing(read_arguments(LoadVariationRiskBalancing.name, LoadVariationRiskBalancingArgs, args)),
        LoadVariationRiskBalancing.upstream,
        ("safeVarianceMargin", "safeVarianceSensitivity"),
    ),
    LowRiskOverCommitment.name: _BuiltIn(
        lambda args: LowRiskOverCommitment(read_arguments(LowRiskOverCommitment.name, LowRiskOverCommitmentArgs, args)),
        LowRiskOverCommitment.upstream,
        ("smoothingWindowSize", "riskLimitWeights"),
    ),
    Peaks.name: _BuiltIn(lambda args: Peaks(read_arguments(Peaks.name, PeaksArgs, args)), Peaks.upstream, ("nodePowerModel",)),
}


def list_policy_names() -> tuple[str, ...]:
    """List the names that can be chosen: ours, and those of installed packages."""
    return tuple(sorted({*_BUILT_IN, *_entry_points().names}))


def create_policy(name: str, args: Mapping[str, object] | None = None, preset: str = "default") -> ScoringPolicy:
    """
    Make the policy of a name.

    Args:
        name: One of :func:`list_policy_names`; ours come before those of packages.
        args: For the default preset of ours the fields of the policy's ``Args``, nested ones as mappings and lists; for the preset
            ``upstream`` the Go plugin's own names; for another package's policy whatever that takes.
        preset: ``default`` or ``upstream``; a policy of another package has no other than ``default``.

    Raises:
        PolicyArgumentError: If there is no such policy, it cannot be loaded, or it cannot be made from these arguments; every problem is
            named.

    >>> create_policy("TargetLoadPacking", {"target_percent": 50, "cpu_metric": {"statistic": "P90", "window": "15m"}}).name
    'TargetLoadPacking'
    """
    if preset not in get_args(Preset):
        raise PolicyArgumentError(f"{name}: preset is {preset!r}; choose from {', '.join(get_args(Preset))}")
    args = {} if args is None else args
    if not isinstance(args, Mapping):
        raise PolicyArgumentError(f"{name}: args is {args!r}; give a mapping of names to values")
    built_in = _BUILT_IN.get(name)
    if built_in is None:
        return _create_foreign(name, args, preset)
    return built_in.default(args) if preset == "default" else _create_upstream(name, built_in, args)


def _entry_points() -> EntryPoints:
    from importlib import metadata  # a sixth of the time that importing the library takes, and few need it

    return metadata.entry_points(group=ENTRY_POINT_GROUP)


def _create_upstream(name: str, built_in: _BuiltIn, args: Mapping[str, object]) -> ScoringPolicy:
    problems = unknown_problems(args, (*built_in.upstream_names, *_PLUGIN_COMMON))
    try:
        policy = built_in.upstream(args)
    except PolicyArgumentError as error:
        raise PolicyArgumentError.of(name, [*problems, *error.problems]) from error
    if problems:
        raise PolicyArgumentError.of(name, problems)
    return policy


def _create_foreign(name: str, args: Mapping[str, object], preset: str) -> ScoringPolicy:
    found = tuple(_entry_points().select(name=name))
    packages = [entry_point.dist.name if entry_point.dist else entry_point.value for entry_point in found]
    if not found:
        raise PolicyArgumentError.of(repr(name), unknown_problems([name], list_policy_names(), "policy"))
    if len(found) > 1:
        raise PolicyArgumentError(f"{name}: the packages {' and '.join(sorted(packages))} both bring it; remove one")
    if preset != "default":
        raise PolicyArgumentError(f"{name}: preset is {preset!r}, and a policy of another package has only default; leave it out")
    return _call(name, _load(name, found[0], packages[0]), args, packages[0])


def _load(name: str, entry_point: EntryPoint, package: str) -> object:
    try:
        return entry_point.load()
    except Exception as error:  # importing runs anyone's code; whatever it raises is the reason that is told
        raise PolicyArgumentError(
            f"{name}: cannot load {entry_point.value} of the package {package}: {error!r}; reinstall the package, or choose another policy"
        ) from error


def _call(name: str, factory: object, args: Mapping[str, object], package: str) -> ScoringPolicy:
    if not callable(factory):
        raise PolicyArgumentError(f"{name}: the entry point of the package {package} is no function of the arguments; ask its author")
    try:
        policy = factory(args)
    except PolicyArgumentError:
        raise
    except Exception as error:  # the same
        raise PolicyArgumentError(f"{name}: the package {package} cannot make it from these arguments: {error!r}") from error
    lacks = [each for each in ("name", "resources", "score_nodes", "explain") if not hasattr(policy, each)]
    if lacks:
        raise PolicyArgumentError(f"{name}: what the package {package} makes has no {', '.join(lacks)}, so it is no policy; ask its author")
    made: ScoringPolicy = policy
    return made
