"""How each kind of server is asked: one connection, any number of requests at once."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import aiohttp
import grpc.aio
import msgspec

from client import types
from client.aio import AsyncClient
from client.errors import TriuneError
from loadtest.compare.loads import Request
from loadtest.compare.servers import Protocol
from loadtest.driver import Answer, Clock
from loadtest.statistics import TokenArrival
from loadtest.tasks import Task, follow

Ask = Callable[[Request], Awaitable[Answer]]
TRANSLATE_METHOD = "/peer.Translator/Translate"
_TIMEOUT_SECONDS = 120.0
_GREEDY = {"temperature": 0, "stream": True, "ignore_eos": True}


class _NotUnderstoodError(Exception):
    """An answer that is none."""


@asynccontextmanager
async def connect(
    protocol: Protocol, task: Task, model: str, port: int, clock: Clock
) -> AsyncIterator[Ask]:
    """Something that asks the server on ``port`` and never raises for a failed request."""
    maker = {
        Protocol.TRIUNE: _triune,
        Protocol.LINES: _lines,
        Protocol.LLAMA: _llama,
        Protocol.COMPLETIONS: _completions,
        Protocol.EMBEDDINGS: _embeddings,
        Protocol.TRITON: _triton,
    }[protocol]
    connection: AbstractAsyncContextManager[Ask] = maker(task, model, port, clock)
    async with connection as ask:

        async def safe(request: Request) -> Answer:
            try:
                return await ask(request)
            except TriuneError as error:
                return Answer(status=error.code.name)
            except grpc.aio.AioRpcError as error:
                return Answer(status=error.code().name)
            except (aiohttp.ClientError, TimeoutError, _NotUnderstoodError, LookupError) as error:
                return Answer(status=f"{type(error).__name__}: {error}"[:200])

        yield safe


@asynccontextmanager
async def _triune(task: Task, model: str, port: int, clock: Clock) -> AsyncIterator[Ask]:
    async with AsyncClient(f"127.0.0.1:{port}", timeout_seconds=_TIMEOUT_SECONDS) as client:

        async def generate(request: Request) -> Answer:
            options = types.GenerationOptions(
                max_new_tokens=request.num_new_tokens, ignore_eos=True, token_ids=True
            )
            return await follow(client.generate_stream(model, request.text, **options), clock)

        async def translate(request: Request) -> Answer:
            options = types.GenerationOptions(
                max_new_tokens=request.num_new_tokens, ignore_eos=True
            )
            if request.beams > 1:
                options["beam_size"] = request.beams
            result = await client.translate(model, request.text, **options)
            return _whole(result.usage.output_tokens, clock)

        async def embed(request: Request) -> Answer:
            result = await client.embed(model, request.text)
            return Answer(input_tokens=result.usage.input_tokens)

        yield {Task.GENERATE: generate, Task.TRANSLATE: translate, Task.EMBED: embed}[task]


@asynccontextmanager
async def _lines(task: Task, model: str, port: int, clock: Clock) -> AsyncIterator[Ask]:
    del task, model
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary(TRANSLATE_METHOD)

        async def ask(request: Request) -> Answer:
            question = {
                "text": request.text,
                "max_new_tokens": request.num_new_tokens,
                "beams": request.beams,
            }
            encoded = msgspec.json.encode(question)
            reply: Any = await call(encoded, timeout=_TIMEOUT_SECONDS)
            return _whole(msgspec.json.decode(reply)["num_tokens"], clock)

        yield ask


@asynccontextmanager
async def _llama(task: Task, model: str, port: int, clock: Clock) -> AsyncIterator[Ask]:
    del task, model
    async with _session(port) as session:

        async def ask(request: Request) -> Answer:
            question = {"prompt": request.text, "n_predict": request.num_new_tokens, **_GREEDY}
            return await _read(session, "/completion", question, _llama_total, clock)

        yield ask


@asynccontextmanager
async def _completions(task: Task, model: str, port: int, clock: Clock) -> AsyncIterator[Ask]:
    del task, model
    async with _session(port) as session:

        async def ask(request: Request) -> Answer:
            question = {
                "model": "model",
                "prompt": request.text,
                "max_tokens": request.num_new_tokens,
                "stream_options": {"include_usage": True},
                **_GREEDY,
            }
            return await _read(session, "/v1/completions", question, _openai_total, clock)

        yield ask


@asynccontextmanager
async def _embeddings(task: Task, model: str, port: int, clock: Clock) -> AsyncIterator[Ask]:
    del task, model, clock
    async with _session(port) as session:

        async def ask(request: Request) -> Answer:
            question = {"model": "model", "input": [request.text], "encoding_format": "base64"}
            async with session.post("/v1/embeddings", data=msgspec.json.encode(question)) as reply:
                body = msgspec.json.decode(await _good(reply).read())
            if not body["data"][0]["embedding"]:
                raise _NotUnderstoodError("no vector came")
            return Answer(input_tokens=len(request.ids))

        yield ask


_PAD_TO = 32
"""Triton puts only what has the same length into a batch."""


@asynccontextmanager
async def _triton(task: Task, model: str, port: int, clock: Clock) -> AsyncIterator[Ask]:
    """Token ids in, and bytes out, by the binary extension of its protocol."""
    del task, model, clock
    async with _session(port) as session:

        async def ask(request: Request) -> Answer:
            ids = [_CLS, *request.ids, _SEP]
            padded = ids + [0] * (-len(ids) % _PAD_TO)
            question = {
                "inputs": [
                    {"name": "ids", "datatype": "INT64", "shape": [1, len(padded)], "data": padded}
                ],
                "outputs": [{"name": "vector", "parameters": {"binary_data": True}}],
            }
            encoded = msgspec.json.encode(question)
            async with session.post("/v2/models/model/infer", data=encoded) as reply:
                body = await _good(reply).read()
                vector = len(body) - int(reply.headers["Inference-Header-Content-Length"])
            if vector != 4 * _HIDDEN:
                raise _NotUnderstoodError(f"{vector} bytes of a vector came")
            return Answer(input_tokens=len(ids))

        yield ask


_CLS, _SEP, _HIDDEN = 101, 102, 384  # of MiniLM


def _session(port: int) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        f"http://127.0.0.1:{port}",
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(_TIMEOUT_SECONDS),
        headers={"Content-Type": "application/json"},
    )


def _good(reply: aiohttp.ClientResponse) -> aiohttp.ClientResponse:
    reply.raise_for_status()
    return reply


def _whole(num_tokens: int, clock: Clock) -> Answer:
    """An answer that comes all at once."""
    return Answer(arrivals=(TokenArrival(clock.now(), num_tokens),))


def _llama_total(event: dict[str, Any]) -> int | None:
    return event["tokens_predicted"] if event.get("stop") else None


def _openai_total(event: dict[str, Any]) -> int | None:
    usage = event.get("usage")
    return None if usage is None else usage["completion_tokens"]


async def _read(
    session: aiohttp.ClientSession,
    path: str,
    question: dict[str, Any],
    total_of: Callable[[dict[str, Any]], int | None],
    clock: Clock,
) -> Answer:
    """Follows server-sent events, a token each; the last tells how many there were in all."""
    arrivals: list[TokenArrival] = []
    total = None
    async with session.post(path, data=msgspec.json.encode(question)) as reply:
        async for line in _good(reply).content:
            data = line.removeprefix(b"data:").strip()
            if not line.startswith(b"data:") or data == b"[DONE]":
                continue
            event = msgspec.json.decode(data)
            total = total_of(event)
            rest = 1 if total is None else total - len(arrivals)
            if rest > 0:
                arrivals.append(TokenArrival(clock.now(), rest))
    if total is None:
        raise _NotUnderstoodError("the stream ended without its last event")
    return Answer(arrivals=tuple(arrivals))
