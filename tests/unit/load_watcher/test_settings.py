import os
from pathlib import Path

import pytest
from pydantic_core import ErrorDetails

from load_watcher.errors import SettingsError
from load_watcher.settings import BindAddress, Settings, _describe, list_variables, load_settings

PROVIDERS = ("KubernetesMetricsServer", "Local", "Recorded")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {variable.name for variable in list_variables()}
    for name in list(os.environ):
        if name in known or name.startswith(("LOAD_WATCHER_", "METRICS_PROVIDER_")):
            monkeypatch.delenv(name)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "recording.jsonl"
    path.touch()
    return path


def load(monkeypatch: pytest.MonkeyPatch, **environment: str) -> Settings:
    settings, warnings = load_with_warnings(monkeypatch, **environment)
    assert warnings == ()
    return settings


def load_with_warnings(monkeypatch: pytest.MonkeyPatch, **environment: str) -> tuple[Settings, tuple[str, ...]]:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return load_settings(PROVIDERS)


def problems(monkeypatch: pytest.MonkeyPatch, **environment: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load_with_warnings(monkeypatch, **environment)
    return caught.value.problems


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(monkeypatch)
    assert settings.provider_name is None
    assert settings.provider_address is None
    assert settings.provider_token is None
    assert settings.kubeconfig is None
    assert settings.insecure_skip_verify is False
    assert settings.log_level == "INFO"
    assert settings.log_format == "auto"
    assert settings.bind == BindAddress("127.0.0.1", 2020)
    assert (settings.refresh_seconds, settings.fetch_timeout_seconds) == (30, 10)
    assert (settings.stale_seconds, settings.expired_seconds) == (300, 900)
    assert settings.recorded_times == "shift"


def test_every_variable_is_read(monkeypatch: pytest.MonkeyPatch, recording: Path) -> None:
    settings = load(
        monkeypatch,
        METRICS_PROVIDER_NAME="Recorded",
        METRICS_PROVIDER_ADDRESS=str(recording),
        METRICS_PROVIDER_TOKEN="s3cret",
        KUBE_CONFIG=str(recording),
        INSECURE_SKIP_VERIFY="true",
        LOG_LEVEL="Warn",
        LOAD_WATCHER_LOG_FORMAT="json",
        LOAD_WATCHER_BIND="[::1]:0",
        LOAD_WATCHER_REFRESH_SECONDS="15",
        LOAD_WATCHER_FETCH_TIMEOUT_SECONDS="2.5",
        LOAD_WATCHER_STALE_SECONDS="60",
        LOAD_WATCHER_EXPIRED_SECONDS="120",
        LOAD_WATCHER_RECORDED_TIMES="keep",
    )
    assert settings.provider_name == "Recorded"
    assert settings.provider_address == str(recording)
    assert settings.provider_token is not None
    assert settings.provider_token.get_secret_value() == "s3cret"
    assert settings.kubeconfig == recording
    assert settings.insecure_skip_verify is True
    assert settings.log_level == "WARNING"
    assert settings.log_format == "json"
    assert settings.bind == BindAddress("::1", 0)
    assert (settings.refresh_seconds, settings.fetch_timeout_seconds) == (15, 2.5)
    assert (settings.stale_seconds, settings.expired_seconds) == (60, 120)
    assert settings.recorded_times == "keep"


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(monkeypatch, METRICS_PROVIDER_NAME="", LOAD_WATCHER_BIND="", KUBE_CONFIG="", LOG_LEVEL="")
    assert (settings.provider_name, settings.bind.port, settings.kubeconfig, settings.log_level) == (None, 2020, None, "INFO")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:2020", ("127.0.0.1", 2020)),
        ("localhost:1", ("localhost", 1)),
        ("[::1]:2020", ("::1", 2020)),
        (":2020", ("", 2020)),
        ("0.0.0.0:65535", ("0.0.0.0", 65535)),
    ],
)
def test_bind_reads(text: str, address: tuple[str, int]) -> None:
    assert BindAddress.parse(text) == address


