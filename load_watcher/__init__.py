"""
The load watcher: serves the utilization of the nodes of a cluster at ``GET /watcher``.

``load_watcher.embedded()`` runs it inside another program, without a port.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as `typing` has it, which takes a millisecond to import
if TYPE_CHECKING:
    from load_watcher.library import embedded as embedded

    __version__: str


def __getattr__(name: str) -> object:
    """Look up what is asked for only then: importing must not be work."""
    if name == "embedded":
        from load_watcher.library import embedded

        return embedded
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import metadata

    try:
        return metadata.version("trimaran")
    except metadata.PackageNotFoundError:
        return "unknown"
