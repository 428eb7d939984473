"""
Place jobs on hosts by their measured load: a scheduler that is not Kubernetes, in thirty lines.

With a load watcher running: ``python place_jobs.py http://127.0.0.1:2020 encode=2 train=4 report=500m``
"""

import asyncio
import sys
import time

from trimaran_client import AssignedPods, Pod, Quantity, Scorer, SnapshotSource, TargetLoadPacking, WatcherClient
from trimaran_client.resources import Container


class JobScheduler:
    """Keeps the jobs that hold a place; *load* is whatever has the newest snapshot of the hosts."""

    def __init__(self, load: SnapshotSource) -> None:
        self._load = load
        self._jobs = AssignedPods()
        self._scorer = Scorer(TargetLoadPacking())

    def place(self, job: Pod) -> str | None:
        """Choose a host; the job counts there at once, long before a metric shows it. Without an answer, try again later."""
        now = time.time()
        ranked = self._scorer.score_nodes(job, self._load, now=now, pods=self._jobs).ranked()
        if not ranked or ranked[0].score == 0:
            return None  # every host would be over its capacity
        self._jobs.assume(job, ranked[0].node, now=now)
        return ranked[0].node

    def started(self, job: Pod, host: str) -> None:
        """Confirm a placement; one that is not confirmed is forgotten after half a minute."""
        self._jobs.assign(job, host, at=time.time())

    def ended(self, job: Pod) -> None:
        self._jobs.forget(job)


async def main(address: str, cpus: dict[str, str]) -> dict[str, str | None]:
    """Place jobs, job name → cores that it asks for, and tell where each one went."""
    async with WatcherClient(address) as watcher, watcher.follow() as load:
        await load.wait_newer(load.snapshot)  # for the first one; from here on scoring never waits
        scheduler, placed = JobScheduler(load), {}
        for name, cpu in cpus.items():
            job = Pod(name=name, containers=(Container(requests={"cpu": Quantity.parse(cpu)}),))
            placed[name] = host = scheduler.place(job)
            if host is not None:
                scheduler.started(job, host)  # here your scheduler would start it
    return placed


if __name__ == "__main__":
    print(asyncio.run(main(sys.argv[1], dict(each.split("=") for each in sys.argv[2:]))))  # noqa: T201
