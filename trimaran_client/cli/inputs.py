"""What the commands are given: a pod, the load, nodes and pods, from files, a load watcher or the live cluster."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Concatenate, ParamSpec, TypeVar

import click
import yaml

from trimaran_client.cli.watcher_status import fetch_status_hints
from trimaran_client.cluster import fetch_cluster, fetch_pod
from trimaran_client.errors import ManifestError, SnapshotDecodeError
from trimaran_client.fetch import WatcherClient
from trimaran_client.kube import KubeClient
from trimaran_client.policies.base import ScoringPolicy
from trimaran_client.policies.metric_needs import find_needs
from trimaran_client.resources import Node, Pod, manifest_items
from trimaran_client.snapshot import LoadSnapshot

DEFAULT_WATCHER = "http://127.0.0.1:2020"
# A person waits; a load watcher that is starting is ready within seconds.
WATCHER_DEADLINE_SECONDS = 5.0

_LIVE_POD = re.compile(r"([a-z0-9][a-z0-9-]*)/([a-z0-9][a-z0-9.-]*)")
_FILE_SUFFIXES = (".yaml", ".yml", ".json")

_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """
    All that a score is computed from.

    Args:
        pod: The pod to place.
        load: The measured load.
        nodes: The candidates; ``None`` = those of the load.
        pods: All other pods; ``None`` = not known.
        now: When it was gathered, Unix seconds.
        hints: What the sources say of themselves, in plain words.
    """

    pod: Pod
    load: LoadSnapshot
    nodes: list[Node] | None
    pods: list[Pod] | None
    now: float
    hints: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where the inputs come from, as the options say it."""

    pod: str
    watcher: str | None
    snapshot: IO[bytes] | None
    nodes: IO[bytes] | None
    pods: IO[bytes] | None
    kubeconfig: Path | None

    async def gather(self, policy: ScoringPolicy, *, asks_status: bool = False) -> Inputs:
        """
        Read everything that *policy* goes by; with *asks_status* also what the load watcher says of itself.

        Raises:
            TrimaranError: If a file, the load watcher or the cluster does not give what is needed.
        """
        file, live = _open_pod(self.pod)
        pod = None if file is None else _read_pod(file)
        nodes = None if self.nodes is None else read_manifests(self.nodes, Node.from_manifest)
        pods = None if self.pods is None else read_manifests(self.pods, Pod.from_manifest)
        if live is not None or self.kubeconfig is not None:
            async with KubeClient(self.kubeconfig) as client:
                if live is not None:
                    pod = await fetch_pod(client, *live)
                cluster_nodes, cluster_pods = await fetch_cluster(client)
            nodes = list(cluster_nodes) if nodes is None else nodes
            pods = list(cluster_pods) if pods is None else pods
        assert pod is not None  # noqa: S101 - from the file, or from the cluster
        load, hints = await self._fetch_load(policy, asks_status=asks_status)
        others = None if pods is None else [each for each in pods if not _is_same(each, pod)]
        hints += _hints_of_placement([pod, *(pods or ())], pod)
        return Inputs(pod=pod, load=load, nodes=nodes, pods=others, now=time.time(), hints=hints)

    async def _fetch_load(self, policy: ScoringPolicy, *, asks_status: bool) -> tuple[LoadSnapshot, list[str]]:
        if self.snapshot is not None:
            try:
                return LoadSnapshot.decode(self.snapshot.read()), []
            except SnapshotDecodeError as error:
                raise SnapshotDecodeError(f"{self.snapshot.name}: {error}") from error
        address = self.watcher or DEFAULT_WATCHER
        windows, statistics = find_needs([policy])
        async with WatcherClient(address, windows=windows, statistics=statistics, deadline_seconds=WATCHER_DEADLINE_SECONDS) as client:
            load = await client.fetch_snapshot()
        missing = [f"the load watcher does not serve what was asked for: {reason}" for reason in load.not_held.values()]
        return load, [*missing, *(await fetch_status_hints(address) if asks_status else [])]


