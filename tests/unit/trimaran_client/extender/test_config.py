"""The configuration of the extender: everything that is wrong is told at once, with the remedy."""

from pathlib import Path
from typing import Any

import pytest

from trimaran_client.errors import ExtenderConfigError
from trimaran_client.extender.config import ExtenderConfig, FilterConfig, ProfileConfig, load_config, parse_config


def problems_of(document: object) -> list[str]:
    with pytest.raises(ExtenderConfigError) as caught:
        parse_config(document)
    return str(caught.value).splitlines()


def test_nothing_is_a_configuration() -> None:
    assert parse_config({}) == ExtenderConfig()


def test_everything_can_be_set() -> None:
    config = parse_config(
        {
            "bind": "[::1]:9000",
            "watcher": "https://watcher/prefix",
            "cluster": True,
            "kubeconfig": "/etc/config",
            "scale": 10,
            "shadow": True,
            "profiles": [
                {"schedulerName": "a", "policy": "LoadVariationRiskBalancing", "args": {"margin": 2}, "overrides": ["policy"]},
                {"schedulerName": "b", "preset": "upstream", "args": {"targetUtilization": 50}, "overrides": ["target-cpu-percent"]},
            ],
            "filter": {"enabled": True, "cpuPercent": None, "memoryPercent": 90, "exemptNamespaces": []},
            "namespaceOverrides": True,
            "events": True,
            "decisions": 7,
            "holdSeconds": 0,
            "assumeSeconds": 1.5,
            "logLevel": "debug",
            "logFormat": "json",
        }
    )
    assert config.address == ("::1", 9000)
    assert config.filter == FilterConfig(enabled=True, cpu_percent=None, memory_percent=90.0, exempt_namespaces=())
    assert [each.scheduler_name for each in config.profiles] == ["a", "b"]
    assert config.profiles[0] == ProfileConfig("a", "LoadVariationRiskBalancing", {"margin": 2}, overrides=("policy",))
    assert (config.decisions, config.hold_seconds, config.assume_seconds) == (7, 0.0, 1.5)


@pytest.mark.parametrize(
    ("bind", "expected"), [(":8888", ("", 8888)), ("0.0.0.0:1", ("0.0.0.0", 1)), ("[::]:80", ("::", 80)), ("a:0", ("a", 0))]
)
def test_an_address_to_listen_on(bind: str, expected: tuple[str, int]) -> None:
    assert parse_config({"bind": bind}).address == expected


def test_every_problem_is_told_at_once() -> None:
    told = problems_of(
        {
            "bnd": "x",
            "bind": "nowhere",
            "watcher": "ftp://x",
            "scale": 50,
            "decisions": "7",
            "profiles": [
                {"schedulerName": "a", "polcy": "Peaks", "policy": "Nope"},
                {"schedulerName": "a", "args": {"target_percent": 500, "margn": 1}, "overrides": ["policies"]},
            ],
            "filter": {"enabled": True, "cpuPercent": 200, "hysteresisPercent": -1, "maxAge": 3},
            "cluster": False,
            "events": True,
            "holdSeconds": float("inf"),
        }
    )
    expected = [
        "bnd: there is no such key; did you mean bind?",
        "scale is 50: invalid enum value 50; choose from 100, 10",
        "decisions is '7': expected `int`, got `str`",
        "profiles[0].polcy: there is no such key; did you mean policy?",
        "profiles[1].overrides is ['policies']",
        "filter.maxAge: there is no such key; did you mean maxAgeSeconds?",
        "bind is 'nowhere'; write an address and a port",
        "watcher: 'ftp://x' is not an http or https address",
        "profiles: schedulerName 'a' stands twice; remove one",
        "profile 'a': Nope: there is no policy 'Nope'",
        "profile 'a': TargetLoadPacking: there is no argument 'margn'",
        "profile 'a': TargetLoadPacking: target_percent is 500",
        "filter.cpuPercent is 200.0; give a percentage",
        "filter.hysteresisPercent is -1.0; give a finite number",
        "holdSeconds is inf; give a finite number",
        "events needs the cluster",
    ]
    assert len(told) == len(expected)
    for start in expected:
        assert any(line.startswith(start) for line in told), start


@pytest.mark.parametrize(
    ("document", "start"),
    [
        ([], "the configuration is a mapping"),
        ({"filter": []}, "filter is a mapping"),
        ({"profiles": [7]}, "profiles[0] is a mapping"),
        ({"profiles": {}}, "profiles is {}: expected `array`"),
        ({"profiles": []}, "profiles is empty"),
        ({"bind": "127.0.0.1:65536"}, "bind is"),
        ({"bind": "127.0.0.1"}, "bind is"),
        ({"watcher": "http://"}, "watcher: "),
        ({"decisions": 0}, "decisions is 0; give 1 to 100000"),
        ({"cluster": "no"}, "cluster is 'no': expected `bool`"),
        ({"logLevel": "loud"}, "logLevel is 'loud': invalid enum value 'loud'; choose from debug, info, warning, error"),
        ({"namespaceOverrides": True, "cluster": False}, "namespaceOverrides needs the cluster"),
        ({"filter": {"cpuPercent": 5}}, "filter.hysteresisPercent is 5.0, which leaves nothing of cpuPercent; give less than 5"),
        ({"filter": {"enabled": True, "cpuPercent": None}}, "filter is enabled without a threshold"),
        ({7: 1}, "7: there is no such key; known are bind"),
    ],
)
def test_each_problem_by_itself(document: object, start: str) -> None:
    [told] = problems_of(document)
    assert told.startswith(start)


class TestFile:
    @pytest.mark.parametrize("text", ["a: [", "\x00", "a: 2024-13-45", "[" * 500, "a: &a [*b]"])
    def test_that_is_no_yaml_is_one_line_with_its_name(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "e.yaml").write_text(text)
        with pytest.raises(ExtenderConfigError) as caught:
            load_config(tmp_path / "e.yaml")
        [line] = str(caught.value).splitlines()
        assert line.startswith(f"{tmp_path}/e.yaml: not YAML: ")

    @pytest.mark.parametrize(("name", "reason"), [("none.yaml", "No such file"), ("", "Is a directory")])
    def test_that_cannot_be_read_is_told(self, tmp_path: Path, name: str, reason: str) -> None:
        with pytest.raises(ExtenderConfigError, match=reason):
            load_config(tmp_path / name)

    def test_with_problems_stands_before_each_of_them(self, tmp_path: Path) -> None:
        (tmp_path / "e.yaml").write_text("bind: x\nscale: 1\n")
        with pytest.raises(ExtenderConfigError) as caught:
            load_config(tmp_path / "e.yaml")
        assert [line.startswith(f"{tmp_path}/e.yaml: ") for line in str(caught.value).splitlines()] == [True, True]

    @pytest.mark.parametrize("text", ["", "# nothing\n", "{}"])
    def test_that_is_empty_is_the_defaults(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "e.yaml").write_text(text)
        config: Any = load_config(tmp_path / "e.yaml")
        assert config == ExtenderConfig()
