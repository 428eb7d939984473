"""
Which expression of each metric answers here.

Pure but for its memory: it says what to ask, and is told the answers. A choice stays until it stops answering, so that a metric does not
change its meaning because another rule has appeared.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from load_watcher.providers.catalogue import Catalogue, CatalogueMetric, Expression
from load_watcher.providers.prometheus_batch import ChosenMetric
from load_watcher.providers.promql import Part, write_newest

# A rule that is installed later, or an exporter, need not be seen at once; asking costs a request.
ASK_AGAIN_SECONDS: Final = 60.0


class Discovery:
    """
    Choose the first expression of each metric that answers.

    A metric with a single expression has nothing to choose and is not asked about.

    Args:
        catalogue: The metrics.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._chosen: dict[str, Expression] = {
            metric.key: metric.expressions[0] for metric in catalogue.metrics if len(metric.expressions) == 1
        }
        self._asked_at = -float("inf")
        self._is_stopped = False
        self.errors: dict[str, str] = {}

    @property
    def chosen(self) -> dict[str, ChosenMetric]:
        """Answer what is used, by metric key in the order of the catalogue."""
        return {
            metric.key: ChosenMetric(metric, self._chosen[metric.key]) for metric in self._catalogue.metrics if metric.key in self._chosen
        }

    @property
    def unanswered(self) -> tuple[CatalogueMetric, ...]:
        """Answer the metrics for which nothing answers."""
        return tuple(metric for metric in self._catalogue.metrics if metric.key not in self._chosen)

    def list_questions(self, now: float) -> tuple[Part, ...]:
        """
        List what to ask now: every expression of the metrics without a choice.

        That is at most once a minute, unless a choice has just stopped answering or there has been none yet.
        """
        has_choice = any(len(chosen.metric.expressions) > 1 for chosen in self.chosen.values())
        if has_choice and not self._is_stopped and now - self._asked_at < ASK_AGAIN_SECONDS:
            return ()
        return tuple(
            Part(f"{metric.key}:{number}", f"count({write_newest(expression, self._catalogue)})")
            for metric in self._catalogue.metrics
            if metric.key not in self._chosen
            for number, expression in enumerate(metric.expressions)
        )

    def learn(self, answered: Collection[str], errors: Mapping[str, str], now: float) -> None:
        """
        Take the answers to the questions.

        Args:
            answered: The keys of the questions that at least one series answers.
            errors: Key of a question → why the server cannot answer it.
            now: Unix seconds.
        """
        self._asked_at, self._is_stopped = now, False
        self.errors = dict(errors)
        for metric in self._catalogue.metrics:
            if metric.key not in self._chosen:
                for number, expression in enumerate(metric.expressions):
                    if f"{metric.key}:{number}" in answered:
                        self._chosen[metric.key] = expression
                        break

    def note_silence(self, keys: Collection[str]) -> None:
        """Take back the choice for metrics that have stopped answering, where there is another expression to try."""
        for metric in self._catalogue.metrics:
            if metric.key in keys and metric.key in self._chosen and len(metric.expressions) > 1:
                del self._chosen[metric.key]
                self._is_stopped = True
