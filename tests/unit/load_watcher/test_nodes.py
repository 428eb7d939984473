import pytest

from load_watcher.providers.nodes import AMBIGUOUS_HOST, UNKNOWN_NODE, Match, NodeObject, NodeResolver, NodeTable, NoMatch, Strength
from trimaran_client.kube import ObjectMeta

NODES = {
    "worker-1": ("10.0.0.1", "fd00::1", "Worker-1.Internal", "203.0.113.7"),
    "worker-2.example.org": ("10.0.0.2",),
    "a.one.org": (),
    "a.two.org": (),
}


def resolve(text: str, *, suffix: str = "") -> Match | NoMatch:
    return NodeResolver(NODES, suffix=suffix).resolve(text)


@pytest.mark.parametrize(
    ("text", "node", "strength"),
    [
        ("worker-1", "worker-1", Strength.NAME),
        ("worker-1:9100", "worker-1", Strength.NAME),
        ("10.0.0.1:9100", "worker-1", Strength.ADDRESS),
        ("10.0.0.1", "worker-1", Strength.ADDRESS),
        ("[fd00::1]:9100", "worker-1", Strength.ADDRESS),
        ("[fd00:0:0::0001]:9100", "worker-1", Strength.ADDRESS),
        ("fd00::1", "worker-1", Strength.ADDRESS),
        ("worker-1.internal:9100", "worker-1", Strength.ADDRESS),
        ("203.0.113.7:9100", "worker-1", Strength.ADDRESS),
        ("worker-2", "worker-2.example.org", Strength.SHORT_NAME),
        ("worker-1.elsewhere.org", "worker-1", Strength.SHORT_NAME),
        ("a.one.org:9100", "a.one.org", Strength.NAME),
    ],
)
def test_report_1_a_host_is_resolved_to_the_node_name(text: str, node: str, strength: Strength) -> None:
    found = resolve(text)
    assert isinstance(found, Match)
    assert (found.node, found.strength) == (node, strength)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("a", AMBIGUOUS_HOST),
        ("a.three.org", UNKNOWN_NODE),
        ("worker-2.other.org", UNKNOWN_NODE),
        ("10.0.0.99:9100", UNKNOWN_NODE),
        ("10", UNKNOWN_NODE),
        ("", UNKNOWN_NODE),
        (":9100", UNKNOWN_NODE),
        ("[", UNKNOWN_NODE),
    ],
)
def test_what_fits_no_node_or_several_is_refused(text: str, rule: str) -> None:
    found = resolve(text)
    assert isinstance(found, NoMatch)
    assert found.rule == rule


def test_the_suffix_may_stand_on_either_side_and_goes_before_the_short_name() -> None:
    assert resolve("worker-1.cluster", suffix=".cluster") == Match("worker-1", Strength.SUFFIX, "worker-1.cluster")
    assert resolve("a", suffix=".two.org") == Match("a.two.org", Strength.SUFFIX, "a")


def test_an_address_of_two_nodes_is_refused_and_both_are_named() -> None:
    found = NodeResolver({"n1": ("10.0.0.1",), "n2": ("10.0.0.1",)}).resolve("10.0.0.1:9100")
    assert found == NoMatch(AMBIGUOUS_HOST, "10.0.0.1 fits the nodes n1, n2")


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("n1:9100", "n1"),
        ("n1.example.org", "n1"),
        ("10.0.0.1:9100", "10.0.0.1"),
        ("[fd00::1]:9100", "fd00::1"),
        (".example.org", ".example.org"),
    ],
)
def test_without_a_node_list_names_pass_through_without_port_and_suffix(text: str, node: str) -> None:
    found = NodeResolver(None, suffix=".example.org").resolve(text)
    assert isinstance(found, Match)
    assert (found.node, found.strength) == (node, Strength.UNCHECKED)


def test_a_node_without_status_or_addresses_is_known_by_its_name() -> None:
    table = NodeTable()
    table.on_update("n1", NodeObject(ObjectMeta(name="n1")))
    assert table.addresses == {"n1": ()}
    table.on_delete("n1", NodeObject(ObjectMeta(name="n1")))
    assert not table.addresses
    assert not table.capacities
