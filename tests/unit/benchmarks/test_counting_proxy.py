import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from tests.benchmarks.programs import wait_due
from tests.benchmarks.sources import CountingProxy, counting


@pytest.fixture
async def proxy() -> AsyncIterator[tuple[CountingProxy, str]]:
    """A proxy that remembers, before a source that numbers its answers."""
    numbers = iter(range(100))

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=str(next(numbers)))

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    async with TestServer(app) as source, counting(str(source.make_url("")).rstrip("/"), remembers=True) as found:
        yield found


async def ask(address: str, question: str) -> str:
    async with ClientSession() as session, session.post(address, data=question) as reply:
        return await reply.text()


async def test_the_same_question_at_another_time_gets_the_first_answer(proxy: tuple[CountingProxy, str]) -> None:
    counted, address = proxy
    answers = [await ask(address, question) for question in ("query=up&time=1", "query=up&time=2", "query=down&time=2")]
    assert answers == ["0", "0", "1"]
    assert (counted.requests, counted.questions) == (3, 2)


async def test_requests_wait_while_the_proxy_holds_them_and_are_not_counted(proxy: tuple[CountingProxy, str]) -> None:
    counted, address = proxy
    with counted.holding():
        asking = asyncio.create_task(ask(address, "query=up"))
        await wait_due(counted, timeout_seconds=10)
        assert (counted.waiting, counted.requests) == (1, 0)
        with counted.passing():
            assert await asking == "0"
        assert (counted.waiting, counted.requests) == (0, 1)
        asking = asyncio.create_task(ask(address, "query=up"))
        await wait_due(counted, timeout_seconds=10)
        assert not asking.done()
    assert await asking == "0"
