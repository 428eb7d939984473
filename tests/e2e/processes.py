"""Child processes of the end-to-end tests: own process group, own log file, and none outlives the test run."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

STOP_SECONDS = 10.0
LOG_HEAD_LINES = 5  # a wrong flag is told before the usage text
LOG_TAIL_LINES = 25
# Below the range that the kernel takes for outgoing connections (32768 on), so that nothing takes the port before its server does.
PORT_RANGE = range(20000, 32000)

# Even a killed test run must leave no server behind: Linux ends the child when its parent is gone (1 = PR_SET_PDEATHSIG).
# A wrapper that then becomes the program, as a hook between fork and exec is unsafe in a process with threads.
_LAUNCHER = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
os.execvp(sys.argv[1], sys.argv[1:])
"""


class ProcessFailedError(Exception):
    """A child process ended by itself; the message holds the start and the end of its log."""


class ManagedProcess:
    """
    A child process, which can be stopped and started again; running_process(...) makes one.

    Attributes:
        name: What messages call it.
        log_path: Its output over all its starts, standard error included.
    """

    def __init__(self, name: str, command: Sequence[str], *, folder: Path, settings: Mapping[str, str], grace_seconds: float) -> None:
        self.name = name
        self.log_path = folder / f"{name}.log"
        self._command = command
        self._environment = make_environment(settings)
        self._grace_seconds = grace_seconds
        self._process: asyncio.subprocess.Process

    async def start(self) -> None:
        """Start the command, again if it has ended."""
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-ISc", _LAUNCHER, *self._command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                cwd=self.log_path.parent,
                env=self._environment,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process that the newest start made."""
        return self._process.pid

    @property
    def log(self) -> str:
        """All that the process has written so far."""
        return self.log_path.read_text(errors="replace")

    def check_running(self) -> None:
        """
        Do nothing while the process runs.

        Raises:
            ProcessFailedError: When it has ended.
        """
        code = self._process.returncode
        if code is not None:
            lines = self.log.splitlines()
            if len(lines) > LOG_HEAD_LINES + LOG_TAIL_LINES:
                lines[LOG_HEAD_LINES:-LOG_TAIL_LINES] = ["..."]
            raise ProcessFailedError("\n".join([f"{self.name} ended with {code}; {self.log_path} says:", *lines]))

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, such as SIGSTOP to make a server hang."""
        self._process.send_signal(number)

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Let the process do nothing for the time of the context; its connections stay open."""
        self.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.send_signal(signal.SIGCONT)

    async def kill(self) -> None:
        """End the whole group at once by SIGKILL, as a crash would."""
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    async def stop(self) -> int:
        """Send SIGTERM, after the grace SIGKILL to the whole group, and return the exit code (negative: the signal)."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(self._grace_seconds):
                    await self._process.wait()
            except TimeoutError:
                await self.kill()
        return await self._process.wait()


@asynccontextmanager
async def running_process(
    name: str,
    command: Sequence[str | Path],
    *,
    folder: Path,
    settings: Mapping[str, str] | None = None,
    grace_seconds: float = STOP_SECONDS,
) -> AsyncIterator[ManagedProcess]:
    """
    Run *command* for the time of the context.

    Args:
        name: Name for messages and for the log file.
        command: Program and arguments.
        folder: Working directory, and where ``<name>.log`` goes.
        settings: Environment variables, beside those of make_environment.
        grace_seconds: Time from SIGTERM to SIGKILL at the end.
    """
    process = ManagedProcess(name, [str(part) for part in command], folder=folder, settings=settings or {}, grace_seconds=grace_seconds)
    process.log_path.unlink(missing_ok=True)  # of an earlier process of that name
    await process.start()
    try:
        yield process
    finally:
        await process.stop()


def make_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with *settings* and none of the tester's own that could decide for the program."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ} | dict(settings)


def choose_free_ports(count: int) -> list[int]:
    """Return *count* different TCP ports on which nothing listens on loopback."""
    ports: list[int] = []
    for port in random.SystemRandom().sample(PORT_RANGE, len(PORT_RANGE)):
        if is_port_free(port):
            ports.append(port)
        if len(ports) == count:
            return ports
    raise OSError(f"fewer than {count} free ports in {PORT_RANGE}")


def is_port_free(port: int, *, address: str = "127.0.0.1") -> bool:
    """Tell whether a server could listen on *port* of *address* now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True
