"""Requests as a client sends them: many by wrk, one as raw bytes, and some at a steady pace while something else goes on."""

from __future__ import annotations

import asyncio
import math
import re
import shutil
import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

CONNECTIONS: Final = 8
_STEP_SECONDS: Final = 0.005
_SOCKET_SECONDS: Final = 30.0
_WRK_TIMEOUT: Final = "30s"  # of 8 answers of 35 MB at once, one was once slower than the 2 s of wrk's own
_READ_BYTES: Final = 1 << 20
_LENGTH: Final = re.compile(rb"\r\nContent-Length: ([0-9]+)", re.IGNORECASE)


class LoadError(Exception):
    """The requests could not be sent, or were not answered as they should; the message says what to do."""


@dataclass(frozen=True)
class Load:
    """What wrk got through: how many requests, and how many a second."""

    requests: int
    rate: float


async def measure_load(url: str, headers: Mapping[str, str], *, seconds: float) -> Load:
    """
    Send requests by wrk for that long, over 8 connections that stay open.

    wrk itself takes whole seconds only; on SIGINT it ends early and divides by the time that really passed.

    Raises:
        LoadError: If wrk is missing, or an answer is not a success.
    """
    program = shutil.which("wrk")
    if program is None:
        raise LoadError("wrk is missing; apt-get install --no-install-recommends wrk")
    options = [part for name, value in headers.items() for part in ("-H", f"{name}: {value}")]
    command = [program, "-t1", f"-c{CONNECTIONS}", f"-d{math.ceil(seconds) + 1}s", "--timeout", _WRK_TIMEOUT, *options, url]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT)
    await asyncio.sleep(seconds)
    if process.returncode is None:
        process.send_signal(signal.SIGINT)
    output = (await process.communicate())[0].decode()
    count, rate = re.search(r"(\d+) requests in", output), re.search(r"Requests/sec:\s+([0-9.]+)", output)
    if count is None or rate is None or process.returncode != 0 or "Non-2xx or 3xx" in output or "Socket errors" in output:
        raise LoadError(f"{' '.join(command)} says:\n{output}")
    return Load(int(count[1]), float(rate[1]))


def fetch_raw(port: int, path: str, headers: Mapping[str, str]) -> bytes:
    """
    Answer what a server sends to one request, head and body.

    Raises:
        LoadError: If it closes before its end.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=_SOCKET_SECONDS) as connection:
        return _exchange(connection, _write_request(port, path, headers))


def _write_request(port: int, path: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode()


def _exchange(connection: socket.socket, request: bytes) -> bytes:
    connection.sendall(request)
    parts, held, wanted = [], 0, math.inf
    while held < wanted:
        part = connection.recv(_READ_BYTES)
        if not part:
            raise LoadError("the server closed the connection in the middle of an answer; its log says why")
        parts.append(part)
        held += len(part)
        if wanted == math.inf:
            wanted = _find_end(b"".join(parts))
    return b"".join(parts)


def _find_end(begun: bytes) -> float:
    """Find where an answer ends that has begun so; infinity while that is not known."""
    head, end, body = begun.partition(b"\r\n\r\n")
    if not end:
        return math.inf
    if b"\r\nTransfer-Encoding: chunked" in head:
        return len(begun) if body.endswith(b"\r\n0\r\n\r\n") else math.inf
    length = _LENGTH.search(head)
    return len(head) + len(end) + (int(length[1]) if length else 0)


def parse_header(reply: bytes, name: str) -> str:
    """Answer a header of a raw reply; empty without it."""
    found = re.search(rb"\r\n" + name.encode() + rb": ([^\r]*)\r\n", reply.partition(b"\r\n\r\n")[0] + b"\r\n", re.IGNORECASE)
    return found[1].decode() if found else ""


def wait_first_answer(port: int, path: str, *, started_at: float, timeout_seconds: float) -> float:
    """
    Answer how long after *started_at* (monotonic seconds) the first success came.

    Raises:
        LoadError: If none came in time.
    """
    while time.monotonic() - started_at < timeout_seconds:
        try:
            reply = fetch_raw(port, path, {})
        except (ConnectionError, LoadError):
            reply = b""
        if reply.startswith(b"HTTP/1.1 200"):
            return time.monotonic() - started_at
        time.sleep(_STEP_SECONDS)
    raise LoadError(f"no answer to {path} within {timeout_seconds:g} s; the log of the program says why")


def measure_latencies(port: int, path: str, headers: Mapping[str, str], *, per_second: float, seconds: float) -> list[float]:
    """Answer the seconds that each of a steady stream of requests took, over one connection that stays open."""
    request = _write_request(port, path, headers)
    taken = []
    with socket.create_connection(("127.0.0.1", port), timeout=_SOCKET_SECONDS) as connection:
        started_at = due_at = time.monotonic()
        while due_at < started_at + seconds:
            time.sleep(max(0.0, due_at - time.monotonic()))
            sent_at = time.monotonic()
            _exchange(connection, request)
            taken.append(time.monotonic() - sent_at)
            due_at += 1 / per_second
    return taken
