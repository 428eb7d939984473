import numpy as np
import pytest

from load_watcher.samples import FIFTEEN_MINUTES, Aggregate, SampleBatch, Window
from tests.builders import make_batch


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("15m", 900), ("2h", 7200), ("1d", 86400)])
def test_window_reads_what_it_writes(text: str, seconds: int) -> None:
    assert Window.parse(text).duration_seconds == seconds
    assert str(Window(seconds)) == text


@pytest.mark.parametrize("text", ["", "15", "m", "0m", "-5m", "1.5h", "15M", "5m ", "5m\n", "٥m", "9999999m"])
def test_window_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="is not a window"):
        Window.parse(text)


def test_windows_sort_by_duration() -> None:
    assert sorted([Window(900), Window(300), Window(600)]) == [Window(300), Window(600), Window(900)]


def test_batch_freezes_its_columns() -> None:
    batch = make_batch({"n1": 10.0})
    with pytest.raises(ValueError, match="read-only"):
        batch.latest["CPU"][0] = 99.0


def test_batch_refuses_a_column_of_another_length() -> None:
    with pytest.raises(ValueError, match="one row for each of its 2 nodes"):
        SampleBatch("test", ("n1", "n2"), np.array([1.0, 1.0]), {"CPU": np.array([1.0])})


def test_batch_refuses_integers_in_a_column() -> None:
    with pytest.raises(ValueError, match="float64"):
        make_batch({"n1": 1.0}, aggregates=(Aggregate("", "CPU", "AVG", FIFTEEN_MINUTES, np.array([1])),))


def test_batch_refuses_a_name_twice() -> None:
    with pytest.raises(ValueError, match="twice"):
        SampleBatch("test", ("n1", "n1"), np.array([1.0, 1.0]), {"CPU": np.array([1.0, 2.0])})


def test_batch_refuses_infos_of_another_length() -> None:
    with pytest.raises(ValueError, match="2 node infos for 1 nodes"):
        make_batch({"n1": 1.0}, infos=(None, None))