@pytest.mark.parametrize("text", ["2020", "host", "host:", "::1:2020", "host:65536", "host:-1", "host:٢٠", "host:http", "[::1]"])
def test_bind_refuses(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (problem,) = problems(monkeypatch, LOAD_WATCHER_BIND=text)
    assert problem.startswith(f"LOAD_WATCHER_BIND={text!r}: ")
    assert "for example 127.0.0.1:2020" in problem


@pytest.mark.parametrize("seconds", ["0.99", "3601", "nan", "inf", "-1", "soon"])
def test_a_refresh_interval_out_of_bounds_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch, seconds: str) -> None:
    (problem,) = problems(monkeypatch, LOAD_WATCHER_REFRESH_SECONDS=seconds)
    assert problem.startswith(f"LOAD_WATCHER_REFRESH_SECONDS={seconds!r}: ")
    assert "give 1 to 3600 seconds" in problem


def test_the_deadline_of_a_refresh_never_passes_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(monkeypatch, LOAD_WATCHER_REFRESH_SECONDS="5").fetch_timeout_seconds == 5


def test_a_stale_limit_below_the_interval_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    (problem,) = problems(monkeypatch, LOAD_WATCHER_STALE_SECONDS="30")
    assert problem == (
        "LOAD_WATCHER_STALE_SECONDS='30': every value would be stale before the next refresh; "
        "give more seconds than LOAD_WATCHER_REFRESH_SECONDS"
    )


def test_an_expired_limit_below_the_stale_one_is_refused_even_as_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    (problem,) = problems(monkeypatch, LOAD_WATCHER_STALE_SECONDS="900")
    assert problem == (
        "LOAD_WATCHER_EXPIRED_SECONDS=900 (the default): a value would never be served as stale; "
        "give more seconds than LOAD_WATCHER_STALE_SECONDS"
    )


def test_all_problems_come_at_once_with_the_unknown_names(monkeypatch: pytest.MonkeyPatch) -> None:
    found = problems(
        monkeypatch,
        METRICS_PROVIDER_NAME="Recordd",
        KUBE_CONFIG="/nowhere/config",
        INSECURE_SKIP_VERIFY="perhaps",
        LOG_LEVEL="loud",
        LOAD_WATCHER_BIND="2020",
        LOAD_WATCHER_REFRESH_SECONDS="0",
        LOAD_WATCHER_FETCH_TIMEOUT_SECONDS="0",
        LOAD_WATCHER_STALE_SECONDS="never",
        LOAD_WATCHER_EXPIRED_SECONDS="-1",
        LOAD_WATCHER_RECORDED_TIMES="both",
        LOAD_WATCHER_LOG_FORMAT="xml",
        LOAD_WATCHER_REFRESH="30",
    )
    assert sorted(problem.split("=")[0].split(" ")[0] for problem in found) == [
        "INSECURE_SKIP_VERIFY",
        "KUBE_CONFIG",
        "LOAD_WATCHER_BIND",
        "LOAD_WATCHER_EXPIRED_SECONDS",
        "LOAD_WATCHER_FETCH_TIMEOUT_SECONDS",
        "LOAD_WATCHER_LOG_FORMAT",
        "LOAD_WATCHER_RECORDED_TIMES",
        "LOAD_WATCHER_REFRESH",
        "LOAD_WATCHER_REFRESH_SECONDS",
        "LOAD_WATCHER_STALE_SECONDS",
        "LOG_LEVEL",
        "METRICS_PROVIDER_NAME",
    ]
    # Each says what was found and what to do.
    assert all("; " in problem or "did you mean" in problem for problem in found)


def test_report_53_a_mistyped_provider_is_named_with_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    (problem,) = problems(monkeypatch, METRICS_PROVIDER_NAME="KubernetesMetricServer")
    assert "did you mean KubernetesMetricsServer?" in problem
    assert "use one of KubernetesMetricsServer, Local, Recorded" in problem


@pytest.mark.parametrize("address", [None, "/nowhere/day.jsonl"])
def test_recorded_needs_a_file(monkeypatch: pytest.MonkeyPatch, address: str | None) -> None:
    environment = {} if address is None else {"METRICS_PROVIDER_ADDRESS": address}
    (problem,) = problems(monkeypatch, METRICS_PROVIDER_NAME="Recorded", **environment)
    assert problem.startswith("METRICS_PROVIDER_ADDRESS (not set): " if address is None else f"METRICS_PROVIDER_ADDRESS={address!r}: ")
    assert "path of a recording" in problem


@pytest.mark.parametrize("name", ["STALE", "EXPIRED", "FETCH_TIMEOUT"])
@pytest.mark.parametrize("seconds", ["inf", "nan", "0"])
def test_a_limit_is_a_number_of_seconds(monkeypatch: pytest.MonkeyPatch, name: str, seconds: str) -> None:
    (problem,) = problems(monkeypatch, **{f"LOAD_WATCHER_{name}_SECONDS": seconds})
    assert problem.startswith(f"LOAD_WATCHER_{name}_SECONDS={seconds!r}: ")


