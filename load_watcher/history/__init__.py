"""
The memory of the service: the last hour in a ring, and a file behind it that survives the process.

:class:`memory.Memory` is its face; this is what stands behind it, as the watcher sees it::

    ring = SampleRing(step_seconds=timing.refresh_seconds)
    async with HistoryWriter(path, ring, source=provider.name, clock=clock) as writer:  # fills the ring from the file
        recent = ring.columns(CPU, start_at=now - 1800, end_at=now, nodes=batch.nodes)  # each refresh: what quality compares with
        ring.append(report.batch)
        aggregates = ring.aggregate((AVERAGE, STANDARD_DEVIATION), end_at=now, nodes=good.nodes)
        writer.submit(report.batch, fetched_at=now)  # never waits; writer.status says how the file does
        ring.check_window(Window.parse("30m"), end_at=now)  # ?window=: WindowNotHeldError names those that are held
        page = await writer.store.read(node, CPU, start_at=now - 21600, end_at=now, step_seconds=60)  # one node's past
    async with HistoryReader(path) as reader:  # export, also from a running service
        refreshes = [refresh async for refresh in reader.load(start_at, end_at, averages=True)]
"""
