"""
The memory of the service: the last hour in a ring, and a file behind it that survives the process.

How the watcher uses it::

    ring = SampleRing(step_seconds=timing.refresh_seconds)                       # memory: history.window
    async with HistoryWriter(path, ring, source=provider.name, clock=clock) as writer:   # only with a path: history.writer
        report = assess(batch, ring.columns(...), now)                           # each refresh
        ring.append(report.batch)
        aggregates = ring.aggregate((AVERAGE, STANDARD_DEVIATION), end_at=ring.newest_at, nodes=good.nodes)
        writer.submit(report.batch, fetched_at=now)                              # never waits
        writer.status.failure                                                    # None, or what is wrong with the file

    ring.check_window(Window.parse("30m"), end_at=...)                           # ?window=: WindowNotHeldError names those that are held
    await writer.store.read(node, CPU, start_at=..., end_at=..., step_seconds=60)    # /history; a page and where to go on
    async with HistoryReader(path) as reader:                                    # export, also from a running service: history.reader
        async for refresh in reader.load(start_at, end_at, averages=True): ...
"""
