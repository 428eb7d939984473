"""
The settings of the service: the only reader of the environment.

Names of the Go load-watcher keep their meaning; ours begin with ``LOAD_WATCHER_``. All problems are reported at once, each with the
variable, its value and the remedy; a value that may be secret is never shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from load_watcher.errors import SettingsError
from load_watcher.nearest import suggest

_PREFIXES: Final = ("LOAD_WATCHER_", "METRICS_PROVIDER_")
# What Kubernetes puts into every pod for a Service (documentation, "Service", environment variables), after the name of the Service.
_SERVICE_VARIABLE: Final = re.compile(r"SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?")
_SERVICE_HOST: Final = "SERVICE_HOST"
_SECRET: Final = frozenset({"METRICS_PROVIDER_TOKEN"})
# User and password in an address.
_CREDENTIALS: Final = re.compile(r"//[^/\s]*@")
_RECORDED: Final = "Recorded"
# logrus, which the Go load-watcher logs with, knows more levels than the standard library.
_LOG_LEVELS: Final = {
    "panic": "CRITICAL",
    "fatal": "CRITICAL",
    "error": "ERROR",
    "warn": "WARNING",
    "warning": "WARNING",
    "info": "INFO",
    "debug": "DEBUG",
    "trace": "DEBUG",
}
_MAX_PORT: Final = 65535


class BindAddress(NamedTuple):
    """Where the service listens; ``host`` is empty for every address of the machine, ``port`` 0 for any free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: object) -> Self:
        """
        Read ``HOST:PORT``, with brackets around an IPv6 address, or ``:PORT``.

        Raises:
            ValueError: If it is neither.

        >>> BindAddress.parse("[::1]:2020")
        BindAddress(host='::1', port=2020)
        """
        host, colon, port = str(text).rpartition(":")
        if not colon or not re.fullmatch("[0-9]{1,5}", port) or int(port) > _MAX_PORT:
            raise ValueError(f"it has no port from 0 to {_MAX_PORT}")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError("an IPv6 address needs brackets")
        return cls(host, int(port))


def _parse_log_level(text: object) -> str:
    level = _LOG_LEVELS.get(str(text).lower())
    if level is None:
        raise ValueError("it is not a level")
    return level


def _check_file(path: Path) -> Path:
    if not path.expanduser().is_file():
        raise ValueError("there is no such file")
    return path.expanduser()


Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _variable(name: str, default: object, description: str, remedy: str = "") -> Any:  # noqa: ANN401 - as pydantic's own Field
    return Field(default, validation_alias=name, description=description, json_schema_extra={"remedy": remedy})


class Settings(BaseSettings):
    """What the environment says; each field is one variable, an empty one counts as not set."""

    model_config = SettingsConfigDict(frozen=True, case_sensitive=True, env_ignore_empty=True, validate_default=True, extra="ignore")

    provider_name: str | None = _variable(
        "METRICS_PROVIDER_NAME",
        None,
        "where the metrics come from; not set: KubernetesMetricsServer if there are in-cluster files or a kubeconfig, else Local",
    )
    provider_address: str | None = _variable(
        "METRICS_PROVIDER_ADDRESS", None, "address of the source; for Recorded the path of the file", "set it to the path of a recording"
    )
    provider_token: SecretStr | None = _variable("METRICS_PROVIDER_TOKEN", None, "token that the source asks for")
    kubeconfig: Annotated[Path, AfterValidator(_check_file)] | None = _variable(
        "KUBE_CONFIG",
        None,
        "kubeconfig file; not set: in-cluster files, then KUBECONFIG, then ~/.kube/config",
        "give the path of a kubeconfig that this user can read, or unset it",
    )
    insecure_skip_verify: bool = _variable(
        "INSECURE_SKIP_VERIFY",
        False,  # noqa: FBT003 - a default
        "true: do not verify the TLS certificate of the source",
        "use true or false",
    )
    log_level: Annotated[str, BeforeValidator(_parse_log_level)] = _variable(
        "LOG_LEVEL", "info", "least severe level that is logged", f"use one of {', '.join(_LOG_LEVELS)}"
    )
    log_format: Literal["auto", "text", "json"] = _variable(
        "LOAD_WATCHER_LOG_FORMAT", "auto", "text, json, or auto: text on a terminal, else json", "use auto, text or json"
    )
    bind: Annotated[BindAddress, NoDecode, BeforeValidator(BindAddress.parse)] = _variable(
        "LOAD_WATCHER_BIND",
        "127.0.0.1:2020",
        "address and port to listen on; :2020 is every address, port 0 any free port",
        "write HOST:PORT, for example 127.0.0.1:2020, [::1]:2020 or :2020",
    )
    refresh_seconds: Annotated[Seconds, Field(ge=1, le=3600)] = _variable(
        "LOAD_WATCHER_REFRESH_SECONDS",
        30.0,
        "seconds from one refresh to the next",
        "give 1 to 3600 seconds: agents report every 10 to 60, so that less than 1 only repeats, and an hour is too old to act on",
    )
    fetch_timeout_seconds: Seconds = _variable(
        "LOAD_WATCHER_FETCH_TIMEOUT_SECONDS",
        10.0,
        "deadline of one refresh in seconds, all tries included; never more than the refresh interval",
        "give a number of seconds above 0",
    )
    stale_seconds: Seconds = _variable(
        "LOAD_WATCHER_STALE_SECONDS",
        300.0,
        "age in seconds from which a node is marked stale, and the service is not ready",
        "give more seconds than LOAD_WATCHER_REFRESH_SECONDS",
    )
    expired_seconds: Seconds = _variable(
        "LOAD_WATCHER_EXPIRED_SECONDS",
        900.0,
        "age in seconds from which a value is no longer served",
        "give more seconds than LOAD_WATCHER_STALE_SECONDS",
    )
    recorded_times: Literal["shift", "keep"] = _variable(
        "LOAD_WATCHER_RECORDED_TIMES",
        "shift",
        "times of a recording: shift (to now, over and over) or keep (as recorded, then the last line for ever)",
        "use shift or keep",
    )

    @field_validator("provider_address")
    @classmethod
    def _check_recording(cls, address: str | None, info: ValidationInfo) -> str | None:
        if info.data.get("provider_name") == _RECORDED:
            if address is None:
                raise ValueError("the provider Recorded needs a file")
            if not Path(address).is_file():
                raise ValueError("there is no such file")
        return address

    @field_validator("fetch_timeout_seconds")
    @classmethod
    def _limit_timeout(cls, seconds: float, info: ValidationInfo) -> float:
        return min(seconds, float(info.data.get("refresh_seconds", seconds)))

    @field_validator("stale_seconds")
    @classmethod
    def _check_stale(cls, seconds: float, info: ValidationInfo) -> float:
        if seconds <= info.data.get("refresh_seconds", 0):
            raise ValueError("every value would be stale before the next refresh")
        return seconds

    @field_validator("expired_seconds")
    @classmethod
    def _check_expired(cls, seconds: float, info: ValidationInfo) -> float:
        if seconds <= info.data.get("stale_seconds", 0):
            raise ValueError("a value would never be served as stale")
        return seconds


