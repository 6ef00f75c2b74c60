"""A server that goes wrong where it is told to, and what is known of it from outside."""

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
LONG: GenerationOptions = {"max_new_tokens": 240, "ignore_eos": True, "token_ids": True}


def faulty_server(
    bundles: Path, *options: str, run_seconds: float = 0.0
) -> AbstractContextManager[ServerProcess]:
    """With one lane, whose runs take at least ``run_seconds``."""
    return server_process(
        bundles,
        "--threads",
        "1",
        *options,
        module="tests.faults.faulty_server",
        **{RUN_SECONDS: str(run_seconds)},
    )


def metric(server: ServerProcess, name: str, **labels: str) -> float:
    """The sum of a metric's values whose labels are these."""
    with urllib.request.urlopen(server.metrics_url, timeout=60) as answer:
        text = answer.read().decode()
    total = 0.0
    for line in text.splitlines():
        found = re.fullmatch(rf"{name}{{(.*)}} (\S+)", line)
        if found and all(f'{key}="{value}"' in found[1] for key, value in labels.items()):
            total += float(found[2])
    return total


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Asks again and again until ``condition`` holds."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "what was waited for did not happen"


def code_of(call: Callable[[], object]) -> grpc.StatusCode:
    """The status that ``call`` ends with."""
    try:
        call()
    except TriuneError as error:
        return error.code
    return grpc.StatusCode.OK


@contextmanager
def holding(client: Client, count: int) -> Iterator[None]:
    """``count`` sequences run as long as the block."""
    streams = [client.generate_stream(DECODER, f"{number},", **LONG) for number in range(count)]
    try:
        for stream in streams:
            next(stream)
        yield
    finally:
        for stream in streams:
            stream.close()
