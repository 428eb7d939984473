import json
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.benchmarks.compare import compare, main
from tests.benchmarks.pairs import pair
from tests.benchmarks.report import Row, at_least, at_most, for_context, write_json


def ratio(value: float, *, what: str = "GET identity, against the peer") -> Row:
    return at_least(what, value, 8, unit=" times", is_ratio=True)


def seconds(value: float) -> Row:
    return at_most("from start to first answer", value, 2, unit=" s")


def write(path: Path, *rows: Row) -> str:
    write_json(path, rows, {}, {})
    return str(path)


@pytest.mark.parametrize(("first", "second"), [(10.0, 12.0), (12.0, 10.0)])
def test_ratios_may_differ_by_a_fifth_whichever_is_larger(tmp_path: Path, first: float, second: float) -> None:
    assert main([write(tmp_path / "a", ratio(first)), write(tmp_path / "b", ratio(second))]) == 0


@pytest.mark.parametrize(("first", "second"), [(10.0, 12.1), (12.1, 10.0)])
def test_a_ratio_that_differs_by_more_fails(tmp_path: Path, first: float, second: float, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([write(tmp_path / "a", ratio(first)), write(tmp_path / "b", ratio(second))]) == 1
    assert "| 21 %      | **no**" in capsys.readouterr().out


def test_the_limit_can_be_given(tmp_path: Path) -> None:
    files = [write(tmp_path / "a", ratio(10)), write(tmp_path / "b", ratio(11))]
    assert main([*files, "--percent", "5"]) == 1


def test_absolute_figures_are_context(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([write(tmp_path / "a", seconds(1), ratio(9)), write(tmp_path / "b", seconds(3), ratio(9))]) == 0
    output = capsys.readouterr().out
    assert "from start to first answer     | 1     | 3      | 200 %     |             |" in output
    assert "1 of 1 ratios are within 20 %" in output


def test_a_ratio_that_only_one_run_has_fails(tmp_path: Path) -> None:
    more = [ratio(9), ratio(100, what="GET gzip, against the peer")]
    assert main([write(tmp_path / "a", *more), write(tmp_path / "b", more[0])]) == 1
    assert main([write(tmp_path / "b", more[0]), write(tmp_path / "a", *more)]) == 1


def test_rows_keep_the_order_of_the_first_run() -> None:
    one, other, context = ratio(1, what="one"), ratio(2, what="other"), for_context("memory", 3, unit=" MB")
    assert [each.what for each in compare([one, context], [other, context, one])] == ["one", "memory", "other"]


def test_a_figure_of_nothing_cannot_be_compared() -> None:
    (difference,) = compare([ratio(0)], [ratio(1)])
    assert difference.percent is None
    assert difference.is_within(20) is False


def test_a_row_says_between_which_its_readings_lie() -> None:
    row = at_least("GET", pair([10, 20, 30, 40, 50], [1, 1, 1, 1, 1]), 8, unit=" times", context="of 3.50 MB", is_ratio=True)
    assert row.result == "30 times (quartiles 20 to 40; of 3.50 MB)"
    assert row.reached
    assert json.loads(json.dumps(asdict(row)))["quartiles"] == [20, 40]
