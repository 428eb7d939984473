"""What a program says of itself in the text format of Prometheus, as the tests read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


@dataclass(frozen=True)
class Metrics:
    """The metrics of a program at one instant."""

    samples: Sequence[Sample]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the body of ``GET /metrics``."""
        return cls([sample for family in text_string_to_metric_families(text) for sample in family.samples])

    def total(self, name: str, **labels: str) -> float:
        """Sum the series called *name* that have *labels*; a series that has not counted yet is not there, and adds nothing."""
        return sum(sample.value for sample in self.samples if sample.name == name and labels.items() <= sample.labels.items())

    def mean(self, name: str, **labels: str) -> float:
        """
        Return the mean of what a histogram has seen.

        Raises:
            ZeroDivisionError: When it has seen nothing.
        """
        return self.total(f"{name}_sum", **labels) / self.total(f"{name}_count", **labels)
