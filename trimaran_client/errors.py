"""
Errors of the client library; each message names the stage, the subject and the remedy.

::

    TrimaranError
    ├── QuantityError            text that is not a Kubernetes quantity
    ├── ManifestError            a pod or node manifest that cannot be read
    ├── PolicyArgumentError      a policy cannot be built from these arguments
    ├── ExtenderConfigError      the extender's configuration cannot be used
    ├── SnapshotDecodeError      a reply that is not a load watcher's
    ├── WatcherError             the load watcher did not give a snapshot
    │   ├── WatcherUnreachableError   no connection, or no answer in time
    │   └── WatcherStatusError        an answer other than 200
    │       └── WatcherNotReadyError  503: no snapshot yet
    └── KubernetesError          the Kubernetes API did not give what was asked
        ├── KubernetesConfigError       no access was found, or it cannot be used
        ├── KubernetesUnreachableError  no connection, or no answer in time
        ├── KubernetesReplyError        an answer that is not what the API documents
        └── KubernetesStatusError       an answer other than 200
"""

from __future__ import annotations

from collections.abc import Sequence


class TrimaranError(Exception):
    """Base of every error that this library raises on purpose."""


class QuantityError(TrimaranError, ValueError):
    """Text or a value that is not a Kubernetes quantity."""


class ManifestError(TrimaranError, ValueError):
    """A manifest that cannot be read; the message gives the path of the bad field."""


class PolicyArgumentError(TrimaranError, ValueError):
    """Arguments that a policy cannot be built from; the message lists every one of them, ``problems`` holds them one by one."""

    def __init__(self, message: str, problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems) or (message,)

    @classmethod
    def of(cls, policy: str, problems: Sequence[str]) -> PolicyArgumentError:
        """Make the error of a policy from all that is wrong."""
        return cls(f"{policy}: {'; '.join(problems)}", problems)


class ExtenderConfigError(TrimaranError, ValueError):
    """A configuration of the extender that cannot be used; the message lists every problem."""


class SnapshotDecodeError(TrimaranError, ValueError):
    """A body that is not the JSON of ``GET /watcher``."""


class WatcherError(TrimaranError):
    """The load watcher did not give a snapshot."""


class WatcherUnreachableError(WatcherError):
    """No connection to the load watcher, or no whole answer in time."""


class WatcherStatusError(WatcherError):
    """The load watcher answered with another status than 200; ``status`` holds it, ``body_start`` what it said."""

    def __init__(self, message: str, *, status: int, body_start: str) -> None:
        super().__init__(message)
        self.status = status
        self.body_start = body_start


class WatcherNotReadyError(WatcherStatusError):
    """The load watcher runs, but has no snapshot yet."""


class KubernetesError(TrimaranError):
    """The Kubernetes API did not give what was asked."""


class KubernetesConfigError(KubernetesError):
    """No access to a cluster was found, or what was found cannot be used; the message lists every place that was tried."""


class KubernetesUnreachableError(KubernetesError):
    """No connection to the API server, or no whole answer in time."""


class KubernetesReplyError(KubernetesError):
    """An answer of the API server that is not what the API documents."""


class KubernetesStatusError(KubernetesError):
    """The API server answered with another status than 200; ``status`` holds it, ``reason`` what it said."""

    def __init__(self, message: str, *, status: int, reason: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
