"""What namespaces wish for their pods: their labels and annotations, followed by a watch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import Final, Self

import msgspec

from trimaran_client.errors import KubernetesError
from trimaran_client.kube import KubeClient, ListWatch, ObjectMeta, ObjectSelection
from trimaran_client.resources import own_entries

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class NamespaceMeta(ObjectMeta, frozen=True, rename="camel"):
    """The metadata of a namespace that is used."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class NamespaceObject(msgspec.Struct, frozen=True):
    """A namespace as the API server writes it."""

    metadata: NamespaceMeta


class Namespaces:
    """
    Follow the namespaces within ``async with``.

    Args:
        client: Access to the cluster.
    """

    def __init__(self, client: KubeClient) -> None:
        selection = ObjectSelection("/api/v1/namespaces", NamespaceObject, key=lambda metadata: metadata.name)
        self._watch = ListWatch(client, selection)

    async def __aenter__(self) -> Self:
        await self._watch.__aenter__()
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        await self._watch.__aexit__(exc_type, exc, traceback)

    @property
    def last_error(self) -> KubernetesError | None:
        """Answer why they may be out of date; ``None`` while they are watched."""
        return self._watch.last_error

    def entries(self, name: str) -> Mapping[str, str]:
        """Answer the labels and annotations of a namespace that are ours; an annotation takes the place of a label."""
        namespace = self._watch.objects.get(name)
        if namespace is None:
            return _NOTHING
        return own_entries(namespace.metadata.labels) | own_entries(namespace.metadata.annotations)