class Variable(NamedTuple):
    """One variable of the environment, for the help and the documentation."""

    name: str
    default: str
    description: str
    remedy: str


def list_variables() -> tuple[Variable, ...]:
    """List every variable that the service reads."""
    variables = []
    for field in Settings.model_fields.values():
        extra = field.json_schema_extra
        remedy = str(extra.get("remedy", "")) if isinstance(extra, dict) else ""
        default = "" if field.default is None else f"{field.default:g}" if isinstance(field.default, float) else str(field.default).lower()
        variables.append(Variable(str(field.validation_alias), default, str(field.description), remedy))
    return tuple(variables)


def load_settings(known_providers: Collection[str]) -> tuple[Settings, tuple[str, ...]]:
    """
    Read the environment.

    Args:
        known_providers: The names that ``METRICS_PROVIDER_NAME`` may have.

    Returns:
        The settings, and a warning for each variable that looks like one of ours and is not.

    Raises:
        SettingsError: If a value cannot be used; lists every problem, the warnings among them.
    """
    variables = {variable.name: variable for variable in list_variables()}
    warnings = _warn_of_unknown(os.environ, variables)
    problems: list[str] = []
    settings: Settings | None = None
    try:
        settings = Settings()
    except ValidationError as error:
        # A value is placed under its variable, a default under its field.
        places = variables | dict(zip(Settings.model_fields, variables.values(), strict=True))
        problems = [_describe(detail, places[str(detail["loc"][0])]) for detail in error.errors(include_url=False)]
    provider = os.environ.get("METRICS_PROVIDER_NAME")
    if provider and provider not in known_providers:
        known = ", ".join(sorted(known_providers))
        problems.append(f"METRICS_PROVIDER_NAME={provider!r}: no such provider{suggest(provider, known_providers)}; use one of {known}")
    if settings is None or problems:
        raise SettingsError([*problems, *warnings])
    return settings, warnings


def _describe(detail: ErrorDetails, variable: Variable) -> str:
    cause = str(detail["ctx"]["error"]) if detail["type"] == "value_error" else detail["msg"][:1].lower() + detail["msg"][1:]
    if variable.name not in os.environ:
        value = f"={variable.default} (the default)" if variable.default else " (not set)"
    elif variable.name in _SECRET:
        value = " (value not shown)"
    else:
        value = f"={_CREDENTIALS.sub('//…@', os.environ[variable.name])!r}"
    return f"{variable.name}{value}: {cause}; {variable.remedy}"


def _warn_of_unknown(names: Iterable[str], known: Collection[str]) -> tuple[str, ...]:
    ours = [name for name in names if name.startswith(_PREFIXES)]
    # A Service called load-watcher-x brings its own set; what tells it from a mistyped name is that its SERVICE_HOST is there.
    services = {*_PREFIXES, *(name.removesuffix(_SERVICE_HOST) for name in ours if name.endswith(_SERVICE_HOST))}
    return tuple(
        f"{name} is not a variable of the load watcher and changes nothing{suggest(name, known)}"
        for name in sorted(ours)
        if name not in known and not any(name.startswith(s) and _SERVICE_VARIABLE.fullmatch(name.removeprefix(s)) for s in services)
    )
