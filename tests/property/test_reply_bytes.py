"""What is written straight from columns is, byte for byte, what the wire model's objects are written as."""

from unittest import mock

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from load_watcher.last_good import Column, ColumnKey, LastGood
from load_watcher.samples import FIFTEEN_MINUTES, FIVE_MINUTES, TEN_MINUTES, NodeInfo
from load_watcher.snapshot import Choice, Withheld, encode_snapshot
from tests.builders import NOW
from tests.reference_reply import build_metrics
from trimaran_client.wire import Data, ResourceQuantities, encode_json

ODD_TEXTS = ("", "n1", 'quote "', "comma, colon: }", "line\nbreak", "\\n", "\x00\x1f", "é\u2028😀", 'a","value":null,"b', "null")

texts = st.sampled_from(ODD_TEXTS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
numbers = st.sampled_from([np.nan, np.nan, 0.0, -0.0, 12.5, 1e-9, 4e-10, 1e16, 1e200, -3.0, np.inf]) | st.floats(0, 100)
infos = st.sampled_from(
    [None, NodeInfo(ResourceQuantities("8", "32Gi"), ResourceQuantities("7910m")), NodeInfo(ResourceQuantities(), ResourceQuantities())]
)
keys = st.builds(
    ColumnKey,
    metric_type=st.sampled_from(["CPU", "Memory"]) | texts,
    operator=st.sampled_from(["AVG", "STD", "P90"]) | texts,
    window=st.sampled_from([None, FIVE_MINUTES, TEN_MINUTES, FIFTEEN_MINUTES]),
    name=texts,
    unit=st.sampled_from(["", "percent"]) | texts,
)
choices = st.builds(Choice.of, st.lists(st.sampled_from([FIVE_MINUTES, FIFTEEN_MINUTES])), st.lists(st.sampled_from(["AVG", "P90"])))


@st.composite
def held(draw: st.DrawFn) -> LastGood:
    nodes = tuple(draw(st.lists(texts, max_size=7, unique=True)))
    size = len(nodes)

    def draw_column() -> Column:
        values = np.array(draw(st.lists(numbers, min_size=size, max_size=size)), dtype=np.float64)
        ages = np.array(draw(st.lists(st.sampled_from([0.0, 7.5, 400.0]), min_size=size, max_size=size)), dtype=np.float64)
        origins = tuple(draw(st.lists(texts, min_size=size, max_size=size))) if draw(st.booleans()) else ()
        return Column(values, np.where(np.isnan(values), np.nan, NOW - ages), np.ones(size, dtype=np.bool_), origins)

    columns = {key: draw_column() for key in draw(st.lists(keys, max_size=6, unique=True))}
    seconds = np.array(draw(st.lists(st.sampled_from([np.nan, 20.0, 10.06200000000001]), min_size=size, max_size=size)), dtype=np.float64)
    return LastGood(
        draw(texts), nodes, columns, tuple(draw(infos) for _ in nodes), members_known=True, seen_at=np.zeros(size), sample_seconds=seconds
    )


@given(held(), choices, st.data())
def test_the_reply_is_that_of_the_wire_model(good: LastGood, choice: Choice, data: st.DataObject) -> None:
    left_out = data.draw(st.lists(st.sampled_from(good.nodes), unique=True)) if good.nodes else []
    withheld = {node: Withheld("expired", "old") for node in left_out}
    model = build_metrics(good, now=NOW, stale_seconds=300, window=FIFTEEN_MINUTES, choice=choice, withheld=withheld)
    with mock.patch("load_watcher.snapshot.nodes._NODES_AT_ONCE", 3):
        snapshot = encode_snapshot(good, now=NOW, stale_seconds=300, window=FIFTEEN_MINUTES, choice=choice, withheld=withheld)
    assert snapshot.identity.body == encode_json(model)
    assert model.data is not None
    entries = model.data.node_metrics_map
    assert isinstance(entries, dict)
    for node in (*good.nodes, "not there"):
        reply = snapshot.cut_host(node)
        if node in entries:
            assert reply is not None
            assert reply.body == encode_json(msgspec.structs.replace(model, data=Data({node: entries[node]})))
        else:
            assert reply is None
    listed = [entry for entry in entries.values() if entry is not None]
    assert snapshot.newest_sampled_at == max((each.sampled_at for each in listed if isinstance(each.sampled_at, int)), default=None)
    assert {node: snapshot.status_of(node)[0] for node in entries} == {node: entry.status for node, entry in entries.items() if entry}
    assert sum(snapshot.status_counts.values()) == len(good.nodes)
