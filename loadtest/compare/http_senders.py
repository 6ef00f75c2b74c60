"""Senders for HTTP servers: JSON, server-sent events, and Triton's binary extension."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from loadtest.compare.errors import MalformedReplyError
from loadtest.compare.loads import Request
from loadtest.driver import Clock, Response
from loadtest.statistics import TokenArrival
from loadtest.tasks import Task

TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Sender:
    """``encode`` makes what is sent, before it is; ``call`` sends it and waits for the answer."""

    encode: Callable[[Request], bytes]
    call: Callable[[bytes], Awaitable[Response]]


_GREEDY = {"temperature": 0, "stream": True, "ignore_eos": True}


@asynccontextmanager
async def llama(task: Task, model: str, port: int, clock: Clock) -> AsyncIterator[Sender]:
    """llama.cpp's own ``/completion``."""
    del task, model
    # The server closes idle connections between requests.
    async with _session(port, keep_alive=False) as session:

        def encode(request: Request) -> bytes:
            body = {"prompt": request.text, "n_predict": request.num_new_tokens, **_GREEDY}
            return msgspec.json.encode(body)

        async def call(payload: bytes) -> Response:
            return await _stream(session, "/completion", payload, _llama_total, clock)

        yield Sender(encode, call)


@asynccontextmanager
async def completions(task: Task, model: str, port: int, clock: Clock) -> AsyncIterator[Sender]:
    """OpenAI's API."""
    del task
    async with _session(port) as session:

        def encode(request: Request) -> bytes:
            body = {
                "model": model,
                "prompt": request.text,
                "max_tokens": request.num_new_tokens,
                "stream_options": {"include_usage": True},
                **_GREEDY,
            }
            return msgspec.json.encode(body)

        async def call(payload: bytes) -> Response:
            return await _stream(session, "/v1/completions", payload, _openai_total, clock)

        yield Sender(encode, call)


@asynccontextmanager
async def embeddings(task: Task, model: str, port: int, clock: Clock) -> AsyncIterator[Sender]:
    """OpenAI's API."""
    del task, clock
    async with _session(port) as session:

        def encode(request: Request) -> bytes:
            body = {"model": model, "input": [request.text], "encoding_format": "base64"}
            return msgspec.json.encode(body)

        async def call(payload: bytes) -> Response:
            async with session.post("/v1/embeddings", data=payload) as reply:
                body = msgspec.json.decode(await _checked(reply).read())
            if not body["data"][0]["embedding"]:
                raise MalformedReplyError("the response has no vector")
            return Response()

        yield Sender(encode, call)


@asynccontextmanager
async def tei(task: Task, model: str, port: int, clock: Clock) -> AsyncIterator[Sender]:
    """TEI's API, below the name of the model."""
    del task, clock
    async with _session(port) as session:

        def encode(request: Request) -> bytes:
            return msgspec.json.encode({"inputs": request.text})

        async def call(payload: bytes) -> Response:
            async with session.post(f"/{model}/embed", data=payload) as reply:
                body = await _checked(reply).read()
            if not body.startswith(b"[["):
                raise MalformedReplyError("the response has no vector")
            return Response()

        yield Sender(encode, call)


_PAD_TO = 32
"""Triton batches only inputs of equal length."""


@asynccontextmanager
async def triton(task: Task, model: str, port: int, clock: Clock) -> AsyncIterator[Sender]:
    """Triton: token ids in, bytes out, by the binary data extension of its protocol."""
    del task, model, clock
    async with _session(port) as session:

        def encode(request: Request) -> bytes:
            ids = [_CLS, *request.ids, _SEP]
            padded = ids + [0] * (-len(ids) % _PAD_TO)
            body = {
                "inputs": [
                    {"name": "ids", "datatype": "INT64", "shape": [1, len(padded)], "data": padded}
                ],
                "outputs": [{"name": "vector", "parameters": {"binary_data": True}}],
            }
            return msgspec.json.encode(body)

        async def call(payload: bytes) -> Response:
            async with session.post("/v2/models/model/infer", data=payload) as reply:
                body = await _checked(reply).read()
                num_bytes = len(body) - int(reply.headers["Inference-Header-Content-Length"])
            if num_bytes != 4 * _HIDDEN:
                raise MalformedReplyError(f"the vector has {num_bytes} bytes, not {4 * _HIDDEN}")
            return Response()

        yield Sender(encode, call)


_CLS, _SEP, _HIDDEN = 101, 102, 384  # MiniLM


def _session(port: int, *, keep_alive: bool = True) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        f"http://127.0.0.1:{port}",
        connector=aiohttp.TCPConnector(limit=0, force_close=not keep_alive),
        timeout=aiohttp.ClientTimeout(TIMEOUT_SECONDS),
        headers={"Content-Type": "application/json"},
    )


def _checked(reply: aiohttp.ClientResponse) -> aiohttp.ClientResponse:
    reply.raise_for_status()
    return reply


def _llama_total(event: dict[str, Any]) -> int | None:
    return event["tokens_predicted"] if event.get("stop") else None


def _openai_total(event: dict[str, Any]) -> int | None:
    usage = event.get("usage")
    return None if usage is None else usage["completion_tokens"]


_EVENT_END = b"\n\n"
_NUM_TAIL_EVENTS = 3
"""One of the last events of a stream has the number of tokens."""


async def _stream(
    session: aiohttp.ClientSession,
    path: str,
    payload: bytes,
    total_of: Callable[[dict[str, Any]], int | None],
    clock: Clock,
) -> Response:
    """Counts server-sent events, one per token; one of the last has the number of tokens."""
    arrivals: list[TokenArrival] = []
    last: list[bytes] = []
    unfinished = b""
    async with session.post(path, data=payload) as reply:
        async for chunk in _checked(reply).content.iter_any():
            *events, unfinished = (unfinished + chunk).split(_EVENT_END)
            if events:
                arrivals.append(TokenArrival(clock.now(), len(events)))
                last = [*last, *events][-_NUM_TAIL_EVENTS:]
    for event in reversed(last):
        data = event.strip().removeprefix(b"data:").strip()
        if data.startswith(b"{"):
            total = total_of(msgspec.json.decode(data))
            if total is not None:
                return Response(arrivals=fit_to_total(arrivals, total))
    tail = b" ".join(last).decode(errors="replace")
    raise MalformedReplyError(f"the stream ended without its last event: {tail}")


def fit_to_total(arrivals: list[TokenArrival], total: int) -> tuple[TokenArrival, ...]:
    """Adjusts ``arrivals`` to ``total`` tokens.

    Trailing events without a token are dropped; tokens without an event of their own count with
    the last event.
    """
    left = total
    found: list[TokenArrival] = []
    for arrival in arrivals:
        if not left:
            break
        found.append(TokenArrival(arrival.at_seconds, min(arrival.num_tokens, left)))
        left -= found[-1].num_tokens
    if left and found:
        end = found.pop()
        found.append(TokenArrival(end.at_seconds, end.num_tokens + left))
    return tuple(found)
