"""Promises about the manifests and image files that a reading can hold them to; what the API server says of them is in tests/e2e."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
K8S = ROOT / "k8s"
OVERLAYS = K8S / "overlays"
# What our programs read; the other files are read by Kubernetes and by kustomize.
OUR_CONFIG = "extender.yaml"
# kube-scheduler's own, of those plugins that score (pkg/scheduler/apis/config/v1/default_plugins.go, v1.36), without those that we replace.
DEFAULT_WEIGHTS = {
    "TaintToleration": 3,
    "NodeAffinity": 2,
    "PodTopologySpread": 2,
    "InterPodAffinity": 2,
    "ImageLocality": 1,
    "DynamicResources": 2,
}
EXTENDER_SCALE = 10

Manifest = dict[str, Any]


def load(path: Path) -> list[Manifest]:
    return list(yaml.safe_load_all(path.read_text()))


def read(path: Path) -> Manifest:
    [document] = load(path)
    return document


ALERTS = "alerts.yaml"  # rules of Prometheus


def manifest_files() -> list[Path]:
    return [path for path in sorted((*K8S.rglob("*.yaml"), *(ROOT / "docs").rglob("*.yaml"))) if path.name not in (OUR_CONFIG, ALERTS)]


def deployments() -> dict[str, Manifest]:
    """Every Deployment of a program of ours, without the samples: path → manifest."""
    return {
        str(path.relative_to(K8S)): document
        for path in sorted(K8S.rglob("*.yaml"))
        if path.name != OUR_CONFIG and not path.is_relative_to(K8S / "samples") and not path.is_relative_to(K8S / "components")
        for document in load(path)
        if document["kind"] == "Deployment"
    }


def pod_of(deployment: Manifest) -> Manifest:
    pod: Manifest = deployment["spec"]["template"]["spec"]
    return pod


def version() -> str:
    text: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return text


@pytest.mark.parametrize("path", manifest_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_manifests_parse(path: Path) -> None:
    documents = load(path)
    assert documents
    assert all("kind" in document for document in documents)


@pytest.mark.parametrize("path", sorted(K8S.rglob("kustomization.yaml")), ids=lambda path: str(path.parent.relative_to(K8S)))
def test_what_a_kustomization_names_is_there_and_nothing_else_is(path: Path) -> None:
    document = read(path)
    files = [entry.rpartition("=")[2] for generator in document.get("configMapGenerator", []) for entry in generator["files"]]
    patches = [patch["path"] for patch in document.get("patches", []) if "path" in patch]
    named = {(path.parent / name).resolve() for name in (*document.get("resources", []), *document.get("components", []), *files, *patches)}
    assert {name for name in named if not name.exists()} == set()
    # The Go scheduler's part is for reading.
    unused = {*path.parent.iterdir()} - named - {path, OVERLAYS / "go-trimaran/scheduler-config.yaml"}
    assert unused == set()


@pytest.mark.parametrize("deployment", deployments().values(), ids=deployments())
def test_pods_have_no_more_rights_on_their_node_than_they_need(deployment: Manifest) -> None:
    pod = pod_of(deployment)
    context = pod["securityContext"]
    assert (context["runAsNonRoot"], context["runAsUser"], context["runAsGroup"]) == (True, 65532, 65532)
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {*container["resources"]["requests"]} == {"cpu", "memory"}
        assert "memory" in container["resources"]["limits"]
        assert "livenessProbe" in container


@pytest.mark.parametrize("deployment", deployments().values(), ids=deployments())
def test_pods_get_no_variables_of_services(deployment: Manifest) -> None:
    """Those of a Service called load-watcher begin as our settings do."""
    assert pod_of(deployment)["enableServiceLinks"] is False


@pytest.mark.parametrize("deployment", deployments().values(), ids=deployments())
def test_report_68_our_pods_are_placed_by_the_scheduler_of_the_cluster(deployment: Manifest) -> None:
    assert pod_of(deployment).get("schedulerName", "default-scheduler") == "default-scheduler"


def test_report_68_sidecars_do_not_decide_whether_the_scheduler_is_ready() -> None:
    scheduler, *sidecars = pod_of(deployments()["overlays/scheduler/deployment.yaml"])["containers"]
    assert "readinessProbe" in scheduler
    assert [sidecar["name"] for sidecar in sidecars if "readinessProbe" in sidecar] == []


def test_servers_on_loopback_are_probed_from_inside() -> None:
    _, *sidecars = pod_of(deployments()["overlays/scheduler/deployment.yaml"])["containers"]
    commands = [sidecar["livenessProbe"]["exec"]["command"] for sidecar in sidecars]
    assert commands == [["/usr/local/bin/healthcheck", f"http://127.0.0.1:{port}/livez"] for port in (2020, 8888)]


def test_one_disruption_budget_holds_for_all_our_pods() -> None:
    selector = read(K8S / "components/disruption-budget/disruption-budget.yaml")["spec"]["selector"]["matchLabels"]
    for path, deployment in deployments().items():
        assert selector.items() <= deployment["spec"]["template"]["metadata"]["labels"].items(), path


def scheduler_configs() -> list[Path]:
    return [OVERLAYS / "scheduler/scheduler-config.yaml", K8S / "components/before-1.35/scheduler-config.yaml"]


@pytest.mark.parametrize("path", scheduler_configs(), ids=lambda path: path.parent.name)
def test_report_73_measured_load_takes_the_place_of_requests_at_the_weight_of_one_plugin(path: Path) -> None:
    config = read(path)
    [profile], [extender] = config["profiles"], config["extenders"]
    weights = {plugin["name"]: plugin["weight"] for plugin in profile["plugins"]["score"]["enabled"]}
    known = DEFAULT_WEIGHTS if "before" not in path.parent.name else {k: v for k, v in DEFAULT_WEIGHTS.items() if k != "DynamicResources"}
    assert weights == {name: EXTENDER_SCALE * weight for name, weight in known.items()}
    assert {plugin["name"] for plugin in profile["plugins"]["score"]["disabled"]} == {"NodeResourcesFit", "NodeResourcesBalancedAllocation"}
    assert {*profile["plugins"]} == {"score"}  # the filters stay
    assert extender["weight"] == 1


@pytest.mark.parametrize("path", scheduler_configs(), ids=lambda path: path.parent.name)
def test_report_67_the_extender_only_scores_and_cannot_stop_the_scheduler(path: Path) -> None:
    [extender] = read(path)["extenders"]
    assert extender["ignorable"] is True
    assert extender["nodeCacheCapable"] is True
    assert {key for key in extender if key.endswith("Verb")} == {"prioritizeVerb"}
    assert extender["httpTimeout"] == "250ms"  # five times what an answer may take


def test_configuration_before_1_35_differs_in_one_plugin() -> None:
    current, before = map(read, scheduler_configs())
    plugins = current["profiles"][0]["plugins"]["score"]["enabled"]
    current["profiles"][0]["plugins"]["score"]["enabled"] = [plugin for plugin in plugins if plugin["name"] != "DynamicResources"]
    assert before == current


def test_scheduler_and_extender_agree_on_names_and_addresses() -> None:
    config, extender = read(scheduler_configs()[0]), read(OVERLAYS / "scheduler/extender.yaml")
    assert {profile["schedulerName"] for profile in extender["profiles"]} == {profile["schedulerName"] for profile in config["profiles"]}
    assert config["extenders"][0]["urlPrefix"] == f"http://{extender['bind']}"
    [watcher] = [
        each for each in pod_of(deployments()["overlays/scheduler/deployment.yaml"])["containers"] if each["name"] == "load-watcher"
    ]
    [bind] = [variable["value"] for variable in watcher["env"] if variable["name"] == "LOAD_WATCHER_BIND"]
    assert extender["watcher"] == f"http://{bind}"


def test_those_who_ask_the_service_of_the_load_watcher_use_its_address() -> None:
    [service] = [document for document in load(K8S / "base/load-watcher.yaml") if document["kind"] == "Service"]
    address = f"http://{service['metadata']['name']}.trimaran:{service['spec']['ports'][0]['port']}"
    assert read(OVERLAYS / "extender/extender.yaml")["watcher"] == address
    [plugin] = read(OVERLAYS / "go-trimaran/scheduler-config.yaml")["profiles"][0]["pluginConfig"]
    assert plugin["args"]["watcherAddress"] == address  # a slash at the end would make `//watcher` of it


def test_samples_name_the_scheduler() -> None:
    names = {read(scheduler_configs()[0])["profiles"][0]["schedulerName"]}
    assert read(K8S / "samples/pod.yaml")["spec"]["schedulerName"] in names
    assert pod_of(read(K8S / "samples/deployment.yaml"))["schedulerName"] in names


def test_documentation_names_every_overlay_component_and_sample() -> None:
    text = (ROOT / "docs/scheduler.md").read_text()
    overlays = [f"overlays/{path.name}" for path in OVERLAYS.iterdir()]
    components = [path.name for path in (K8S / "components").iterdir()]
    samples = [f"k8s/samples/{path.name}" for path in (K8S / "samples").iterdir()]
    assert [
        name for name in (*overlays, *components, *samples) if f"{name}`" not in text and f"{name} " not in text and f"{name}\n" not in text
    ] == []


def test_documented_extender_is_the_shipped_one_at_another_address() -> None:
    [block] = re.findall(r"```yaml\n(extenders:.*?)```", (ROOT / "docs/scheduler.md").read_text(), re.DOTALL)
    [documented], [shipped] = yaml.safe_load(block)["extenders"], read(scheduler_configs()[0])["extenders"]
    assert documented | {"urlPrefix": ""} == shipped | {"urlPrefix": ""}


def our_images() -> Iterator[str]:
    for path in sorted(K8S.rglob("*.yaml")):
        yield from re.findall(r"image: ((?:load-watcher|trimaran)\b\S*)", path.read_text())


def test_images_have_the_version_of_the_package() -> None:
    images = set(our_images())
    assert images == {f"load-watcher:{version()}", f"trimaran:{version()}"}
    assert f"ARG VERSION={version()}\n" in (ROOT / "docker/Dockerfile").read_text()


def test_build_context_has_what_the_images_copy_and_no_more() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "docker/Dockerfile").read_text(), re.MULTILINE)
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert {name for line in copied for name in line.split()} == {*allowed}


def test_images_are_built_without_what_this_machine_has() -> None:
    """No index, proxy or certificate is named: they are secrets of the build."""
    text = (ROOT / "docker/Dockerfile").read_text()
    assert not re.search(r"https?://(?!127\.0\.0\.1)|--index-url|--trusted-host|_proxy|PIP_INDEX", text, re.IGNORECASE)
