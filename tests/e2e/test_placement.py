"""
Pods go where real load says: stock kube-scheduler, the profile that we ship, real metrics-server, our load watcher, our extender.

All layouts of nodes are there from the start, so that one warm-up of metrics-server serves them all; a pod is kept to the nodes of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
import pytest_asyncio

from tests.e2e.api import JsonObject
from tests.e2e.binaries import Binaries
from tests.e2e.cluster import Cluster
from tests.e2e.extender import Extender, make_scheduler_config, running_extender
from tests.e2e.layouts import POD_PERCENT, POD_REQUEST, Layout, Machine, create_layouts, delete_layouts, place, wait_for_layouts
from tests.e2e.manifests import NAMESPACE, apply_identities
from tests.e2e.scheduler import running_scheduler
from tests.e2e.service import Service, on_cluster, running_load_watcher
from tests.e2e.workloads import fetch_events, make_pod, wait_for_event

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120, func_only=True)]

# A load is a rate of counters over a time of metrics-server's choice: the layouts keep 3 points from the target of 40 %.
LAYOUTS: dict[str, Layout] = {
    "below-target": {f"below-{percent}": Machine(load_percent=percent) for percent in (5, 15, 30)},
    # With the pod, brim would be at 43 %, and its score no more than 38.
    "near-target": {name: Machine(load_percent=percent) for name, percent in (("far", 20), ("near", 34), ("brim", 40))},
    "some-over-target": {f"some-{percent}": Machine(load_percent=percent) for percent in (20, 55, 70)},
    "all-over-target": {f"over-{percent}": Machine(load_percent=percent) for percent in (50, 65, 80)},
    "hot-node": {f"heat-{percent}": Machine(load_percent=percent) for percent in (60, 75, 95)},
    "empty-cluster": {f"empty-{i}": Machine(load_percent=0.1) for i in range(3)},
    # By requests it is at 27 % with the pod, the others are at 13 and 63 % by load.
    "no-metrics": {
        "unmeasured": Machine(load_percent=None, requested={"cpu": "2"}),
        "measured-10": Machine(load_percent=10),
        "measured-60": Machine(load_percent=60),
    },
    "cordoned-node": {
        "cordoned-30": Machine(load_percent=30, is_cordoned=True),
        "open-10": Machine(load_percent=10),
        "open-60": Machine(load_percent=60),
    },
    # To a scheduler that goes by requests the hot node is the empty one.
    "by-requests": {
        "calm-but-requested": Machine(load_percent=30, requested={"cpu": "4"}),
        "hot-but-unrequested": Machine(load_percent=95),
    },
    "explained": {f"explained-{percent}": Machine(load_percent=percent) for percent in (20, 30, 60)},
    "report-80": {
        "stressed-1": Machine(load_percent=95),
        "stressed-2": Machine(load_percent=95),
        "third": Machine(load_percent=0.1),
    },
    # Scores of about 97 and 28; by requests the second is better in every way.
    "report-73": {
        "best-by-load": Machine(load_percent=35, requested={"cpu": "7", "memory": "28Gi"}),
        "worst-by-load": Machine(load_percent=55),
    },
}
EXPECTED = {
    "below-target": "below-30",
    "near-target": "near",
    "some-over-target": "some-20",
    "all-over-target": "over-50",
    "hot-node": "heat-60",
    "no-metrics": "unmeasured",
    "cordoned-node": "open-10",
}
# docs/extender.md, on scale: 7 levels × 10 × 3 are more than the 200 by which requests can make nodes differ.
DECISIVE_WEIGHT = 3


@dataclass(frozen=True)
class Trimaran:
    """What is deployed, and the cluster with all layouts."""

    cluster: Cluster
    watcher: Service
    extender: Extender

    async def place(self, layout: str, *, scheduler_name: str = "trimaran") -> tuple[str, str]:
        """Place a pod in a layout and return pod and node."""
        return await place(self.cluster.api, layout, scheduler_name=scheduler_name)

    async def decide(self, layout: str) -> JsonObject:
        """Place a pod in a layout and return the decision on it, which says where it went."""
        pod, node = await self.place(layout)
        decision = await self.extender.wait_for_decision(pod)
        assert decision["boundTo"] == node
        return decision


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def trimaran(cluster: Cluster, binaries: Binaries) -> AsyncIterator[Trimaran]:
    """All of it with the identity that we ship, which may write events; one more profile in the same scheduler is the default one."""
    await create_layouts(cluster, LAYOUTS)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(delete_layouts, cluster)
        await apply_identities(cluster.api, binaries, "scheduler")
        kubeconfig = await cluster.create_token_kubeconfig("trimaran-scheduler", namespace=NAMESPACE)
        await wait_for_layouts(cluster, LAYOUTS)
        watcher = await stack.enter_async_context(running_load_watcher(on_cluster(kubeconfig), folder=cluster.folder))
        extender = await stack.enter_async_context(running_extender(cluster, watcher.url, {"events": True}, kubeconfig=kubeconfig))
        config = make_scheduler_config(extender.url)
        config["profiles"].append({"schedulerName": "default-scheduler"})
        await stack.enter_async_context(running_scheduler(cluster, binaries, config, kubeconfig=kubeconfig))
        await extender.wait_until_ready()
        yield Trimaran(cluster, watcher, extender)


def list_scores(decision: JsonObject) -> dict[str, int]:
    """Return node → score of a decision."""
    return {each["node"]: each["score"] for each in decision["nodes"]}


def list_reasons(decision: JsonObject) -> dict[str, str]:
    """Return node → reason of a decision."""
    return {each["node"]: each["reason"] for each in decision["nodes"]}


def compute_score(predicted_percent: float) -> float:
    """TargetLoadPacking at its defaults (target 40), not rounded, by the plain formula of KEP 61."""
    if predicted_percent > 100:
        return 0
    if predicted_percent > 40:
        return 40 * (100 - predicted_percent) / (100 - 40)
    return (100 - 40) * predicted_percent / 40 + 40


@pytest.mark.parametrize(("layout", "node"), EXPECTED.items(), ids=EXPECTED)
async def test_pod_goes_where_target_load_packing_says(trimaran: Trimaran, layout: str, node: str) -> None:
    decision = await trimaran.decide(layout)
    assert decision["boundTo"] == node, decision
    assert decision["nodes"][0]["node"] == node  # by our score, not by chance
    assert decision["nodes"][0]["score"] > decision["nodes"][1]["score"]
    for name, machine in LAYOUTS[layout].items():
        if machine.load_percent is not None and not machine.is_cordoned:
            # 2 points of load are 3 of score below the target.
            assert list_scores(decision)[name] == pytest.approx(compute_score(machine.load_percent + POD_PERCENT), abs=3)


async def test_empty_cluster_is_packed(trimaran: Trimaran) -> None:
    """All nodes are alike to the first pod; the others follow it, although nobody has measured it yet."""
    decisions = [await trimaran.decide("empty-cluster") for _ in range(3)]
    assert set(list_scores(decisions[0]).values()) <= {44, 45}  # 60 × 3.1 / 40 + 40 = 44.65
    assert len({decision["boundTo"] for decision in decisions}) == 1
    assert [decision["boundScore"] for decision in decisions] == sorted({decision["boundScore"] for decision in decisions})


async def test_hot_node_is_scored_low_although_nothing_is_requested_on_it(trimaran: Trimaran) -> None:
    decision = await trimaran.decide("by-requests")
    assert decision["boundTo"] == "calm-but-requested"
    assert list_reasons(decision) == {"calm-but-requested": "at_or_below_target", "hot-but-unrequested": "above_target"}


async def test_node_without_metrics_is_scored_by_requests_and_said_to_be(trimaran: Trimaran) -> None:
    decision = await trimaran.decide("no-metrics")
    assert list_reasons(decision)["unmeasured"] == "fallback_allocation"
    assert decision["degraded"] == "1 of 3 nodes without usable metrics"
    # 2000m of the load and 160m of each pod that went there.
    assert list_scores(decision)["unmeasured"] >= round(compute_score(100 * 2160 / 8000))


async def test_cordoned_node_is_no_candidate_though_it_would_be_the_best(trimaran: Trimaran) -> None:
    decision = await trimaran.decide("cordoned-node")
    assert set(list_scores(decision)) == {"open-10", "open-60"}
    assert decision["boundScore"] < compute_score(30 + POD_PERCENT) - 10


async def test_pod_of_another_scheduler_is_left_alone(trimaran: Trimaran) -> None:
    """The extender is asked about it too, as the default profile is in the same process."""
    before = await trimaran.extender.fetch_metrics()
    pod, node = await trimaran.place("by-requests", scheduler_name="default-scheduler")
    assert node == "hot-but-unrequested"  # as the stock profile has it
    after = await trimaran.extender.fetch_metrics()
    name = "trimaran_extender_answers_total"
    assert after.total(name, outcome="other_scheduler") == before.total(name, outcome="other_scheduler") + 1
    assert after.total(name, outcome="scored") == before.total(name, outcome="scored")
    assert await trimaran.extender.fetch_decision(pod) is None
    await wait_for_event(trimaran.cluster.api, pod, "Scheduled")
    # An event of ours would be written at a binding; that of a pod bound later is there.
    later = await trimaran.decide("below-target")
    await wait_for_event(trimaran.cluster.api, later["pod"].removeprefix("default/"), "TrimaranScored")
    assert "TrimaranScored" not in [event["reason"] for event in await fetch_events(trimaran.cluster.api, pod)]


async def test_events_of_a_pod_say_where_it_went_and_why(trimaran: Trimaran) -> None:
    pod, node = await trimaran.place("some-over-target")
    scheduled = await wait_for_event(trimaran.cluster.api, pod, "Scheduled")
    assert scheduled["message"] == f"Successfully assigned default/{pod} to {node}"
    told = await wait_for_event(trimaran.cluster.api, pod, "TrimaranScored")
    score = (await trimaran.extender.wait_for_decision(pod))["boundScore"]
    assert told["message"] == f"TargetLoadPacking scored {node} {score} (at_or_below_target), the best of 3 nodes"
    assert told["source"] == {"component": "trimaran-extender"}
    assert (told["type"], told["involvedObject"]["kind"], told["involvedObject"]["name"]) == ("Normal", "Pod", pod)


async def test_decision_tells_pod_scores_reasons_and_binding(trimaran: Trimaran) -> None:
    pod, node = await trimaran.place("all-over-target")
    decision = await trimaran.extender.wait_for_decision(pod)
    manifest = await trimaran.cluster.api.fetch(f"/api/v1/namespaces/default/pods/{pod}")
    assert (decision["pod"], decision["uid"]) == (f"default/{pod}", manifest["metadata"]["uid"])
    assert (decision["schedulerName"], decision["policy"]) == ("trimaran", "TargetLoadPacking")
    assert (decision["nodeCount"], decision["reasons"]) == (3, {"above_target": 3})
    assert (decision["boundTo"], decision["boundScore"]) == (node, list_scores(decision)[node])
    assert (decision["degraded"], decision["shadow"]) == ("", False)
    assert decision["snapshotAgeSeconds"] >= 0


async def test_explanation_has_the_very_numbers_of_the_decision(trimaran: Trimaran) -> None:
    """What is measured, what the pod is taken to use, and the arithmetic that makes the score of it."""
    pod, node = await trimaran.place("explained")
    decision = await trimaran.extender.wait_for_decision(pod)
    told = await trimaran.extender.explain(pod)
    assert (told["asDecided"], told["decision"]) == (True, decision)
    explanation = told["explanation"]
    assert [each["amount"] for each in explanation["predictions"]] == [240]  # 160m × 1.5
    assert explanation["nodes"][0]["node"] == node == "explained-30"
    for each in explanation["nodes"]:
        (metric,) = each["metrics"]
        load_percent = LAYOUTS["explained"][each["node"]].load_percent
        assert metric["value"] == pytest.approx(load_percent, abs=2)
        assert 0 <= metric["ageSeconds"] < 60
        terms = each["terms"]
        predicted = 100 * (metric["value"] / 100 * 8000 + terms["cpu_in_flight_millicores"] + 240) / 8000
        assert terms["cpu_predicted_percent"] == pytest.approx(predicted)
        assert each["score"] == pytest.approx(compute_score(predicted), abs=0.5 + 1e-6)
        assert each["steps"][0].startswith(f"cpu: measured {metric['value']:.4g} %")


async def test_report_80_pod_goes_to_the_third_node_by_default(trimaran: Trimaran) -> None:
    """Two of three nodes are under stress and have no requests, so that requests say nothing."""
    decision = await trimaran.decide("report-80")
    assert decision["boundTo"] == "third"
    assert max(list_scores(decision)["stressed-1"], list_scores(decision)["stressed-2"]) < 5


async def test_report_73_scores_decide_with_the_documented_weight(trimaran: Trimaran, binaries: Binaries) -> None:
    """A stock profile, whose plugins prefer the other node: at weight 1 of the extender that one is chosen, as reported."""
    nodes: dict[str, str] = {}
    weights = {"weight-of-one": 1, "decisive-weight": DECISIVE_WEIGHT}
    settings = {"scale": 10, "assumeSeconds": 0, "profiles": [{"schedulerName": name} for name in weights]}
    async with running_extender(trimaran.cluster, trimaran.watcher.url, settings) as extender:
        await extender.wait_until_ready()
        question = make_pod("asked", cpu_request=POD_REQUEST, scheduler_name="decisive-weight")
        assert await extender.prioritize(question, list(LAYOUTS["report-73"])) == {"best-by-load": 10, "worst-by-load": 3}
        for name, weight in weights.items():
            config = make_scheduler_config(extender.url)
            config["profiles"] = [{"schedulerName": name}]
            config["extenders"][0]["weight"] = weight
            async with running_scheduler(trimaran.cluster, binaries, config):
                _, nodes[name] = await trimaran.place("report-73", scheduler_name=name)
    assert nodes == {"weight-of-one": "worst-by-load", "decisive-weight": "best-by-load"}
