"""The snippets of ``docs/library.md`` from "Scoring" on print what stands below them."""

import contextlib
import io
import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs/library.md").read_text().partition("\n## Scoring\n")[2]
SECTIONS = ("Scoring", "Pods in flight", "Prediction", "Explanations", "A scheduler of your own")


@pytest.mark.filterwarnings("error")
def test_every_snippet_prints_what_the_text_says() -> None:
    """One after the other in one program, as the text says."""
    snippets = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", TEXT, re.DOTALL)
    assert len(snippets) == TEXT.count("```python") >= len(SECTIONS)
    names: dict[str, object] = {"__name__": "library"}
    for source, told in snippets:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(source, "docs/library.md", "exec"), names)  # noqa: S102
        assert printed.getvalue() == told


def test_the_sections_are_there() -> None:
    assert re.findall(r"^## (.*)", "## Scoring\n" + TEXT, re.MULTILINE)[: len(SECTIONS)] == list(SECTIONS)
