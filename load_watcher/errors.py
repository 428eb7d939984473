"""
Errors of the service; each message names the stage, the subject and the remedy.

::

    LoadWatcherError
    ├── SettingsError                  the settings cannot be used; lists every problem
    └── ProviderError                  a metrics source did not give a batch
        ├── ProviderConfigError        it cannot be used as configured
        ├── ProviderAuthError          it refused our credentials or our permissions
        ├── ProviderNotInstalledError  the API that would give metrics is not there
        ├── ProviderReplyError         it answered what its protocol does not document
        ├── ProviderUnavailableError   no connection, no answer in time, or its own failure: worth another try
        ├── ProviderRateLimitError     it allows no call before an instant that the error names
        └── ProviderBugError           its code raised something that its contract does not allow

``cause`` is the value of the label ``cause`` of ``load_watcher_refresh_failures_total``.
"""

from __future__ import annotations

from typing import ClassVar


class LoadWatcherError(Exception):
    """Base of every error that the service raises on purpose."""


class SettingsError(LoadWatcherError):
    """The settings cannot be used; ``problems`` holds one sentence for each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class ProviderError(LoadWatcherError):
    """A metrics source did not give a batch."""

    cause: ClassVar[str] = "provider"


class ProviderConfigError(ProviderError):
    """The source cannot be used as it is configured."""

    cause = "config"


class ProviderAuthError(ProviderError):
    """The source refused our credentials (401) or our permissions (403)."""

    cause = "auth"


class ProviderNotInstalledError(ProviderError):
    """The API that would give metrics is not there."""

    cause = "not_installed"


class ProviderReplyError(ProviderError):
    """The source answered what its protocol does not document."""

    cause = "reply"


class ProviderUnavailableError(ProviderError):
    """No connection, no answer in time, or a failure of the source's own: worth another try."""

    cause = "unavailable"


class ProviderRateLimitError(ProviderError):
    """The source allows no call before ``until_at``, Unix seconds; until then another try only costs the next allowance."""

    cause = "rate_limited"

    def __init__(self, message: str, *, until_at: float) -> None:
        super().__init__(message)
        self.until_at = until_at


class ProviderBugError(ProviderError):
    """The code of the source raised something that its contract does not allow; the log holds the traceback."""

    cause = "bug"
