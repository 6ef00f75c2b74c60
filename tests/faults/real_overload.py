"""Overload of a real model, and two clients of whom one floods: rows of the fault table.

    python -m tests.faults.real_overload --bundles bundles

The server has one half of the cores and the load the other half, so that the load takes nothing
from the server; run it when nothing else runs. Offered loads are multiples of the capacity that a
closed loop measures at the beginning. Half of the arrivals are Poisson, half come in bursts of
eight.
"""

import asyncio
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import grpc
import typer

from client.aio import AsyncClient
from client.channel import Security
from client.errors import TriuneError
from tests.faults.record import percentile, record
from tests.serving import server_process

MODEL, SLOTS, QUEUE, NEW_TOKENS = "smollm2", 8, 16, 24
LOADS = (0.5, 1.0, 2.0, 4.0, 8.0)
BURST = 8
WARM_UP_SECONDS = 4.0
TOKENS = {"flood": "first-token-of-the-flood", "polite": "second-token-of-the-polite"}


@dataclass
class Result:
    """What one load got."""

    per_second: float = 0.0
    first_token_seconds: list[float] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


async def send_request(client: AsyncClient, number: int, result: Result) -> None:
    """Generates a text; counts how it ended."""
    started, is_first = time.monotonic(), True
    prompt = f"The number {number} is"
    try:
        async for _ in client.generate_stream(
            MODEL, prompt, max_new_tokens=NEW_TOKENS, ignore_eos=True
        ):
            if is_first:
                result.first_token_seconds.append(time.monotonic() - started)
            is_first = False
        result.counts["good"] += 1
    except TriuneError as error:
        is_refused = error.code == grpc.StatusCode.RESOURCE_EXHAUSTED
        result.counts["refused" if is_refused else "late"] += 1


async def closed_loop(client: AsyncClient, num_clients: int, seconds: float) -> Result:
    """Each of ``num_clients`` sends its next request when the last one ended.

    Runs for :data:`WARM_UP_SECONDS`, which do not count, and ``seconds``.
    """
    result, started = Result(), time.monotonic() + WARM_UP_SECONDS

    async def send_requests(first: int) -> None:
        number = first
        while time.monotonic() - started < seconds:
            one = Result()
            await send_request(client, number, one)
            if time.monotonic() > started:
                result.counts += one.counts
            if one.counts["refused"]:
                await asyncio.sleep(0.1)  # the retry delay that the server asks for
            number += 1000

    await asyncio.gather(*(send_requests(number) for number in range(num_clients)))
    result.per_second = result.counts["good"] / (time.monotonic() - started)
    return result


async def open_loop(client: AsyncClient, per_second: float, seconds: float) -> Result:
    """Sends requests at random times, whatever happens to them."""
    rng, result = random.Random(0), Result()
    arrivals = []
    for size in (1, BURST):
        at = rng.expovariate(per_second / 2 / size)
        while at < seconds:
            arrivals += [at] * size
            at += rng.expovariate(per_second / 2 / size)
    started = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for number, at in enumerate(sorted(arrivals)):
            await asyncio.sleep(max(started + at - time.monotonic(), 0.0))
            tasks.create_task(send_request(client, number, result))
    result.per_second = result.counts["good"] / (time.monotonic() - started)
    return result


async def measure_overload(target: str, seconds: float) -> None:
    """Goodput and time to first token at each load."""
    figures: dict[str, float] = {}
    async with AsyncClient(
        target, timeout_seconds=120, security=Security(token=TOKENS["polite"])
    ) as client:
        closed = await closed_loop(client, SLOTS, seconds)
        goodput = []
        for load in LOADS:
            result = await open_loop(client, load * closed.per_second, seconds)
            goodput.append(result.per_second)
            figures[f"goodput_at_{load:g}x_per_second"] = result.per_second
            first = percentile(result.first_token_seconds, 0.99)
            figures[f"p99_of_first_token_at_{load:g}x_milliseconds"] = 1000 * first
            print(load, result.per_second, first, dict(result.counts))
    figures["goodput_at_4x_over_the_peak"] = goodput[LOADS.index(4.0)] / max(goodput)
    # All that may be accepted, at the rate of the closed loop.
    figures["queue_limit_milliseconds"] = 1000 * (SLOTS + QUEUE) / closed.per_second
    record(
        2,
        f"offered load of 0.5 to 8 × the capacity, half of it in bursts, {MODEL} in int8",
        "goodput stays on a plateau, time to first token is bounded by the queue limit",
        capacity_per_second=closed.per_second,
        **figures,
    )


async def measure_fairness(target: str, seconds: float) -> None:
    """One client keeps 64 requests open, the other 8, which is all slots."""
    async with (
        AsyncClient(target, timeout_seconds=120, security=Security(token=TOKENS["flood"])) as flood,
        AsyncClient(
            target, timeout_seconds=120, security=Security(token=TOKENS["polite"])
        ) as polite,
    ):
        alone = await closed_loop(polite, SLOTS, seconds)
        flooding, served = await asyncio.gather(
            closed_loop(flood, 64, seconds), closed_loop(polite, SLOTS, seconds)
        )
    print(alone.per_second, flooding.per_second, served.per_second, flooding.counts, served.counts)
    total = flooding.per_second + served.per_second
    record(
        2,
        f"one of two clients floods, {MODEL} in int8",
        "each gets half of the server",
        requests_open_of_the_flood=64,
        requests_open_of_the_other=SLOTS,
        share_of_the_other=served.per_second / total,
        refused_of_the_other=served.counts["refused"],
        goodput_alone_per_second=alone.per_second,
        goodput_together_per_second=total,
    )


def main(
    bundles: Annotated[Path, typer.Option(help="A folder with smollm2.")] = Path("bundles"),
    seconds: Annotated[float, typer.Option(min=1, help="Of each load.")] = 15.0,
) -> None:
    """Measures and records both rows."""
    measurements: tuple[Callable[[str, float], Coroutine[Any, Any, None]], ...] = (
        measure_overload,
        measure_fairness,
    )
    cores = sorted(os.sched_getaffinity(0))
    of_server = cores[: len(cores) // 2]
    if not of_server:
        raise typer.BadParameter("the server and the load need a core each")
    os.sched_setaffinity(0, cores[len(of_server) :])
    pinned = ("taskset", "--cpu-list", ",".join(map(str, of_server)))
    with tempfile.TemporaryDirectory() as folder:
        tokens = Path(folder) / "tokens"
        tokens.write_text("".join(f"{name}:{token}\n" for name, token in TOKENS.items()))
        options = (
            "--tokens",
            str(tokens),
            "--lanes",
            "1",
            "--slots",
            str(SLOTS),
            "--max-queue",
            str(QUEUE),
        )
        with server_process(bundles, *options, wrapper=pinned) as server:
            for measure in measurements:
                asyncio.run(measure(server.target, seconds))


if __name__ == "__main__":
    typer.run(main)
