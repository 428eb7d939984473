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
from load_watcher.limits import QualityLimits
from load_watcher.nearest import suggest

_PREFIXES: Final = ("LOAD_WATCHER_", "METRICS_PROVIDER_")
# What Kubernetes puts into every pod for a Service (documentation, "Service", environment variables), after the name of the Service.
_SERVICE_VARIABLE: Final = re.compile(r"SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?")
_SERVICE_HOST: Final = "SERVICE_HOST"
SECRET_VARIABLES: Final = frozenset({"METRICS_PROVIDER_TOKEN", "METRICS_PROVIDER_APP_KEY", "METRICS_PROVIDER_PASSWORD"})
# User and password in an address.
_CREDENTIALS: Final = re.compile(r"^([a-z]+://)?.*@")
_QUERY: Final = re.compile(r"\?.*$")
_SHOWN: Final = 200
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
    try:
        found = path.expanduser()
        if found.is_file():
            return found
    except (OSError, RuntimeError) as error:  # a name too long, or the home of nobody
        raise ValueError(f"it cannot be looked up: {str(error)[:100]}") from error
    raise ValueError("there is no such file")


def _split(text: object) -> object:
    return tuple(word for word in re.split(r"[\s,]+", text) if word) if isinstance(text, str) else text


ExistingFile = Annotated[Path, AfterValidator(_check_file)]
_FILE_REMEDY: Final = "give the path of a file that this user can read"
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _variable(name: str, default: object, description: str, remedy: str = "") -> Any:  # noqa: ANN401 - as pydantic's own Field
    return Field(default, validation_alias=name, description=description, json_schema_extra={"remedy": remedy})


def _parse_limits(text: object) -> QualityLimits:
    return text if isinstance(text, QualityLimits) else QualityLimits.parse(str(text))


def _check_history(text: str) -> str:
    if text not in ("off", "memory") and "/" not in text:
        raise ValueError("it is neither off nor memory, and a path has a / in it")
    return text


