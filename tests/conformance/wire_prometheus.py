"""
The Prometheus cases of the suite ``wire``: the replies to each expression in, ``GET`` replies out.

The stand-in answers each expression by itself, before the provider's combined queries are put together; the catalogue holds the Go
load-watcher's own seventeen rules and its scaling. :mod:`tests.conformance.wire` holds the rules of both providers.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import yaml
from aiohttp import web

from load_watcher.providers.nodes import ClusterNodes
from load_watcher.providers.prometheus import PrometheusProvider
from load_watcher.providers.prometheus_options import PrometheusOptions
from tests.conformance.cases import Case, Outcome
from tests.conformance.wire_replies import MAX_PERCENT, Answer, Metrics, compare_error, compare_nodes, judge_gets, read_go
from tests.fakes.prometheus_server import PrometheusServer, Vector

RULES = (
    "falls_back_by_metric",
    "orders_by_type",
    "finds_the_node",
    "one_value_a_node",
    "states_the_unit",
    "keeps_good_queries",
    "asks_the_window",
)

# As in `internal/metricsprovider/prometheus.go` of the Go load-watcher, in its order.
GO_RULES = (
    ("CPU", "instance:node_cpu:ratio"),
    ("Memory", "instance:node_memory_utilisation:ratio"),
    ("Bandwidth", "instance:node_network_transmit_bytes:rate:sum"),
    ("Bandwidth", "instance:node_network_transmit_drop_excluding_lo:rate5m"),
    ("Bandwidth", "instance:node_network_receive_bytes:rate:sum"),
    ("Bandwidth", "instance:node_network_receive_drop_excluding_lo:rate5m"),
    ("Storage", "instance_device:node_disk_io_time_seconds:rate5m"),
    ("Energy", "scaph_host_power_microwatts"),
    ("Energy", "scaph_host_energy_microjoules"),
    ("Energy", "kepler_node_core_joules_total"),
    ("Energy", "kepler_node_uncore_joules_total"),
    ("Energy", "kepler_node_dram_joules_total"),
    ("Energy", "kepler_node_package_joules_total"),
    ("Energy", "kepler_node_other_joules_total"),
    ("Energy", "kepler_node_gpu_joules_total"),
    ("Energy", "kepler_node_platform_joules_total"),
    ("Energy", "kepler_node_energy_stat"),
)

UNITS = {
    "instance:node_cpu:ratio": "ratio",
    "instance:node_memory_utilisation:ratio": "ratio",
    "instance_device:node_disk_io_time_seconds:rate5m": "ratio",
    "instance:node_network_transmit_bytes:rate:sum": "bytes_per_second",
    "instance:node_network_receive_bytes:rate:sum": "bytes_per_second",
    "scaph_host_power_microwatts": "microwatts",
    "scaph_host_energy_microjoules": "microjoules",
    "kepler_node_energy_stat": "count",
    **{rule: "joules" for _, rule in GO_RULES if rule.endswith("_joules_total")},
    **{rule: "packets_per_second" for _, rule in GO_RULES if "_drop_" in rule},
}
FUNCTIONS = {"AVG": "avg_over_time", "STD": "stddev_over_time"}
WINDOWS = ("5m", "10m", "15m")
QUERY_ERRORS = ("bad_data", "execution", "internal")
MAX_VALUE = 1e15  # beyond what the Go client can read
# Of the vectors' replies.
NOW = 1_700_000_000.123


class Query(NamedTuple):
    """One expression that the catalogue asks for, and what its series become."""

    name: str
    metric_type: str
    operator: str
    window: str

    @property
    def text(self) -> str:
        return f"{FUNCTIONS[self.operator]}({self.name}[{self.window}])"


class Sample(NamedTuple):
    """One series as Go and as we read it; ``value`` is scaled, ``None`` where it does not parse."""

    go_node: str
    node: str
    value: float | None


async def run(case: Case) -> Outcome:
    """Run one case of Prometheus."""
    rules: dict[str, None] = {}
    wanted = _apply_rules(case, rules)
    with tempfile.TemporaryDirectory() as folder:
        catalogue = Path(folder) / "catalogue.yaml"
        catalogue.write_text(yaml.safe_dump({"built_in": False, "metrics": list(_list_metrics())}))
        no_cluster = ClusterNodes(Path(folder) / "no-kubeconfig")
        async with _CaseServer(case) as server:
            options = PrometheusOptions(server.url, catalogue_path=catalogue, go_scaling=True)
            provider = PrometheusProvider(options, no_cluster, clock=lambda: NOW)
            return await judge_gets(
                _ask_every_window(case), provider, NOW, rules, lambda get, answer: _compare(case, get, answer, wanted, rules)
            )


def _ask_every_window(case: Case) -> Case:
    """Ask for each window as well, which Go never answers: what stands behind the one that is served."""
    gets = [{"path": f"/watcher?window={window}"} for window in WINDOWS]
    return {**case, "expected": {**case["expected"], "gets": [*case["expected"]["gets"], *gets]}}


def _list_metrics() -> Iterator[dict[str, Any]]:
    for number, (metric_type, rule) in enumerate(GO_RULES):
        # Go asks for no newest values.
        yield {"key": f"go_{number}", "type": metric_type, "unit": UNITS[rule], "operators": ["AVG", "STD"], "expressions": [rule]}


def _list_queries() -> Iterator[Query]:
    for metric_type, rule in GO_RULES:
        for operator in FUNCTIONS:
            for window in WINDOWS:
                yield Query(rule, metric_type, operator, window)


def _find_reply(case: Case, expression: str) -> tuple[int, Any]:
    general = re.sub(r"\[(15m|10m|5m)\]", "[*]", expression)
    reply = case["replies"].get(expression) or case["replies"].get(general) or case["default"]
    return reply.get("status", 200), reply.get("body", "")


class _CaseServer(PrometheusServer):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self._case = case

    def evaluate_part(self, expression: str, time: float) -> Vector | web.Response:
        status, body = _find_reply(self._case, expression)
        samples = _read_vector(status, body)
        if samples is None and status == 200 and isinstance(body, dict) and "data" in body:
            # What a server says that is asked to label anything but an instant vector.
            return web.json_response({"status": "error", "errorType": "bad_data", "error": "expected type instant vector"}, status=400)
        if samples is None:
            return web.Response(status=status, text=body) if isinstance(body, str) else web.json_response(body, status=status)
        self.warnings += body.get("warnings", [])
        return samples


def _read_vector(status: int, body: Any) -> Vector | None:
    if status != 200 or not isinstance(body, dict) or body.get("data", {}).get("resultType") != "vector":
        return None
    return [(series["metric"], series["value"][1]) for series in body["data"]["result"] or []]


def _apply_rules(case: Case, rules: dict[str, None]) -> dict[str, Metrics] | None:
    """Work out from the replies what we have, over every window, and note the rules that applied; ``None`` for not ready."""
    nodes: dict[str, Metrics] = {}
    refused = asked = 0
    for query in _list_queries():
        status, body = _find_reply(case, query.text)
        samples = _read_vector(status, body)
        asked += 1
        if samples is None:
            is_query_error = isinstance(body, dict) and ("data" in body or body.get("errorType") in QUERY_ERRORS)
            if not is_query_error:
                return None
            refused += 1
            continue
        by_node: dict[str, list[float]] = {}
        for sample in _read_samples(samples, rules):
            nodes.setdefault(sample.node, [])
            value = _judge(query, sample, rules)
            if value is not None:
                by_node.setdefault(sample.node, []).append(value)
        for node, values in by_node.items():
            unit = UNITS[query.name]
            metric = {"name": query.name, "type": query.metric_type, "operator": query.operator, "rollup": query.window}
            nodes[node].append({**metric, "value": max(values), **({} if unit == "ratio" else {"unit": f"{unit}*100"})})
            _note(rules, "one_value_a_node", applies=len(values) > 1)
            _note(rules, "states_the_unit", applies=unit != "ratio")
    if refused:
        rules["keeps_good_queries"] = None
    if refused == asked:
        return None
    types = {"CPU": 0, "Memory": 1}
    for metrics in nodes.values():
        metrics.sort(key=lambda m: (types.get(m["type"], 2), m["type"], m["operator"], WINDOWS.index(m["rollup"]), m["name"]))
        _note(rules, "orders_by_type", applies=len({m["type"] for m in metrics}) > 1 and len({m["operator"] for m in metrics}) > 1)
        _note(rules, "lists_nodes_without_metrics", applies=not metrics)
    return nodes


def _note(rules: dict[str, None], rule: str, *, applies: bool) -> None:
    if applies:
        rules[rule] = None


def _read_samples(samples: Vector, rules: dict[str, None]) -> Iterator[Sample]:
    for labels, value in samples:
        go_node = labels.get("instance", "")
        named = next((labels[label] for label in ("node", "instance") if labels.get(label)), "")
        node = re.sub(r"^\[(.*)\](:\d+)?$", r"\1", named)
        node = re.sub(r":\d{1,5}$", "", node) if node.count(":") == 1 else node
        _note(rules, "finds_the_node", applies=node not in ("", go_node))
        _note(rules, "drops_unknown_nodes", applies=not node)
        if node:
            text = str(value)
            number = re.fullmatch(r"[+-]?(\d+(\.\d*)?([eE][+-]?\d+)?|Inf)|NaN", text)
            _note(rules, "keeps_good_queries", applies=number is None)
            yield Sample(go_node, node, float(text) * 100 if number else None)


def _judge(query: Query, sample: Sample, rules: dict[str, None]) -> float | None:
    if sample.value is None:
        return None
    limit = MAX_PERCENT if UNITS[query.name] == "ratio" else MAX_VALUE
    _note(rules, "drops_non_finite", applies=not math.isfinite(sample.value))
    if not math.isfinite(sample.value):
        return None
    if not 0 <= sample.value <= limit:
        rules["rejects_impossible"] = None
        return None
    return sample.value


def _compare(case: Case, get: Mapping[str, Any], answer: Answer, wanted: dict[str, Metrics] | None, rules: dict[str, None]) -> str:
    parts = urlsplit(get["path"])
    parameters = parse_qs(parts.query)
    host = parameters.get("host", [""])[0]
    if parts.path != "/watcher":
        rules["errors_are_json"] = None
        return compare_error(answer, get["status"], "not_found")
    if wanted is None:
        rules["says_not_ready"] = None
        return compare_error(answer, 503, "not_ready")
    if host and host not in wanted:
        rules["errors_are_json"] = None
        return compare_error(answer, 404, "unknown_node")
    if "window" in parameters:
        _note(rules, "asks_the_window", applies="body" in get)
        return _compare_window(case, answer, wanted, *parameters["window"])
    if get["status"] == 200 and (problem := _check_against_go(case, read_go(get["body"])["data"]["NodeMetricsMap"], wanted)):
        return problem
    served = {node: _keep_longest(metrics) for node, metrics in wanted.items()}
    # Go has one window for the whole reply.
    _note(rules, "falls_back_by_metric", applies=len({metric["rollup"] for metrics in served.values() for metric in metrics}) > 1)
    return compare_nodes(case, answer, {node: metrics for node, metrics in served.items() if host in ("", node)})


def _compare_window(case: Case, answer: Answer, wanted: Mapping[str, Metrics], window: str) -> str:
    asked = {node: [metric for metric in metrics if metric["rollup"] == window] for node, metrics in wanted.items()}
    if not any(asked.values()):  # nor has our own history it, which this runner does not keep
        return compare_error(answer, 404, "window_not_held")
    return compare_nodes(case, answer, asked, window=window)


def _keep_longest(metrics: Metrics) -> Metrics:
    """Keep of each metric the longest window; they stand shortest first."""
    longest = {(metric["name"], metric["type"], metric["operator"]): metric["rollup"] for metric in metrics}
    return [metric for metric in metrics if longest[metric["name"], metric["type"], metric["operator"]] == metric["rollup"]]


def _check_against_go(case: Case, go_nodes: Mapping[str, Any], wanted: Mapping[str, Metrics]) -> str:
    """Hold what the rules left to the original: each value of its body is there, or a rule says why not."""
    ours_of: dict[str, set[str]] = {}
    for query in _list_queries():
        for sample in _read_samples(_read_vector(*_find_reply(case, query.text)) or [], {}):
            ours_of.setdefault(sample.go_node, set()).add(sample.node)
    for go_node, entry in go_nodes.items():
        served = [metric for node in ours_of.get(go_node, ()) for metric in wanted.get(node, [])]
        for go in entry["metrics"]:
            query = Query(go["name"], go["type"], go["operator"], go["rollup"])
            same = [m["value"] for m in served if (m["name"], m["type"], m["operator"], m["rollup"]) == query]
            is_possible = _judge(query, Sample("", "", go["value"]), {}) is not None
            if is_possible and go_node in ours_of and not any(value >= go["value"] - 1e-9 for value in same):
                return f"{go_node}: Go serves {go}, we {same}"
    return ""
