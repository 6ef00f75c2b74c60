"""Failed calls and lost connections leave nothing that only a full garbage collection frees."""

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from client.aio import AsyncClient
from client.channel import OPEN, Security
from client.errors import TriuneError
from client.options import Regex
from tests.server.in_process_server import serving

NUM_CALLS = 20
ERRORS = ("InvalidArgument", "ModelNotFound", "TooLong", "Grammar", "Unauthenticated", "Abort")
HELD = {"RPCState", "Connection", "RequestResponseCycle", *(f"{name}Error" for name in ERRORS)}


def held_objects() -> Counter[str]:
    names = (type(thing).__name__ for thing in gc.get_objects())
    return Counter(name for name in names if name in HELD)


@asynccontextmanager
async def without_collector() -> AsyncIterator[None]:
    """Runs the block without garbage collection; then nothing of its calls may be left."""
    gc.collect()
    before = held_objects()
    gc.disable()
    try:
        yield
        async with asyncio.timeout(5):
            while left := held_objects() - before:
                await asyncio.sleep(0)
    except TimeoutError:
        pytest.fail(f"only a garbage collection would free {dict(left)}")
    finally:
        gc.enable()


Call = Callable[[AsyncClient], Awaitable[object]]
FAILING: dict[str, Call] = {
    "unknown model": lambda client: client.classify("no-such-model", "text"),
    "too long": lambda client: client.generate("tiny-decoder", "7," * 5_000),
    "bad grammar": lambda client: client.generate("tiny-decoder", "7,", grammar=Regex("(")),
    "bad option": lambda client: client.generate("tiny-decoder", "7,", max_new_tokens=-1),
    "recording": lambda client: anext(client.transcribe_stream("tiny-decoder", b"RIFF")),
    "stream": lambda client: anext(client.generate_stream("tiny-decoder", "7,", max_new_tokens=-1)),
}


@pytest.mark.parametrize("call", FAILING.values(), ids=FAILING)
def test_rejected_calls_are_freed(tiny_bundles: Path, call: Call) -> None:
    asyncio.run(fail_often(call, tiny_bundles))


def test_calls_without_a_token_are_freed(tiny_bundles: Path, tokens: Path) -> None:
    def valid(client: AsyncClient) -> Awaitable[object]:
        return client.classify("tiny-classifier", "text")

    asyncio.run(fail_often(valid, tiny_bundles, Security(token="wrong"), tokens=tokens))


async def fail_often(call: Call, bundles: Path, security: Security = OPEN, **options: Any) -> None:
    """Makes calls that fail, to a server with ``options``. Each must be freed."""

    async def fail() -> None:
        with pytest.raises(TriuneError):
            await call(client)

    async with (
        serving(bundles, **options) as server,
        AsyncClient(f"127.0.0.1:{server.port}", security=security) as client,
    ):
        await fail()
        async with without_collector():
            for _ in range(NUM_CALLS):
                await fail()


async def lose_connection(port: int) -> None:
    """Asks for a stream, reads its beginning, and leaves."""
    body = b'{"model": "tiny-decoder", "prompt": "7,", "stream": true, "max_tokens": 200}'
    head = b"POST /v1/completions HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.transport.abort()


def test_lost_connections_are_freed(tiny_bundles: Path) -> None:
    async def run() -> None:
        async with serving(tiny_bundles, http="127.0.0.1:0") as server:
            assert server.http_port is not None
            await lose_connection(server.http_port)
            async with without_collector():
                for _ in range(NUM_CALLS):
                    await lose_connection(server.http_port)

    asyncio.run(run())
