"""The server's overhead over its engine, and the gain of the prefix cache, as JSON.

    python -m tests.benchmarks.served --bundle bundles/smollm2 --json build/served.json

Compares streaming clients of a server with as many clients of the engine without gRPC, which runs
in a child process and is paused between calls. Both sides alternate. Then compares the time to
first token (TTFT) of a prompt with that of a later prompt that shares its prefix.
"""

import asyncio
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np
import typer
import uvloop

from client.aio import AsyncClient
from loadtest import driver
from loadtest.compare.candidates import ROOT
from loadtest.compare.engines import engine_command
from loadtest.compare.worker import Worker
from loadtest.machine import machine
from loadtest.statistics import OK, Sample, summarise
from loadtest.tasks import follow
from model.bundle_files import read_manifest
from tests.benchmarks import reports
from tests.benchmarks.bare_engine import newest_version
from tests.serving import server_process

PROMPT_TOKENS = 128
NEW_TOKENS = 64
PREFIX_TOKENS = 500
SUFFIX_TOKENS = 8
WARMUP_SECONDS = 10.0
"""Until the first prompts are prefilled and sequences are in all phases."""
_LOAD_SECONDS = 120.0
_FIRST_ID, _NUM_IDS = 1000, 48_000


def _prompts(count: int, size: int, seed: int) -> list[list[int]]:
    random = np.random.default_rng(seed)
    rows: list[list[int]] = random.integers(_FIRST_ID, _NUM_IDS, (count, size)).tolist()
    return rows


async def _served(
    client: AsyncClient, model: str, prompts: Sequence[list[int]], clients: int, seconds: float
) -> float:
    """Tokens per second of ``clients`` concurrent streams."""
    clock = driver.MonotonicClock()
    window = driver.Window(warmup_seconds=WARMUP_SECONDS, duration_seconds=seconds)
    window.start_seconds = WARMUP_SECONDS
    samples: list[Sample] = []

    async def send(number: int) -> driver.Response:
        stream = client.generate_stream(
            model,
            token_inputs=[prompts[number]],
            max_new_tokens=NEW_TOKENS,
            ignore_eos=True,
            token_ids=True,
        )
        return await follow(stream, clock)

    await driver.closed_loop(send, samples.append, clock, window, concurrency=clients)
    assert all(sample.status == OK for sample in samples)
    summary = summarise(
        samples, start_seconds=window.start_seconds, duration_seconds=window.duration_seconds
    )
    return summary.output_tokens_per_second


async def _first_token_seconds(client: AsyncClient, model: str, prompt: list[int]) -> float:
    started = time.perf_counter()
    pieces = client.generate_stream(
        model, token_inputs=[prompt], max_new_tokens=4, ignore_eos=True, token_ids=True
    )
    seconds = None
    async for _ in pieces:
        seconds = seconds or time.perf_counter() - started
    assert seconds is not None
    return seconds


async def _reuse(client: AsyncClient, model: str, seed: int) -> float:
    """Time to first token of a prompt, relative to a later one with the same prefix."""
    prefix = _prompts(1, PREFIX_TOKENS, seed)[0]
    first, second = (prefix + suffix for suffix in _prompts(2, SUFFIX_TOKENS, seed + 1))
    cold = await _first_token_seconds(client, model, first)
    return cold / await _first_token_seconds(client, model, second)


async def _measure(
    target: str, model: str, worker: Worker, clients: int, seconds: float, rounds: int
) -> dict[str, list[float]]:
    figures: dict[str, list[float]] = {"served": [], "bare": [], "reuse": []}
    async with AsyncClient(target) as client:
        for seed in range(rounds):
            # More prompts than any engine can finish.
            prompts = _prompts(int(clients * (4 + seconds)), PROMPT_TOKENS, seed)
            figures["served"].append(await _served(client, model, prompts, clients, seconds))
            message = {
                "op": "clients",
                "clients": clients,
                "inputs": prompts,
                "max_new_tokens": NEW_TOKENS,
                "warmup_seconds": WARMUP_SECONDS,
                "seconds": seconds,
            }
            reply = await asyncio.to_thread(worker.call, message, _LOAD_SECONDS)
            figures["bare"].append(reply["num_tokens"] / reply["seconds"])
        for seed in range(10 * rounds):
            figures["reuse"].append(await _reuse(client, model, 1000 + 2 * seed))
    return figures


def main(
    out: Annotated[Path, typer.Option("--json")],
    bundle: Annotated[Path, typer.Option(help="bundles/NAME of a decoder.")] = Path(
        "bundles/smollm2"
    ),
    clients: Annotated[int, typer.Option(min=1)] = 32,
    seconds: Annotated[float, typer.Option(min=1)] = 10.0,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    threads: Annotated[int, typer.Option(min=1)] = len(os.sched_getaffinity(0)),
) -> None:
    """Measures both sides ``rounds`` times: about two minutes on two cores."""
    directory = newest_version(bundle)
    manifest = read_manifest(directory)
    worker = Worker(engine_command(), {}, ROOT / "build" / "served-engine.log", ROOT)
    try:
        message = {"op": "load", "model": str(directory), "threads": threads, "max_length": 2048}
        worker.call(message, _LOAD_SECONDS)
        with server_process(bundle.parent, "--threads", str(threads)) as server:
            figures = uvloop.run(
                _measure(server.target, manifest.name, worker, clients, seconds, rounds)
            )
    finally:
        worker.close()
    report = {
        "model": manifest.name,
        "precision": manifest.precision,
        "machine": machine()["processor"],
        "threads": threads,
        "rounds": rounds,
        "clients": clients,
        "prompt_tokens": PROMPT_TOKENS,
        "new_tokens": NEW_TOKENS,
        "served_tokens_per_second": median(figures["served"]),
        "bare_engine_tokens_per_second": median(figures["bare"]),
        "served_over_bare_engine": median(
            a / b for a, b in zip(figures["served"], figures["bare"], strict=True)
        ),
        "prefix_tokens": PREFIX_TOKENS,
        "first_token_times_sooner": median(figures["reuse"]),
    }
    print(json.dumps(report, indent=2))
    reports.write(report, out)


if __name__ == "__main__":
    typer.run(main)
