from collections.abc import AsyncIterator

import pytest

from trimaran_client.bodies import read_past


class Endless:
    """A body that does not end; ``chunks_sent`` tells how much of it was asked for."""

    def __init__(self) -> None:
        self.chunks_sent = 0

    async def chunks(self) -> AsyncIterator[bytes]:
        while True:
            self.chunks_sent += 1
            yield b"abcd"


async def pieces(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def test_no_more_is_read_than_tells_that_it_is_too_much() -> None:
    peer = Endless()
    assert await read_past(peer.chunks(), 6) == b"abcdabcd"
    assert peer.chunks_sent == 2


@pytest.mark.parametrize("chunks", [(), (b"abc",), (b"abc", b"def")])
async def test_a_body_up_to_the_limit_is_whole(chunks: tuple[bytes, ...]) -> None:
    assert await read_past(pieces(*chunks), 6) == b"".join(chunks)
