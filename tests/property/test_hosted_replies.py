"""Whatever a hosted source answers: a batch of sound shape or one error of the contract, and never a value that was not measured."""

import io
import json
import ssl
from typing import Any

import msgspec
import numpy as np
import pytest
import sseclient
from hypothesis import given
from hypothesis import strategies as st
from signalfx.signalflow import sse

from load_watcher.errors import ProviderError, ProviderReplyError
from load_watcher.providers.allowance import Allowance
from load_watcher.providers.datadog_points import build_datadog_batch
from load_watcher.providers.nodes import NodeResolver
from load_watcher.providers.points import NodeView
from load_watcher.providers.signalflow import Computation, Endpoint, Output
from load_watcher.providers.signalfx import build_signalfx_batch
from load_watcher.samples import FIFTEEN_MINUTES, SampleBatch
from tests.builders import NOW
from tests.fakes.watcher import FakeClock

VIEW = NodeView(NodeResolver(None, suffix=".x"))
LAST_MS = int(NOW // 60 * 60_000)

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.just(10**400) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
hosts = st.sampled_from(["a.x", "a", "b.x", ".x", ""])
values = st.floats(0, 100) | st.none() | st.sampled_from([-1.0, 1e9, 5, "abc", True, 10**400, float("inf"), float("nan"), [1]])
times_ms = st.integers(0, 16).map(lambda minute: LAST_MS - 60_000 * minute)


def check(batch: SampleBatch) -> None:
    columns = [*batch.latest.values(), *(item.values for item in batch.aggregates)]
    has_value = np.any([~np.isnan(column) for column in columns], axis=0) if columns else np.zeros(len(batch.nodes), dtype=np.bool_)
    for column in columns:
        assert (((column >= 0) & (column <= 150)) | np.isnan(column)).all()
    np.testing.assert_array_equal(~np.isnan(batch.sampled_at), has_value)
    assert all(batch.nodes)


# SignalFlow


def either(sound: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly what the protocol documents, sometimes anything."""
    return st.integers(0, 9).flatmap(lambda draw: sound if draw else anything)


def fields(**sound: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return either(st.fixed_dictionaries({name: either(strategy) for name, strategy in sound.items()}))


series = st.sampled_from(["s1", "s2", "s3"])
labels = st.sampled_from(["CPU", "Memory", "other"])
messages = st.one_of(
    st.tuples(st.just("metadata"), fields(tsId=series, properties=fields(sf_streamLabel=labels, host=hosts))),
    st.tuples(st.just("data"), fields(logicalTimestampMs=times_ms, data=st.lists(fields(tsId=series, value=values), max_size=3))),
    st.tuples(st.just("message"), fields(logicalTimestampMs=times_ms, message=fields(messageCode=st.just("FIND_LIMITED_RESULT_SET")))),
    st.tuples(st.just("control-message"), fields(event=st.just("JOB_START"), timestampMs=times_ms, handle=st.text(max_size=3))),
    st.tuples(st.sampled_from(["error", "event", "expired-tsid", "control-message", "unknown-kind"]), anything),
)
END = ("control-message", {"event": "END_OF_CHANNEL", "timestampMs": LAST_MS})


ENDPOINT = Endpoint("SignalFx", "https://h", "", ssl.create_default_context(), Allowance("SignalFx", FakeClock()), "")


def read_stream(text: bytes) -> Output | ProviderError:
    channel = sse.SSEComputationChannel(sseclient.SSEClient(io.BytesIO(text)))
    try:
        return Computation(ENDPOINT, read_timeout_seconds=1)._collect(channel)
    except ProviderError as error:
        return error


@given(st.lists(messages, max_size=12))
@pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated:DeprecationWarning")  # the package's, on Python 3.13
def test_any_stream_is_a_batch_or_one_error(stream: list[tuple[str, Any]]) -> None:
    text = "".join(f"event: {event}\ndata: {json.dumps(payload)}\n\n" for event, payload in [*stream, END])
    outcome = read_stream(text.encode())
    if isinstance(outcome, ProviderError):
        assert str(outcome).startswith("SignalFx: ")
    else:
        check(build_signalfx_batch(outcome, window=FIFTEEN_MINUTES, end_at=NOW, view=VIEW))


@given(st.binary(max_size=60))
def test_any_bytes_in_a_stream_are_one_error(noise: bytes) -> None:
    assert isinstance(read_stream(b"event: data\ndata: " + noise + b"\n\n"), ProviderError)


# Datadog


@st.composite
def replies(draw: st.DrawFn) -> Any:
    times = draw(st.lists(times_ms, max_size=4))
    count = draw(st.integers(0, 4))
    described = [
        draw(fields(group_tags=hosts.map(lambda host: [f"host:{host}"]), query_index=st.integers(-1, 4), unit=st.none()))
        for _ in range(count)
    ]
    rows = [draw(either(st.lists(values, min_size=len(times), max_size=len(times)))) for _ in range(count)]
    attributes = {"series": described, "times": times, "values": rows}
    return draw(fields(data=fields(attributes=st.just(attributes)), errors=st.none()))


@given(replies())
def test_any_reply_is_a_batch_or_one_error(reply: Any) -> None:
    try:
        batch, _ = build_datadog_batch(json.dumps(reply).encode(), window=FIFTEEN_MINUTES, end_at=NOW, view=VIEW)
    except (msgspec.DecodeError, ProviderReplyError):
        return
    check(batch)
