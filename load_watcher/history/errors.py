"""
Errors of the history; each message names the stage, the subject and the remedy.

::

    HistoryError
    ├── WindowNotHeldError             the window asked for is not covered; names those that are
    ├── WindowTooLargeError            it would take too much memory to answer
    └── HistoryFileError               the file cannot be used; the service goes on from memory
        ├── HistoryFullError           no space on its disk
        ├── HistoryUnwritableError     no such folder, read-only, or no permission
        ├── HistoryLockedError         another process has it
        ├── HistoryCorruptError        it is damaged: to be set aside, and a new one begun
        ├── HistoryForeignError        of a newer version, or of another program: left alone
        └── HistoryDiskError           the disk failed in another way

``cause`` is a short word for status, log and metric.
"""

from __future__ import annotations

from typing import ClassVar

from load_watcher.errors import LoadWatcherError


class HistoryError(LoadWatcherError):
    """Base of what the history raises on purpose."""


class WindowNotHeldError(HistoryError):
    """The window asked for is not covered by the samples that are held."""


class WindowTooLargeError(HistoryError):
    """The window asked for holds more samples than are read at once."""


class HistoryFileError(HistoryError):
    """The file cannot be used; nothing that memory holds is lost by it."""

    cause: ClassVar[str] = "file"


class HistoryFullError(HistoryFileError):
    """There is no space on the disk of the file."""

    cause = "full"


class HistoryUnwritableError(HistoryFileError):
    """The folder does not exist, or folder or file may not be written."""

    cause = "unwritable"


class HistoryLockedError(HistoryFileError):
    """Another process has the file."""

    cause = "locked"


class HistoryCorruptError(HistoryFileError):
    """The file is damaged."""

    cause = "corrupt"


class HistoryForeignError(HistoryFileError):
    """The file was written by a newer version or by another program, and is left alone."""

    cause = "foreign"


class HistoryDiskError(HistoryFileError):
    """The disk failed in a way that has no remedy of its own."""

    cause = "disk"
