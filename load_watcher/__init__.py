"""The load watcher: serves the utilization of the nodes of a cluster at ``GET /watcher``."""

from __future__ import annotations


def __getattr__(name: str) -> str:
    """Look the version up when it is asked for: reading package metadata at import would be work."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import metadata

    try:
        return metadata.version("trimaran")
    except metadata.PackageNotFoundError:
        return "unknown"
