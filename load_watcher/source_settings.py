"""The settings of each of several providers: the environment's, and over them those of a YAML file for that provider alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from load_watcher.errors import SettingsError
from load_watcher.nearest import suggest
from load_watcher.settings import SECRET_VARIABLES, Settings, list_variables


def load_source_settings(settings: Settings, providers: Collection[str]) -> dict[str, Settings]:
    """
    Read the settings of each of several providers: the environment's, and over them those of the file for that provider alone.

    Args:
        settings: What the environment says; its ``sources`` is the file.
        providers: The names of the providers that are used.

    Raises:
        SettingsError: If the file cannot be used; lists every problem.
    """
    if settings.sources is None:
        return dict.fromkeys(providers, settings)
    place = f"LOAD_WATCHER_SOURCES={str(settings.sources)!r}"
    try:
        listed = yaml.safe_load(settings.sources.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError([f"{place}: not a YAML file that can be read: {error}"]) from error
    if not isinstance(listed, dict) or not all(isinstance(values, dict) for values in listed.values()):
        raise SettingsError([f"{place}: write a mapping of provider names, with a mapping of variables under each"])
    variables = {variable.name: variable for variable in list_variables()}
    problems = [f"{place}: {name!r} is not one of the providers of METRICS_PROVIDER_NAME" for name in listed if name not in providers]
    result = {}
    for name in providers:
        overlay = {str(key): value for key, value in listed.get(name, {}).items()}
        problems += [f"{place}: {name}: {key} is not a variable{suggest(key, variables)}" for key in overlay if key not in variables]
        try:
            result[name] = Settings(**overlay)
        except ValidationError as error:
            problems += [f"{place}: {name}: {_describe_overlay(detail, overlay)}" for detail in error.errors(include_url=False)]
    if problems:
        raise SettingsError(problems)
    return result


def _describe_overlay(detail: ErrorDetails, overlay: Mapping[str, object]) -> str:
    variable = str(detail["loc"][0])
    value = " (value not shown)" if variable in SECRET_VARIABLES else f"={overlay.get(variable)!r}"
    return f"{variable}{value}: {detail['msg']}"
