"""From plain data, as a configuration file holds it, to the arguments of a policy; every problem is told at once."""

from __future__ import annotations

import dataclasses
import difflib
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from trimaran_client.errors import PolicyArgumentError

_ArgsT = TypeVar("_ArgsT")

# The preset is chosen beside the arguments, since it says whose names they have.
_NOT_READ: Final = ("preset",)


def read_arguments(policy: str, kind: type[_ArgsT], args: Mapping[str, object]) -> _ArgsT:
    """
    Make the arguments of a policy.

    Args:
        policy: Its name, for messages.
        kind: The dataclass to make; it judges numbers and choices itself.
        args: Field name → value; nested dataclasses as mappings, several as lists, or made already.

    Raises:
        PolicyArgumentError: Naming every unknown field, every wrong type and every bad value.
    """
    problems: list[str] = []
    values = _read_fields(kind, args, "", problems)
    bad = tuple(name for name in args if name not in values)
    try:
        made = kind(**values)
    except PolicyArgumentError as error:
        # What could not be read is not told again as missing.
        problems += [each for each in error.problems if not each.startswith(bad)]
        raise PolicyArgumentError.of(policy, problems) from error
    if problems:
        raise PolicyArgumentError.of(policy, problems)
    return made


def unknown_problems(names: Iterable[object], known: Sequence[str], what: str = "argument") -> list[str]:
    """
    List the names that are not known, each with the nearest that is.

    >>> unknown_problems(["fallbck"], ["fallback", "preset"])
    ["there is no argument 'fallbck' (did you mean fallback?); use one of fallback, preset"]
    """
    return [
        f"there is no {what} {reprlib.repr(name)}{_nearest(str(name), known)}; use one of {', '.join(known)}"
        for name in names
        if name not in known
    ]


def _nearest(name: str, known: Sequence[str]) -> str:
    folded = {each.casefold().replace("_", ""): each for each in known}
    near = difflib.get_close_matches(name.casefold().replace("_", ""), folded, n=1)
    return f" (did you mean {folded[near[0]]}?)" if near else ""


def _read_fields(kind: type[Any], given: Mapping[str, object], where: str, problems: list[str]) -> dict[str, Any]:
    """Read the fields that can be; *where* is what stands before their names in messages."""
    hints = {field.name: get_type_hints(kind)[field.name] for field in dataclasses.fields(kind) if field.name not in _NOT_READ}
    what = f"field of {where.rstrip('.')}" if where else "argument"
    problems += unknown_problems(given, tuple(hints), what)
    values: dict[str, Any] = {}
    for name, hint in hints.items():
        if name in given:
            count = len(problems)
            value = _read(hint, given[name], where + name, problems)
            if len(problems) == count:
                values[name] = value
    return values


def _read(hint: Any, value: object, where: str, problems: list[str]) -> object:  # noqa: ANN401 - a type hint has no type
    if hint is str and not isinstance(value, str):
        problems.append(f"{where} is {reprlib.repr(value)}; give text")
    elif dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return value if isinstance(value, hint) else _read_nested(hint, value, where, problems)
    elif get_origin(hint) is tuple:
        if isinstance(value, list | tuple):
            return tuple(_read(get_args(hint)[0], each, f"{where}[{index}]", problems) for index, each in enumerate(value))
        problems.append(f"{where} is {reprlib.repr(value)}; give a list")
    elif get_origin(hint) is Mapping:
        if isinstance(value, Mapping):
            return {str(key): _read(get_args(hint)[1], each, f"{where}[{key}]", problems) for key, each in value.items()}
        problems.append(f"{where} is {reprlib.repr(value)}; give a mapping")
    return value


def _read_nested(kind: type[Any], value: object, where: str, problems: list[str]) -> object:
    if not isinstance(value, Mapping):
        problems.append(f"{where} is {reprlib.repr(value)}; give a mapping")
        return None
    count = len(problems)
    values = _read_fields(kind, value, f"{where}.", problems)
    problems += [
        f"{where}.{field.name} is missing"
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING and field.name not in value
    ]
    return kind(**values) if len(problems) == count else None
