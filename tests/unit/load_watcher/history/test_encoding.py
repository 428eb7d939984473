from collections.abc import Callable

import numpy as np
import pytest

from load_watcher.history.columns import NEVER
from load_watcher.history.encoding import Members, decode_members, decode_times, decode_values, encode_members, encode_times, encode_values
from load_watcher.history.errors import HistoryCorruptError
from load_watcher.samples import NodeInfo
from trimaran_client.wire import ResourceQuantities

VALUES = np.array([0.0, -0.0, 1 / 3, np.nan, 100.0, 5e-324, 1e15])


def test_samples_come_back_bit_for_bit() -> None:
    assert decode_values(encode_values(VALUES, exactly=True), len(VALUES)).tobytes() == VALUES.tobytes()


def test_averages_come_back_to_seven_digits() -> None:
    np.testing.assert_allclose(decode_values(encode_values(VALUES, exactly=False), len(VALUES)), VALUES, rtol=6e-8, atol=1e-38)


def test_times_come_back_exactly() -> None:
    at_ms = np.array([NEVER, 0, 1_700_000_000_123, 1_700_000_030_000])
    assert decode_times(encode_times(at_ms, int(at_ms.max())), 4, int(at_ms.max())).tolist() == at_ms.tolist()


def test_members_come_back() -> None:
    info = NodeInfo(ResourceQuantities("8", "32Gi"), ResourceQuantities(cpu="7910m"))
    for members in (Members(("a", "knoten-ä")), Members(("a", "b"), (info, None))):
        assert decode_members(encode_members(members)) == members


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda blob: blob[:0],
    "first byte": lambda blob: b"\0" + blob[1:],
    "cut": lambda blob: blob[:-1],
    "one bit": lambda blob: blob[:20] + bytes([blob[20] ^ 1]) + blob[21:],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_blob_is_found(damage: Callable[[bytes], bytes]) -> None:
    with pytest.raises(HistoryCorruptError, match="damaged"):
        decode_values(damage(encode_values(VALUES, exactly=True)), len(VALUES))
    with pytest.raises(HistoryCorruptError, match="damaged"):
        decode_members(damage(encode_members(Members(tuple("abcdefghijklmnopqrstuvwxyz")))))


def test_a_blob_of_another_size_is_damaged() -> None:
    with pytest.raises(HistoryCorruptError, match="56 bytes for 6 nodes"):
        decode_values(encode_values(VALUES, exactly=True), 6)