def source_options(command: Callable[Concatenate[Sources, _P], None]) -> Callable[..., None]:
    """Give a command the options that say where its inputs come from; it gets them as its first argument."""

    @functools.wraps(command)
    def collect(*args: Any, **options: Any) -> None:  # noqa: ANN401 - the options of a command have any types
        own = {name: options.pop(name) for name in ("pod", "watcher", "snapshot", "nodes", "pods", "kubeconfig")}
        if own["watcher"] is not None and own["snapshot"] is not None:
            raise click.UsageError("give --watcher or --snapshot, not both")
        command(Sources(**own), *args, **options)

    return functools.reduce(lambda made, option: option(made), reversed(_OPTIONS), collect)


_OPTIONS: tuple[Callable[[Callable[..., None]], Callable[..., None]], ...] = (
    click.option(
        "--pod",
        metavar="FILE|NAMESPACE/NAME",
        required=True,
        help="The pod to place: a file with a Pod, or a workload with a pod template (- reads stdin); or a pod of the live cluster, "
        "of which then nodes and pods are read too.",
    ),
    click.option("--watcher", metavar="URL", help=f"A running load watcher.  [default: {DEFAULT_WATCHER}]"),
    click.option("--snapshot", type=click.File("rb"), help="A saved reply of GET /watcher instead."),
    click.option(
        "--nodes",
        type=click.File("rb"),
        help="Candidate nodes, as `kubectl get nodes -o yaml` prints them.  [default: the live cluster's, else those of the load watcher]",
    ),
    click.option(
        "--pods",
        type=click.File("rb"),
        help="All pods, as `kubectl get pods -A -o yaml` prints them: for requests and pods in flight.  [default: the live cluster's]",
    ),
    click.option(
        "--kubeconfig",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Access to the live cluster; nodes and pods are read from it.  [default: as kubectl finds it]",
    ),
)


def read_manifests(file: IO[bytes], read: Callable[[object], _T]) -> list[_T]:
    """
    Read the objects of a YAML or JSON file.

    Raises:
        ManifestError: If it is neither, or an object cannot be read; names the file.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster where libyaml is there; the same result
    try:
        documents = [document for document in yaml.load_all(file, Loader=loader) if document is not None]
        return [read(item) for document in documents for item in manifest_items(document)]
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ManifestError(f"{file.name}: not YAML or JSON: {error}") from error
    except ManifestError as error:
        raise ManifestError(f"{file.name}: {error}") from error


def _open_pod(text: str) -> tuple[IO[bytes] | None, tuple[str, str] | None]:
    """Answer the open file, or namespace and name; a file that is there comes first."""
    named = _LIVE_POD.fullmatch(text)
    if named and not text.endswith(_FILE_SUFFIXES) and not Path(text).exists():
        return None, (named[1], named[2])
    try:
        return click.open_file(text, "rb"), None
    except OSError as error:
        hint = "give a file, - for stdin, or NAMESPACE/NAME of a pod of the live cluster"
        raise click.BadParameter(f"{text!r}: {error.strerror}; {hint}", param_hint="'--pod'") from error


def _read_pod(file: IO[bytes]) -> Pod:
    with file:
        pods = read_manifests(file, Pod.from_manifest)
    if len(pods) != 1:
        raise ManifestError(f"{file.name}: {len(pods)} objects; give exactly one pod")
    if not pods[0].containers:
        raise ManifestError(f"{file.name}: no spec.containers; give a pod, or a workload with a pod template")
    return pods[0]


def _is_same(one: Pod, other: Pod) -> bool:
    return bool(one.name) and (one.namespace, one.name) == (other.namespace, other.name)


def _hints_of_placement(known: Iterable[Pod], pod: Pod) -> list[str]:
    """Say that the pod has a node already: its own usage is in what is measured there."""
    where = {each.node_name for each in known if each.node_name and _is_same(each, pod)}
    return [
        f"the pod is on {node} already: its requests are left out of the sums, but what is measured there includes its usage"
        for node in sorted(where)
    ]
