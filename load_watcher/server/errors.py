"""Every answer of this service other than success: what it is called, and what it tells people."""

from __future__ import annotations

from load_watcher.history.errors import HistoryError, WindowNotHeldError, WindowTooLargeError
from load_watcher.snapshot import Withheld
from trimaran_client.ops import HttpError

# Long enough to spare a service that starts, short enough that a client which obeys it does not wait for a refresh it could have had.
_RETRY_AFTER_SECONDS = 5


def unknown_node(node: str) -> HttpError:
    """Name a host that the snapshot lacks."""
    return HttpError(404, "unknown_node", f"no node is called {node!r}; GET /watcher lists the nodes that are known")


def withheld_node(node: str, withheld: Withheld) -> HttpError:
    """Say why a node that is known is left out."""
    return HttpError(404, f"node_{withheld.status}", f"node {node!r} is {withheld.status}: {withheld.reason}")


def no_snapshot(problem: str) -> HttpError:
    """Say that there is nothing to serve yet."""
    return HttpError(503, "not_ready", problem, headers={"Retry-After": str(_RETRY_AFTER_SECONDS)})


def provider_unhealthy(problem: str) -> HttpError:
    """Say that the provider could not answer now."""
    return HttpError(503, "provider_unhealthy", problem)


def bad_parameter(name: str, value: str, remedy: str) -> HttpError:
    """Say which query parameter cannot be used, and what to write instead."""
    return HttpError(400, "bad_parameter", f"{name}={value!r}: {remedy}")


def no_history() -> HttpError:
    """Say that no history is kept."""
    return HttpError(404, "no_history", "no history is kept: LOAD_WATCHER_HISTORY is off; set it to memory or to the path of a file")


def from_history(error: HistoryError) -> HttpError:
    """Say why history does not answer: the window is not there, or the file cannot be read."""
    if isinstance(error, WindowNotHeldError):
        return HttpError(404, "window_not_held", str(error))
    if isinstance(error, WindowTooLargeError):
        return HttpError(400, "window_too_large", str(error))
    return HttpError(503, "history_unavailable", str(error))
