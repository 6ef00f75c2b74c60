"""Goodput under offered load beyond the server's capacity."""

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
# Enough for a request when all slots are busy: each step takes at least ``RUN_SECONDS``.
DEADLINE_SECONDS = 3.0


@pytest.fixture(scope="module")
def server(tiny_bundles: Path) -> Iterator[ServerProcess]:
    options = ("--slots", str(SLOTS), "--max-queue", str(2 * SLOTS))
    with faulty_server(tiny_bundles, *options, run_seconds=RUN_SECONDS) as running:
        yield running


async def run_offered_load(
    client: AsyncClient, per_second: float, seconds: float
) -> dict[str, float]:
    """Sends Poisson arrivals for ``seconds``; returns goodput, p99 first token and rejections."""
    rng = random.Random(0)
    first_tokens: list[float] = []
    counts = {"good": 0, "refused": 0, "late": 0}

    async def send_request(number: int) -> None:
        started = time.monotonic()
        try:
            chunks = client.generate_stream(
                DECODER,
                f"{number % 90},",
                max_new_tokens=NEW_TOKENS,
                ignore_eos=True,
                token_ids=True,
            )
            first = True
            async for _ in chunks:
                if first:
                    first_tokens.append(time.monotonic() - started)
                first = False
            counts["good"] += 1
        except TriuneError as error:
            is_rejected = error.code == grpc.StatusCode.RESOURCE_EXHAUSTED
            counts["refused" if is_rejected else "late"] += 1

    start_time, number, next_arrival = time.monotonic(), 0, 0.0
    async with asyncio.TaskGroup() as tasks:
        while next_arrival < seconds:
            await asyncio.sleep(max(start_time + next_arrival - time.monotonic(), 0.0))
            tasks.create_task(send_request(number))
            number, next_arrival = number + 1, next_arrival + rng.expovariate(per_second)
    return {
        "goodput": counts["good"] / (time.monotonic() - start_time),
        "first": percentile(first_tokens, 0.99),
        "refused": counts["refused"],
        "late": counts["late"],
    }


async def measure_capacity(client: AsyncClient) -> float:
    """Requests per second with a closed loop of one client per slot."""
    start_time, done = time.monotonic(), 0

    async def send_request() -> None:
        nonlocal done
        while time.monotonic() - start_time < SECONDS / 2:
            await client.generate(DECODER, "1,", max_new_tokens=NEW_TOKENS, ignore_eos=True)
            done += 1

    await asyncio.gather(*(send_request() for _ in range(SLOTS)))
    return done / (time.monotonic() - start_time)


async def test_goodput_does_not_drop_under_overload(server: ServerProcess) -> None:
    figures: dict[str, float] = {}
    async with AsyncClient(server.target, timeout_seconds=DEADLINE_SECONDS) as client:
        max_rate = figures["capacity_per_second"] = await measure_capacity(client)
        for load in LOADS:
            results = await run_offered_load(client, load * max_rate, SECONDS)
            figures[f"goodput_at_{load:g}x_per_second"] = results["goodput"]
            figures[f"p99_of_first_token_at_{load:g}x_milliseconds"] = 1000 * results["first"]
    assert figures["goodput_at_4x_per_second"] > 0.7 * figures["goodput_at_1x_per_second"]
    record(
        2,
        "offered load of 0.5 to 4 × the server's capacity",
        "goodput stays on a plateau, time to first token stays bounded",
        **figures,
    )
