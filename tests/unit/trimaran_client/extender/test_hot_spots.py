"""Which nodes are too hot: by measured load above a threshold, never by old load, and never for pods that must run."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from tests.builders import NOW, make_snapshot
from trimaran_client.extender.config import FilterConfig
from trimaran_client.extender.hot_spots import HotSpots
from trimaran_client.resources import Pod
from trimaran_client.snapshot import LoadSnapshot
from trimaran_client.wire import Data, Metric, NodeMetrics, WatcherMetrics, WireWindow

POD = Pod("p", "team")
CONFIG = FilterConfig(enabled=True)


def refused(hot_spots: HotSpots, snapshot: LoadSnapshot, *, pod: Pod = POD, now: float = NOW) -> dict[str, str]:
    return hot_spots.refused(pod, snapshot.nodes, snapshot, now=now)


def make_metrics(**nodes: Sequence[Metric]) -> LoadSnapshot:
    data = Data(node_metrics_map={name: NodeMetrics(metrics=[*metrics]) for name, metrics in nodes.items()})
    return LoadSnapshot.from_metrics(WatcherMetrics(timestamp=NOW, window=WireWindow("15m", NOW - 900, NOW), source="test", data=data))


def cpu(value: float, operator: str = "AVG") -> Metric:
    return Metric(type="CPU", operator=operator, rollup="15m", value=value)


def memory(value: float) -> Metric:
    return Metric(type="Memory", operator="AVG", rollup="15m", value=value)


def test_only_above_the_threshold() -> None:
    told = refused(HotSpots(CONFIG), make_snapshot({"at": 80.0, "above": 80.1, "idle": 0.0, "mute": None}))
    assert told == {"above": "CPU 80.1 % is above the threshold of 80 %"}


def test_only_candidates_are_told() -> None:
    snapshot = make_snapshot({"a": 90.0, "b": 95.0})
    assert list(HotSpots(CONFIG).refused(POD, ("b", "unknown"), snapshot, now=NOW)) == ["b"]


def test_off_takes_nothing_out() -> None:
    assert refused(HotSpots(FilterConfig()), make_snapshot({"a": 99.0})) == {}


def test_the_average_counts_before_the_latest() -> None:
    snapshot = make_metrics(calm=[cpu(10), cpu(99, "Latest")], hot=[cpu(99), cpu(10, "Latest")], new=[cpu(99, "Latest")])
    assert list(refused(HotSpots(CONFIG), snapshot)) == ["hot", "new"]


def test_memory_has_its_own_threshold() -> None:
    hot_spots = HotSpots(FilterConfig(enabled=True, cpu_percent=None, memory_percent=90))
    assert refused(hot_spots, make_metrics(a=[cpu(99)], b=[memory(91)])) == {"b": "Memory 91.0 % is above the threshold of 90 %"}


class TestMustRun:
    """Report 43: a threshold kept node agents off busy nodes."""

    snapshot = make_snapshot({"busy": 99.0})

    def test_report_43_pods_of_a_daemon_set_pass(self) -> None:
        hot_spots = HotSpots(CONFIG)
        assert refused(hot_spots, self.snapshot, pod=dataclasses.replace(POD, is_daemon=True)) == {}
        assert list(refused(hot_spots, self.snapshot)) == ["busy"]

    @pytest.mark.parametrize(
        "pod", [Pod(priority_class="system-node-critical"), Pod(priority_class="system-cluster-critical"), Pod(namespace="kube-system")]
    )
    def test_report_43_critical_pods_and_system_namespaces_pass(self, pod: Pod) -> None:
        assert refused(HotSpots(CONFIG), self.snapshot, pod=pod) == {}

    def test_who_passes_can_be_chosen(self) -> None:
        hot_spots = HotSpots(FilterConfig(enabled=True, exempt_priority_classes=("vip",), exempt_namespaces=("ops",)))
        passing = [Pod(priority_class="vip"), Pod(namespace="ops")]
        others = [Pod(namespace="kube-system"), Pod(priority_class="system-node-critical")]
        assert [len(refused(hot_spots, self.snapshot, pod=pod)) for pod in (*passing, *others)] == [0, 0, 1, 1]


class TestSwing:
    """Report 45: a node about its threshold went in and out with each sample."""

    def test_report_45_a_swing_within_the_band_changes_nothing(self) -> None:
        hot_spots = HotSpots(FilterConfig(enabled=True, cpu_percent=65, hysteresis_percent=5))
        told = [list(refused(hot_spots, make_snapshot({"n": value}))) for value in (64, 66, 64, 66, 64, 60.1, 60, 64, 65, 66)]
        assert told == [[], ["n"], ["n"], ["n"], ["n"], ["n"], [], [], [], ["n"]]

    def test_the_reason_names_the_threshold_that_applied(self) -> None:
        hot_spots = HotSpots(FilterConfig(enabled=True, cpu_percent=65, hysteresis_percent=5))
        assert refused(hot_spots, make_snapshot({"n": 66.0}))["n"] == "CPU 66.0 % is above the threshold of 65 %"
        assert refused(hot_spots, make_snapshot({"n": 64.0}))["n"] == "CPU 64.0 % has not come down to 60 % since it was above 65 %"

    def test_being_hot_by_one_metric_is_not_being_hot_by_another(self) -> None:
        hot_spots = HotSpots(FilterConfig(enabled=True, cpu_percent=80, memory_percent=80))
        assert list(refused(hot_spots, make_metrics(n=[cpu(90), memory(78)]))) == ["n"]
        assert refused(hot_spots, make_metrics(n=[cpu(10), memory(78)])) == {}

    def test_a_node_that_does_not_report_is_offered_and_not_forgotten(self) -> None:
        hot_spots = HotSpots(CONFIG)
        told = [list(refused(hot_spots, make_metrics(n=metrics))) for metrics in ([cpu(90)], [memory(5)], [cpu(78)])]
        assert told == [["n"], [], ["n"]]

    def test_a_node_that_is_gone_is_forgotten(self) -> None:
        hot_spots = HotSpots(CONFIG)
        told = [list(refused(hot_spots, make_snapshot(nodes))) for nodes in ({"n": 90.0}, {"m": 1.0}, {"n": 78.0})]
        assert told == [["n"], [], []]

    def test_without_a_band_only_the_threshold_counts(self) -> None:
        hot_spots = HotSpots(FilterConfig(enabled=True, cpu_percent=65, hysteresis_percent=0))
        assert [len(refused(hot_spots, make_snapshot({"n": value}))) for value in (66, 65, 66)] == [1, 0, 1]


class TestOldLoad:
    @pytest.mark.parametrize(("age_seconds", "count"), [(0, 1), (300, 1), (301, 0), (-5, 1)])
    def test_takes_nothing_out(self, age_seconds: float, count: int) -> None:
        assert len(refused(HotSpots(CONFIG), make_snapshot({"n": 99.0}), now=NOW + age_seconds)) == count

    def test_of_unknown_age_takes_nothing_out(self) -> None:
        snapshot = dataclasses.replace(make_snapshot({"n": 99.0}), sampled_at=np.array([np.nan]))
        assert refused(HotSpots(CONFIG), snapshot) == {}

    def test_of_no_snapshot_takes_nothing_out(self) -> None:
        assert HotSpots(CONFIG).refused(POD, ("a",), LoadSnapshot.empty(), now=NOW) == {}
