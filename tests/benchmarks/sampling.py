"""Choosing tokens on the host and by graphs, on this machine's CPU: milliseconds a step.

    python -m tests.benchmarks.sampling --json build/sampling.json

Logits are random, over 49,152 tokens: flat ones, where many tokens are likely, and steep ones, as
a model's that is sure. The two sides are measured in turn; a figure is the median of the rounds.
"""

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from loadtest.machine import machine
from server.engine.decoding import sampling
from server.engine.decoding.logits import HostLogits
from server.engine.decoding.options import Sampling
from server.engine.gpu.device_sampler import DeviceSampler, SampleRequest
from server.engine.gpu.sampler_graph import Shape
from server.engine.requests.sequence import DecodingSequence, GenerationJob
from server.runtime.ort.backend import OrtBackend

VOCABULARY = 49_152
ROWS = (1, 8, 32)
WAYS = {
    "greedy": Sampling(),
    "temperature 0.8": Sampling(0.8),
    "top-k 50": Sampling(0.8, top_k=50),
    "top-p 0.9": Sampling(0.8, top_p=0.9),
    "min-p 0.05": Sampling(0.8, min_p=0.05),
}
STEEPNESS = {"flat": 1.5, "steep": 4.0}  # the scale of a Gumbel distribution


def main(
    rounds: Annotated[int, typer.Option(min=1)] = 9,
    threads: Annotated[int, typer.Option(min=1, help="Of a run of a graph.")] = 1,
    out: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Measures the host and the graphs."""
    table = Table("logits", "sampling", "rows", "host ms", "graph ms", "left to the host")
    chooser = DeviceSampler(OrtBackend("cpu", threads).load_model, Shape(VOCABULARY))
    results = []
    for steepness, scale in STEEPNESS.items():
        rng = np.random.default_rng(1)
        logits = rng.gumbel(0, scale, (max(ROWS), VOCABULARY)).astype(np.float32)
        for way, options in WAYS.items():
            for num_rows in ROWS:
                given = logits[:num_rows]
                asks = [_ask(index, options, float(rng.random())) for index in range(num_rows)]
                on_host, by_graph = _seconds(
                    rounds,
                    partial(_on_the_host, given, asks),
                    partial(chooser.choose, HostLogits(given), asks),
                )
                found = chooser.choose(HostLogits(given), asks)
                for token, expected in zip(found, _on_the_host(given, asks), strict=True):
                    assert token in (None, expected)
                left = found.count(None)
                row = {"logits": steepness, "sampling": way, "rows": num_rows}
                results.append(
                    {**row, "host_ms": on_host * 1e3, "graph_ms": by_graph * 1e3, "left": left}
                )
                figures = (f"{on_host * 1e3:.2f}", f"{by_graph * 1e3:.2f}", str(left))
                table.add_row(steepness, way, str(num_rows), *figures)
    Console().print(table)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        report = {"machine": machine(), "vocabulary": VOCABULARY, "threads": threads}
        out.write_text(json.dumps({**report, "results": results}, indent=1) + "\n")


def _ask(index: int, options: Sampling, uniform: float) -> SampleRequest:
    row = DecodingSequence.first_of(index, GenerationJob((1,), 1, sampling=options))
    return SampleRequest(index, row, uniform)


def _on_the_host(logits: sampling.Floats, asks: list[SampleRequest]) -> list[int | None]:
    best = sampling.greedy(logits)
    options = asks[0].row.job.sampling
    if options.is_greedy:
        return best
    # The engine's rows are copied before they are adjusted.
    return [
        sampling.sample(row.copy(), options, ask.uniform)
        for row, ask in zip(logits, asks, strict=True)
    ]


def _seconds(rounds: int, *runs: Callable[[], object]) -> list[float]:
    """Of each, in turn."""
    samples: list[list[float]] = [[] for _ in runs]
    for number in range(rounds + 1):
        for run, seconds in zip(runs, samples, strict=True):
            started = time.perf_counter()
            run()
            if number:  # the first is not counted
                seconds.append(time.perf_counter() - started)
    return [median(seconds) for seconds in samples]


if __name__ == "__main__":
    typer.run(main)
