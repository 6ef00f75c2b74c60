"""Cost of each protocol for the same requests, as a table and JSON.

    python -m tests.benchmarks.doors --bundles bundles --json build/doors.json

``embed``: one text per call with ``minilm``. ``generate``: 16 tokens per call with ``smollm2``.
``stream``: the same, streamed. Every client sends its next request when it has the last answer.
The protocols alternate within each round. CPU seconds are the server process's, so other programs
on the machine change them little.
"""

import asyncio
import itertools
import json
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import grpc.aio
import typer

from loadtest.machine import machine
from protos.inference import open_inference_pb2 as oip
from protos.inference import open_inference_pb2_grpc
from protos.triune.v1 import inference_pb2 as pb
from protos.triune.v1 import inference_pb2_grpc
from tests.server.oip.messages import infer_request
from tests.serving import server_process

TEXT = "the quick brown fox jumps over the lazy dog near the river bank"
EMBEDDER, DECODER, NEW_TOKENS = "minilm", "smollm2", 16
Call = Callable[[str], Awaitable[None]]


def _triune(channel: grpc.aio.Channel) -> dict[str, Call]:
    stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)

    def generation(kind: Any, text: str) -> Any:
        request = kind(model=DECODER, inputs=[text])
        request.stopping.max_new_tokens = NEW_TOKENS
        request.stopping.ignore_eos = True
        return request

    async def embed(text: str) -> None:
        request = pb.EmbedRequest(model=EMBEDDER, inputs=[text])
        request.options.encoding_format = pb.ENCODING_FORMAT_FLOAT32_BYTES
        await stub.Embed(request)

    async def generate(text: str) -> None:
        await stub.Generate(generation(pb.GenerateRequest, text))

    async def stream(text: str) -> None:
        async for _ in stub.GenerateStream(generation(pb.GenerateStreamRequest, text)):
            pass

    return {"embed": embed, "generate": generate, "stream": stream}


def _open_inference(channel: grpc.aio.Channel) -> dict[str, Call]:
    stub: Any = open_inference_pb2_grpc.GRPCInferenceServiceStub(channel)
    options = {"max_new_tokens": NEW_TOKENS, "ignore_eos": True}

    async def embed(text: str) -> None:
        await stub.ModelInfer(infer_request(EMBEDDER, text_input=[text]))

    async def generate(text: str) -> None:
        await stub.ModelInfer(infer_request(DECODER, options, text_input=[text]))

    async def stream(text: str) -> None:
        call = stub.ModelStreamInfer()
        await call.write(infer_request(DECODER, options, text_input=[text]))
        await call.done_writing()
        response: oip.ModelStreamInferResponse
        async for response in call:
            assert not response.error_message, response.error_message

    return {"embed": embed, "generate": generate, "stream": stream}


def _cpu_seconds(pid: int) -> float:
    """User and system time of a process, from ``/proc``."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _run(call: Call, clients: int, seconds: float, pid: int, number: Any) -> dict[str, float]:
    count = 0
    started, cpu_before = time.perf_counter(), _cpu_seconds(pid)

    async def client() -> None:
        nonlocal count
        while time.perf_counter() - started < seconds:
            await call(f"{next(number)} {TEXT}")
            count += 1

    await asyncio.gather(*(client() for _ in range(clients)))
    elapsed = time.perf_counter() - started
    return {
        "requests_per_second": count / elapsed,
        "cpu_ms_per_request": 1000 * (_cpu_seconds(pid) - cpu_before) / count,
    }


async def _measure(
    target: str, pid: int, clients: int, rounds: int, seconds: float
) -> dict[str, dict[str, list[dict[str, float]]]]:
    async with grpc.aio.insecure_channel(target) as channel:
        doors = {"triune.v1": _triune(channel), "OIP": _open_inference(channel)}
        found: dict[str, dict[str, list[dict[str, float]]]] = {}
        number = itertools.count()
        for work in ("embed", "generate", "stream"):
            results: dict[str, list[dict[str, float]]] = {name: [] for name in doors}
            for calls in doors.values():  # warm up
                await _run(calls[work], clients, 1.0, pid, number)
            for round_number in range(rounds):
                # Alternates which one is first.
                order = list(doors)[:: 1 if round_number % 2 else -1]
                for name in order:
                    results[name].append(
                        await _run(doors[name][work], clients, seconds, pid, number)
                    )
            found[work] = results
        return found


def main(
    bundles: Path = Path("bundles"),
    clients: int = 32,
    rounds: int = 20,
    seconds: float = 1.0,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Prints medians, and the median of the ratios of neighbouring runs."""
    with server_process(bundles, "--threads", "1") as server:
        found = asyncio.run(_measure(server.target, server.process.pid, clients, rounds, seconds))
    print(f"{machine()}\n{clients} clients, {rounds} rounds of {seconds:g} s\n")
    for work, results in found.items():
        for name, runs in results.items():
            rate, cpu = (
                median(run[key] for run in runs)
                for key in ("requests_per_second", "cpu_ms_per_request")
            )
            print(f"{work:10} {name:10} {rate:8.1f} requests/s {cpu:8.3f} CPU ms per request")
        for key in ("requests_per_second", "cpu_ms_per_request"):
            ratios = [
                there[key] / here[key]
                for here, there in zip(results["triune.v1"], results["OIP"], strict=True)
            ]
            print(f"{work:10} OIP / triune.v1, {key}: {median(ratios):.3f}")
    if json_file is not None:
        json_file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
