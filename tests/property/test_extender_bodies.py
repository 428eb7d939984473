"""Whatever a body holds: never a failure of the program, and a whole score for every node that was named."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from tests.builders import make_snapshot
from tests.fakes.extender import make_decider, make_question, read_scores
from trimaran_client.extender.wire import ExtenderBodyError

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(["trimaran", "1", "100m", "Always"])
)
PLAIN = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=12
)


def maybe(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Make mappings of the right shape, of which any part may be missing or anything else."""
    return st.fixed_dictionaries({}, optional={name: field | PLAIN for name, field in fields.items()})


RESOURCES = maybe(requests=maybe(cpu=SCALARS, memory=SCALARS), limits=maybe(cpu=SCALARS))
CONTAINERS = st.lists(maybe(name=st.text(max_size=4), resources=RESOURCES, restartPolicy=SCALARS), max_size=3)
WISHES = st.dictionaries(st.sampled_from(["trimaran.io/policy", "trimaran.io/target-cpu-percent", "trimaran.io/hold-seconds"]), SCALARS)
METADATA = maybe(
    name=SCALARS, namespace=SCALARS, uid=SCALARS, labels=WISHES, annotations=WISHES, ownerReferences=st.lists(maybe(kind=SCALARS))
)
SPEC = maybe(schedulerName=st.just("trimaran"), containers=CONTAINERS, initContainers=CONTAINERS, overhead=maybe(cpu=SCALARS))
PODS = maybe(metadata=METADATA, spec=SPEC, status=maybe(phase=SCALARS, conditions=PLAIN))
NAMES = st.lists(st.text(max_size=12) | st.sampled_from(["a", "hot", "stranger"]), max_size=8)
NODES = st.lists(maybe(metadata=maybe(name=st.text(max_size=8)), status=maybe(capacity=maybe(cpu=SCALARS))), max_size=4)
DOCUMENT = {"profiles": [{"overrides": ["policy", "target-cpu-percent"]}], "filter": {"enabled": True}}
# One for all: whatever came before must not matter either.
DECIDER = make_decider(DOCUMENT, make_snapshot({"a": 20.0, "hot": 90.0, "mute": None}))


@given(pod=PODS | PLAIN, names=NAMES)
@example(pod={"spec": {"schedulerName": "trimaran"}}, names=["a", "a", "", "\x00", "hot"])
def test_names_are_all_scored(pod: Any, names: list[str]) -> None:
    question = make_question(pod, names)
    scores = read_scores(DECIDER.prioritize(question))
    is_ours = isinstance(pod, dict) and isinstance(pod.get("spec"), dict) and pod["spec"].get("schedulerName") == "trimaran"
    candidates = [*dict.fromkeys(names)]
    assert list(scores) == candidates or (not is_ours and not scores)
    assert all(0 <= score <= 100 for score in scores.values())
    kept = json.loads(DECIDER.filter(question))
    assert candidates == sorted({*kept["NodeNames"], *kept["FailedAndUnresolvableNodes"]}, key=names.index)


@given(body=maybe(Pod=PODS, Nodes=maybe(items=NODES, metadata=PLAIN), NodeNames=NAMES, pod=PODS, NODES=PLAIN) | PLAIN)
def test_any_json_is_a_question_or_is_refused(body: Any) -> None:
    check(json.dumps(body).encode())


@given(body=st.binary(max_size=60), cut=st.integers(0, 200))
def test_any_bytes_are_a_question_or_are_refused(body: bytes, cut: int) -> None:
    check(body)
    check(make_question({"spec": {"schedulerName": "trimaran"}}, ["a", "b"])[:cut] + body)


def check(body: bytes) -> None:
    for answer in (DECIDER.prioritize, DECIDER.filter):
        try:
            reply = json.loads(answer(body))
        except ExtenderBodyError as error:
            assert str(error)  # noqa: PT017 - refused is fine, and says why
            continue
        scores = reply if isinstance(reply, list) else []
        assert all(type(each["Score"]) is int and 0 <= each["Score"] <= 100 for each in scores)
        assert len({each["Host"] for each in scores}) == len(scores)