class Settings(BaseSettings):
    """What the environment says; each field is one variable, an empty one counts as not set."""

    model_config = SettingsConfigDict(frozen=True, case_sensitive=True, env_ignore_empty=True, validate_default=True, extra="ignore")

    provider_name: str | None = _variable(
        "METRICS_PROVIDER_NAME",
        None,
        "where the metrics come from; not set: KubernetesMetricsServer if there are in-cluster files or a kubeconfig, else Local",
    )
    sources: ExistingFile | None = _variable(
        "LOAD_WATCHER_SOURCES",
        None,
        "YAML file for several providers: under the name of each the variables that it alone has",
        "give the path of a file that this user can read",
    )
    provider_address: str | None = _variable(
        "METRICS_PROVIDER_ADDRESS", None, "address of the source; for Recorded the path of the file", "set it to the path of a recording"
    )
    provider_token: SecretStr | None = _variable("METRICS_PROVIDER_TOKEN", None, "token that the source asks for")
    provider_token_file: ExistingFile | None = _variable(
        "METRICS_PROVIDER_TOKEN_FILE", None, "file with that token, read anew for each refresh", _FILE_REMEDY
    )
    provider_app_key: SecretStr | None = _variable(
        "METRICS_PROVIDER_APP_KEY", None, "application key, which Datadog asks for beside the token"
    )
    provider_app_key_file: ExistingFile | None = _variable(
        "METRICS_PROVIDER_APP_KEY_FILE", None, "file with that key, read anew for each refresh", _FILE_REMEDY
    )
    provider_username: str = _variable("METRICS_PROVIDER_USERNAME", "", "user for basic authentication, where there is no token")
    provider_password: SecretStr | None = _variable("METRICS_PROVIDER_PASSWORD", None, "password of that user")
    provider_password_file: ExistingFile | None = _variable(
        "METRICS_PROVIDER_PASSWORD_FILE", None, "file with that password, read anew for each refresh", _FILE_REMEDY
    )
    provider_ca_file: ExistingFile | None = _variable(
        "METRICS_PROVIDER_CA_FILE", None, "PEM file with the only CAs to trust; not set: those of the system", _FILE_REMEDY
    )
    provider_cert_file: ExistingFile | None = _variable(
        "METRICS_PROVIDER_CERT_FILE", None, "PEM file with our own certificate, for a source that asks for one", _FILE_REMEDY
    )
    provider_key_file: ExistingFile | None = _variable(
        "METRICS_PROVIDER_KEY_FILE", None, "PEM file with its key; not set: in the same file", _FILE_REMEDY
    )
    provider_server_name: str = _variable(
        "METRICS_PROVIDER_SERVER_NAME", "", "name that the certificate of the source must have; not set: the host of the address"
    )
    openshift_auth: bool = _variable(
        "ENABLE_OPENSHIFT_AUTH",
        False,  # noqa: FBT003 - a default
        "true: where none are set, use the CA and the token of the pod's service account",
        "use true or false",
    )
    host_labels: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)] = _variable(
        "LOAD_WATCHER_HOST_LABEL", (), "labels of a series that name its node, separated by commas, the best first"
    )
    host_suffix: str = _variable(
        "LOAD_WATCHER_HOST_SUFFIX", "", "what Prometheus appends to the names of the nodes, for example .example.org"
    )
    signalfx_host_suffix: str = _variable("SIGNALFX_HOST_NAME_SUFFIX", "", "what SignalFx has after the names of the nodes")
    signalfx_cluster: str = _variable("SIGNALFX_CLUSTER_NAME", "", "the cluster whose hosts SignalFx is asked for; not set: all")
    datadog_host_suffix: str = _variable("DATADOG_HOST_NAME_SUFFIX", "", "what Datadog has after the names of the nodes")
    datadog_cluster: str = _variable("DATADOG_CLUSTER_NAME", "", "the cluster whose hosts Datadog is asked for; not set: all")
    catalogue: ExistingFile | None = _variable(
        "LOAD_WATCHER_CATALOGUE", None, "YAML file with expressions for Prometheus, over the built-in ones", _FILE_REMEDY
    )
    go_scaling: bool = _variable(
        "LOAD_WATCHER_GO_SCALING",
        False,  # noqa: FBT003 - a default
        "true: multiply every value of Prometheus by 100 whatever its unit, as the Go load-watcher does",
        "use true or false",
    )
    kubeconfig: ExistingFile | None = _variable(
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
    quality_limits: Annotated[QualityLimits, NoDecode, BeforeValidator(_parse_limits)] = _variable(
        "LOAD_WATCHER_QUALITY_LIMITS",
        "",
        "limits of the rules that judge samples, for example grace_seconds=60, max_percent=120; not set: those of docs/quality.md",
        "write name=number, separated by commas",
    )
    history: Annotated[str, AfterValidator(_check_history)] = _variable(
        "LOAD_WATCHER_HISTORY",
        "memory",
        "off, memory (an hour of samples), or the path of a file that also survives a restart; a path has a / in it",
        "use off, memory, or a path such as ./history.db",
    )
    history_hours: Annotated[float, Field(gt=0, le=24 * 366, allow_inf_nan=False)] = _variable(
        "LOAD_WATCHER_HISTORY_HOURS", 24.0, "hours for which the file keeps every sample", "give a number of hours above 0, a year at most"
    )
    history_days: Annotated[float, Field(gt=0, le=3660, allow_inf_nan=False)] = _variable(
        "LOAD_WATCHER_HISTORY_DAYS",
        30.0,
        "days for which the file keeps 5-minute averages",
        "give a number of days above 0, ten years at most",
    )
    history_megabytes: Annotated[float, Field(ge=16, allow_inf_nan=False)] = _variable(
        "LOAD_WATCHER_HISTORY_MEGABYTES", 1024.0, "size from which the oldest of the file goes first", "give at least 16 megabytes"
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
            _check_file(Path(address))
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
        default = (
            "" if field.default in (None, ()) else f"{field.default:g}" if isinstance(field.default, float) else str(field.default).lower()
        )
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
    for provider in split_names(os.environ.get("METRICS_PROVIDER_NAME", "")):
        if provider not in known_providers:
            known = ", ".join(sorted(known_providers))
            problems.append(f"METRICS_PROVIDER_NAME={provider!r}: no such provider{suggest(provider, known_providers)}; use one of {known}")
    if settings is None or problems:
        raise SettingsError([*problems, *warnings])
    return settings, warnings


def split_names(text: str) -> tuple[str, ...]:
    """Split a list of names at commas; one that stands twice counts once."""
    return tuple(dict.fromkeys(name for word in text.split(",") if (name := word.strip())))


def _describe(detail: ErrorDetails, variable: Variable) -> str:
    cause = str(detail["ctx"]["error"]) if detail["type"] == "value_error" else detail["msg"][:1].lower() + detail["msg"][1:]
    if variable.name not in os.environ:
        value = f"={variable.default} (the default)" if variable.default else " (not set)"
    elif variable.name in SECRET_VARIABLES:
        value = " (value not shown)"
    else:
        shown = _QUERY.sub("?…", _CREDENTIALS.sub(r"\1…@", os.environ[variable.name]))
        value = f"={shown[:_SHOWN]!r}"
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
