"""Starts a fault-injecting server and observes it through metrics and status codes."""

import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import grpc

from client.errors import TriuneError
from client.sync import Client
from client.types import GenerationOptions
from tests.faults.faulty_server import RUN_SECONDS
from tests.serving import ServerProcess, server_process

DECODER = "tiny-decoder"
# The models of the fault tests, and the fixtures of their bundles. The recurrent one is an
# encoder-decoder with attention: its input is the source.
MODELS = {
    DECODER: "tiny_bundles",
    "tiny-gru": "recurrent_bundles",
    "tiny-gru-int8": "recurrent_bundles",
}
LONG: GenerationOptions = {"max_new_tokens": 240, "ignore_eos": True, "token_ids": True}


def faulty_server(
    bundles: Path, *options: str, run_seconds: float = 0.0
) -> AbstractContextManager[ServerProcess]:
    """Starts a server with one lane whose runs take at least ``run_seconds``."""
    return server_process(
        bundles,
        "--threads",
        "1",
        *options,
        module="tests.faults.faulty_server",
        **{RUN_SECONDS: str(run_seconds)},
    )


def metric(server: ServerProcess, name: str, **labels: str) -> float:
    """Sums a metric over all series with these labels."""
    return metric_at(server.metrics_url, name, **labels)


def metric_at(url: str, name: str, **labels: str) -> float:
    """Sums a metric over all series with these labels."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        text = answer.read().decode()
    total = 0.0
    for line in text.splitlines():
        match = re.fullmatch(rf"{name}{{(.*)}} (\S+)", line)
        if match and all(f'{key}="{value}"' in match[1] for key, value in labels.items()):
            total += float(match[2])
    return total


def for_model(fault: str, model: str) -> str:
    """The name of a row of the report: that of the decoder has no model in it."""
    return fault if model == DECODER else f"{fault}, {model}"


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Polls until ``condition`` holds; fails after ``seconds``."""
    end_time = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end_time, "the condition did not become true in time"


def status_of(call: Callable[[], object]) -> grpc.StatusCode:
    """The status code of ``call``."""
    try:
        call()
    except TriuneError as error:
        return error.code
    return grpc.StatusCode.OK


@contextmanager
def running_sequences(client: Client, count: int, model: str = DECODER) -> Iterator[None]:
    """Keeps ``count`` sequences of ``model`` running inside the block."""
    streams = [client.generate_stream(model, f"{number},", **LONG) for number in range(count)]
    try:
        for stream in streams:
            next(stream)
        yield
    finally:
        for stream in streams:
            stream.close()
