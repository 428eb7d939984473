"""Report 78: what would go wrong with a scheduler's configuration is told before pods go elsewhere."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from trimaran_client.errors import ExtenderConfigError
from trimaran_client.extender.config import ExtenderConfig, load_config, parse_config
from trimaran_client.extender.scheduler_config import Finding, check_scheduler_config, load_scheduler_config

K8S = Path(__file__).parents[4] / "k8s"
SHIPPED = sorted(K8S.rglob("scheduler-config.yaml"))
SAMPLE: dict[str, Any] = yaml.safe_load((K8S / "overlays/scheduler/scheduler-config.yaml").read_bytes())
CONFIG = load_config(K8S / "overlays/scheduler/extender.yaml")

Document = dict[str, Any]
Change = Callable[[Document], object]


def check(change: Change, config: ExtenderConfig | None = CONFIG) -> list[Finding]:
    document = copy.deepcopy(SAMPLE)
    change(document)
    return check_scheduler_config(document, config)


def extender(**fields: object) -> Change:
    """Set fields of the extender; ``None`` removes one."""

    def change(document: Document) -> None:
        [own] = document["extenders"]
        for name, value in fields.items():
            own.pop(name, None)
            if value is not None:
                own[name] = value

    return change


def score(**fields: object) -> Change:
    return lambda document: document["profiles"][0]["plugins"]["score"].update(fields)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.parent.name)
def test_what_is_shipped_is_fine(path: Path) -> None:
    assert check_scheduler_config(load_scheduler_config(path)) == []


def test_the_samples_fit_each_other() -> None:
    assert len(SHIPPED) == 3
    assert check(lambda _: None) == []


@pytest.mark.parametrize(
    ("change", "where", "told"),
    [
        (lambda d: d.update(apiVersion="kubescheduler.config.k8s.io/v1beta3"), "apiVersion", "write kubescheduler.config.k8s.io/v1"),
        (lambda d: d.pop("leaderElection"), "leaderElection.resourceName", "which the cluster's own scheduler holds"),
        (lambda d: d["leaderElection"].update(resourceName="kube-scheduler"), "leaderElection.resourceName", "write another"),
        (score(disabled=[{"name": "NodeResourcesBalancedAllocation"}]), "profiles[0].plugins.score.disabled", "NodeResourcesFit score by"),
        (score(disabled=[{"name": "NodeResourcesFit"}]), "profiles[0].plugins.score.disabled", "NodeResourcesBalancedAllocation score by"),
        (extender(weight=None), "extenders[0].weight", "is None: a scheduler does not start with that"),
        (extender(weight=0), "extenders[0].weight", "write weight: 1"),
        (extender(nodeCacheCapable=None), "extenders[0].nodeCacheCapable", "whole nodes are sent"),
        (extender(nodeCacheCapable=False), "extenders[0].nodeCacheCapable", "write nodeCacheCapable: true"),
        (extender(ignorable=None), "extenders[0].ignorable", "write ignorable: true"),
        (extender(httpTimeout=None), "extenders[0].httpTimeout", "is not set, which is 5 s"),
        (extender(httpTimeout="0s"), "extenders[0].httpTimeout", "which is 5 s"),
        (extender(httpTimeout="2s"), "extenders[0].httpTimeout", "more than 1 s"),
        (extender(httpTimeout="5ms"), "extenders[0].httpTimeout", "an answer may take 50 ms"),
        (extender(httpTimeout="250"), "extenders[0].httpTimeout", "no duration"),
        (extender(bindVerb="bind"), "extenders[0].bindVerb", "leave it out"),
        (extender(preemptVerb="preempt"), "extenders[0].preemptVerb", "leave it out"),
        (extender(filterVerb="filter"), "extenders[0].filterVerb", "the extender's filter is off"),
        (extender(prioritizeVerb="prioritise"), "extenders[0].prioritizeVerb", "write prioritizeVerb: prioritize"),
        (extender(prioritizeVerb=None), "extenders[0].prioritizeVerb", "nothing is scored"),
        (extender(managedResources=[{"name": "example.com/x"}]), "extenders[0].managedResources", "pods choose by schedulerName"),
        (extender(urlPrefix="http://127.0.0.1:9999"), "extenders[0].urlPrefix", "the extender listens on port 8888"),
        (extender(urlPrefix="http://127.0.0.1:8888/scheduler/"), "extenders[0].urlPrefix", "leave /scheduler/ out"),
        (extender(urlPrefix=None), "extenders[0].urlPrefix", "is None; write the extender's address"),
        (extender(urlPrefix="127.0.0.1:8888"), "extenders[0].urlPrefix", "write the extender's address"),
        (extender(urlPrefix="http://127.0.0.1:port"), "extenders[0].urlPrefix", "write the extender's address"),
        (lambda d: d.pop("extenders"), "extenders", "nothing asks for scores"),
    ],
)
def test_each_trap_by_itself(change: Change, where: str, told: str) -> None:
    [finding] = check(change)
    assert (finding.where, told in finding.told) == (where, True), finding


def test_the_old_name_of_least_allocated_is_told_with_what_it_leaves_on() -> None:
    """The manifest of scheduler-plugins has it: on v1 scoring by requests stays on in silence."""
    findings = check(score(disabled=[{"name": "NodeResourcesLeastAllocated"}, {"name": "NodeResourcesBalancedAllocation"}]))
    assert [each.where for each in findings] == ["profiles[0].plugins.score.disabled"] * 2
    assert "disabling it does nothing" in findings[0].told
    assert findings[1].told.startswith("NodeResourcesFit score by requests")


def test_weights_that_are_not_ten_times_are_told_with_what_to_write() -> None:
    [finding] = check(score(enabled=[{"name": "TaintToleration", "weight": 30}, {"name": "NodeAffinity"}]))
    assert finding.where == "profiles[0].plugins.score.enabled"
    assert "write NodeAffinity 20, PodTopologySpread 20, InterPodAffinity 20, ImageLocality 10, or give" in finding.told


@pytest.mark.parametrize(
    "change",
    [
        score(enabled=[], disabled=[{"name": "*"}]),
        lambda d: d["profiles"][0].update(plugins={"multiPoint": {"disabled": [{"name": "*"}]}}),
        lambda d: d["leaderElection"].update(resourceName="", leaderElect=False),
        extender(urlPrefix="http://extender.trimaran:8888/"),
        extender(httpTimeout="0.2s"),
        extender(prioritizeVerb="/prioritize"),
    ],
)
def test_what_does_no_harm_is_not_told(change: Change) -> None:
    assert check(change) == []


def test_a_weight_at_multi_point_counts() -> None:
    def change(document: Document) -> None:
        plugins = document["profiles"][0]["plugins"]
        plugins["multiPoint"] = {"enabled": plugins["score"].pop("enabled")}

    assert check(change) == []


@pytest.mark.parametrize(("weight", "count"), [(1, 1), (2, 1), (3, 0)])
def test_with_the_short_scale_the_extenders_weight_decides(weight: int, count: int) -> None:
    """The usual weights are fine then, and requests are outvoted from 3 on."""

    def change(document: Document) -> None:
        del document["profiles"][0]["plugins"]
        document["extenders"][0]["weight"] = weight

    findings = check(change, parse_config({"scale": 10}))
    assert [each.where for each in findings] == ["profiles[0].plugins.score.disabled"] * count


class TestProfiles:
    def test_of_which_the_other_side_knows_nothing(self) -> None:
        findings = check(lambda _: None, parse_config({"profiles": [{"schedulerName": "other"}]}))
        assert [each.where for each in findings] == ["profiles[0].schedulerName", "profiles"]

    def test_of_the_cluster_itself_are_left_alone(self) -> None:
        """An extender in the cluster's own scheduler: that lease is the right one, and its own profile keeps its weights."""

        def change(document: Document) -> None:
            document["profiles"].insert(0, {"schedulerName": "default-scheduler"})
            del document["leaderElection"]

        assert check(change) == check(change, config=None) == []

    def test_that_say_nothing_are_the_clusters_own(self) -> None:
        findings = check(lambda document: document.pop("profiles"), config=None)
        assert [each.where for each in findings] == ["profiles[0].plugins.score.disabled", "profiles[0].plugins.score.enabled"]