def test_no_problem_and_no_setting_shows_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    found = problems(
        monkeypatch,
        METRICS_PROVIDER_TOKEN="s3cret",
        METRICS_PROVIDER_TOKENS="s3cret",
        METRICS_PROVIDER_PASSWORD="s3cret",
        LOG_LEVEL="loud",
    )
    assert "s3cret" not in "\n".join(found)
    monkeypatch.delenv("LOG_LEVEL")
    assert "s3cret" not in repr(load_with_warnings(monkeypatch))


def test_the_password_of_an_address_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    (problem,) = problems(monkeypatch, METRICS_PROVIDER_NAME="Recorded", METRICS_PROVIDER_ADDRESS="http://me:s3cret@prometheus:9090/x")
    assert problem.startswith("METRICS_PROVIDER_ADDRESS='http://…@prometheus:9090/x': ")


def test_a_token_that_a_rule_refuses_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRICS_PROVIDER_TOKEN", "s3cret")
    (token,) = (variable for variable in list_variables() if variable.name == "METRICS_PROVIDER_TOKEN")
    detail: ErrorDetails = {"type": "too_short", "loc": (token.name,), "msg": "Too short", "input": "s3cret"}
    assert _describe(detail, token) == "METRICS_PROVIDER_TOKEN (value not shown): too short; "


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("LOAD_WATCHER_REFRESH_SECOND", "LOAD_WATCHER_REFRESH_SECONDS"),
        ("LOAD_WATCHER_BIND_PORT", "LOAD_WATCHER_BIND"),
        ("METRICS_PROVIDER_NAMES", "METRICS_PROVIDER_NAME"),
        ("METRICS_PROVIDER_ADRESS", "METRICS_PROVIDER_ADDRESS"),
    ],
)
def test_an_unknown_variable_is_a_warning_that_names_the_nearest(monkeypatch: pytest.MonkeyPatch, name: str, nearest: str) -> None:
    _, (warning,) = load_with_warnings(monkeypatch, **{name: "1"})
    assert warning.startswith(f"{name} is not a variable of the load watcher")
    assert f"did you mean {nearest}?" in warning


@pytest.mark.parametrize("service", ["LOAD_WATCHER", "METRICS_PROVIDER"])
def test_what_kubernetes_injects_for_a_service_is_passed_over(monkeypatch: pytest.MonkeyPatch, service: str) -> None:
    suffixes = ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_2020_TCP", "PORT_2020_TCP_PROTO", "PORT_2020_TCP_ADDR")
    assert load(monkeypatch, **{f"{service}_{suffix}": "x" for suffix in suffixes}) is not None


def test_a_service_with_a_longer_name_is_known_by_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("LOAD_WATCHER_METRICS_SERVICE_HOST", "LOAD_WATCHER_METRICS_SERVICE_PORT", "LOAD_WATCHER_METRICS_PORT_80_TCP_ADDR")
    assert load(monkeypatch, **dict.fromkeys(names, "x")) is not None
    monkeypatch.delenv("LOAD_WATCHER_METRICS_SERVICE_HOST")
    assert len(load_with_warnings(monkeypatch)[1]) == 2


def test_settings_are_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="frozen"):
        load(monkeypatch).refresh_seconds = 1


def test_every_variable_has_a_meaning_and_those_that_can_be_wrong_a_remedy() -> None:
    free_text = {"METRICS_PROVIDER_NAME", "METRICS_PROVIDER_TOKEN", "METRICS_PROVIDER_USERNAME", "METRICS_PROVIDER_PASSWORD"}
    free_text |= {
        "METRICS_PROVIDER_APP_KEY",
        "SIGNALFX_HOST_NAME_SUFFIX",
        "SIGNALFX_CLUSTER_NAME",
        "DATADOG_HOST_NAME_SUFFIX",
        "DATADOG_CLUSTER_NAME",
    }
    free_text |= {"METRICS_PROVIDER_SERVER_NAME", "LOAD_WATCHER_HOST_LABEL", "LOAD_WATCHER_HOST_SUFFIX"}
    for variable in list_variables():
        assert variable.description
        assert variable.remedy or variable.name in free_text
