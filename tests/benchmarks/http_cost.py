"""What a request costs the server by gRPC and by HTTP: CPU seconds and requests per second.

``python -m tests.benchmarks.http_cost BUNDLES TASK MODEL`` starts a server on a folder of bundles
and sends the same requests by both, alternately. TASK: ``embed`` or ``generate``, which is
streamed. The clients run in this process, so the rates are those of a machine that they share with
the server; CPU seconds are the server's own.
"""

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from client.aio import AsyncClient
from tests.serving import ServerProcess, server_process

NUM_CLIENTS, NUM_ROUNDS, TEXT = 32, 5, "100,101,"
NUM_REQUESTS = {"embed": 400, "generate": 128}
NEW_TOKENS = 64
_TICKS = os.sysconf("SC_CLK_TCK")

Send = Callable[[], Awaitable[None]]


class HttpConnection:
    """One keep-alive connection; a minimal client, so that its own cost stays small."""

    def __init__(self, port: int, path: str, body: Any) -> None:
        data = json.dumps(body).encode()
        self._port = port
        self._request = (
            f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
        ).encode() + data
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self) -> None:
        """Sends the request and reads the whole response."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(self._request)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        if b"chunked" in head:
            await reader.readuntil(b"\r\n0\r\n\r\n")
        else:
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length))


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


async def measure(pid: int, senders: list[Send], count: int) -> tuple[float, float]:
    """Requests per second, and the server's CPU milliseconds per request."""
    left = count

    async def work(send: Send) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await send()

    cpu, started = cpu_seconds(pid), time.monotonic()
    await asyncio.gather(*(work(send) for send in senders))
    return count / (time.monotonic() - started), 1000 * (cpu_seconds(pid) - cpu) / count


def senders(
    server: ServerProcess, client: AsyncClient, task: str, model: str
) -> dict[str, list[Send]]:
    """``NUM_CLIENTS`` of each protocol."""
    if task == "embed":
        path: str = "/v1/embeddings"
        body: Any = {"model": model, "input": TEXT, "encoding_format": "base64"}

        async def by_grpc() -> None:
            await client.embed(model, TEXT)
    else:
        path = "/v1/completions"
        body = {"model": model, "prompt": TEXT, "max_tokens": NEW_TOKENS, "stream": True}
        body |= {"temperature": 0, "ignore_eos": True}

        async def by_grpc() -> None:
            options: Any = {"max_new_tokens": NEW_TOKENS, "ignore_eos": True}
            async for _ in client.generate_stream(model, TEXT, **options):
                pass

    return {
        "gRPC": [by_grpc] * NUM_CLIENTS,
        "HTTP": [HttpConnection(server.http_port, path, body).send for _ in range(NUM_CLIENTS)],
    }


async def run(server: ServerProcess, task: str, model: str) -> None:
    async with AsyncClient(server.target) as client:
        protocols = senders(server, client, task, model)
        figures: dict[str, list[tuple[float, float]]] = {name: [] for name in protocols}
        for round_number in range(NUM_ROUNDS + 1):
            for name, sending in protocols.items():
                result = await measure(server.process.pid, sending, NUM_REQUESTS[task])
                if round_number:  # the first warms up
                    figures[name].append(result)
        for name, results in figures.items():
            rate, cost = (statistics.median(values) for values in zip(*results, strict=True))
            print(f"{task} {name}: {rate:.1f} requests/s, {cost:.3f} ms CPU per request")


if __name__ == "__main__":
    with server_process(Path(sys.argv[1])) as process:
        asyncio.run(run(process, sys.argv[2], sys.argv[3]))
