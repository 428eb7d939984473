"""The wire of kube-scheduler extenders: read as Go's own decoder writes it, written as Go's own decoder reads it."""

import json

import numpy as np
import pytest

from trimaran_client.extender.wire import (
    MAX_NODES,
    MAX_POD_BYTES,
    ExtenderArgs,
    ExtenderBodyError,
    PriorityEncoder,
    decode_args,
    encode_filtered,
    encode_priorities,
    to_short_scale,
)

NAMES_QUESTION = b'{"Pod":{"spec":{}},"Nodes":null,"NodeNames":["a","b"]}'
NODES_QUESTION = b'{"Pod":{},"Nodes":{"metadata":{},"items":[{"metadata":{"name":"a"}},{}]},"NodeNames":null}'


def decode(body: bytes) -> tuple[bytes, tuple[str, ...] | None, tuple[bytes, ...] | None]:
    args = decode_args(body)
    return args.pod, args.names, args.nodes


class TestQuestion:
    def test_of_names(self) -> None:
        assert decode(NAMES_QUESTION) == (b'{"spec":{}}', ("a", "b"), None)

    def test_of_whole_nodes(self) -> None:
        assert decode(NODES_QUESTION) == (b"{}", None, (b'{"metadata":{"name":"a"}}', b"{}"))

    @pytest.mark.parametrize(
        ("body", "expected"),
        [
            (b'{"Pod":{},"Nodes":null,"NodeNames":null}', (b"{}", None, None)),
            (b'{"Pod":null,"Nodes":null,"NodeNames":[]}', (b"null", (), None)),
            (b"{}", (b"null", None, None)),
            (b'{"Pod":{},"Nodes":{"items":null},"NodeNames":null}', (b"{}", None, ())),
            (b'{"Pod":{},"Nodes":{"metadata":{}},"NodeNames":null}', (b"{}", None, ())),
            (b'{"pod":{},"nodenames":["a"]}', (b"{}", ("a",), None)),
            (b'{"POD":{"x":1},"NODES":{"ITEMS":[1]},"NODENAMES":null}', (b'{"x":1}', None, (b"1",))),
            (b'{"Pod":{},"Nodes":{"Items":[{}]},"NodeNames":null}', (b"{}", None, (b"{}",))),
            (b'{"Pod":{},"Nodes":null,"NodeNames":["a"],"More":[{}]}', (b"{}", ("a",), None)),
            (b' { "NodeNames" : [ "a" ] , "Pod" : { } } \n', (b"{ }", ("a",), None)),
        ],
    )
    def test_report_69_null_and_missing_fields_and_any_case_of_keys(self, body: bytes, expected: object) -> None:
        assert decode(body) == expected

    def test_names_count_where_both_are_sent(self) -> None:
        assert decode(b'{"Pod":{},"Nodes":{"items":[{}]},"NodeNames":["a"]}') == (b"{}", ("a",), None)

    def test_a_name_that_comes_twice_is_one_candidate(self) -> None:
        assert decode(b'{"Pod":{},"NodeNames":["b","a","b"]}')[1] == ("b", "a")

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b" ",
            b"[]",
            b"null",
            b"7",
            b"<html>",
            b'{"Pod":{}',
            b'{"Pod":{},"NodeNames":"a"}',
            b'{"Pod":{},"NodeNames":[1]}',
            b'{"Pod":{},"Nodes":[]}',
            b'{"Pod":{},"Nodes":{"items":{}}}',
            b'{"Pod":{},"NodeNames":["\\ud800"]}',
            b'{"Pod":{},"NodeNames":["\xff"]}',
            b'{"\xff":1}',
            b'{"Pod":' + b"[" * 100_000,
            b'{"pod":{},"nodes":{"x":' + b"[" * 100_000,
        ],
        ids=lambda body: repr(body[:24]),
    )
    def test_what_is_none_is_an_error_of_one_kind(self, body: bytes) -> None:
        with pytest.raises(ExtenderBodyError, match="not what a kube-scheduler sends"):
            decode_args(body)

    @pytest.mark.parametrize(
        "body",
        [
            json.dumps({"Pod": {}, "NodeNames": ["a"] * (MAX_NODES + 1)}).encode(),
            json.dumps({"Pod": {}, "Nodes": {"items": [0] * (MAX_NODES + 1)}}).encode(),
            json.dumps({"Pod": "x" * MAX_POD_BYTES, "NodeNames": ["a"]}).encode(),
        ],
        ids=["names", "nodes", "pod"],
    )
    def test_what_no_cluster_has_is_an_error_too(self, body: bytes) -> None:
        """It would take seconds, and stay remembered."""
        with pytest.raises(ExtenderBodyError, match="not what a kube-scheduler sends"):
            decode_args(body)


