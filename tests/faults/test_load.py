"""Offered load beyond what the server can do: what it does does not become less."""

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from client.aio import AsyncClient
from client.errors import TriuneError
from tests.faults.record import percentile, record
from tests.faults.serving import DECODER, faulty_server
from tests.serving import ServerProcess

pytestmark = pytest.mark.heavy

SLOTS, RUN_SECONDS, NEW_TOKENS = 8, 0.02, 12
LOADS = (0.5, 1.0, 2.0, 4.0)
SECONDS = 10.0
# With all slots busy; each step gives every slot a token, and takes at least its sleep.
DEADLINE_SECONDS = 3.0


@pytest.fixture(scope="module")
def server(tiny_bundles: Path) -> Iterator[ServerProcess]:
    options = ("--slots", str(SLOTS), "--max-queue", str(2 * SLOTS))
    with faulty_server(tiny_bundles, *options, run_seconds=RUN_SECONDS) as running:
        yield running


async def offered(client: AsyncClient, per_second: float, seconds: float) -> dict[str, float]:
    """Poisson arrivals for ``seconds``; what came of them."""
    rng = random.Random(0)
    first_tokens: list[float] = []
    counts = {"good": 0, "refused": 0, "late": 0}

    async def ask(number: int) -> None:
        started = time.monotonic()
        try:
            pieces = client.generate_stream(
                DECODER,
                f"{number % 90},",
                max_new_tokens=NEW_TOKENS,
                ignore_eos=True,
                token_ids=True,
            )
            first = True
            async for _ in pieces:
                if first:
                    first_tokens.append(time.monotonic() - started)
                first = False
            counts["good"] += 1
        except TriuneError as error:
            is_refused = error.code == grpc.StatusCode.RESOURCE_EXHAUSTED
            counts["refused" if is_refused else "late"] += 1

    begun, number, due = time.monotonic(), 0, 0.0
    async with asyncio.TaskGroup() as tasks:
        while due < seconds:
            await asyncio.sleep(max(begun + due - time.monotonic(), 0.0))
            tasks.create_task(ask(number))
            number, due = number + 1, due + rng.expovariate(per_second)
    return {
        "goodput": counts["good"] / (time.monotonic() - begun),
        "first": percentile(first_tokens, 0.99),
        "refused": counts["refused"],
        "late": counts["late"],
    }


async def capacity(client: AsyncClient) -> float:
    """Requests per second of as many callers as slots, each asking again at once."""
    begun, done = time.monotonic(), 0

    async def ask() -> None:
        nonlocal done
        while time.monotonic() - begun < SECONDS / 2:
            await client.generate(DECODER, "1,", max_new_tokens=NEW_TOKENS, ignore_eos=True)
            done += 1

    await asyncio.gather(*(ask() for _ in range(SLOTS)))
    return done / (time.monotonic() - begun)


async def test_goodput_stays_on_a_plateau(server: ServerProcess) -> None:
    figures: dict[str, float] = {}
    async with AsyncClient(server.target, timeout_seconds=DEADLINE_SECONDS) as client:
        most = figures["capacity_per_second"] = await capacity(client)
        for load in LOADS:
            told = await offered(client, load * most, SECONDS)
            figures[f"goodput_at_{load:g}x_per_second"] = told["goodput"]
            figures[f"p99_of_first_token_at_{load:g}x_milliseconds"] = 1000 * told["first"]
    assert figures["goodput_at_4x_per_second"] > 0.7 * figures["goodput_at_1x_per_second"]
    record(
        2,
        "offered load of 0.5 to 4 × the server's capacity",
        "goodput stays on a plateau, time to first token stays bounded",
        **figures,
    )
