"""
What is asked of Prometheus: for each metric its type, its unit, and the expressions that may hold it, the best first.

Names of recording rules differ from installation to installation and from release to release, so that no single name can be relied on.
The table itself is ``catalogue.yaml`` beside this module; a user's file adds to it or replaces parts of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from load_watcher.errors import ProviderConfigError
from load_watcher.nearest import suggest
from load_watcher.samples import FIVE_MINUTES, PERCENT, Window
from trimaran_client.wire import AVERAGE, CPU, LATEST, MEMORY, STANDARD_DEVIATION

BUILT_IN: Final = Path(__file__).with_name("catalogue.yaml")
OPERATORS: Final = (LATEST, AVERAGE, STANDARD_DEVIATION)
# Unit of an expression → what is served, and the factor to it. Cores, and bytes of memory, are divided by what the node has.
UNITS: Final[Mapping[str, tuple[str, float]]] = {
    "ratio": (PERCENT, 100.0),
    PERCENT: (PERCENT, 1.0),
    "cores": ("cores", 1.0),
    "bytes": ("bytes", 1.0),
    "bytes_per_second": ("bytes_per_second", 1.0),
    "bits_per_second": ("bytes_per_second", 0.125),
    "packets_per_second": ("packets_per_second", 1.0),
    "per_second": ("per_second", 1.0),
    "seconds": ("seconds", 1.0),
    "joules": ("joules", 1.0),
    "microjoules": ("joules", 1e-6),
    "watts": ("watts", 1.0),
    "milliwatts": ("watts", 1e-3),
    "microwatts": ("watts", 1e-6),
    "celsius": ("celsius", 1.0),
    "count": ("count", 1.0),
}
# The metric type whose capacity turns an absolute unit into percent.
CAPACITY_OF: Final = {("cores", CPU): CPU, ("bytes", MEMORY): MEMORY}
# Prometheus puts `exported_` before what the exporter itself says where the scraped target has such a label too: that goes first.
EXPORTED_LABELS: Final = ("exported_node", "exported_instance")
HOST_LABELS: Final = (*EXPORTED_LABELS, "node", "node_name", "nodename", "kubernetes_node", "host", "hostname", "instance")
MAX_FILE_BYTES: Final = 1_000_000

_SELECTOR: Final = re.compile(r"""([a-zA-Z_:][a-zA-Z0-9_:]*)(\{([^{}"']|"([^"\\]|\\.)*"|'([^'\\]|\\.)*')*\})?""")
_KEY: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]{0,63}")
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_FILE_KEYS: Final = frozenset({"built_in", "host_label", "rate_window", "subquery_step", "metrics"})
_METRIC_KEYS: Final = frozenset({"key", "type", "unit", "operators", "expressions", "host_label", "disabled"})
_EXPRESSION_KEYS: Final = frozenset({"query", "name", "unit", "host_label", "dated_by"})


@dataclass(frozen=True, slots=True)
class Expression:
    """
    One way to ask for a metric.

    Args:
        query: PromQL that answers one value a node, or several of which the highest counts; ``$window`` stands for the span of a rate.
        unit: Of its values.
        name: What is served as the metric's name.
        host_labels: Labels that name the node; empty for those of the catalogue.
        dated_by: A selector whose samples tell when the values were measured; empty: the time of the query.
    """

    query: str
    unit: str
    name: str
    host_labels: tuple[str, ...] = ()
    dated_by: str = ""

    @property
    def is_selector(self) -> bool:
        """Tell whether it is one series name, to which a range can be put without a subquery."""
        return _SELECTOR.fullmatch(self.query) is not None


@dataclass(frozen=True, slots=True)
class CatalogueMetric:
    """A metric and the expressions for it, the best first; of several metrics of one type, the first gives the newest values by type."""

    key: str
    metric_type: str
    operators: tuple[str, ...]
    expressions: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """
    All that is asked for.

    Args:
        metrics: In the order of the file.
        host_labels: The user's own choice of the labels that name the node; empty: :data:`HOST_LABELS`.
        rate_window: The span of a rate for the newest values; for averages it is their own window.
        subquery_step: The distance of the points of a subquery.
    """

    metrics: tuple[CatalogueMetric, ...]
    host_labels: tuple[str, ...] = ()
    rate_window: Window = FIVE_MINUTES
    subquery_step: Window = Window(60)  # noqa: RUF009 - frozen


def load_catalogue(path: Path | None = None) -> Catalogue:
    """
    Read the built-in catalogue and the user's file over it.

    Args:
        path: The user's file; its metrics replace built-in ones of the same key, and others are added after them.

    Raises:
        ProviderConfigError: If the file cannot be used; lists every problem with its place.
    """
    built_in = parse_catalogue(BUILT_IN.read_text(encoding="utf-8"), str(BUILT_IN))
    if path is None:
        return built_in
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ProviderConfigError(f"Prometheus: catalogue {path}: larger than {MAX_FILE_BYTES} bytes; is it the right file?")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProviderConfigError(f"Prometheus: catalogue {path}: {error}; give a YAML file that this user can read") from error
    return parse_catalogue(text, str(path), built_in)


def parse_catalogue(text: str, source: str, base: Catalogue | None = None) -> Catalogue:
    """
    Read a catalogue from YAML.

    Args:
        text: The YAML.
        source: What errors call it.
        base: What it adds to.

    Raises:
        ProviderConfigError: If it cannot be used; lists every problem with its place.
    """
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ProviderConfigError(f"Prometheus: catalogue {source}: not YAML: {error}") from error
    reader = _Reader()
    catalogue = reader.read(document, base or Catalogue(()))
    if reader.problems:
        raise ProviderConfigError(f"Prometheus: catalogue {source}: " + "; ".join(reader.problems))
    return catalogue


class _Reader:
    """Reads what YAML gives, and goes on after each problem so that all are told at once."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def read(self, document: object, base: Catalogue) -> Catalogue:
        entries = self._mapping(document, "the file", _FILE_KEYS)
        replaced: dict[str, CatalogueMetric | None] = {}
        for number, value in enumerate(self._list(entries.get("metrics", []), "metrics"), 1):
            place = f"metrics[{number}]"
            key, metric = self._metric(value, place)
            if key in replaced:
                self.problems.append(f"{place}: the key {key!r} stands twice")
            replaced[key] = metric
        kept = {metric.key: metric for metric in base.metrics} if entries.get("built_in", True) else {}
        merged = {**kept, **replaced}
        return replace(
            base,
            metrics=tuple(metric for metric in merged.values() if metric is not None),
            host_labels=self._labels(entries.get("host_label", []), "host_label") or base.host_labels,
            rate_window=self._window(entries, "rate_window", base.rate_window),
            subquery_step=self._window(entries, "subquery_step", base.subquery_step),
        )

    def _metric(self, value: object, place: str) -> tuple[str, CatalogueMetric | None]:
        entries = self._mapping(value, place, _METRIC_KEYS)
        key = self._text(entries, "key", place)
        if key and not _KEY.fullmatch(key):
            self.problems.append(f"{place}: key {key!r} must be letters, digits, - and _, a letter first")
        if entries.get("disabled") is True:
            return key, None
        metric_type, labels = self._text(entries, "type", place), self._labels(entries.get("host_label", []), f"{place}.host_label")
        operators = tuple(str(operator) for operator in self._list(entries.get("operators", list(OPERATORS)), f"{place}.operators"))
        unknown = [operator for operator in operators if operator not in OPERATORS]
        if unknown or not operators:
            self.problems.append(f"{place}.operators: {unknown}: use some of {', '.join(OPERATORS)}")
        values = self._list(entries.get("expressions", []), f"{place}.expressions")
        if not values:
            self.problems.append(f"{place}.expressions: give at least one expression, or `disabled: true`")
        expressions = tuple(
            self._expression(value, f"{place}.expressions[{number}]", entries.get("unit"), labels) for number, value in enumerate(values, 1)
        )
        return key, CatalogueMetric(key, metric_type, operators, expressions)

    def _expression(self, value: object, place: str, unit: object, labels: tuple[str, ...]) -> Expression:
        entries = {"query": value} if isinstance(value, str) else self._mapping(value, place, _EXPRESSION_KEYS)
        query = self._text(entries, "query", place)
        unit = entries.get("unit", unit)
        if unit not in UNITS:
            hint = suggest(unit, UNITS) if isinstance(unit, str) else ""
            self.problems.append(f"{place}: unit {unit!r}{hint}: use one of {', '.join(UNITS)}")
        selector = _SELECTOR.fullmatch(query)
        return Expression(
            query=query,
            unit=str(unit),
            name=str(entries.get("name") or (selector[1] if selector else query)),
            host_labels=self._labels(entries.get("host_label", []), f"{place}.host_label") or labels,
            dated_by=str(entries.get("dated_by") or (query if selector else "")),
        )

    def _mapping(self, value: object, place: str, known: frozenset[str]) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.problems.append(f"{place} must be a mapping with the keys {', '.join(sorted(known))}")
            return {}
        for key in value:
            if key not in known:
                self.problems.append(f"{place}: no key {key!r}{suggest(str(key), known)}; known are {', '.join(sorted(known))}")
        return value

    def _list(self, value: object, place: str) -> list[object]:
        if isinstance(value, list):
            return value
        self.problems.append(f"{place} must be a list")
        return []

    def _text(self, entries: Mapping[str, Any], key: str, place: str) -> str:
        value = entries.get(key)
        if isinstance(value, str) and value.strip():
            return value.strip()
        self.problems.append(f"{place}: {key} must be a text")
        return ""

    def _labels(self, value: object, place: str) -> tuple[str, ...]:
        labels = tuple(value) if isinstance(value, list) else (value,)
        if all(isinstance(label, str) and _LABEL.fullmatch(label) for label in labels):
            return labels
        self.problems.append(f"{place}: {value!r} must be the name of a label, or a list of names")
        return ()

    def _window(self, entries: Mapping[str, Any], key: str, default: Window) -> Window:
        if key not in entries:
            return default
        try:
            return Window.parse(str(entries[key]))
        except ValueError as error:
            self.problems.append(f"{key}: {error}")
            return default
