"""Promises about the packages themselves: what importing costs, what is public, that texts say what is true."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import trimaran_client

ROOT = Path(__file__).parents[2]


def loaded_modules(statement: str) -> set[str]:
    """Run a statement in a bare interpreter and answer the top-level modules that it loaded."""
    code = f"{statement}\nimport sys\nprint('\\n'.join(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    return set(done.stdout.split())


def added_modules(statement: str) -> set[str]:
    """Answer the modules that a statement loads into a bare interpreter, by their full names, without those of the standard library."""
    code = f"import sys\nbefore = set(sys.modules)\n{statement}\nprint('\\n'.join(sorted(set(sys.modules) - before)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    return {name for name in done.stdout.split() if name.partition(".")[0] not in sys.stdlib_module_names}


def test_the_bare_import_loads_nothing_of_others_and_no_module_of_its_own() -> None:
    """Whoever imports a package that imports this one pays for nothing until a name is asked for."""
    assert added_modules("import trimaran_client") == {"trimaran_client"}


def test_what_scores_imports_nothing_heavy() -> None:
    loaded = loaded_modules("from trimaran_client import Scorer, TargetLoadPacking, LoadSnapshot, Pod")
    third_party = {name for name in loaded - loaded_modules("") - sys.stdlib_module_names if not name.startswith("_")}
    assert {"trimaran_client", "numpy"} <= third_party
    assert third_party <= {
        "trimaran_client",
        "numpy",
        "msgspec",
        "cachetools",
        "typing_extensions",
    }  # the last by msgspec, where it is there


def test_type_checkers_see_the_names_that_are_loaded_on_demand() -> None:
    """The names stand twice, for type checkers as imports and at run time as a table; each is of the same module in both."""
    tree = ast.parse((ROOT / "trimaran_client/__init__.py").read_text())
    [block] = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert len(imports) == len(block.body)
    checked = sorted((alias.name, str(node.module)) for node in imports for alias in node.names)
    loaded = sorted((name, module) for module, names in trimaran_client._NAMES.items() for name in names)
    assert checked == loaded
    # `import X as X` is what makes a name public to a type checker.
    assert [alias.name for node in imports for alias in node.names if alias.asname != alias.name or node.level] == []


def test_importing_the_service_loads_no_provider_and_no_kubernetes_client() -> None:
    loaded = loaded_modules("import load_watcher, load_watcher.cli")
    assert not loaded & {"kubernetes_asyncio", "prometheus_api_client", "signalfx", "uvloop"}


def test_public_names_are_sorted_and_exist() -> None:
    assert list(trimaran_client.__all__) == sorted(trimaran_client.__all__)
    for name in trimaran_client.__all__:
        assert getattr(trimaran_client, name).__doc__, name


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Watcher'"):
        trimaran_client.Watcher  # noqa: B018


def python_files() -> list[Path]:
    return sorted(path for package in ("load_watcher", "trimaran_client") for path in (ROOT / package).rglob("*.py"))


def test_no_file_is_too_long_to_hold_one_thing() -> None:
    """400 lines in the packages; a suite of tests for one module may be longer."""
    limits = [(path, 400) for path in python_files()] + [(path, 550) for path in (ROOT / "tests").rglob("*.py")]
    assert {path.name: count for path, limit in limits if (count := len(path.read_text().splitlines())) > limit} == {}


def schema() -> dict[str, Any]:
    text = resources.files("trimaran_client").joinpath("schema/watcher.schema.json").read_text()
    document: dict[str, Any] = json.loads(text)
    return document


def test_the_schema_is_one_and_the_example_of_the_documentation_meets_it() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    [example] = re.findall(r"```json\n(\{\n  \"timestamp\".*?)```", (ROOT / "docs/wire.md").read_text(), re.DOTALL)
    jsonschema.validate(json.loads(example), schema())


@pytest.mark.parametrize(
    "broken",
    [
        {"timestamp": 1.5},
        {"data": {"NodeMetricsMap": {"n": None}}},
        {"data": {"NodeMetricsMap": {"n": {"metrics": [{"value": "1"}], "tags": {}, "metadata": {"dataCenter": ""}}}}},
    ],
)
def test_the_schema_refuses_what_the_go_client_would(broken: dict[str, Any]) -> None:
    good = {"timestamp": 1, "window": {"duration": "15m", "start": 0, "end": 1}, "source": "s", "data": {"NodeMetricsMap": {}}}
    jsonschema.validate(good, schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(good | broken, schema())


def test_extras_and_base_dependencies_are_those_promised() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {
        extra: {re.split(r"[<>=;\[ ]", each)[0].lower() for each in listed} for extra, listed in project["optional-dependencies"].items()
    }
    assert {re.split(r"[<>=]", each)[0] for each in project["dependencies"]} == {"aiohttp", "cachetools", "msgspec", "numpy"}
    assert names["service"] == {
        *("kubernetes-asyncio", "pydantic-settings", "pyyaml", "prometheus-client", "psutil", "stamina", "structlog", "aiosqlite"),
    }
    assert {"kubernetes-asyncio", "prometheus-client", "pyyaml", "click"} <= names["extender"]
    assert (names["cli"], names["speed"]) == ({"click", "rich", "pyyaml"}, {"uvloop"})


def test_links_of_the_documentation_lead_somewhere() -> None:
    links = [
        (path, target)
        for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", path.read_text())
    ]
    assert links
    assert [f"{path.name}: {target}" for path, target in links if not (path.parent / target).exists()] == []


def test_every_difference_from_upstream_that_is_tested_stands_in_the_documentation() -> None:
    """The table and the tests go together: as many rows as the tests name, at least."""
    sources = "".join(path.read_text() for path in (ROOT / "tests/unit/trimaran_client").glob("test_*.py"))
    tests = re.findall(r"def test_differs_from_upstream_\w+", sources)
    section = (ROOT / "docs/policies.md").read_text().split("## Where the default preset differs")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ") and not line.startswith("| case")]
    assert len(rows) >= len(tests) > 0


def test_report_75_alert_rules_name_metrics_that_are_there() -> None:
    rules = [rule for group in yaml.safe_load((ROOT / "docs/examples/alerts.yaml").read_text())["groups"] for rule in group["rules"]]
    named = {name for rule in rules for name in re.findall(r"\b(?:trimaran_extender|load_watcher)_\w+", rule["expr"])}
    documented = (ROOT / "docs/extender.md").read_text() + (ROOT / "docs/operations.md").read_text()
    assert len(named) == len(rules) > 0
    assert sorted(name for name in named if name not in documented) == []
