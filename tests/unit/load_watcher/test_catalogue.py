from pathlib import Path

import pytest

from load_watcher.errors import ProviderConfigError
from load_watcher.providers.catalogue import BUILT_IN, UNITS, load_catalogue, parse_catalogue
from load_watcher.samples import Window


def test_the_built_in_catalogue_has_every_metric_with_an_expression_that_needs_no_rule() -> None:
    catalogue = load_catalogue()
    assert [(metric.key, metric.metric_type) for metric in catalogue.metrics] == [
        ("cpu", "CPU"),
        ("memory", "Memory"),
        ("network_transmit", "Bandwidth"),
        ("network_receive", "Bandwidth"),
        ("disk", "Storage"),
        ("energy", "Energy"),
    ]
    for metric in catalogue.metrics:
        assert any(":" not in expression.query.partition("[")[0].partition("{")[0] for expression in metric.expressions)
        assert all(expression.unit in UNITS for expression in metric.expressions)


def test_report_12_a_counter_of_energy_is_turned_into_a_rate() -> None:
    (energy,) = (metric for metric in load_catalogue().metrics if metric.key == "energy")
    for expression in energy.expressions:
        assert "rate(" in expression.query or "joules" not in expression.query


def test_a_users_file_replaces_adds_and_disables(tmp_path: Path) -> None:
    path = tmp_path / "catalogue.yaml"
    path.write_text("""
host_label: nodename
rate_window: 2m
subquery_step: 30s
metrics:
  - key: cpu
    type: CPU
    unit: percent
    expressions: [my:cpu]
  - key: energy
    disabled: true
  - key: gpu
    type: GPU
    unit: percent
    host_label: [Hostname, node]
    operators: [Latest, AVG]
    expressions:
      - query: 'avg by (Hostname) (DCGM_FI_DEV_GPU_UTIL{job="dcgm"})'
        name: gpu_utilization
      - query: other
        unit: ratio
        host_label: machine
""")
    catalogue = load_catalogue(path)
    assert [metric.key for metric in catalogue.metrics] == ["cpu", "memory", "network_transmit", "network_receive", "disk", "gpu"]
    assert (catalogue.host_labels, catalogue.rate_window, catalogue.subquery_step) == (("nodename",), Window(120), Window(30))
    cpu, gpu = catalogue.metrics[0], catalogue.metrics[-1]
    assert [(e.query, e.unit, e.name, e.dated_by) for e in cpu.expressions] == [("my:cpu", "percent", "my:cpu", "my:cpu")]
    assert gpu.operators == ("Latest", "AVG")
    assert [(e.name, e.unit, e.host_labels) for e in gpu.expressions] == [
        ("gpu_utilization", "percent", ("Hostname", "node")),
        ("other", "ratio", ("machine",)),
    ]


def test_a_users_file_may_stand_alone() -> None:
    text = "built_in: false\nmetrics: [{key: x, type: X, unit: count, expressions: [x]}]"
    catalogue = parse_catalogue(text, "f", parse_catalogue(BUILT_IN.read_text(), "b"))
    assert [metric.key for metric in catalogue.metrics] == ["x"]


def test_every_error_of_a_file_is_told_at_once_with_its_place() -> None:
    text = """
rate_window: soon
host_label: [1]
metric: []
metrics:
  - {key: a b, type: CPU, unit: rato, operators: [avg], expressions: [x]}
  - {key: c, type: CPU, unit: ratio, expressions: [{query: x, host_labl: y}, {name: z}]}
  - {key: c, type: CPU, unit: ratio, expressions: []}
  - 3
"""
    with pytest.raises(ProviderConfigError) as caught:
        parse_catalogue(text, "mine.yaml")
    message = str(caught.value)
    assert message.startswith("Prometheus: catalogue mine.yaml: ")
    for part in (
        "no key 'metric' (did you mean metrics?)",
        "rate_window: 'soon' is not a window",
        "host_label: [1] must be the name of a label",
        "metrics[1]: key 'a b' must be letters",
        "metrics[1].operators: ['avg']: use some of Latest, AVG, STD",
        "metrics[1].expressions[1]: unit 'rato' (did you mean ratio?)",
        "metrics[2].expressions[1]: no key 'host_labl' (did you mean host_label?)",
        "metrics[2].expressions[2]: query must be a text",
        "metrics[3].expressions: give at least one expression",
        "metrics[3]: the key 'c' stands twice",
        "metrics[4] must be a mapping",
    ):
        assert part in message


@pytest.mark.parametrize("text", ["", "[]", "metrics: {}", "a: b: c", "metrics: [{key: x, disabled: maybe}]"])
def test_what_is_no_catalogue_is_an_error_that_names_the_file(text: str) -> None:
    with pytest.raises(ProviderConfigError, match="mine.yaml"):
        parse_catalogue(text, "mine.yaml")


@pytest.mark.parametrize("content", [None, b"\xff\xfe\xff", b"#" * 1_000_001])
def test_a_file_that_cannot_be_read_is_an_error_that_names_it(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "catalogue.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ProviderConfigError, match=str(path)):
        load_catalogue(path)
