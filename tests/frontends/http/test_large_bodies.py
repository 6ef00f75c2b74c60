"""Large bodies, which threads decode: what is limited while they wait, and when a client leaves."""

import asyncio

from tests.frontends.http.listening import Start
from tests.frontends.http.raw import connect, post, settle

LARGE = b'{"text":"' + b"a" * 100_000 + b'"}'


async def test_a_call_ends_whose_client_leaves_while_its_body_is_decoded(start: Start) -> None:
    entered, decode, release = asyncio.Event(), asyncio.Event(), asyncio.Event()
    async with start(entered=entered, decode=decode, release=release) as port:
        async with connect(port) as connection:
            await connection.send(post("/held", LARGE))
            await entered.wait()
            calls = {task for task in asyncio.all_tasks() if "run_asgi" in repr(task.get_coro())}
        await settle(port)
        assert len(calls) == 1
        done, _ = await asyncio.wait(calls, timeout=60)
        assert done == calls, "nothing was decoded or released"


async def test_bodies_that_wait_for_a_thread_are_counted(start: Start) -> None:
    entered, decode = asyncio.Event(), asyncio.Event()
    limits = {"max_buffered_bytes": 150_000}
    async with (
        start(entered=entered, decode=decode, **limits) as port,
        connect(port) as first,
        connect(port) as second,
    ):
        await first.send(post("/echo", LARGE))
        await entered.wait()
        await second.send(post("/echo", LARGE))
        assert await second.status() == 429
        decode.set()
        assert await first.status() == 200
