"""The manifests that we ship, as kubectl renders them, and the rights that an identity has in a cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import yaml

from tests.e2e.api import ApiClient, JsonObject
from tests.e2e.binaries import Binaries
from tests.e2e.service import run_command

K8S = Path(__file__).parents[2] / "k8s"
NAMESPACE = "trimaran"

IDENTITY_KINDS = ("Namespace", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")

# API group, resource, verb; where the right is for one object only, its name follows the resource after a slash and a blank.
Right = tuple[str, str, str]


async def render(binaries: Binaries, folder: Path) -> list[JsonObject]:
    """Return what ``kubectl kustomize`` makes of *folder*, in its order."""
    return list(yaml.safe_load_all(await run_command(binaries.path("kubectl"), "kustomize", folder)))


async def compose(binaries: Binaries, folder: Path, overlay: str, components: Sequence[str]) -> list[JsonObject]:
    """Render *overlay* with *components* through a kustomization of a user's own, which is written to *folder*."""
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(K8S / "overlays" / overlay, folder)],
        "components": [os.path.relpath(K8S / "components" / component, folder) for component in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return await render(binaries, folder)


async def apply_identities(api: ApiClient, binaries: Binaries, overlay: str) -> None:
    """Make the identities of *overlay*, with their rights, in the cluster, and the namespace that they are in."""
    await api.apply_all(each for each in await render(binaries, K8S / "overlays" / overlay) if each["kind"] in IDENTITY_KINDS)


def find(manifests: Sequence[JsonObject], kind: str, name: str = "") -> JsonObject:
    """Return the one object of *kind* among *manifests* whose name begins with *name*."""
    (found,) = (each for each in manifests if each["kind"] == kind and each["metadata"]["name"].startswith(name))
    return found


def read_config(manifests: Sequence[JsonObject], name: str) -> JsonObject:
    """Return the document in the one key of the ConfigMap whose name begins with *name*."""
    (text,) = find(manifests, "ConfigMap", name)["data"].values()
    document: JsonObject = yaml.safe_load(text)
    return document


def make_pod_of(deployment: JsonObject) -> JsonObject:
    """Make the manifest of the pod that a Deployment would create."""
    template = deployment["spec"]["template"]
    metadata = template["metadata"] | {"name": deployment["metadata"]["name"], "namespace": deployment["metadata"]["namespace"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def expand(rules: Sequence[JsonObject]) -> set[Right]:
    """Return the single rights that *rules*, as of a Role, give to resources."""
    return {
        (group, f"{resource}/ {name}" if name else resource, verb)
        for rule in rules
        for group in rule.get("apiGroups", [])
        for resource in rule.get("resources", [])
        for name in rule.get("resourceNames") or [""]
        for verb in rule["verbs"]
    }


async def fetch_rights(identity: ApiClient, *, namespace: str = "default") -> set[Right]:
    """Ask the API server for all rights that *identity* has in *namespace* by roles, those of the whole cluster included."""
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": namespace}}
    answer = await identity.create("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", review)
    return expand(answer["status"]["resourceRules"])


async def fetch_role(api: ApiClient, name: str) -> set[Right]:
    """Return the rights of a ClusterRole of the cluster."""
    return expand((await api.fetch(f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{name}"))["rules"])
