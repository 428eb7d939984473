"""
What following the pods of a cluster costs: ``python -m tests.benchmarks.bench_pod_watch [--pods 150000] [--rate 1000] [--output FILE]``.

An API server in a thread of its own streams pods of about 5 KB at a steady rate over plain HTTP, while a view is taken ten times a second.
CPU is that of the thread that follows, so the server's does not count. Memory is what Python allocated for pods that were listed, of which
two in a hundred are in flight.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.fakes.api_server import NODES, PODS, FakeApiServer, Reply, WatchStream, make_node
from trimaran_client.assigned import AssignedPods
from trimaran_client.cluster import ClusterFeed
from trimaran_client.kube import KubeClient, WatchTimes
from trimaran_client.objects import PodObject, to_pod
from trimaran_client.prediction import UsagePrediction
from trimaran_client.resources import Pod

NODE_COUNT: Final = 5000
CONTAINERS: Final = 3
FLIGHT_RATIO: Final = 0.02  # of the pods that are listed
TICKS_PER_SECOND: Final = 20
VIEWS_PER_SECOND: Final = 10
READINGS: Final = 2000
PAGE: Final = 500
# The fake sends no bookmarks.
_TIMES: Final = WatchTimes(silence_seconds=3600)


@dataclass(frozen=True)
class Row:
    """One measured number."""

    what: str
    value: float
    unit: str


def make_pod(number: int, *, scheduled_at: float) -> dict[str, Any]:
    """Make a pod as an API server has it, of about 6 KB."""
    moment = datetime.fromtimestamp(scheduled_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    name = f"web-7d9c6b5f4d-{number:06d}"
    container = {
        "image": "registry.example/shop/web:1.2.3",
        "args": ["--listen=:8080", "--config=/etc/web/config.yaml"],
        "env": [{"name": f"SETTING_{index}", "value": f"value-{index}"} for index in range(7)],
        "ports": [{"containerPort": 8080, "name": "http", "protocol": "TCP"}],
        "resources": {"requests": {"cpu": "250m", "memory": "256Mi"}, "limits": {"cpu": "500m", "memory": "512Mi"}},
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"}, "periodSeconds": 10, "failureThreshold": 3},
        "volumeMounts": [{"name": "access", "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
        "terminationMessagePath": "/dev/termination-log",
        "imagePullPolicy": "IfNotPresent",
    }
    state = {"state": {"running": {"startedAt": moment}}, "ready": True, "restartCount": 0, "imageID": "sha256:" + "0" * 64}
    conditions = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    return {
        "metadata": {
            "name": name,
            "generateName": "web-7d9c6b5f4d-",
            "namespace": "shop",
            "uid": f"6f1c3b8a-0000-4d6e-9b1a-{number:012d}",
            "resourceVersion": str(1_000_000 + number),
            "creationTimestamp": moment,
            "labels": {"app": "web", "pod-template-hash": "7d9c6b5f4d"},
            "annotations": {"checksum/config": "a" * 64},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-7d9c6b5f4d", "controller": True}],
            "managedFields": [{"manager": "kubelet", "operation": "Update", "fieldsV1": {f"f:field-{index}": {} for index in range(30)}}],
        },
        "spec": {
            "containers": [{"name": f"c{index}", **container} for index in range(CONTAINERS)],
            "nodeName": f"ip-10-0-{number % NODE_COUNT // 256}-{number % NODE_COUNT % 256}.eu-west-1.compute.internal",
            "schedulerName": "default-scheduler",
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": each, "status": "True", "lastTransitionTime": moment} for each in conditions],
            "containerStatuses": [{"name": f"c{index}", **state} for index in range(CONTAINERS)],
        },
    }


@contextmanager
def serving(api: FakeApiServer) -> Iterator[asyncio.AbstractEventLoop]:
    """Run the server in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(api.__aenter__(), loop).result()
        yield loop
        asyncio.run_coroutine_threadsafe(api.stop(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def time_reading() -> list[Row]:
    """Time both ways from JSON to a pod."""
    body = json.dumps(make_pod(1, scheduled_at=time.time()), separators=(",", ":")).encode()
    decoder = msgspec.json.Decoder(PodObject)
    return [
        Row("a pod as JSON", len(body), "bytes"),
        Row("json.loads and Pod.from_manifest", 1e6 * time_calls(lambda: Pod.from_manifest(json.loads(body))), "µs"),
        Row("PodObject and to_pod", 1e6 * time_calls(lambda: to_pod(decoder.decode(body))), "µs"),
    ]


def time_calls(call: Callable[[], object]) -> float:
    """Take the CPU seconds of a call, the least of several rounds."""
    rounds = []
    for _ in range(5):
        started = time.thread_time()
        for _ in range(READINGS):
            call()
        rounds.append((time.thread_time() - started) / READINGS)
    return min(rounds)


async def measure_rate(folder: Path, *, rate: int, seconds: int) -> list[Row]:
    """Follow so many events a second, all of pods that have just been bound, and take the CPU of it."""
    api = FakeApiServer()
    api.put(NODES, make_node("n1"))
    count = rate * seconds
    now = time.time()
    lines = [
        json.dumps({"type": "MODIFIED", "object": make_pod(number, scheduled_at=now)}, separators=(",", ":")).encode() + b"\n"
        for number in range(min(count, 20_000))
    ]

    async def stream(watch: WatchStream) -> None:
        started = time.monotonic()
        each = rate // TICKS_PER_SECOND
        for tick in range(seconds * TICKS_PER_SECOND):
            await asyncio.sleep(started + tick / TICKS_PER_SECOND - time.monotonic())
            await watch.send_bytes(b"".join(lines[(tick * each + index) % len(lines)] for index in range(each)))
        await watch.hang()

    api.put_pods({"metadata": {"name": "first"}})
    api.watch_scripts_of[PODS].append(stream)
    with serving(api):
        async with KubeClient(api.write_kubeconfig(folder / "config")) as client, ClusterFeed(client, times=_TIMES) as feed:
            await feed.synced.wait()
            wall, cpu = time.monotonic(), time.thread_time()
            prediction = UsagePrediction()
            while feed.event_count < count:
                feed.pods.view(time.time()).usage(prediction)
                await asyncio.sleep(1 / VIEWS_PER_SECOND)
            taken, elapsed = time.thread_time() - cpu, time.monotonic() - wall
    return [
        Row("events followed a second", feed.event_count / elapsed, "1/s"),
        Row("of one core for them, views included", 100 * taken / elapsed, "%"),
        Row("CPU of an event", 1e6 * taken / feed.event_count, "µs"),
        Row("pods in flight at the end", feed.pods.in_flight_count, ""),
    ]


async def measure_memory(folder: Path, *, count: int) -> list[Row]:
    """List so many pods, and take what is left of them in memory."""
    now = time.time()
    in_flight = int(count * FLIGHT_RATIO)

    class Cluster(FakeApiServer):
        """Makes each page as it is asked for."""

        def _list(self, received: Any, collection: Any) -> Reply:
            if received.path != PODS:
                return super()._list(received, collection)
            start = int(received.query.get("continue", 0))
            end = min(start + PAGE, count)
            items = [make_pod(number, scheduled_at=now if number < in_flight else now - 86400) for number in range(start, end)]
            metadata = {"resourceVersion": "2000000"} | ({"continue": str(end)} if end < count else {})
            return Reply(body=json.dumps({"metadata": metadata, "items": items}, separators=(",", ":")))

    api = Cluster()
    api.put(NODES, make_node("n1"))
    api.put_pods({"metadata": {"name": "first"}})
    with serving(api):
        async with KubeClient(api.write_kubeconfig(folder / "config")) as client:
            pods = AssignedPods()
            tracemalloc.start()
            async with ClusterFeed(client, pods=pods, times=_TIMES) as feed:
                await feed.synced.wait()
                peak = tracemalloc.get_traced_memory()[1]
                feed_bytes = count_bytes("listwatch.py", "kube/wire.py")
                pods_bytes = count_bytes("assigned.py", "pod_table.py", "node_table.py", "objects.py", "resources.py", "units.py")
            tracemalloc.stop()
    return [
        Row("pods listed", len(pods), ""),
        Row("kept of a pod by the watch", feed_bytes / count, "bytes"),
        Row("kept of a pod by AssignedPods", pods_bytes / count, "bytes"),
        Row("both, of all pods", (feed_bytes + pods_bytes) / 1e6, "MB"),
        Row("most at once while listing, server included", peak / 1e6, "MB"),
    ]


def count_bytes(*files: str) -> int:
    """Count what was allocated in these files and is still there."""
    snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, f"*/trimaran_client/*{name}") for name in files])  # noqa: FBT003
    return sum(each.size for each in snapshot.statistics("filename"))


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=150_000, help="how many to list for the memory that they take")
    parser.add_argument("--rate", type=int, default=1000, help="events a second")
    parser.add_argument("--seconds", type=int, default=20, help="for so long")
    parser.add_argument("--output", type=Path, help="where to write the rows as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = time_reading()
        rows += asyncio.run(measure_rate(Path(folder), rate=arguments.rate, seconds=arguments.seconds))
        rows += asyncio.run(measure_memory(Path(folder), count=arguments.pods))
    for row in rows:
        sys.stdout.write(f"| {row.what:<50} | {row.value:>12,.1f} {row.unit:<5} |\n")
    if arguments.output is not None:
        arguments.output.write_text(json.dumps([asdict(row) for row in rows], indent=2))


if __name__ == "__main__":
    main()
