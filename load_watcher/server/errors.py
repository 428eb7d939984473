"""Every answer of this service other than success: what it is called, and what it tells people."""

from __future__ import annotations

from trimaran_client.ops import HttpError

# Long enough to spare a service that starts, short enough that a client which obeys it does not wait for a refresh it could have had.
_RETRY_AFTER_SECONDS = 5


def unknown_node(node: str) -> HttpError:
    """Name a host that the snapshot lacks."""
    return HttpError(404, "unknown_node", f"no node is called {node!r}; GET /watcher lists the nodes that are known")


def no_snapshot(problem: str) -> HttpError:
    """Say that there is nothing to serve yet."""
    return HttpError(503, "not_ready", problem, headers={"Retry-After": str(_RETRY_AFTER_SECONDS)})


def provider_unhealthy(problem: str) -> HttpError:
    """Say that the provider could not answer now."""
    return HttpError(503, "provider_unhealthy", problem)
