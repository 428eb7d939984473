"""What is missing for good answers, told in words and logged once per change."""

import asyncio
import logging
import math
from types import SimpleNamespace
from typing import Any

import pytest

from tests.builders import NOW, make_snapshot
from trimaran_client.errors import KubernetesUnreachableError, WatcherUnreachableError
from trimaran_client.extender.health import Health
from trimaran_client.snapshot import LoadSnapshot


def make_load(**fields: Any) -> Any:
    snapshot = fields.pop("snapshot", make_snapshot({"a": 1.0}))
    return SimpleNamespace(**{"snapshot": snapshot, "failure": None, "age_seconds": snapshot.age_seconds} | fields)


def make_cluster(**fields: Any) -> Any:
    synced = asyncio.Event()
    if fields.pop("is_synced", True):
        synced.set()
    return SimpleNamespace(**{"synced": synced, "last_error": None, "silent_seconds": 0.0} | fields)


def make_health(load: Any = None, cluster: Any = None, namespaces: Any = None, now: float = NOW) -> Health:
    return Health(load or make_load(), cluster=cluster, namespaces=namespaces, clock=lambda: now)


GONE = KubernetesUnreachableError("nobody there")


def test_nothing_is_missing() -> None:
    health = make_health(cluster=make_cluster(), namespaces=SimpleNamespace(last_error=None))
    assert (health.problem(), health.obstacle()) == ("", None)


@pytest.mark.parametrize(
    ("load", "cluster", "problem", "is_obstacle"),
    [
        ({"snapshot": LoadSnapshot.empty()}, {}, "no snapshot of the load watcher", True),
        ({"failure": WatcherUnreachableError("gone")}, {}, "the load watcher gives no news: gone", False),
        ({}, {"is_synced": False}, "the pods and nodes of the cluster are not known yet", True),
        ({}, {"is_synced": False, "last_error": GONE}, "the pods and nodes of the cluster are not known yet: nobody there", True),
        ({}, {"last_error": GONE}, "the view of the cluster is not kept up to date: nobody there", True),
        ({}, {"silent_seconds": 121.0}, "the API server has said nothing for 121 s", True),
        ({}, {"silent_seconds": 119.0}, "", False),
    ],
)
def test_what_is_missing(load: dict[str, Any], cluster: dict[str, Any], problem: str, *, is_obstacle: bool) -> None:
    health = make_health(make_load(**load), make_cluster(**cluster))
    assert (health.problem(), health.obstacle()) == (problem, problem if is_obstacle else None)


@pytest.mark.parametrize(("age_seconds", "is_told"), [(300, False), (301, True)])
def test_old_metrics_are_told_and_stand_in_nobodys_way(age_seconds: float, *, is_told: bool) -> None:
    health = make_health(now=NOW + age_seconds)
    assert (bool(health.problem()), health.obstacle()) == (is_told, None)


def test_nodes_without_any_metrics_have_no_age_that_could_be_told() -> None:
    health = make_health(make_load(age_seconds=lambda _: math.inf))
    assert health.problem() == "the load watcher knows nodes, and has no metrics of any: its /api/v1/status tells why"


def test_everything_that_is_missing_is_told_at_once() -> None:
    health = make_health(make_load(snapshot=LoadSnapshot.empty()), make_cluster(last_error=GONE), SimpleNamespace(last_error=GONE))
    assert [part.split(" of ")[0] for part in health.problem().split("; ")] == [
        "no snapshot",
        "the view",
        "what namespaces wish is not kept up to date: nobody there",
    ]


def test_a_change_is_logged_once_and_each_part_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    load, cluster = make_load(), make_cluster()
    health = make_health(load, cluster)
    for failure, error in ((None, None), ("one", None), ("two", None), ("two", GONE), (None, GONE), (None, None)):
        load.failure = failure and WatcherUnreachableError(failure)
        cluster.last_error = error
        for _ in range(3):
            health.problem()
    assert [record.getMessage() for record in caplog.records] == [
        "answers are degraded: the load watcher gives no news: one",
        "answers are degraded: the view of the cluster is not kept up to date: nobody there",
        "answers are no longer degraded by the load",
        "answers are no longer degraded by the cluster",
    ]
