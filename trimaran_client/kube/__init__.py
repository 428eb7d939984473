"""
Access to the Kubernetes API for both packages: requests, lists, and watches that keep a view of the cluster.

kubernetes-asyncio finds the cluster and does TLS, tokens and exec plugins. What lies above is ours: its models cost twenty times what
raw bytes and msgspec do, its watch neither lists again after 410 nor notices silence, and it waits for ever by default.
It is imported when a client is opened, not before: it takes about a second and 90 MB.
"""

from trimaran_client.kube.access import AccessPlace, find_access
from trimaran_client.kube.client import KubeClient
from trimaran_client.kube.listwatch import ListWatch, ListWatchListener, ObjectSelection, WatchTimes
from trimaran_client.kube.wire import ListPage, ObjectMeta, WatchEvent

__all__ = [
    "AccessPlace",
    "KubeClient",
    "ListPage",
    "ListWatch",
    "ListWatchListener",
    "ObjectMeta",
    "ObjectSelection",
    "WatchEvent",
    "WatchTimes",
    "find_access",
]
