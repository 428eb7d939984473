"""
What both programs show to whoever runs them: probes, metrics, logs and one shape of error.

It stands beside the core of the library: only ``load_watcher`` and ``trimaran_client.extender`` import it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import gc
import importlib
import io
import logging
import os
import queue
import resource
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TextIO

import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler
from cachetools import TTLCache
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

Probe = Callable[[], str | None]
"""Answers ``None`` when all is well, else a sentence that says what is wrong and what to do."""

# Connections that wait to be taken, as many as the system allows (net.core.somaxconn): a lost one is tried again only after a second.
BACKLOG = 4096
_ERROR_NAMES = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}
# They write one record for each request, with its body, as soon as the root level is debug.
_CHATTY_LOGGERS = ("aiohttp.access", "kubernetes_asyncio")

# A scheduler closes an idle connection after 90 s, and loses a question on one that was closed under it; others ask every 30 s.
KEEP_ALIVE_SECONDS = 3600
_REPEAT_SECONDS = 10.0
# How long a body that nobody wants is still read; the end of the program waits for that too.
_LINGERING_SECONDS = 1.0
# Names of malloc.h. Smaller thresholds save 10 MB more, and cost a fifth of the CPU of a refresh: each block is cleared by the kernel.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_TRIMMED_BYTES = 8 * 1024 * 1024
_MAPPED_BYTES = 4 * 1024 * 1024
# How long an answer waits for the interpreter, each time, while a thread works beside the loop; by default 5 ms, and p99 shows it.
_SWITCH_SECONDS = 0.0005
# At the end of a process; a log that is read takes far less.
_FLUSH_SECONDS = 2.0

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


def choose_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Choose what makes the event loop: uvloop where it is installed (the extra ``speed``), else ``None``, the standard library's."""
    try:
        return importlib.import_module("uvloop").new_event_loop  # type: ignore[no-any-return]
    except ImportError:
        return None


def allow_connections() -> None:
    """Allow as many connections as this process may have: the usual soft limit of 1,024 files is for programs that use select()."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS says unlimited, and allows less
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def return_memory() -> None:
    """
    Have freed memory given back to the system, for the whole life of the process.

    By default glibc keeps up to 64 MB at the end of its heap once it has seen large blocks go, such as replies of a metrics source, and
    has a heap for each of several threads. Another C library is left as it is.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, _TRIMMED_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        mallopt(_M_ARENA_MAX, 1)