NODES = ('quote"back\\', "plain", "línea\n")


def encode(encoder: PriorityEncoder, nodes: tuple[str, ...], scores: dict[str, int]) -> bytes:
    rows, values = ([nodes.index(name) for name in scores], [*scores.values()])
    return encoder.encode(nodes, np.array(rows, dtype=np.int64), np.array(values, dtype=np.int64))


class TestScores:
    """What kube-scheduler makes of a reply: one element with a fraction, a text or a number beyond int64 spoils all of it."""

    def test_are_a_bare_array_of_hosts_and_whole_numbers(self) -> None:
        assert encode_priorities(["a", "b"], [0, 100]) == b'[{"Host":"a","Score":0},{"Host":"b","Score":100}]'

    def test_of_no_nodes_are_an_array_too(self) -> None:
        assert encode_priorities([], []) == b"[]"
        assert encode(PriorityEncoder(), NODES, {}) == b"[]"

    def test_of_known_and_of_unknown_nodes_are_written_alike(self) -> None:
        """From whatever was written of the same nodes before."""
        encoder = PriorityEncoder()
        for scores in ({NODES[2]: 1, NODES[0]: 2}, {NODES[2]: 1, NODES[0]: 100}, {NODES[0]: 100}, dict.fromkeys(NODES, 0), {NODES[1]: 7}):
            assert encode(encoder, NODES, scores) == encode_priorities(scores, scores.values())

    def test_a_newer_snapshot_brings_its_own_names(self) -> None:
        encoder = PriorityEncoder()
        for name in ("old", "new"):
            assert json.loads(encode(encoder, (name,), {name: 7})) == [{"Host": name, "Score": 7}]

    def test_report_73_the_short_scale_is_in_proportion(self) -> None:
        scores = [98, 28, 0, 100, 4, 5, 14, 15]
        assert list(map(to_short_scale, scores)) == to_short_scale(np.array(scores)).tolist() == [10, 3, 0, 10, 0, 1, 1, 2]


class TestFilter:
    def test_names_come_back_as_names_with_the_reason_of_the_others(self) -> None:
        args = ExtenderArgs(b"{}", ("a", "b", "c"), None)
        assert json.loads(encode_filtered(args, ("a", "b", "c"), {"b": "hot"})) == {
            "Nodes": None,
            "NodeNames": ["a", "c"],
            "FailedAndUnresolvableNodes": {"b": "hot"},
            "Error": "",
        }

    def test_nodes_come_back_as_they_were_sent(self) -> None:
        nodes = (b'{"metadata":{"name":"a"},"x":1.50}', b'{"metadata":{"name":"b"}}')
        body = encode_filtered(ExtenderArgs(b"{}", None, nodes), ("a", "b"), {"b": "hot"})
        assert nodes[0] in body
        assert json.loads(body)["NodeNames"] is None
        assert json.loads(body)["FailedAndUnresolvableNodes"] == {"b": "hot"}

    def test_a_node_that_was_not_offered_is_not_named(self) -> None:
        body = encode_filtered(ExtenderArgs(b"{}", ("a",), None), ("a",), {"other": "hot"})
        assert b"other" not in body

    def test_no_node_at_all_is_still_told_in_the_form_that_was_asked(self) -> None:
        """Without both fields, kube-scheduler would take no node for feasible, too, but count it as an error."""
        assert json.loads(encode_filtered(ExtenderArgs(b"{}", (), None), (), {}))["NodeNames"] == []
        assert json.loads(encode_filtered(ExtenderArgs(b"{}", None, ()), (), {}))["Nodes"] == {"items": []}
