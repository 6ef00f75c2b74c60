"""Gains of the KV cache and batching, and the server's overhead, as a table and JSON.

    python -m tests.benchmarks.engine --bundle bundles/smollm2 --json build/engine.json

Measurements are interleaved, and each figure is a median over the rounds, so that changes of
the machine's speed affect all figures alike. Compare the ratios.
"""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Annotated

import onnxruntime
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from client.aio import AsyncClient
from loadtest.machine import machine
from tests.benchmarks import reports
from tests.benchmarks.bare_engine import BareEngine, newest_version
from tests.serving import server_process

BATCHES = (1, 4, 8, 16, 32)
CACHED = (32, 64, 128, 256, 512, 1024)
PREFIX = 128  # tokens
NUM_CLIENTS = 16
NUM_NEW_TOKENS = 64
NUM_WARM_UPS = 8
"""Until every row of the cache was used: memory is slow when it is first used."""

Add = Callable[[str, float], None]


def main(
    bundle: Annotated[Path, typer.Option(help="bundles/NAME of a decoder.")] = Path(
        "bundles/smollm2"
    ),
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    threads: Annotated[int, typer.Option(min=1)] = len(os.sched_getaffinity(0)),
    out: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Measures the engine on one bundle."""
    console = Console()
    engine = BareEngine(newest_version(bundle), threads, max(BATCHES))
    manifest = engine.model.manifest
    samples: dict[str, list[float]] = {}

    def add(name: str, value: float) -> None:
        samples.setdefault(name, []).append(value)

    for _ in track(range(rounds), description="engine", console=console):
        add("recompute", 1.0 / engine.prefill_seconds(PREFIX))
        for batch in BATCHES:
            times = engine.decode_steps(batch, PREFIX, num_steps=24)
            add(f"decode_{batch}", batch / times.step_seconds)
            add(f"overhead_{batch}", times.overhead)
        for cached in CACHED:
            add(f"step_{cached}", engine.decode_steps(1, cached, num_steps=24).step_seconds)
    asyncio.run(_through_grpc(bundle, engine, threads, rounds, add, console))

    medians = {name: median(values) for name, values in samples.items()}
    report = {
        "model": manifest.name,
        "precision": manifest.precision,
        "machine": machine()["processor"],
        "cores": len(os.sched_getaffinity(0)),
        "threads": threads,
        "onnxruntime": onnxruntime.__version__,
        "rounds": rounds,
        "prefix_tokens": PREFIX,
        "decode_tokens_per_second": {b: medians[f"decode_{b}"] for b in BATCHES},
        "recompute_tokens_per_second": medians["recompute"],
        "decode_over_recompute": medians["decode_1"] / medians["recompute"],
        "batch_16_over_batch_1": medians["decode_16"] / medians["decode_1"],
        "overhead_outside_runtime": {b: medians[f"overhead_{b}"] for b in BATCHES},
        "step_seconds_by_cached_tokens": {c: medians[f"step_{c}"] for c in CACHED},
        "bare_engine_tokens_per_second": medians["bare"],
        "grpc_tokens_per_second": medians["grpc"],
        "grpc_over_bare_engine": median(
            grpc / bare for grpc, bare in zip(samples["grpc"], samples["bare"], strict=True)
        ),
    }
    _print(report, console)
    if out is not None:
        reports.write(report, out)


async def _through_grpc(
    bundle: Path, engine: BareEngine, threads: int, rounds: int, add: Add, console: Console
) -> None:
    """Compares 16 streaming clients of a server, on the same cores, with the bare engine."""
    name = engine.model.manifest.name
    options = ("--threads", str(threads), "--slots", str(max(BATCHES)))
    with server_process(bundle.parent, *options) as server:
        async with AsyncClient(server.target) as client:
            for number in track(range(-NUM_WARM_UPS, rounds), description="gRPC", console=console):
                # New prompts in each round, so that neither side hits its prefix cache.
                prompts = engine.prompts(NUM_CLIENTS, PREFIX, seed=100 + number)
                if number < 0:
                    await _stream_all(client, name, prompts)
                    continue
                add("bare", engine.generate(prompts, NUM_NEW_TOKENS))
                add("grpc", await _stream_all(client, name, prompts))


async def _stream_all(client: AsyncClient, model: str, prompts: list[tuple[int, ...]]) -> float:
    """Sends all prompts at once, each as a stream. Returns output tokens per second."""

    async def stream(prompt: tuple[int, ...]) -> int:
        count = 0
        async for piece in client.generate_stream(
            model,
            token_inputs=[prompt],
            max_new_tokens=NUM_NEW_TOKENS,
            ignore_eos=True,
            token_ids=True,
        ):
            count += len(piece.token_ids)
        return count

    started = time.perf_counter()
    counts = await asyncio.gather(*map(stream, prompts))
    return sum(counts) / (time.perf_counter() - started)


def _print(report: dict[str, object], console: Console) -> None:
    table = Table("figure", "value", title=f"{report['model']} {report['precision']}")
    for name, value in report.items():
        if isinstance(value, dict):
            for key, part in value.items():
                table.add_row(f"{name}[{key}]", f"{part:.4g}")
        else:
            table.add_row(name, f"{value:.4g}" if isinstance(value, float) else str(value))
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
