"""The query parameters of the API: text to values, with an error that names the parameter, its value and what to write instead."""

from __future__ import annotations

from aiohttp import web

from load_watcher.history.aggregate import OPERATORS
from load_watcher.samples import Window
from load_watcher.server.errors import bad_parameter
from trimaran_client.wire import AVERAGE, STANDARD_DEVIATION


def parse_window(request: web.Request, name: str = "window") -> Window | None:
    """
    Read a duration such as ``15m``; ``None`` where the parameter is absent or empty.

    Raises:
        HttpError: 400, if it is none.
    """
    text = request.query.get(name, "")
    if not text:
        return None
    try:
        return Window.parse(text)
    except ValueError as error:
        raise bad_parameter(name, text, str(error)) from error


def parse_operators(request: web.Request) -> tuple[str, ...]:
    """
    Read which statistics are wanted: ``statistic``, several times or separated by commas; average and deviation without.

    Raises:
        HttpError: 400, if one is not known.
    """
    names = [name for text in request.query.getall("statistic", []) for name in text.split(",") if name]
    for name in names:
        if name not in OPERATORS:
            raise bad_parameter("statistic", name, f"choose from {', '.join(OPERATORS)}")
    return tuple(dict.fromkeys(names)) or (AVERAGE, STANDARD_DEVIATION)


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
    if not (text.isascii() and text.replace(".", "", 1).isdigit() and len(text) < 20):
        raise bad_parameter(name, text, "write Unix seconds, for example 1700000000")
    return float(text)