class HttpError(Exception):
    """
    An answer other than success, raised by a handler.

    Args:
        status: The HTTP status.
        error: A short name for programs, for example ``unknown_node``.
        message: A sentence for people: what happened and what to do.
        headers: Further headers of the answer.
    """

    def __init__(self, status: int, error: str, message: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.error = error
        self.headers = headers


def error_response(status: int, error: str, message: str, *, headers: Mapping[str, str] | None = None) -> web.Response:
    """Write the one JSON shape of every error: ``{"status": 404, "error": "unknown_node", "message": "…"}``."""
    body = msgspec.json.encode({"status": status, "error": error, "message": message})
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


@web.middleware
async def error_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every exception of a handler into the JSON error; an unexpected one is logged and tells nothing of the inside."""
    try:
        return await handler(request)
    except HttpError as error:
        return error_response(error.status, error.error, str(error), headers=error.headers)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        kept = {name: value for name, value in error.headers.items() if name not in ("Content-Type", "Content-Length")}
        return error_response(error.status, _ERROR_NAMES.get(error.status, "http_error"), _explain(request, error), headers=kept)
    except Exception:  # noqa: BLE001 - the last resort of a server: one bad request must not end a connection without an answer
        _log.exception("request failed", method=request.method, path=request.path)
        return error_response(500, "internal", "the program failed on this request; its log says why")


def _explain(request: web.Request, error: web.HTTPException) -> str:
    if isinstance(error, web.HTTPNotFound):
        known = sorted({resource.canonical for resource in request.app.router.resources()})
        return f"there is nothing at {request.path}; ask for one of {', '.join(known)}"
    if isinstance(error, web.HTTPMethodNotAllowed):
        return f"{request.path} does not answer {error.method}; use {' or '.join(sorted(error.allowed_methods))}"
    return error.text or error.reason


def add_probes(app: web.Application, *, live: Probe, ready: Probe) -> None:
    """Serve ``GET /livez`` and ``GET /readyz``: 200, or 503 with the sentence that the probe gives."""

    async def answer_live(_: web.Request) -> web.Response:
        return _answer_probe(live(), "not_live")

    async def answer_ready(_: web.Request) -> web.Response:
        return _answer_probe(ready(), "not_ready")

    app.router.add_get("/livez", answer_live)
    app.router.add_get("/readyz", answer_ready)


def _answer_probe(problem: str | None, error: str) -> web.Response:
    if problem is not None:
        return error_response(503, error, problem)
    return web.Response(body=b'{"status":"ok"}', content_type="application/json")


def settle() -> None:
    """
    Keep from pausing the process, for its whole life.

    The collector of garbage no longer goes through what stays for good: modules and wiring, some 100,000 objects. And a thread that works
    beside the loop gives way to it within a tenth of the usual time.
    """
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(_SWITCH_SECONDS)


def explain_os_error(error: OSError) -> str:
    """
    Answer the system's own words for an error, since event loops word it differently.

    A name that does not resolve has words, but no number of the system.
    """
    number = error.errno or 0
    return os.strerror(number) if number in errno.errorcode else str(error.strerror)


def make_runner(app: web.Application, *, shutdown_seconds: float, handler_cancellation: bool = False) -> web.AppRunner:
    """
    Make what runs *app*, as both programs do.

    Bodies are taken as they are sent: none of our clients compresses them, and three megabytes may unpack to gigabytes, which would keep
    the event loop for seconds.

    Args:
        app: The application.
        shutdown_seconds: How long answers that are under way may take at the end.
        handler_cancellation: Whether a handler ends with its connection.
    """
    return web.AppRunner(
        app,
        access_log=None,
        keepalive_timeout=KEEP_ALIVE_SECONDS,
        shutdown_timeout=shutdown_seconds,
        lingering_time=_LINGERING_SECONDS,
        handler_cancellation=handler_cancellation,
        auto_decompress=False,
    )


def add_metrics(app: web.Application, registry: CollectorRegistry, *, settle: Callable[[], None] = lambda: None) -> None:
    """
    Serve ``GET /metrics`` from *registry*; the text is made in a thread, since it takes milliseconds with many series.

    *settle* is called before, within the event loop, to count what was put off.
    """
    # Of its own: the threads that everybody shares may all hang in a file or a name lookup.
    threads = ThreadPoolExecutor(1, thread_name_prefix="metrics")

    async def answer_metrics(request: web.Request) -> web.Response:
        settle()
        try:
            encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        except ValueError:  # a version that is no number: the plain format is always understood
            encode, content_type = choose_encoder("")
        body = await asyncio.get_running_loop().run_in_executor(threads, encode, registry)
        return web.Response(body=body, headers={"Content-Type": content_type})

    app.router.add_get("/metrics", answer_metrics)


class _OncePer(logging.Filter):
    """Pass one record of each message in a span of time."""

    def __init__(self, *, seconds: float) -> None:
        super().__init__()
        self._passed: TTLCache[str, bool] = TTLCache(100, seconds)

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether the record is the first of its message."""
        is_first = record.msg not in self._passed
        self._passed[str(record.msg)] = True
        return is_first


class LogWriter(logging.Handler):
    """
    Write records in a thread of its own: who reads the log may hang, as a full disk behind a pipe does, and no answer is to wait for it.

    Args:
        stream: Where to write.
        most_lines: How many may wait; more are dropped, and their number is told when writing goes on.
    """

    def __init__(self, stream: TextIO, *, most_lines: int = 10_000) -> None:
        super().__init__()
        self._stream = stream
        self._lines: queue.Queue[str] = queue.Queue(most_lines)
        self._dropped = 0
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Put a record behind those that wait."""
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self._dropped += 1
        except Exception:  # noqa: BLE001 - the contract of logging: a record that cannot be written ends nothing
            self.handleError(record)
        if self._thread is None:  # under the lock of the handler
            self._thread = threading.Thread(target=self._run, name="log", daemon=True)
            self._thread.start()

    def flush(self) -> None:
        """Wait until everything is written, but not for ever."""
        with self._lines.all_tasks_done:
            self._lines.all_tasks_done.wait_for(lambda: not self._lines.unfinished_tasks, _FLUSH_SECONDS)

    def _run(self) -> None:
        while True:
            line = self._lines.get()
            dropped, self._dropped = self._dropped, 0
            if dropped:
                told = f"{dropped} records could not be written in time and are lost"
                line += "\n" + self.format(
                    logging.makeLogRecord({"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING", "msg": told})
                )
            with contextlib.suppress(OSError, ValueError):  # nobody reads any more, or it is closed
                self._stream.write(line + "\n")
                self._stream.flush()
            self._lines.task_done()


def configure_logging(level: str, *, log_format: str = "auto", stream: TextIO | None = None) -> None:
    """
    Send the records of structlog and of the standard library through one formatter.

    Args:
        level: A level of the standard library, in any case.
        log_format: ``text`` (key=value), ``json``, or ``auto``: text on a terminal, else JSON.
        stream: Where to write; standard error by default.
    """
    stream = stream or sys.stderr or io.StringIO()  # a process may be started with its standard error closed
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: list[structlog.typing.Processor]
    if log_format == "text" or (log_format == "auto" and stream.isatty()):
        # The plain formatter: the fancy one prints local variables, and a token can be among them.
        colors = stream.isatty()
        renderer = [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)]
    else:
        renderer = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    handler = LogWriter(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    for name in _CHATTY_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    # A traceback for each malformed request, a record for each accept without a free descriptor: any client could make as many as it likes.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").addFilter(_OncePer(seconds=_REPEAT_SECONDS))