class TestFilter:
    ON = parse_config({"filter": {"enabled": True}})

    def test_that_is_on_is_asked(self) -> None:
        assert check(extender(filterVerb="filter"), self.ON) == []
        [finding] = check(lambda _: None, self.ON)
        assert (finding.where, "write filterVerb: filter" in finding.told) == ("extenders[0].filterVerb", True)

    def test_with_whole_nodes_spoils_other_plugins(self) -> None:
        findings = check(extender(filterVerb="filter", nodeCacheCapable=False), self.ON)
        assert [each.where for each in findings] == ["extenders[0].filterVerb", "extenders[0].nodeCacheCapable"]
        assert "kubernetes#141781" in findings[0].told


class TestFile:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("a: [", "not YAML"),
            ("[]", "not of the kind KubeSchedulerConfiguration"),
            ("kind: ConfigMap", "give the file that kube-scheduler gets"),
        ],
    )
    def test_that_is_none(self, tmp_path: Path, text: str, message: str) -> None:
        (tmp_path / "s.yaml").write_text(text)
        with pytest.raises(ExtenderConfigError, match=message):
            load_scheduler_config(tmp_path / "s.yaml")

    def test_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(ExtenderConfigError, match="No such file"):
            load_scheduler_config(tmp_path / "s.yaml")

    @pytest.mark.parametrize(
        "value", [None, 7, "x", [], [None], [7], {"a": 1}, [{"plugins": []}], [{"plugins": {"score": [{"enabled": 7}]}}]]
    )
    @pytest.mark.parametrize("key", ["profiles", "extenders", "leaderElection"])
    def test_of_any_shape_is_looked_at(self, key: str, value: object) -> None:
        for config in (None, CONFIG):
            assert all(isinstance(each, Finding) for each in check(lambda document: document.update({key: value}), config))
