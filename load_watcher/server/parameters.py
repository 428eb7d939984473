"""The query parameters of the API: text to values, with an error that names the parameter, its value and what to write instead."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from load_watcher.history.aggregate import OPERATORS
from load_watcher.samples import Window
from load_watcher.server.errors import bad_parameter

_MAX_DIGITS: Final = 20


def parse_window(request: web.Request, name: str = "window") -> Window | None:
    """
    Read a duration such as ``15m``; ``None`` where the parameter is absent or empty.

    Raises:
        HttpError: 400, if it is none.
    """
    text = request.query.get(name, "")
    return _parse_window(name, text) if text else None


def parse_windows(request: web.Request, name: str, *, most: int) -> tuple[Window, ...]:
    """
    Read durations, several times or separated by commas; none where the parameter is absent or empty.

    Raises:
        HttpError: 400, if one is none, or there are more than *most*.
    """
    windows = tuple(dict.fromkeys(_parse_window(name, text) for text in _split(request, name)))
    if len(windows) > most:
        raise bad_parameter(name, ",".join(map(str, windows)), f"ask for at most {most} at once")
    return windows


def parse_statistics(request: web.Request, name: str) -> tuple[str, ...]:
    """
    Read which statistics are wanted, several times or separated by commas; none where the parameter is absent or empty.

    Raises:
        HttpError: 400, if one is not known.
    """
    statistics = tuple(dict.fromkeys(_split(request, name)))
    for statistic in statistics:
        if statistic not in OPERATORS:
            raise bad_parameter(name, statistic, f"choose from {', '.join(OPERATORS)}")
    return statistics


def parse_seconds(request: web.Request, name: str, *, most: float) -> float:
    """
    Read a time in seconds, 0 where the parameter is absent; more than *most* is held there.

    Raises:
        HttpError: 400, if it is none.
    """
    text = request.query.get(name, "")
    if text and not _is_number(text):
        raise bad_parameter(name, text, f"write seconds from 0 to {most:g}")
    return min(float(text or 0), most)


def _parse_window(name: str, text: str) -> Window:
    try:
        return Window.parse(text)
    except ValueError as error:
        raise bad_parameter(name, text, str(error)) from error


def _split(request: web.Request, name: str) -> list[str]:
    return [part for text in request.query.getall(name, []) for part in text.split(",") if part]


def _is_number(text: str) -> bool:
    return text.isascii() and text.replace(".", "", 1).isdigit() and len(text) < _MAX_DIGITS


def parse_count(request: web.Request, name: str, *, default: int, most: int) -> int:
    """
    Read a whole number of at least 1; more than *most* is held there.

    Raises:
        HttpError: 400, if it is none.
    """
    text = request.query.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
        raise bad_parameter(name, text, "write a whole number of at least 1")
    return min(int(text), most)


def parse_instant(request: web.Request, name: str) -> float | None:
    """
    Read an instant in Unix seconds; ``None`` where the parameter is absent.

    Raises:
        HttpError: 400, if it is none.
    """
    text = request.query.get(name, "")
    if not text:
        return None
    if not _is_number(text):
        raise bad_parameter(name, text, "write Unix seconds, for example 1700000000")
    return float(text)
