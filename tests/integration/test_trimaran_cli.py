"""``trimaran score`` as a person types it."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from trimaran_client import cli
from trimaran_client.errors import TrimaranError

BOTH = ("--pod", "pod.yaml", "--snapshot", "snapshot.json")
POD = "spec: {containers: [{name: c, resources: {requests: {cpu: 1}}}]}"
SNAPSHOT = {
    "timestamp": 4000000000,
    "window": {"duration": "15m", "start": 3999999100, "end": 4000000000},
    "source": "KubernetesMetricsServer",
    "data": {
        "NodeMetricsMap": {
            "idle": {"metrics": [{"type": "CPU", "operator": "Latest", "value": 0}], "capacity": {"cpu": "8"}},
            "busy": {"metrics": [{"type": "CPU", "operator": "Latest", "value": 70}], "capacity": {"cpu": "8"}},
            "[red]new": {"metrics": [], "capacity": {"cpu": "8"}, "allocatable": {"cpu": "8"}},
        }
    },
}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "pod.yaml").write_text(POD)
    (tmp_path / "snapshot.json").write_text(json.dumps(SNAPSHOT))
    return tmp_path


def score(folder: Path, *arguments: str) -> Result:
    paths = [str(folder / each) if each.endswith((".yaml", ".json")) else each for each in arguments]
    return CliRunner().invoke(cli.cli, ["score", *paths])


def test_prints_a_table_best_first(files: Path) -> None:
    lines = score(files, *BOTH).output.splitlines()
    assert lines[0] == "TargetLoadPacking (default), target 40 %, pod default/: 1500m predicted; load from KubernetesMetricsServer"
    assert [line.split() for line in lines[1:]] == [
        ["NODE", "CPU", "%", "WITH", "POD", "%", "SCORE", "AGE", "s", "REASON"],
        ["idle", "0.0", "18.8", "68", "0", "at_or_below_target"],  # 1500 / 8000 = 18.75 %: 60 · 18.75 / 40 + 40
        ["[red]new", "-", "-", "50", "-", "pods_unknown"],
        ["busy", "70.0", "88.8", "8", "0", "above_target"],  # 40 · 11.25 / 60
    ]


def test_prints_json_with_null_for_what_is_absent(files: Path) -> None:
    report: dict[str, Any] = json.loads(score(files, *BOTH, "--output", "json").output)
    assert (report["pod_millicores"], report["source"]) == (1500, "KubernetesMetricsServer")
    assert report["nodes"][1] == {
        "node": "[red]new",
        "score": 50,
        "reason": "pods_unknown",
        "utilization_percent": None,
        "predicted_percent": None,
        "age_seconds": None,
    }


def test_pods_and_nodes_come_as_kubectl_prints_them(files: Path) -> None:
    """With the pods known, the node without metrics is scored by what they request: 2 + 1 of 8 cores = 37.5 %."""
    bound = {"spec": {"nodeName": "[red]new", "containers": [{"resources": {"requests": {"cpu": 2}}}]}}
    (files / "pods.json").write_text(json.dumps({"kind": "List", "items": [bound]}))
    (files / "nodes.yaml").write_text("---\nmetadata: {name: '[red]new'}\nstatus: {allocatable: {cpu: 8}}\n---\n")
    result = score(files, *BOTH, "--nodes", "nodes.yaml", "--pods", "pods.json", "--output", "json")
    [node] = json.loads(result.output)["nodes"]
    assert (node["score"], node["reason"]) == (96, "fallback_allocation")  # 60 · 37.5 / 40 + 40 = 96.25


def test_the_upstream_preset_and_target_are_options(files: Path) -> None:
    result = score(files, *BOTH, "--preset", "upstream", "--target", "90", "--output", "json")
    assert [node["score"] for node in json.loads(result.output)["nodes"]] == [100, 92, 0]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("pod.yaml", "a: [", "pod.yaml: not YAML or JSON"),
        ("pod.yaml", "- {}\n- {}", "pod.yaml: 2 objects; give exactly one pod"),
        ("pod.yaml", "", "pod.yaml: 0 objects"),
        ("pod.yaml", "hello", "pod.yaml: a manifest is a mapping"),
        ("pod.yaml", "spec: {containers: [{resources: {requests: {cpu: 1x}}}]}", r"pod.yaml: spec.containers\[0\].resources.requests.cpu"),
        ("pod.yaml", "\x00", "pod.yaml: not YAML or JSON"),
        ("snapshot.json", "<html>", "snapshot.json: not a load watcher's reply"),
        ("snapshot.json", "{}", "snapshot.json: not a load watcher's reply"),
    ],
)
def test_a_bad_file_is_an_error_that_names_it(files: Path, name: str, text: str, message: str) -> None:
    (files / name).write_text(text)
    result = score(files, *BOTH)
    assert isinstance(result.exception, TrimaranError)
    with pytest.raises(TrimaranError, match=message):
        raise result.exception


def test_an_error_is_one_line_and_exit_status_1(files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "pod.yaml").write_text("hello")
    arguments = ["trimaran", "score", "--pod", str(files / "pod.yaml"), "--snapshot", str(files / "snapshot.json")]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 1
    assert capsys.readouterr().err.startswith("trimaran: ")


def test_two_sources_at_once_are_refused(files: Path) -> None:
    result = score(files, *BOTH, "--watcher", "http://127.0.0.1:1")
    assert (result.exit_code, "not both" in result.output) == (2, True)


def test_another_policy_has_its_scores_without_the_columns_of_a_target(files: Path) -> None:
    models = "{models: {idle: {k0: 1, k1: -2, k2: -3}}}"
    lines = score(files, *BOTH, "--policy", "Peaks", "--policy-args", models).output.splitlines()
    assert lines[0] == "Peaks (default), pod default/; load from KubernetesMetricsServer"
    assert lines[1].split() == ["NODE", "SCORE", "AGE", "s", "REASON"]
    assert {line.split()[0]: line.split()[-1] for line in lines[2:]} == {"idle": "power", "busy": "no_model", "[red]new": "no_metrics"}


def test_the_numbers_of_a_target_are_null_in_the_json_of_another_policy(files: Path) -> None:
    report: dict[str, Any] = json.loads(score(files, *BOTH, "--policy", "LoadVariationRiskBalancing", "--output", "json").output)
    assert (report["policy"], report["target_percent"], report["pod_millicores"]) == ("LoadVariationRiskBalancing", None, None)
    assert {node["predicted_percent"] for node in report["nodes"]} == {None}
