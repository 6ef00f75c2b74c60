"""Sampling on the host and by ONNX graphs, both on this machine's CPU: milliseconds per step.

    python -m tests.benchmarks.sampling --json build/sampling.json

Logits are random over 49,152 tokens: flat (many likely tokens) or steep (a confident model). Both
sides alternate; each figure is the median of the rounds.
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
from server.constraint import Floats
from server.engine.decoding import sampling
from server.engine.decoding.logits import HostLogits, best_of
from server.engine.decoding.options import Sampling
from server.engine.gpu.device_sampler import DeviceSampler, SampleRequest
from server.engine.gpu.sampler_inputs import LogitsSpec
from server.engine.requests.job import GenerationJob
from server.engine.requests.sequence import DecodingSequence
from server.runtime.ort.backend import OrtBackend

VOCABULARY = 49_152
ROWS = (1, 8, 32)
METHODS = {
    "greedy": Sampling(),
    "temperature 0.8": Sampling(0.8),
    "top-k 50": Sampling(0.8, top_k=50),
    "top-p 0.9": Sampling(0.8, top_p=0.9),
    "min-p 0.05": Sampling(0.8, min_p=0.05),
}
STEEPNESS = {"flat": 1.5, "steep": 4.0}  # the scale of a Gumbel distribution


def main(
    rounds: Annotated[int, typer.Option(min=1)] = 9,
    threads: Annotated[int, typer.Option(min=1, help="Intra-op threads of the graph.")] = 1,
    out: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Measures sampling on the host and by graphs."""
    table = Table("logits", "sampling", "rows", "host ms", "graph ms", "left to the host")
    sampler = DeviceSampler(OrtBackend("cpu", threads).load_model, LogitsSpec(VOCABULARY))
    results = []
    for steepness, scale in STEEPNESS.items():
        rng = np.random.default_rng(1)
        logits = rng.gumbel(0, scale, (max(ROWS), VOCABULARY)).astype(np.float32)
        for method, options in METHODS.items():
            for num_rows in ROWS:
                batch_logits = logits[:num_rows]
                requests = [
                    _sample_request(index, options, float(rng.random()))
                    for index in range(num_rows)
                ]
                on_host, by_graph = _seconds(
                    rounds,
                    partial(_sample_on_host, batch_logits, requests),
                    partial(sampler.sample, HostLogits(batch_logits), requests),
                )
                tokens = sampler.sample(HostLogits(batch_logits), requests)
                for token, expected in zip(
                    tokens, _sample_on_host(batch_logits, requests), strict=True
                ):
                    assert token in (None, expected)
                left = tokens.count(None)
                case = {"logits": steepness, "sampling": method, "rows": num_rows}
                results.append(
                    {**case, "host_ms": on_host * 1e3, "graph_ms": by_graph * 1e3, "left": left}
                )
                figures = (f"{on_host * 1e3:.2f}", f"{by_graph * 1e3:.2f}", str(left))
                table.add_row(steepness, method, str(num_rows), *figures)
    Console().print(table)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        report = {"machine": machine(), "vocabulary": VOCABULARY, "threads": threads}
        out.write_text(json.dumps({**report, "results": results}, indent=1) + "\n")


def _sample_request(index: int, options: Sampling, uniform: float) -> SampleRequest:
    sequence = DecodingSequence.first_of(index, GenerationJob((1,), 1, sampling=options))
    return SampleRequest(index, sequence, uniform)


def _sample_on_host(logits: Floats, requests: list[SampleRequest]) -> list[int | None]:
    best = best_of(logits)
    options = requests[0].sequence.job.sampling
    if options.is_greedy:
        return best
    # The engine copies the logits before it edits them.
    return [
        sampling.sample(row.copy(), options, request.uniform)
        for row, request in zip(logits, requests, strict=True)
    ]


def _seconds(rounds: int, *runs: Callable[[], object]) -> list[float]:
    """Median seconds of each of ``runs``, timed alternately."""
    samples: list[list[float]] = [[] for _ in runs]
    for number in range(rounds + 1):
        for run, seconds in zip(runs, samples, strict=True):
            started = time.perf_counter()
            run()
            if number:  # the first round is a warm-up
                seconds.append(time.perf_counter() - started)
    return [median(seconds) for seconds in samples]


if __name__ == "__main__":
    typer.run(main)
