"""
The file itself: one connection in a thread of its own, its lock, its version, and what its failures mean.

The only importer of aiosqlite, and the only place that knows SQLite's errors. A second file, ``PATH.lock``, is held by ``flock`` while the
service has the history open: two writers would mix their samples. The lock of SQLite itself would do as well, but would shut out an export
from a running service; and one on the file itself would be dropped whenever any part of this process closes that file.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import aiosqlite

from load_watcher.history.errors import (
    HistoryCorruptError,
    HistoryDiskError,
    HistoryFileError,
    HistoryForeignError,
    HistoryFullError,
    HistoryLockedError,
    HistoryUnwritableError,
)
from load_watcher.history.schema import APPLICATION_ID, MIGRATIONS

_Parameters = Sequence[int | str | bytes | None]
Rows = list[tuple[Any, ...]]

# Another process reads only, and holds the file for the moment of a recovery or a checkpoint.
_BUSY_SECONDS: Final = 5.0
# In WAL mode, a commit that was not synchronized is lost with the power: with NORMAL all since the last checkpoint, with FULL at most the
# one under way, for one fsync a refresh. Neither loses a commit when only the process dies, nor damages the file.
_SYNCHRONOUS: Final = "FULL"
# A checkpoint comes every 1,000 pages (SQLite's default); a longer log, after a large deletion, is cut to this.
_MAX_WAL_BYTES: Final = 8 * 2**20

_PRIMARY_CODE: Final = 0xFF
_SHORT_READ: Final = 522  # SQLITE_IOERR_SHORT_READ: the file is shorter than its header says
_KINDS: Final[dict[int, type[HistoryFileError]]] = {
    3: HistoryUnwritableError,  # SQLITE_PERM
    5: HistoryLockedError,  # SQLITE_BUSY
    6: HistoryLockedError,  # SQLITE_LOCKED
    8: HistoryUnwritableError,  # SQLITE_READONLY
    11: HistoryCorruptError,  # SQLITE_CORRUPT
    13: HistoryFullError,  # SQLITE_FULL
    14: HistoryUnwritableError,  # SQLITE_CANTOPEN
    26: HistoryCorruptError,  # SQLITE_NOTADB
}
_ERRNO_KINDS: Final[dict[int, type[HistoryFileError]]] = {
    errno.ENOSPC: HistoryFullError,
    errno.EDQUOT: HistoryFullError,
    errno.EFBIG: HistoryFullError,
    errno.EAGAIN: HistoryLockedError,
    errno.EROFS: HistoryUnwritableError,
    errno.EACCES: HistoryUnwritableError,
    errno.EPERM: HistoryUnwritableError,
    errno.ENOENT: HistoryUnwritableError,
    errno.ENOTDIR: HistoryUnwritableError,
    errno.EISDIR: HistoryUnwritableError,
}
_REMEDIES: Final[dict[type[HistoryFileError], str]] = {
    HistoryUnwritableError: "check the path; its folder must be there, and this user must be able to read and write in it",
    HistoryLockedError: "another process has it; stop that one, or give each a path of its own",
    HistoryCorruptError: "check its disk",
    HistoryFullError: "free some space, or set a smaller size for the history",
    HistoryDiskError: "check its disk",
}


class Transaction:
    """What can be done between its begin and its commit."""

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._connection = connection

    async def fetch(self, sql: str, parameters: _Parameters = ()) -> Rows:
        """Run a statement and answer its rows."""
        return [tuple(row) for row in await self._connection.execute_fetchall(sql, parameters)]

    async def insert(self, sql: str, parameters: _Parameters) -> int:
        """Insert a row and answer its number."""
        await self._connection.execute_fetchall(sql, parameters)
        [(row_id,)] = await self.fetch("SELECT last_insert_rowid()")
        return int(row_id)

    async def repeat(self, sql: str, parameters: Sequence[_Parameters]) -> None:
        """Run a statement once for each set of parameters."""
        async with self._connection.executemany(sql, parameters):
            pass


class HistoryFile:
    """
    One connection to a history file; made for it if there is none yet.

    ``async with`` opens and closes it. Statements run in the connection's own thread, one transaction or read after the other.

    Args:
        path: Where; its folder must be there.
        read_only: To look at the file of a service that may be running.
        migrations: One tuple of statements for each version.
    """

    def __init__(self, path: Path, *, read_only: bool = False, migrations: Sequence[Sequence[str]] = MIGRATIONS) -> None:
        self.path = path
        self._read_only = read_only
        self._migrations = migrations
        self._turn = asyncio.Lock()
        self._is_open = False
        self._identity: tuple[int, int] | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """
        Open the file, and bring it to the current version.

        Raises:
            HistoryFileError: If it cannot be used; the kind says why.
        """
        with self._translated():
            async with AsyncExitStack() as stack:
                if self.path.is_dir():
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
                if not self._read_only:
                    stack.callback(os.close, await asyncio.to_thread(_lock, self.path))
                self._connection = await stack.enter_async_context(self._connect())
                self._is_open = True
                self._identity = await asyncio.to_thread(self._identify)
                await self._prepare()
                self._stack = stack.pop_all()
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        """Close it; what the log of SQLite holds goes into the file itself."""
        async with self._turn:
            self._is_open = False
            with self._translated():
                async with self._stack:
                    if not self._read_only and not await self.is_in_place():
                        # SQLite would leave the log of a file that was moved away, and replay it into the one that took its place.
                        await self._connection.execute_fetchall("PRAGMA wal_checkpoint(TRUNCATE)")

    async def is_in_place(self) -> bool:
        """Answer whether the file that is open is still the one at the path: SQLite goes on with one that was deleted or replaced."""
        return await asyncio.to_thread(self._identify) == self._identity

    def _identify(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _connect(self) -> aiosqlite.Connection:
        mode = "ro" if self._read_only else "rwc"
        return aiosqlite.connect(f"file:{quote(str(self.path))}?mode={mode}", uri=True, timeout=_BUSY_SECONDS, isolation_level=None)

    async def fetch(self, sql: str, parameters: _Parameters = ()) -> Rows:
        """
        Read.

        Raises:
            HistoryFileError: If it fails.
        """
        async with self._turn:
            self._check_open()
            with self._translated():
                return await Transaction(self._connection).fetch(sql, parameters)

    async def vacuum(self, pages: int) -> None:
        """
        Give free pages back to the disk.

        Raises:
            HistoryFileError: If it fails.
        """
        async with self._turn:
            self._check_open()
            with self._translated():
                # As a script, which runs to its end: as a statement it would stop after the first page.
                async with self._connection.executescript(f"PRAGMA incremental_vacuum({pages})"):
                    pass

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """
        Write: all that happens inside, or nothing if it fails or is cancelled.

        Raises:
            HistoryFileError: If it fails.
        """
        async with self._turn:
            self._check_open()
            with self._translated():
                try:
                    await self._connection.execute_fetchall("BEGIN IMMEDIATE")
                    yield Transaction(self._connection)
                    await self._connection.commit()
                except BaseException:
                    # Also where the begin was cancelled: it is in the thread's queue all the same.
                    await self._connection.rollback()
                    raise

    def _check_open(self) -> None:
        if not self._is_open:
            raise HistoryDiskError(f"history {self.path}: it was closed after a failure; try again after the next refresh")

    async def _prepare(self) -> None:
        [(application_id,)] = await self.fetch("PRAGMA application_id")
        [(version,)] = await self.fetch("PRAGMA user_version")
        [(tables,)] = await self.fetch("SELECT count(*) FROM sqlite_master")
        if application_id != APPLICATION_ID and (tables or self._read_only):
            raise HistoryForeignError(f"history {self.path}: it is a database of another program; give another path")
        if version > len(self._migrations) or (self._read_only and version < len(self._migrations)):
            raise HistoryForeignError(
                f"history {self.path}: it has version {version} and this program knows {len(self._migrations)}; "
                + ("use the newer program, or give another path" if version > len(self._migrations) else "start the service on it once")
            )
        if self._read_only:
            return
        if not tables:
            # Before anything is in the file; lets it become smaller again.
            await self.fetch("PRAGMA auto_vacuum = INCREMENTAL")
        await self.fetch("PRAGMA journal_mode = WAL")
        await self.fetch(f"PRAGMA synchronous = {_SYNCHRONOUS}")
        await self.fetch(f"PRAGMA journal_size_limit = {_MAX_WAL_BYTES}")
        # Some builds overwrite what is deleted with zeros: as much to write again, and nothing here is secret.
        await self.fetch("PRAGMA secure_delete = OFF")
        await self.fetch("PRAGMA foreign_keys = ON")
        if version < len(self._migrations):
            async with self.transaction() as transaction:
                for statement in (each for migration in self._migrations[version:] for each in migration):
                    await transaction.fetch(statement)
                await transaction.fetch(f"PRAGMA application_id = {APPLICATION_ID}")
                await transaction.fetch(f"PRAGMA user_version = {len(self._migrations)}")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except aiosqlite.Error as error:
            code = getattr(error, "sqlite_errorcode", 0)
            kind = HistoryCorruptError if code == _SHORT_READ else _KINDS.get(code & _PRIMARY_CODE, HistoryDiskError)
            raise _describe(kind, self.path, f"{error} ({getattr(error, 'sqlite_errorname', type(error).__name__)})") from error
        except OSError as error:
            raise _describe(_ERRNO_KINDS.get(error.errno or 0, HistoryDiskError), self.path, str(error)) from error


def set_aside(path: Path, now: float) -> Path:
    """
    Rename a damaged file, with the logs that belong to it, so that a new one can begin; nothing is deleted.

    Args:
        path: The file; nobody may have it open.
        now: Unix seconds, for the new name.

    Returns:
        Where it is now.

    Raises:
        HistoryFileError: If it cannot be renamed, or another process has it.
    """
    try:
        lock = _lock(path)
        try:
            stem = f"{path}.bad-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}"
            names = (stem, *(f"{stem}-{number}" for number in range(1, 1000)))
            target = next(name for name in names if not Path(name).exists())
            # The file last: a new one beside the log of the old one would be damaged at once.
            for suffix in ("-wal", "-shm", ""):
                if Path(f"{path}{suffix}").exists():
                    Path(f"{path}{suffix}").rename(f"{target}{suffix}")
        finally:
            os.close(lock)
    except OSError as error:
        raise _describe(_ERRNO_KINDS.get(error.errno or 0, HistoryDiskError), path, str(error)) from error
    return Path(target)


def _lock(path: Path) -> int:
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _describe(kind: type[HistoryFileError], path: Path, cause: str) -> HistoryFileError:
    return kind(f"history {path}: {cause}; {_REMEDIES[kind]}")
