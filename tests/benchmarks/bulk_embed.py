"""Bulk embedding: EmbedStream compared with the engine without gRPC, and the server's memory.

    python -m tests.benchmarks.bulk_embed --bundle bundles/minilm --json build/bulk.json

Both sides alternate on the same texts. Throughput is in texts per second. The server's memory is
read after each batch of results. A stream of a tenth of the length shows whether it is bounded.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from tokenizers import Tokenizer

from client.aio import AsyncClient
from loadtest.compare.candidates import ROOT
from loadtest.compare.engines import engine_command
from loadtest.compare.worker import Worker
from loadtest.machine import machine
from loadtest.prompts import LengthRange, Prompts, read_lines
from model.bundle import TOKENIZER_FILE
from tests.benchmarks import reports
from tests.benchmarks.bare_engine import newest_version
from tests.serving import server_process

BATCH = 64
LENGTHS = LengthRange(4, 60)
"""Lengths of texts in words."""
_ENGINE_TEXTS = 2048
"""Texts per call of the engine: below the limit of its queue."""
_RUN_SECONDS = 600.0


def _resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Engine:
    """The engine in a child process, paused between calls."""

    def __init__(self, bundle: Path, threads: int) -> None:
        self._worker = Worker(engine_command(), {}, ROOT / "build" / "bulk-engine.log", ROOT)
        self._worker.call(
            {"op": "load", "model": str(bundle), "threads": threads, "task": "embed"}, _RUN_SECONDS
        )
        self._tokenizer = Tokenizer.from_file(str(bundle / TOKENIZER_FILE))

    def texts_per_second(self, texts: Sequence[str]) -> float:
        """Throughput without tokenization."""
        inputs = [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]
        seconds = 0.0
        for start in range(0, len(inputs), _ENGINE_TEXTS):
            message = {"op": "run", "inputs": inputs[start : start + _ENGINE_TEXTS]}
            reply = self._worker.call({**message, "max_new_tokens": 0}, _RUN_SECONDS)
            seconds += reply["seconds"]
        return len(inputs) / seconds

    def close(self) -> None:
        self._worker.close()


async def _stream(target: str, model: str, texts: Sequence[str], pid: int) -> tuple[float, int]:
    """Texts per second, and the server's peak memory in bytes."""

    async def batches() -> AsyncIterator[Sequence[str]]:
        for start in range(0, len(texts), BATCH):
            yield texts[start : start + BATCH]

    peak = count = 0
    async with AsyncClient(target) as client:
        started = time.perf_counter()
        async for batch in client.embed_stream(model, batches()):
            count += len(batch.outputs)
            peak = max(peak, _resident_bytes(pid))
        seconds = time.perf_counter() - started
    if count != len(texts):
        raise SystemExit(f"got {count} of {len(texts)} vectors")
    return count / seconds, peak


def main(
    out: Annotated[Path, typer.Option("--json")],
    bundle: Annotated[Path, typer.Option(help="bundles/NAME of an encoder.")] = Path(
        "bundles/minilm"
    ),
    num_texts: Annotated[int, typer.Option("--texts", min=1)] = 10_000,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    threads: Annotated[int, typer.Option(min=1)] = len(os.sched_getaffinity(0)),
) -> None:
    """Measures both sides ``rounds`` times: about four minutes on two cores."""
    prompts = Prompts(read_lines(None), LENGTHS, seed=0)
    texts = [prompts.text(number) for number in range(num_texts)]
    engine = Engine(newest_version(bundle), threads)
    streamed: list[float] = []
    bare: list[float] = []
    memory: list[int] = []
    try:
        with server_process(bundle.parent, "--threads", str(threads)) as server:
            pid, target = server.process.pid, server.target
            idle = _resident_bytes(pid)
            _, peak_of_a_tenth = asyncio.run(
                _stream(target, bundle.name, texts[: num_texts // 10], pid)
            )
            engine.texts_per_second(texts[: num_texts // 10])
            for _ in range(rounds):
                rate, peak = asyncio.run(_stream(target, bundle.name, texts, pid))
                streamed.append(rate)
                memory.append(peak)
                bare.append(engine.texts_per_second(texts))
    finally:
        engine.close()
    report = {
        "model": bundle.name,
        "texts": num_texts,
        "batch": BATCH,
        "rounds": rounds,
        "threads": threads,
        "machine": machine()["processor"],
        "stream_texts_per_second": median(streamed),
        "bare_engine_texts_per_second": median(bare),
        "stream_over_bare_engine": median(a / b for a, b in zip(streamed, bare, strict=True)),
        "server_bytes_before": idle,
        "server_bytes_at_a_tenth": peak_of_a_tenth,
        "server_bytes_at_most": max(memory),
    }
    print(json.dumps(report, indent=2))
    reports.write(report, out)


if __name__ == "__main__":
    typer.run(main)
