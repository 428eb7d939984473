"""``load-watcher doctor``: what it finds on this machine and against sources that are wrong in one way each."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.api_server import METRICS_DISCOVERY, NODE_METRICS, NODES, FakeApiServer, Reply, make_node, make_node_metrics, status_reply

RECORDING = '{"at": 1700000000, "nodes": ["a", "b"], "latest": {"CPU": [10, null]}}\n'

# Each test starts a process.
pytestmark = pytest.mark.slow


def run(*arguments: str, **variables: str) -> tuple[int, str]:
    """Run the doctor with these variables and none of ours; answer the exit status and what it printed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LOAD_WATCHER_", "METRICS_PROVIDER_", "KUBE"))}
    command = [sys.executable, "-m", "load_watcher", "doctor", *arguments]
    done = subprocess.run(command, env=kept | variables, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


def findings(**variables: str) -> tuple[int, dict[str, dict[str, Any]]]:
    status, printed = run("--output", "json", **variables)
    return status, {finding["subject"]: finding for finding in json.loads(printed)}


def test_this_machine_is_well() -> None:
    status, found = findings(METRICS_PROVIDER_NAME="Local")
    assert status == 0, found
    assert {each["level"] for each in found.values()} == {"ok"}
    assert found["nodes"]["detail"] == "1 of 1 nodes have values; metrics: CPU, Memory"


def test_lines_for_people_say_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "cluster.jsonl").write_text(RECORDING)
    status, printed = run(
        METRICS_PROVIDER_NAME="Recorded", METRICS_PROVIDER_ADDRESS=str(tmp_path / "cluster.jsonl"), LOAD_WATCHER_HISTORY="off"
    )
    assert status == 1
    assert "warn  nodes: 1 of 2 nodes have values; metrics: CPU\n      → see why these have none: b\n" in printed
    assert "warn  history: off" in printed


def test_settings_are_all_told_at_once() -> None:
    status, printed = run(LOAD_WATCHER_BIND="x", LOAD_WATCHER_STALE_SECONDS="-1", METRICS_PROVIDER_NAME="Prometeus")
    assert status == 2
    assert [part in printed for part in ("LOAD_WATCHER_BIND='x'", "LOAD_WATCHER_STALE_SECONDS='-1'", "did you mean")] == [True] * 3


def test_a_file_that_cannot_be_used_and_old_samples_are_failures(tmp_path: Path) -> None:
    (tmp_path / "cluster.jsonl").write_text(RECORDING)
    status, found = findings(
        METRICS_PROVIDER_NAME="Recorded",
        METRICS_PROVIDER_ADDRESS=str(tmp_path / "cluster.jsonl"),
        LOAD_WATCHER_RECORDED_TIMES="keep",
        LOAD_WATCHER_HISTORY=str(tmp_path / "absent" / "history.db"),
    )
    assert status == 2
    assert (found["newest sample"]["level"], found["history"]["level"]) == ("failure", "failure")


async def doctor(api: FakeApiServer, tmp_path: Path) -> tuple[int, dict[str, dict[str, Any]]]:
    kubeconfig = str(api.write_kubeconfig(tmp_path / "config"))
    return await asyncio.to_thread(
        findings, METRICS_PROVIDER_NAME="KubernetesMetricsServer", KUBE_CONFIG=kubeconfig, LOAD_WATCHER_FETCH_TIMEOUT_SECONDS="5"
    )


@pytest.mark.parametrize(
    ("replies", "subject", "remedy"),
    [
        ({NODE_METRICS: status_reply(403), METRICS_DISCOVERY: Reply(body={"resources": []})}, "first refresh", "nodes"),
        ({NODE_METRICS: status_reply(404), METRICS_DISCOVERY: status_reply(404)}, "address, TLS and credentials", "install metrics-server"),
        ({NODES: status_reply(401)}, "first refresh", ""),
        ({NODE_METRICS: Reply(body="<html>")}, "first refresh", ""),
    ],
)
async def test_what_is_wrong_in_a_cluster_is_a_failure_with_a_remedy(
    tmp_path: Path, replies: dict[str, Reply], subject: str, remedy: str
) -> None:
    async with FakeApiServer() as api:
        api.put_nodes(make_node("n1"))
        api.set_node_metrics(make_node_metrics("n1"))
        api.replies |= replies
        status, found = await doctor(api, tmp_path)
    assert (status, found[subject]["level"]) == (2, "failure")
    assert found[subject]["remedy"]
    assert remedy in found[subject]["detail"] + found[subject]["remedy"]
